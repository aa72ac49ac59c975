"""Golden record: exact outputs of every system at its tiny size.

A refactoring must not change a number. `record` trains each system of the zoo for a few steps and
records its training losses and the output of the commands: scores by each method, samples and beam
search with a fixed seed, fills, translations, answers, links. `compare` repeats this and lists
every difference. Numbers are compared exactly, so both must run on the same machine, with one
thread:

    python scripts/golden.py record golden.json
    python scripts/golden.py compare golden.json [--only gpt bert]

Of JSON output, numbers and texts are recorded but not keys, so that fields can be renamed.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmlab.cli.main import main as lmlab
from lmlab.core.card import Card
from lmlab.core.registry import catalogue

STEPS = 4
SETTINGS = ("learning_rate=0.02", "tokens_per_batch=256", "log_every=1")
METHODS = (
    *("simple", "raw", "norm", "within-word", "k-mask", "raw-k-mask"),
    *("exact", "bound", "energy"),
)
TEXTS = ("the dog sees a cat", "a cat", "the cat that the dog sees sleeps")
REFUSED = "refused"


def write_inputs(folder: Path) -> None:
    """Write a corpus, text pairs, documents, knowledge and minimal pairs of about a dozen words."""
    rng = random.Random(0)
    nouns, verbs = ("dog", "cat", "girl", "bird"), ("sees", "likes", "hears")

    def sentence() -> str:
        subject = f"{rng.choice(('the', 'a'))} {rng.choice(nouns)}"
        if rng.random() < 0.3:
            subject += f" that the {rng.choice(nouns)} {rng.choice(verbs)}"
        if rng.random() < 0.4:
            return f"{subject} sleeps"
        return f"{subject} {rng.choice(verbs)} {rng.choice(('the', 'a'))} {rng.choice(nouns)}"

    for kind in ("corpus", "pairs"):
        (folder / kind).mkdir()
        for split, count in (("train", 400), ("valid", 40), ("test", 40)):
            lines = [sentence() for _ in range(count)]
            if kind == "pairs":
                lines = [f"{line}\t{' '.join(reversed(line.split()))}" for line in lines]
            ending = "tsv" if kind == "pairs" else "txt"
            text = "\n".join(lines) + "\n"
            (folder / kind / f"{split}.{ending}").write_text(text, encoding="utf-8")
    documents = dict.fromkeys(sentence() for _ in range(40))
    (folder / "documents.txt").write_text("\n".join(documents) + "\n", encoding="utf-8")
    sources = "\n".join(sentence() for _ in range(5))
    (folder / "sources.txt").write_text(f"{sources}\n", encoding="utf-8")
    write_knowledge(folder / "knowledge")
    pairs = [
        {"sentence_good": "the dog sees a cat", "sentence_bad": "dog the a sees cat"},
        {"sentence_good": "a bird sleeps", "sentence_bad": "a sleeps bird"},
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)) + "\n", encoding="utf-8")


def write_knowledge(folder: Path) -> None:
    """Write a knowledge base of four entities, two of which share a name."""
    folder.mkdir()
    tables = {
        "entities": "Dog\tan animal\tdog\nCat\tan animal\tcat\nBird\tit flies\tbird\n"
        "Girl\ta person\tgirl\n",
        "aliases": "dog\tDog\t3\ndog\tCat\ncat\tCat\t2\nbird\tBird\ngirl\tGirl\nthe dog\tDog\n",
        "facts": "Dog\tsees\tCat\nCat\tlikes\tBird\nGirl\thears\tBird\nDog\tlikes\tGirl\n",
    }
    for name, text in tables.items():
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")


def run_command(*arguments: str | Path) -> str | None:
    """Standard output of a command, or None if it ends with a user error (exit code 2)."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = lmlab([str(argument) for argument in arguments])
    if code not in (0, 2):
        raise SystemExit(
            f"lmlab {' '.join(map(str, arguments))} ended with {code}: {stderr.getvalue()}"
        )
    return stdout.getvalue() if code == 0 else None


def values(document: Any) -> Iterator[str]:
    """Numbers and strings of a JSON document in document order, numbers as exact literals."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if key != "seconds":  # differs between any two runs
                yield from values(value)
    elif isinstance(document, list):
        for value in document:
            yield from values(value)
    elif isinstance(document, float):
        yield document.hex()
    elif document is not None and not isinstance(document, (bool, str)):
        yield repr(document)
    elif isinstance(document, str):
        yield document


def flatten_output(output: str | None) -> list[str] | str:
    """Values of an output that is JSON (one document, or one per line), else its lines."""
    if output is None:
        return REFUSED
    for texts in ([output], output.splitlines()):
        with contextlib.suppress(ValueError):
            return [value for text in texts for value in values(json.loads(text))]
    return output.splitlines()


def numbers(record: list[str] | str) -> list[str] | str:
    """A record without its texts, since descriptions of conventions and kinds may be reworded."""
    if isinstance(record, str):
        return record
    return [value for value in record if value[:1].isdigit() or value[:1] == "-"]


class Recorder:
    """Trains systems in a temporary folder and collects their outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_inputs(folder)

    def train(self, name: str, data: str) -> Path:
        """Train for a few steps; a run that others use as their base is trained once."""
        card = catalogue()[name]
        run = self.folder / "runs" / f"{name}-{data}"
        if run.exists():
            return run
        if card.components:
            parts = [self.train(component, data) for component in card.components]
            mixed = run_command("mix", *parts, "--data", self.folder / data, "--out", run)
            return run if mixed is not None else self.folder / REFUSED
        arguments: list[str | Path] = ["train", name, "--data", self.folder / data, "--out", run]
        arguments += ["--size", "tiny", "--set", *SETTINGS]
        if card.fitting in ("gradient", "words"):
            arguments += ["--steps", str(STEPS)]
        elif card.fitting == "em":
            arguments += ["--epochs", "2"]
        if card.base:
            arguments += ["--base", self.train(card.base, data)]
        if "knowledge" in card.needs:
            arguments += ["--knowledge", self.folder / "knowledge"]
        if "documents" in card.needs:
            arguments += ["--documents", self.folder / "documents.txt"]
        return run if run_command(*arguments) is not None else self.folder / REFUSED

    def system(self, name: str) -> dict[str, list[str] | str]:
        """All records of one system, by command."""
        card = catalogue()[name]
        records: dict[str, list[str] | str] = {}
        for data in ("corpus", "pairs"):
            run = self.train(name, data)
            if run.name == REFUSED:
                records[f"train on {data}"] = REFUSED
                continue
            records[f"train on {data}"] = losses(run)
            for command, arguments in commands(card, run, self.folder, data):
                records[f"{command} ({data})"] = numbers_or_texts(
                    command, flatten_output(run_command(*arguments))
                )
        return records


