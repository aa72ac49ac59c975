"""The corpora of the yardstick as files: short lines of each split, minimal pairs of test lines.

Lines of more than MAX_BYTES bytes are left out, so that every system reads whole texts at its usual
length. Validation and test lines are evenly spaced over their splits.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 120
VALIDATION_LINES, TEST_LINES = 200, 400
PAIRS_PER_KIND = 100
SPECS = {"multi30k": "multi30k:{data}", "wordnet": "wordnet"}
"""By name: what `lmlab` opens; {data} is the folder of the corpora."""
SPLITS = {"train": "train", "validation": "valid", "test": "test"}
"""By split: the name of its file."""
SEED = 0


@dataclass(frozen=True, kw_only=True)
class PreparedCorpus:
    """A corpus in a folder, as `lmlab train --data` takes it."""

    name: str
    folder: Path
    bytes: Mapping[str, int]
    """Bytes of each split, without ends of lines."""
    lines: Mapping[str, int]
    dropped: Mapping[str, int]
    """Lines of each split that are too long."""
    sha256: str
    """Of all files."""

    def texts(self, split: str) -> list[str]:
        path = self.folder / f"{SPLITS[split]}.txt"
        return path.read_text(encoding="utf-8").split("\n")[:-1]

    def figures(self) -> dict[str, Any]:
        """What records and the page say of it."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}


def prepare(name: str, data: Path | None, folder: Path) -> PreparedCorpus:
    """The corpus in `folder`/`name`, which is written if it is not there."""
    target = folder / name
    if not (target / "corpus.json").exists():
        shutil.rmtree(target, ignore_errors=True)
        _write(name, data, target)
    stored = json.loads((target / "corpus.json").read_text(encoding="utf-8"))
    return PreparedCorpus(folder=target, **stored)


def _write(name: str, data: Path | None, target: Path) -> None:
    from lmlab.data.corpus import open_corpus

    corpus = open_corpus(SPECS[name].format(data=data))
    kept, dropped = {}, {}
    for split in SPLITS:
        lines = [example.text for example in corpus.split(split)]
        kept[split] = [line for line in lines if len(line.encode()) <= MAX_BYTES]
        dropped[split] = len(lines) - len(kept[split])
    pairs = minimal_pairs(kept["train"], kept["test"], count=PAIRS_PER_KIND, seed=SEED)
    kept["validation"] = evenly_spaced(kept["validation"], VALIDATION_LINES)
    kept["test"] = evenly_spaced(kept["test"], TEST_LINES)
    write_files(name, target, kept, pairs, dropped=dropped)


def write_files(
    name: str,
    target: Path,
    splits: Mapping[str, Sequence[str]],
    pairs: Sequence[Mapping[str, str]],
    *,
    dropped: Mapping[str, int] | None = None,
) -> PreparedCorpus:
    """Write a corpus: a file of each split, the pairs, and what is in them."""
    target.mkdir(parents=True)
    files = {f"{SPLITS[split]}.txt": list(lines) for split, lines in splits.items()}
    files["pairs.jsonl"] = [json.dumps(pair, ensure_ascii=False) for pair in pairs]
    digest = hashlib.sha256()
    for file, lines in sorted(files.items()):
        content = "".join(f"{line}\n" for line in lines).encode()
        digest.update(content)
        (target / file).write_bytes(content)
    corpus = PreparedCorpus(
        name=name,
        folder=target,
        bytes={s: sum(len(line.encode()) for line in lines) for s, lines in splits.items()},
        lines={split: len(lines) for split, lines in splits.items()},
        dropped=dropped or {},
        sha256=digest.hexdigest(),
    )
    # Written last: a folder without it was interrupted, and is made again.
    text = json.dumps(corpus.figures(), indent=1) + "\n"
    (target / "corpus.json").write_text(text, encoding="utf-8")
    return corpus


def evenly_spaced(lines: Sequence[str], count: int) -> list[str]:
    """`count` lines over the whole of the sequence, or all if there are fewer."""
    if len(lines) <= count:
        return list(lines)
    return [lines[index * len(lines) // count] for index in range(count)]


def minimal_pairs(
    train: Sequence[str], test: Sequence[str], *, count: int, seed: int
) -> list[dict[str, str]]:
    """Test lines and changes of them with as many bytes, `count` of each kind, in BLiMP's format.

    word order: two neighbouring words are swapped. word choice: a word is replaced by one of as
    many bytes that is about as frequent in the training text (at most twice, at least half).
    """
    generator = random.Random(seed)
    words = WordsByLength(train)
    pairs = []
    for kind in ("word order", "word choice"):
        changed = (
            {"sentence_good": line, "sentence_bad": bad, "phenomenon": kind}
            for line in generator.sample(list(test), len(test))
            if (bad := _changed(line, kind, words, generator)) is not None
        )
        pairs += [pair for pair, _ in zip(changed, range(count), strict=False)]
    return pairs


class WordsByLength:
    """The words of a text with their counts, by their bytes."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.counts = Counter(word for line in lines for word in line.split(" "))
        self.by_length: defaultdict[int, list[str]] = defaultdict(list)
        for word in sorted(self.counts):
            self.by_length[len(word.encode())].append(word)

    def similar(self, word: str) -> list[str]:
        """Other words of as many bytes whose count is at most twice and at least half."""
        count = self.counts[word]
        return [
            other
            for other in self.by_length[len(word.encode())]
            if other != word and count <= 2 * self.counts[other] <= 4 * count
        ]


def _changed(line: str, kind: str, words: WordsByLength, generator: random.Random) -> str | None:
    """The line with one random change of the kind; None if there is none."""
    parts = line.split(" ")
    changes = list(_swaps(parts) if kind == "word order" else range(len(parts)))
    generator.shuffle(changes)
    for index in changes:
        if kind == "word order":
            swapped = [parts[index + 1], parts[index]]
            return " ".join([*parts[:index], *swapped, *parts[index + 2 :]])
        if similar := words.similar(parts[index]):
            return " ".join([*parts[:index], generator.choice(similar), *parts[index + 1 :]])
    return None


def _swaps(parts: Sequence[str]) -> Iterator[int]:
    """Indices of words that differ from the next one."""
    return (i for i in range(len(parts) - 1) if parts[i] != parts[i + 1])
