"""Facts that no text states: `fae` (facts as experts) against `eae` and `bert` of one size.

    python benchmarks/facts.py [--seeds 3] [--epochs 30] [--jobs 1] [--out FILE.json]
    python benchmarks/facts.py --table FILE.json

All are trained on `capitals-annotated`, whose texts never state the capital of every fifth country,
and queried for capitals in its four forms (`the capital of France is <mask>`): of countries whose
capital is stated in the texts (seen) and of the others (held out). `fae` is queried with its memory
as in training, without the held-out facts; with these added afterwards, without training; and with
every capital in the memory exchanged for another one, which it should then predict (edited). `fae
all` had the held-out facts in its memory during training. Entities are ranked among all 805;
`words` predicts the name's words at as many masks as it has, which is all that `bert` can do; it
gets three times the epochs, since after the same number it knew 8 % of the seen ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from finishing import finished

MODELS: dict[str, tuple[str, str | None, int]] = {
    "bert": ("bert", None, 3),
    "eae": ("eae", "capitals", 1),
    "fae": ("fae", "capitals-annotated", 1),
    "fae all": ("fae", "capitals", 1),
}
"""System of each row, its training knowledge, and the factor of its epochs."""
SETTINGS = {
    "width": 64,
    "layers": 3,
    "heads": 4,
    "length": 32,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
    "weight_decay": 0.01,
}
PLAIN = {"pairs": "none", "segments": 0, "masking": "dynamic"}
"""Settings with which `bert` encodes and masks single texts as the others do."""


def run_one(name: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train and query one model."""
    import torch

    import lmlab

    torch.set_num_threads(1)
    system, knowledge, _ = MODELS[name]
    settings = SETTINGS | (PLAIN if system == "bert" else {})
    with tempfile.TemporaryDirectory() as folder:
        result = finished(
            lmlab.train(
                system,
                data="capitals-annotated",
                knowledge=knowledge,
                out=Path(folder) / "run",
                settings=settings,
                epochs=epochs,
                seed=seed,
                quiet=True,
            )
        )
        model = lmlab.load(result.path)
    told = {"model": name, "seed": seed, "epochs": epochs, "seconds": result.seconds}
    return told | {"parameters": result.parameters} | measure(name, model)


def measure(name: str, model: Any) -> dict[str, float]:
    """Accuracy by group of questions."""
    from lmlab.data.languages.capitals_annotated import (
        capital_questions,
        countries_with_capital_stated,
        countries_with_capital_unstated,
    )
    from lmlab.knowledge.load_knowledge import load_knowledge

    seen, held_out = (
        capital_questions(countries_with_capital_stated()),
        capital_questions(countries_with_capital_unstated()),
    )
    found = {"words seen": words_right(model, seen), "words held out": words_right(model, held_out)}
    if name == "bert":
        return found
    found |= {"seen": entities_right(model, seen), "held out": entities_right(model, held_out)}
    if not name.startswith("fae"):
        return found
    knowledge = load_knowledge("capitals")
    model.system.replace_facts(knowledge)
    found["seen, all in memory"] = entities_right(model, seen)
    found["held out, all in memory"] = entities_right(model, held_out)
    found["words held out, all in memory"] = words_right(model, held_out)
    for group, asked in (("seen", seen), ("held out", held_out)):
        changed = exchange(model, asked)
        found[f"{group}, edited"] = entities_right(model, asked, changed)
        model.system.replace_facts(knowledge)
    return found


def exchange(model: Any, asked: Any) -> dict[str, str]:
    """Exchange the capitals of all queried countries; the new capital of each."""
    capitals = {each.subject: each.answer for each in asked}
    moved = [*list(capitals.values())[1:], next(iter(capitals.values()))]
    changed = dict(zip(capitals, moved, strict=True))
    for country, capital in changed.items():
        model.system.edit(country, "capital", [capital])
    return changed


def entities_right(model: Any, asked: Any, changed: dict[str, str] | None = None) -> float:
    """Accuracy of the most probable entity."""
    answers = model.system.ask([each.text for each in asked])
    right = [
        found[0].text == (each.answer if changed is None else changed[each.subject])
        for each, found in zip(asked, answers, strict=True)
    ]
    return sum(right) / len(right)


def words_right(model: Any, asked: Any) -> float:
    """How often every word of the answer is the most probable at its mask, their number given."""
    import torch

    from lmlab.core.batch import Batch

    vocabulary, right = model.system.vocabulary, []
    for each in asked:
        before, _, after = each.text.partition("<mask>")
        answer = model.tokenizer.encode(each.answer)
        head = [vocabulary.start, *model.tokenizer.encode(before)]
        tail = [*model.tokenizer.encode(after), vocabulary.end]
        batch = Batch.collate([[*head, *answer, *tail]], pad=vocabulary.pad)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[0, len(head) : len(head) + len(answer)] = True
        with torch.no_grad():
            filled = model.system.fill(batch, masked).log_probs
        right.append(filled.argmax(-1).tolist() == answer)
    return sum(right) / len(right)


def run_apart(name: str, seed: int, epochs: int) -> dict[str, Any]:
    """The same in a separate process with one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps([name, seed, epochs])],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found), flush=True)
    return found


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: a row for each model, means over seeds and their spread."""
    known = ("model", "seed", "epochs", "seconds", "parameters")
    measures = list(dict.fromkeys(k for record in records for k in record if k not in known))
    lines = ["| | " + " | ".join(measures) + " |", "|---|" + "---|" * len(measures)]
    for name in MODELS:
        chosen = [record for record in records if record["model"] == name]
        cells = [_cell([each[m] for each in chosen if m in each]) for m in measures]
        lines.append(f"| {name} ({len(chosen)}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path, help="record file; missing records are added")
    parser.add_argument("--table", type=Path, help="records to print instead of training")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(*json.loads(options.one))))
        return
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))["records"]))
        return
    records: list[dict[str, Any]] = []
    if options.out and options.out.exists():
        records = json.loads(options.out.read_text(encoding="utf-8"))["records"]
    done = {(each["model"], each["seed"], each["epochs"]) for each in records}
    every = [
        (name, seed, options.epochs * MODELS[name][2])
        for seed in range(options.seeds)
        for name in options.models.split(",")
    ]
    asked = [one for one in every if one not in done]
    with ThreadPoolExecutor(options.jobs) as pool:
        for record in pool.map(lambda one: run_apart(*one), asked):
            records.append(record)
            if options.out:
                told = {"settings": SETTINGS, "records": records}
                options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(records))


if __name__ == "__main__":
    main()
