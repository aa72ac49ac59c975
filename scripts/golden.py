"""Golden record: what every system computes at its tiny size, bit by bit.

A refactoring must not change a number. `record` trains each system of the zoo for a few steps and
writes down its training losses and what the verbs print of it: scores by each method, samples and
beam search for a seed, fills, translations, answers, links. `compare` does the same again and
lists every difference. Numbers are compared exactly, so both must run on one machine, with one
thread:

    python scripts/golden.py record golden.json
    python scripts/golden.py compare golden.json [--only gpt bert]

Of a JSON output the numbers and texts are recorded and not the keys, so that fields may be renamed.
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
    """A corpus, pairs of texts, documents, knowledge and minimal pairs in a dozen words."""
    draw = random.Random(0)
    nouns, verbs = ("dog", "cat", "girl", "bird"), ("sees", "likes", "hears")

    def sentence() -> str:
        subject = f"{draw.choice(('the', 'a'))} {draw.choice(nouns)}"
        if draw.random() < 0.3:
            subject += f" that the {draw.choice(nouns)} {draw.choice(verbs)}"
        if draw.random() < 0.4:
            return f"{subject} sleeps"
        return f"{subject} {draw.choice(verbs)} {draw.choice(('the', 'a'))} {draw.choice(nouns)}"

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
    """Four entities, some of which share a name."""
    folder.mkdir()
    tables = {
        "entities": "Dog\tan animal\tdog\nCat\tan animal\tcat\nBird\tit flies\tbird\n"
        "Girl\ta person\tgirl\n",
        "aliases": "dog\tDog\t3\ndog\tCat\ncat\tCat\t2\nbird\tBird\ngirl\tGirl\nthe dog\tDog\n",
        "facts": "Dog\tsees\tCat\nCat\tlikes\tBird\nGirl\thears\tBird\nDog\tlikes\tGirl\n",
    }
    for name, text in tables.items():
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")


def outcome(*arguments: str | Path) -> str | None:
    """What a command prints on standard output, or None where it is refused."""
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        code = lmlab([str(argument) for argument in arguments])
    if code not in (0, 2):
        raise SystemExit(
            f"lmlab {' '.join(map(str, arguments))} ended with {code}: {complaints.getvalue()}"
        )
    return printed.getvalue() if code == 0 else None


def values(document: Any) -> Iterator[str]:
    """Numbers and strings of a JSON document in their order, numbers as exact literals."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if key != "seconds":  # of no two runs the same
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


def recorded(printed: str | None) -> list[str] | str:
    """An output as a list of values where it is JSON (one document, or one a line), else lines."""
    if printed is None:
        return REFUSED
    for texts in ([printed], printed.splitlines()):
        with contextlib.suppress(ValueError):
            return [value for text in texts for value in values(json.loads(text))]
    return printed.splitlines()


def numbers(record: list[str] | str) -> list[str] | str:
    """A record without its texts: conventions and kinds are sentences, and may be reworded."""
    if isinstance(record, str):
        return record
    return [value for value in record if value[:1].isdigit() or value[:1] == "-"]


