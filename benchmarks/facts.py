"""Facts that no text states: `fae` (Facts as Experts) against `eae` and `bert` of the same size.

    python benchmarks/facts.py [--seeds 3] [--epochs 30] [--jobs 1] [--out FILE.json]
    python benchmarks/facts.py --table FILE.json

All are trained on `capitals-annotated`, whose texts never state the capital of every fifth country,
and queried for capitals in four templates (`the capital of France is <mask>`): of countries whose
capital is stated in the texts (seen) and of the others (held out). `fae` is queried with its memory
as in training, without the held-out facts; with these added afterwards, without training; and with
every capital in the memory exchanged for another one, which it should then predict (edited). `fae
all` had the held-out facts in its memory during training. Entities are ranked among all 805;
`words` predicts the name's words at as many masks as it has, which is all that `bert` can do.
`bert` trains for three times the epochs; after the same number it knew 8 % of the seen capitals.
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
"""System, training knowledge base and epoch multiplier, by table row."""
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
    fields = {"model": name, "seed": seed, "epochs": epochs, "seconds": result.seconds}
    return fields | {"parameters": result.parameters} | measure(name, model)


def measure(name: str, model: Any) -> dict[str, float]:
    """Accuracy by question group."""
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
    accuracies = {
        "words seen": word_accuracy(model, seen),
        "words held out": word_accuracy(model, held_out),
    }
    if name == "bert":
        return accuracies
    accuracies |= {
        "seen": entity_accuracy(model, seen),
        "held out": entity_accuracy(model, held_out),
    }
    if not name.startswith("fae"):
        return accuracies
    knowledge = load_knowledge("capitals")
    model.system.replace_facts(knowledge)
    accuracies["seen, all in memory"] = entity_accuracy(model, seen)
    accuracies["held out, all in memory"] = entity_accuracy(model, held_out)
    accuracies["words held out, all in memory"] = word_accuracy(model, held_out)
    for group, questions in (("seen", seen), ("held out", held_out)):
        new_capitals = exchange_capitals(model, questions)
        accuracies[f"{group}, edited"] = entity_accuracy(model, questions, new_capitals)
        model.system.replace_facts(knowledge)
    return accuracies


def exchange_capitals(model: Any, questions: Any) -> dict[str, str]:
    """Permute the capitals of the queried countries in memory; return the new ones by country."""
    capitals = {question.subject: question.answer for question in questions}
    rotated = [*list(capitals.values())[1:], next(iter(capitals.values()))]
    new_capitals = dict(zip(capitals, rotated, strict=True))
    for country, capital in new_capitals.items():
        model.system.edit(country, "capital", [capital])
    return new_capitals


def entity_accuracy(
    model: Any, questions: Any, new_capitals: dict[str, str] | None = None
) -> float:
    """Accuracy of the most probable entity."""
    answers = model.system.ask([question.text for question in questions])
    correct = [
        ranked[0].text
        == (question.answer if new_capitals is None else new_capitals[question.subject])
        for question, ranked in zip(questions, answers, strict=True)
    ]
    return sum(correct) / len(correct)


def word_accuracy(model: Any, questions: Any) -> float:
    """Exact-match accuracy of the answer's words, predicted at as many masks as it has words."""
    import torch

    from lmlab.core.batch import Batch

    vocabulary, correct = model.system.vocabulary, []
    for question in questions:
        before, _, after = question.text.partition("<mask>")
        answer = model.tokenizer.encode(question.answer)
        head = [vocabulary.start, *model.tokenizer.encode(before)]
        tail = [*model.tokenizer.encode(after), vocabulary.end]
        batch = Batch.collate([[*head, *answer, *tail]], pad=vocabulary.pad)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[0, len(head) : len(head) + len(answer)] = True
        with torch.no_grad():
            filled = model.system.fill(batch, masked).log_probs
        correct.append(filled.argmax(-1).tolist() == answer)
    return sum(correct) / len(correct)


def run_in_subprocess(name: str, seed: int, epochs: int) -> dict[str, Any]:
    """Call run_one in a separate process with one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps([name, seed, epochs])],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    record: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    print(json.dumps(record), flush=True)
    return record


def table(records: list[dict[str, Any]]) -> str:
    """Markdown table: one row per model, mean and standard deviation over seeds."""
    other_fields = ("model", "seed", "epochs", "seconds", "parameters")
    measures = list(dict.fromkeys(k for record in records for k in record if k not in other_fields))
    lines = ["| | " + " | ".join(measures) + " |", "|---|" + "---|" * len(measures)]
    for name in MODELS:
        selected = [record for record in records if record["model"] == name]
        cells = [_cell([row[m] for row in selected if m in row]) for m in measures]
        lines.append(f"| {name} ({len(selected)}) | " + " | ".join(cells) + " |")
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
    done = {(row["model"], row["seed"], row["epochs"]) for row in records}
    configurations = [
        (name, seed, options.epochs * MODELS[name][2])
        for seed in range(options.seeds)
        for name in options.models.split(",")
    ]
    missing = [configuration for configuration in configurations if configuration not in done]
    with ThreadPoolExecutor(options.jobs) as pool:
        for record in pool.map(lambda configuration: run_in_subprocess(*configuration), missing):
            records.append(record)
            if options.out:
                results = {"settings": SETTINGS, "records": records}
                options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(records))


if __name__ == "__main__":
    main()
