"""Pre-training objectives on WordNet's glosses: same width, depth, tokens and batches.

    python benchmarks/pretraining.py [--runs RUNS] [--only bert] [--jobs 2] [--steps 1600]
    python benchmarks/pretraining.py --table [--write docs/pretraining.md]
    python benchmarks/pretraining.py --figure docs/images/pretraining.svg

Each system is trained by the `lmlab` command on the same subword tokens for the same number of
steps of equally many tokens, with four layers in all (an encoder-decoder has two and two). Then:

- its own score of 500 held-out glosses, comparable only within a kind;
- cloze: a masked token of 2,000 held-out glosses, predicted by whatever method the system has;
- fine-tuned accuracy on other held-out glosses, the part of speech that a gloss defines: by a head
  on frozen features, by fine-tuning on 200 rows, and on all rows.

A `bert` and a `gpt` trained for one step are the controls. Each system has a record in
benchmarks/results/pretraining/; existing ones are not measured again, and interrupted training runs
resume.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cells import RESULTS, arguments

RECORDS = RESULTS / "pretraining"
WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY = 128, 4, 4, 192, 8000
TOKENS_PER_BATCH = 1024
"""Small, as the budget: masked models need many steps to learn more than unigrams."""
SCORED, ASKED = 500, 2000

ENCODERS_DECODERS = ("transformer", "mass", "t5", "bart", "pegasus", "palm")
SHOWN_WHOLE = {
    **{name: {"full_mask_rate": 0.3} for name in ("mass", "t5", "bart", "pegasus", "palm")},
    "xlnet": {"left_to_right": 0.3},
}
SHOWN_WHOLE["palm"] = {"full_mask_rate": 0.3, "joint": True}  # the default when it was measured
"""A share of the texts in the input format of log_prob, for all whose papers have none."""
SYSTEMS = (
    "gpt",
    "bert",
    "t5",
    "xlnet",
    "glm",
    "bart",
    "electra",
    "roberta",
    "unilm",
    "albert",
    "spanbert",
    "mpnet",
    "mass",
    "pegasus",
    "palm",
    "bert-wwm",
    "ernie",
    "transformer",
    "star-transformer",
    "set-transformer",
    "lstm",
)
"""In running order; the LSTM is the baseline."""

CONTROLS = ("bert", "gpt")
"""Also measured untrained, as controls."""

OWN_OPTIMIZER = {"t5": {"optimizer": "adafactor", "learning_rate": 0.03}}
"""T5's embeddings have unit variance, which steps of fixed size hardly change."""

ROWS = "gloss-part-of-speech"
TASKS = {
    "frozen": ("--frozen", "--epochs", "3"),
    "200 rows": ("--examples", "200", "--epochs", "20"),
    "all rows": ("--epochs", "3"),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folder, training steps and threads of the runs."""

    runs: Path
    steps: int
    threads: int


def settings(system: str) -> list[str]:
    """The common settings, as far as a system has them."""
    given = {
        "width": WIDTH,
        "layers": LAYERS // 2 if system in ENCODERS_DECODERS else LAYERS,
        "tokens_per_batch": TOKENS_PER_BATCH,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 200,
        "weight_decay": 0.01,
        "dropout": 0.1,
        "evaluate_every": 400,
        **OWN_OPTIMIZER.get(system, {}),
    }
    if system == "lstm":
        given |= {"layers": 1, "tied": True}
    else:
        given |= {"heads": HEADS, "length": LENGTH, **SHOWN_WHOLE.get(system, {})}
    return [part for name, value in given.items() for part in ("--set", f"{name}={value}")]


def lmlab(*command: str, threads: int) -> str:
    """Run a command and return its output; an error shows the end of stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "lmlab", *command],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"lmlab {' '.join(command)}: {done.stderr[-800:]}")
    return done.stdout


def shared_tokenizer(runs: Path) -> Path:
    """One subword tokenizer for all, trained once."""
    path = runs / "tokenizer.json"
    if not path.exists():
        from lmlab.data.corpus import open_corpus
        from lmlab.data.tokenizers import tokenizer_for

        runs.mkdir(parents=True, exist_ok=True)
        tokenizer_for(open_corpus("wordnet"), "bpe", size=VOCABULARY).save(path)
    return path


def held_out(runs: Path) -> Path:
    """The held-out glosses, as a file."""
    path = runs / "held-out.txt"
    if not path.exists():
        from lmlab.data.corpus import open_corpus

        texts = [example.text for example in open_corpus("wordnet").split("test")]
        path.write_text("\n".join(texts[:SCORED]) + "\n", encoding="utf-8")
    return path


def run_system(system: str, place: Place, untrained: bool = False) -> None:
    name = f"{system}-untrained" if untrained else system
    record = RECORDS / f"{name}.json"
    if record.exists():
        return
    try:
        found = measured(system, name, replace(place, steps=1) if untrained else place)
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
        return
    RECORDS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: cloze {found['cloze']['accuracy']:.3f}", flush=True)