class Recorder:
    """Trains systems in a temporary folder and collects what they compute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_inputs(folder)

    def train(self, name: str, data: str) -> Path:
        """A run of a few steps; one that another is based on is trained once."""
        card = catalogue()[name]
        run = self.folder / "runs" / f"{name}-{data}"
        if run.exists():
            return run
        words: list[str | Path] = ["train", name, "--data", self.folder / data, "--out", run]
        words += ["--size", "tiny", "--set", *SETTINGS]
        if card.fitting in ("gradient", "words"):
            words += ["--steps", str(STEPS)]
        elif card.fitting == "em":
            words += ["--epochs", "2"]
        if card.base:
            words += ["--base", self.train(card.base, data)]
        if "knowledge" in card.needs:
            words += ["--knowledge", self.folder / "knowledge"]
        if "documents" in card.needs:
            words += ["--documents", self.folder / "documents.txt"]
        return run if outcome(*words) is not None else self.folder / REFUSED

    def system(self, name: str) -> dict[str, list[str] | str]:
        """Everything that is recorded of one system, by the command that gives it."""
        card = catalogue()[name]
        found: dict[str, list[str] | str] = {}
        for data in ("corpus", "pairs"):
            run = self.train(name, data)
            if run.name == REFUSED:
                found[f"train on {data}"] = REFUSED
                continue
            found[f"train on {data}"] = losses(run)
            for command, arguments in commands(card, run, self.folder, data):
                found[f"{command} ({data})"] = numbers_or_texts(
                    command, recorded(outcome(*arguments))
                )
        return found


def numbers_or_texts(command: str, record: list[str] | str) -> list[str] | str:
    """Scores as numbers alone; what is generated with its texts."""
    return numbers(record) if command.startswith(("score", "pairs", "cloze")) else record


def losses(run: Path) -> list[str]:
    """The losses in a run's metrics.jsonl, training and validation, in their order."""
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
    """Names and words of the commands that are recorded of a run."""
    texts = [word for text in TEXTS for word in ("--text", text)]
    sources = [word for text in reversed(TEXTS) for word in ("--source", text)]
    if data == "pairs":
        yield "score", ["score", run, *texts, *sources, "--json"]
        yield "translate beam", ["translate", run, folder / "sources.txt", "--json"]
        yield "sample", ["sample", run, "-n", "3", "--source", TEXTS[0], "--json"]
        return
    yield "score", ["score", run, *texts, "--json"]
    for method in METHODS:
        where = ["--positions", "1-2"] if "k-mask" in method else []
        yield f"score {method}", ["score", run, *texts, "--method", method, *where, "--json"]
    yield "score given", ["score", run, "--given", TEXTS[1], "--text", TEXTS[0], "--json"]
    yield "pairs", ["pairs", run, folder / "pairs.jsonl", "--json"]
    yield "cloze", ["cloze", run, folder / "corpus" / "test.txt", "--json"]
    for method in ("ancestral", "greedy", "beam", "gibbs", "metropolis"):
        yield f"sample {method}", ["sample", run, "-n", "3", "--method", method, "--json"]
    blank = "the <mask> sees a <mask>"
    for option in ([], ["--joint"], ["--blanks"], ["--blanks", "--sample"]):
        yield " ".join(["fill", *option]), ["fill", run, blank, *option, "--json"]
    yield "ask", ["ask", run, "the dog sees <mask>", "--json"]
    yield "link", ["link", run, "the dog sees a cat", "--json"]


def record(names: list[str]) -> dict[str, dict[str, list[str] | str]]:
    """The golden record of some systems."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder))
        found = {}
        for number, name in enumerate(names, 1):
            print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
            found[name] = recorder.system(name)
    return found


def differences(golden: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A line for every record that is not the same, with the first value that differs."""
    for name, commands_then in golden.items():
        commands_now = now[name]
        for command in sorted(commands_then.keys() | commands_now.keys()):
            then, today = commands_then.get(command), commands_now.get(command)
            if then == today:
                continue
            if not isinstance(then, list) or not isinstance(today, list):
                yield f"{name}: {command}: {shortened(then)} became {shortened(today)}"
                continue
            first = next(
                (i for i, (a, b) in enumerate(zip(then, today, strict=False)) if a != b),
                min(len(then), len(today)),
            )
            yield (
                f"{name}: {command}: {len(then)} and {len(today)} values, the first difference at "
                f"{first}: {shortened(then[first : first + 1])} became "
                f"{shortened(today[first : first + 1])}"
            )


def shortened(value: Any) -> str:
    """A value in at most eighty characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what every system computes, or compare.")
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="the record, a JSON file")
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", help="these systems alone")
    arguments = parser.parse_args()
    names = arguments.only or sorted(catalogue())
    if arguments.action == "record":
        arguments.file.write_text(json.dumps(record(names), indent=1, ensure_ascii=False))
        return 0
    golden = json.loads(arguments.file.read_text())
    chosen = [name for name in names if name in golden]
    lines = list(differences({name: golden[name] for name in chosen}, record(chosen)))
    print("\n".join(lines))
    compared = sum(len(golden[name]) for name in chosen)
    print(f"{len(lines)} of {compared} records of {len(chosen)} systems differ.")
    if len(chosen) < len(names):
        print(f"Not in the record: {', '.join(sorted(set(names) - set(chosen)))}.")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
