"""Every pre-training objective on WordNet's glosses: same width, depth, tokens and batches.

    python benchmarks/pretraining.py [--runs RUNS] [--only bert] [--jobs 2] [--steps 600]
    python benchmarks/pretraining.py --table [--write docs/pretraining.md]

Each system is trained by the `lmlab` command on the same subword tokens for the same number of
steps of as many tokens, with four layers in all (an encoder-decoder has two and two). Then:

- its own score of 500 held-out glosses, which compares only within a kind;
- cloze: a hidden token of 2,000 held-out glosses, asked for by whatever way the system has;
- fine-tuned accuracy on two tasks made of other held-out glosses: the part of speech of what a
  gloss defines (frozen and not), and whether a second gloss defines its hypernym.

A record for each system stands in benchmarks/results/pretraining/; one that is there is not run
again, and a training that was stopped resumes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import RESULTS, arguments

RECORDS = RESULTS / "pretraining"
WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY = 128, 4, 4, 192, 8000
TOKENS_PER_BATCH = 4096
SCORED, ASKED = 500, 2000

ENCODERS_DECODERS = ("transformer", "mass", "t5", "bart", "pegasus", "palm")
SHOWN_WHOLE = {
    **{name: {"whole": 0.3} for name in ("mass", "t5", "bart", "pegasus", "palm")},
    "xlnet": {"left_to_right": 0.3},
}
"""A share of the texts shown as log_prob shows them, alike for all whose papers never do."""
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
"""In the order in which they are run; the LSTM stands beside them as what they are held against."""

TASKS = (
    ("part of speech, frozen", "classify", "gloss-part-of-speech", ("--frozen",)),
    ("part of speech", "classify", "gloss-part-of-speech", ()),
    ("hypernym", "pair", "gloss-hypernym", ()),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs go, how long they are trained and on how many threads."""

    runs: Path
    steps: int
    threads: int


def settings(system: str) -> list[str]:
    """The same for all, as far as a system has it."""
    given = {
        "width": WIDTH,
        "layers": LAYERS // 2 if system in ENCODERS_DECODERS else LAYERS,
        "tokens_per_batch": TOKENS_PER_BATCH,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "weight_decay": 0.01,
        "dropout": 0.1,
        "evaluate_every": 100,
    }
    if system == "lstm":
        given |= {"layers": 1, "tied": True}
    else:
        given |= {"heads": HEADS, "length": LENGTH, **SHOWN_WHOLE.get(system, {})}
    return [part for name, value in given.items() for part in ("--set", f"{name}={value}")]


def lmlab(*command: str, threads: int) -> str:
    """Run a verb and give what it printed; a failure is told with its last words."""
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
    """One tokeniser of subwords for all, made once."""
    path = runs / "tokenizer.json"
    if not path.exists():
        from lmlab.data.corpus import open_corpus
        from lmlab.data.tokenizers import tokenizer_for

        runs.mkdir(parents=True, exist_ok=True)
        tokenizer_for(open_corpus("wordnet"), "bpe", size=VOCABULARY).save(path)
    return path


def held_out(runs: Path) -> Path:
    """The glosses that are scored, in a file."""
    path = runs / "held-out.txt"
    if not path.exists():
        from lmlab.data.corpus import open_corpus

        texts = [example.text for example in open_corpus("wordnet").split("test")]
        path.write_text("\n".join(texts[:SCORED]) + "\n", encoding="utf-8")
    return path


def run_system(system: str, place: Place) -> None:
    record = RECORDS / f"{system}.json"
    if record.exists():
        return
    try:
        found = measured(system, place)
    except RuntimeError as error:
        print(f"{system}: {error}", flush=True)
        return
    RECORDS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{system}: cloze {found['cloze']['accuracy']:.3f}", flush=True)


def measured(system: str, place: Place) -> dict[str, Any]:
    """Train, score, ask and fine-tune."""
    run, threads = place.runs / system, place.threads
    train = ["train", system, "--data", "wordnet", "--steps", str(place.steps)]
    train += ["--tokenizer", str(shared_tokenizer(place.runs)), *settings(system)]
    resume = ["--resume"] if (run / "config.json").exists() else []
    lmlab(*train, "--out", str(run), *resume, threads=threads)
    told = lmlab("score", str(run), str(held_out(place.runs)), "--json", threads=threads)
    cloze = lmlab("cloze", str(run), "--texts", str(ASKED), "--json", threads=threads)
    return {
        "system": system,
        "steps": place.steps,
        "settings": settings(system),
        "parameters": parameters_of(run),
        "minutes": training_minutes(run),
        "curve": curve_of(run),
        "score": score_of(json.loads(told)),
        "cloze": json.loads(cloze),
        "tasks": {name: task_of(run, *task, threads=threads) for name, *task in tasks(system)},
    }


def tasks(system: str) -> list[tuple[Any, ...]]:
    """A recurrent model has no vector of a text to put a head on."""
    return [] if system == "lstm" else list(TASKS)


def task_of(
    run: Path, task: str, data: str, options: tuple[str, ...], *, threads: int
) -> dict[str, float]:
    out = run.with_name(f"{run.name}.{data}{''.join(options)}")
    command = ["finetune", str(run), "--task", task, "--data", data, "--out", str(out), *options]
    resume = ["--resume"] if (out / "config.json").exists() else []
    told = lmlab(*command, "--epochs", "3", *resume, "--json", threads=threads)
    found: dict[str, float] = json.loads(told)["metrics"]
    return found


def score_of(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum over the texts, by token and by character. The end counts 0 to a pseudo one."""
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


def curve_of(run: Path) -> list[dict[str, float]]:
    """Held-out loss of the objective's own, by step."""
    return [
        {"step": line["step"], "loss": line["loss"]}
        for line in metrics_of(run)
        if line["event"] == "validation"
    ]


def table() -> str:
    """What has been measured, best cloze first; the way it was asked beside it."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")]
    records.sort(key=lambda record: -record["cloze"]["accuracy"])
    lines = [
        "| system | parameters | minutes | score, nats a token | kind | cloze | asked by | "
        "part of speech, frozen | part of speech | hypernym |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        cloze, score, found = record["cloze"], record["score"], record["tasks"]
        accuracies = [
            f"{found[name]['accuracy']:.3f}" if name in found else "" for name, *_ in TASKS
        ]
        lines.append(
            f"| `{record['system']}` | {record['parameters']:,} | {record['minutes']:.1f} "
            f"| {score['nats_per_token']:.3f} | {score['kind']} "
            f"| {cloze['accuracy']:.3f} ± {cloze['standard_error']:.3f} | {cloze['how']} "
            f"| {' | '.join(accuracies)} |"
        )
    done = {record["system"] for record in records}
    missing = [system for system in SYSTEMS if system not in done]
    lines += [f"| `{system}` | | | not run | | | | | | |" for system in missing]
    return "\n".join(lines)


def write_into(page: Path) -> None:
    """Put the table between its two marks in a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- table pretraining -->", "<!-- end of pretraining -->"
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}\n{table()}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/pretraining")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    options = parser.parse_args()
    if options.write:
        write_into(options.write)
    if options.table:
        print(table())
    if options.write or options.table:
        return
    place = Place(runs=options.runs, steps=options.steps, threads=options.threads)
    shared_tokenizer(place.runs), held_out(place.runs)
    with ThreadPoolExecutor(options.jobs) as pool:
        for system in SYSTEMS:
            if options.only in system:
                pool.submit(run_system, system, place)


if __name__ == "__main__":
    main()
