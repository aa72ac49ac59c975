"""Parts of what a reader gives: how a single file becomes train, validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example, Reader

BLOCK = 20
"""Of each 20 examples in a row one is validation and one is test: 90/5/5 exactly."""


@dataclass(frozen=True)
class Selected:
    """The examples whose index (from 0) a rule keeps, in the order of the file."""

    reader: Reader
    keeps: Callable[[int], bool]
    rule: str
    """The rule in words; it is part of the identity, so it must say all that decides it."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        for index, example in enumerate(self.reader.read(report)):
            if self.keeps(index):
                yield example

    def identity(self) -> str:
        return f"selected:{self.rule}:{self.reader.identity()}"

    def files(self) -> Sequence[Path]:
        return self.reader.files()


def by_block(reader: Reader, part: str, seed: int) -> Selected:
    """Train, validation or test part of a file, 90/5/5, by a hash of block number and seed.

    The choice is made inside each block of 20 examples, so that a pass needs no count of the whole,
    the proportions are exact, and text that drifts along a file is represented in each part.
    """
    return Selected(
        reader, lambda index: part_of(index, seed) == part, f"{part} of 90/5/5, seed {seed}"
    )


def part_of(index: int, seed: int) -> str:
    """Whether an example of a file that is divided by block is train, validation or test."""
    block, place = divmod(index, BLOCK)
    validation, test = _held_out_places(block, seed)
    return {validation: "validation", test: "test"}.get(place, "train")


def _held_out_places(block: int, seed: int) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}:{block}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    validation = number % BLOCK
    test = (validation + 1 + number // BLOCK % (BLOCK - 1)) % BLOCK
    return validation, test


def every_fifth(reader: Reader, part: str) -> Selected:
    """Test: the fifth, tenth, … example; train: the others."""
    if part == "test":
        return Selected(reader, lambda index: index % 5 == 4, "every fifth")
    return Selected(reader, lambda index: index % 5 != 4, "all but every fifth")


def by_position(reader: Reader, part: str, total: int) -> Selected:
    """The first 90 %, next 5 % or last 5 % of a contiguous text, whose order must be kept."""
    first, second = total * 90 // 100, total * 95 // 100
    low, high = {"train": (0, first), "validation": (first, second), "test": (second, total)}[part]
    return Selected(reader, lambda index: low <= index < high, f"{low} to {high}")


@dataclass(frozen=True)
class Shuffled:
    """A share of the examples, shuffled once by seed; they are all held in memory for it."""

    reader: Reader
    seed: int
    low: float
    """Start of the share, as a fraction of all."""
    high: float
    """End of the share."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        examples = list(self.reader.read(report))
        order = np.random.default_rng(self.seed).permutation(len(examples))
        for index in order[round(self.low * len(order)) : round(self.high * len(order))]:
            yield examples[index]

    def identity(self) -> str:
        return f"shuffled:{self.seed}:{self.low}:{self.high}:{self.reader.identity()}"

    def files(self) -> Sequence[Path]:
        return self.reader.files()