def numbers_or_texts(command: str, record: list[str] | str) -> list[str] | str:
    """Numbers only for commands that score; numbers and texts for commands that generate."""
    return numbers(record) if command.startswith(("score", "pairs", "cloze")) else record


def losses(run: Path) -> list[str]:
    """The losses in a run's metrics.jsonl, training and validation, in file order."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        f"{key}={value.hex()}"
        for line in lines
        for key, value in json.loads(line).items()
        if isinstance(value, float) and "loss" in key
    ]


def commands(
    card: Card, run: Path, folder: Path, data: str
) -> Iterator[tuple[str, list[str | Path]]]:
    """Names and arguments of the commands that are recorded for a run."""
    texts = [part for text in TEXTS for part in ("--text", text)]
    sources = [part for text in reversed(TEXTS) for part in ("--source", text)]
    if data == "pairs":
        yield "score", ["score", run, *texts, *sources, "--json"]
        yield "translate beam", ["translate", run, folder / "sources.txt", "--json"]
        yield "sample", ["sample", run, "-n", "3", "--source", TEXTS[0], "--json"]
        return
    yield "score", ["score", run, *texts, "--json"]
    for method in METHODS:
        positions = ["--positions", "1-2"] if "k-mask" in method else []
        yield f"score {method}", ["score", run, *texts, "--method", method, *positions, "--json"]
    yield "score given", ["score", run, "--given", TEXTS[1], "--text", TEXTS[0], "--json"]
    yield "pairs", ["pairs", run, folder / "pairs.jsonl", "--json"]
    yield "cloze", ["cloze", run, folder / "corpus" / "test.txt", "--json"]
    for method in ("ancestral", "greedy", "beam", "gibbs", "metropolis"):
        yield f"sample {method}", ["sample", run, "-n", "3", "--method", method, "--json"]
    masked_text = "the <mask> sees a <mask>"
    for option in ([], ["--joint"], ["--blanks"], ["--blanks", "--sample"]):
        yield " ".join(["fill", *option]), ["fill", run, masked_text, *option, "--json"]
    yield "ask", ["ask", run, "the dog sees <mask>", "--json"]
    yield "link", ["link", run, "the dog sees a cat", "--json"]


def record(names: list[str]) -> dict[str, dict[str, list[str] | str]]:
    """The golden record of some systems."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder))
        records = {}
        for number, name in enumerate(names, 1):
            print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
            records[name] = recorder.system(name)
    return records


def differences(golden: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """One line per record that differs, with the first value that differs."""
    for name, golden_records in golden.items():
        current_records = current[name]
        for command in sorted(golden_records.keys() | current_records.keys()):
            old, new = golden_records.get(command), current_records.get(command)
            if old == new:
                continue
            if not isinstance(old, list) or not isinstance(new, list):
                yield f"{name}: {command}: {shortened(old)} became {shortened(new)}"
                continue
            first = next(
                (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                min(len(old), len(new)),
            )
            yield (
                f"{name}: {command}: {len(old)} and {len(new)} values, first difference at "
                f"{first}: {shortened(old[first : first + 1])} became "
                f"{shortened(new[first : first + 1])}"
            )


def shortened(value: Any) -> str:
    """The repr of a value, truncated to eighty characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Record the exact outputs of every system, or compare with a record."
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="the record (JSON)")
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", help="only these systems")
    arguments = parser.parse_args()
    names = arguments.only or sorted(catalogue())
    if arguments.action == "record":
        arguments.file.write_text(json.dumps(record(names), indent=1, ensure_ascii=False))
        return 0
    golden = json.loads(arguments.file.read_text())
    selected = [name for name in names if name in golden]
    lines = list(differences({name: golden[name] for name in selected}, record(selected)))
    print("\n".join(lines))
    compared = sum(len(golden[name]) for name in selected)
    print(f"{len(lines)} of {compared} records of {len(selected)} systems differ.")
    if len(selected) < len(names):
        print(f"Not in the record: {', '.join(sorted(set(names) - set(selected)))}.")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