def measured(system: str, name: str, place: Place) -> dict[str, Any]:
    """Train, score, query and fine-tune."""
    run, threads = place.runs / name, place.threads
    train = ["train", system, "--data", "wordnet", "--steps", str(place.steps)]
    train += ["--tokenizer", str(shared_tokenizer(place.runs)), *settings(system)]
    resume = ["--resume"] if (run / "config.json").exists() else []
    lmlab(*train, "--out", str(run), *resume, threads=threads)
    told = lmlab("score", str(run), str(held_out(place.runs)), "--json", threads=threads)
    cloze = lmlab("cloze", str(run), "--texts", str(ASKED), "--json", threads=threads)
    return {
        "system": system,
        "name": name,
        "steps": place.steps,
        "settings": settings(system),
        "parameters": parameters_of(run),
        "minutes": training_minutes(run),
        "training": curve_of(run, "train"),
        "curve": curve_of(run, "validation"),
        "score": score_of(json.loads(told)),
        "cloze": json.loads(cloze),
        "tasks": {task: task_of(run, task, threads=threads) for task in tasks(system)},
    }


def tasks(system: str) -> list[str]:
    """The tasks of a system; a recurrent model has no text vector for a head."""
    return [] if system == "lstm" else list(TASKS)


def task_of(run: Path, task: str, *, threads: int) -> dict[str, float]:
    out = run.with_name(f"{run.name}.{task.replace(' ', '-')}")
    command = ["finetune", str(run), "--task", "classify", "--data", ROWS, "--out", str(out)]
    resume = ["--resume"] if (out / "config.json").exists() else []
    told = lmlab(*command, *TASKS[task], *resume, "--json", threads=threads)
    found: dict[str, float] = json.loads(told)["metrics"]
    return found


def score_of(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Total over the texts, per token."""
    total = sum(score["total"] for score in scores)
    return {
        "kind": scores[0]["kind"],
        "nats_per_token": -total / sum(score["tokens"] for score in scores),
        "texts": len(scores),
    }


def parameters_of(run: Path) -> int:
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", framework="pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def metrics_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def training_minutes(run: Path) -> float:
    return float(metrics_of(run)[-1]["seconds"]) / 60


def curve_of(run: Path, event: str) -> list[dict[str, float]]:
    """Training or held-out loss of its own objective, by step."""
    return [
        {"step": line["step"], "loss": line["loss"]}
        for line in metrics_of(run)
        if line["event"] == event
    ]


def all_records() -> list[dict[str, Any]]:
    """All records, best cloze accuracy first."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")]
    return sorted(records, key=lambda record: -record["cloze"]["accuracy"])


def table() -> str:
    """Markdown table of all records, with the cloze method."""
    records = all_records()
    lines = [
        "| system | parameters | minutes | score, nats per token | kind | cloze | cloze method | "
        + " | ".join(f"part of speech, {task}" for task in TASKS)
        + " |",
        "|---" * (7 + len(TASKS)) + "|",
    ]
    for record in records:
        cloze, score, found = record["cloze"], record["score"], record["tasks"]
        accuracies = [f"{found[task]['accuracy']:.3f}" if task in found else "" for task in TASKS]
        variant = record["name"].removeprefix(record["system"]).replace("-", ", ")
        lines.append(
            f"| `{record['system']}`{variant} | {record['parameters']:,} "
            f"| {record['minutes']:.1f} "
            f"| {score['nats_per_token']:.3f} | {score['kind']} "
            f"| {cloze['accuracy']:.3f} ± {cloze['standard_error']:.3f} | {cloze['how']} "
            f"| {' | '.join(accuracies)} |"
        )
    done = {record["name"] for record in records}
    empty = " |" * (4 + len(TASKS))
    lines += [f"| `{name}` | | | not run |{empty}" for name in SYSTEMS if name not in done]
    return "\n".join(lines)


def draw(path: Path) -> None:
    """Plot the training and held-out loss of each system, by step."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    by_name = {record["name"]: record for record in all_records()}
    shown = [name for name in SYSTEMS if name in by_name]
    columns = 5
    rows = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, 2 * rows), sharex=True)
    for axis, name in zip(axes.flat, shown, strict=False):
        for curve, style in (("training", {"alpha": 0.5}), ("curve", {"marker": "o", "ms": 3})):
            points = by_name[name][curve]
            axis.plot([p["step"] for p in points], [p["loss"] for p in points], **style)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("nats per target, by its own objective", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


def write_into(page: Path) -> None:
    """Insert the table between its two markers in a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- table pretraining -->", "<!-- end of pretraining -->"
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}\n{table()}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/pretraining")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--write", type=Path, help="page to insert the table into")
    parser.add_argument("--figure", type=Path, help="file of the plotted curves")
    options = parser.parse_args()
    if options.figure:
        draw(options.figure)
    if options.write:
        write_into(options.write)
    if options.table:
        print(table())
    if options.write or options.table or options.figure:
        return
    place = Place(runs=options.runs, steps=options.steps, threads=options.threads)
    shared_tokenizer(place.runs), held_out(place.runs)
    with ThreadPoolExecutor(options.jobs) as pool:
        for system in SYSTEMS:
            if options.only in system:
                pool.submit(run_system, system, place)
        for system in CONTROLS:
            if options.only in system:
                pool.submit(run_system, system, place, untrained=True)


if __name__ == "__main__":
    main()
