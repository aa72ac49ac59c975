"""A tabular language model: given sequences with given probabilities, decoded step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Prefixes:
    """The state: the tokens generated so far in each row."""

    rows: tuple[tuple[int, ...], ...]

    def select(self, rows: Tensor) -> Prefixes:
        return Prefixes(tuple(self.rows[row] for row in rows.tolist()))

    def detach(self) -> Prefixes:
        return self


class Table(System):
    """p(next | prefix) = p(sequences with prefix + next) / p(sequences with the prefix)."""

    scorer_kind = "left-to-right"

    def __init__(self, sequences: Mapping[tuple[int, ...], float], size: int) -> None:
        super().__init__()
        self.vocabulary = Vocabulary(size=size)
        self.steps = 0
        self.rows_stepped = 0
        self.known: dict[tuple[int, ...], list[float]] = {}
        self.mass: dict[tuple[int, ...], float] = {}
        for tokens, probability in sequences.items():
            ended = (*tokens, self.vocabulary.end)
            for length in range(len(ended) + 1):
                self.mass[ended[:length]] = self.mass.get(ended[:length], 0.0) + probability

    def start(self, rows: int, *, condition: Batch | None = None) -> Prefixes:
        if condition is None:
            return Prefixes(((),) * rows)
        # A condition here is the first token of the text to generate.
        return Prefixes(tuple((int(row[1]),) for row in condition.tokens))

    def peek(self, state: Prefixes) -> Categorical:
        self.steps += 1
        self.rows_stepped += len(state.rows)
        return Categorical(self._table(state).log())

    def _table(self, state: Prefixes) -> Tensor:
        rows = [self.following(prefix) for prefix in state.rows]
        return torch.tensor(rows, dtype=torch.float64)

    def following(self, prefix: tuple[int, ...]) -> list[float]:
        if prefix not in self.known:
            masses = [self.mass.get((*prefix, token), 0.0) for token in range(self.vocabulary.size)]
            self.known[prefix] = [mass / self.mass[prefix] for mass in masses]
        return self.known[prefix]

    def advance(self, state: Prefixes, tokens: Tensor) -> Prefixes:
        grown = zip(state.rows, tokens.tolist(), strict=True)
        return Prefixes(tuple((*prefix, token) for prefix, token in grown))


@pytest.fixture(scope="session")
def table() -> type[Table]:
    return Table


@pytest.fixture
def greedy_trap() -> tuple[Table, list[str]]:
    """Greedy search misses the likeliest sequence: continuations of 我爱 with probabilities."""
    given = {
        "苹果": 0.45,
        "大象": 0.1,
        "大人": 0.08,
        "大妈": 0.12,
        "大便": 0.05,
        "大军": 0.05,
        "大米": 0.08,
        "大姐": 0.07,
    }
    tokens = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *sorted({*"我爱", *"".join(given)})]
    sequences = {
        tuple(tokens.index(character) for character in "我爱" + text): probability
        for text, probability in given.items()
    }
    return Table(sequences, len(tokens)), tokens


@pytest.fixture
def random_table() -> Table:
    """Every sequence of at most 3 tokens out of 3, with random probabilities that sum to one."""
    space = [()]
    for _ in range(3):
        space += [(*tokens, new) for tokens in space for new in (5, 6, 7)]
    space = sorted(set(space))
    weights = torch.rand(len(space), generator=torch.Generator().manual_seed(3)) ** 3
    shares = (weights.double() / weights.double().sum()).tolist()
    return Table(dict(zip(space, shares, strict=True)), 8)
