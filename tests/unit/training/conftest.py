"""Small corpora, and a trainable system simple enough to check by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State, TensorState
from lmlab.core.system import System, TrainableSystem
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import TrainingData
from lmlab.training.distributed import make_accelerator
from lmlab.training.loop import FitJob
from lmlab.training.run_folder import RunFolder
from lmlab.training.training_logs import Reporter

WALL_CLOCK = ("seconds", "tokens_per_second")


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of 3 to 9 words in which a word depends on the one before it."""
    source = random.Random(seed)
    words = [f"w{number}" for number in range(12)]
    lines = []
    for _ in range(count):
        state, line = source.randrange(12), []
        for _ in range(source.randint(3, 9)):
            line.append(words[state])
            state = (state * 2 + source.choice((0, 1))) % 12
        lines.append(" ".join(line))
    return lines


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with train, valid and test files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for seed, (name, count) in enumerate({"train": 120, "valid": 30, "test": 30}.items()):
        (folder / f"{name}.txt").write_text("\n".join(sentences(count, seed)) + "\n")
    return folder


def losses(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without wall-clock fields."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in WALL_CLOCK} for line in lines]


@pytest.fixture
def read_losses() -> Callable[[Path], list[dict[str, Any]]]:
    return losses


class Bigram(TrainableSystem):
    """p(next | last) = softmax of a row of a table, sharper the more tokens precede it.

    Its state is the number of preceding tokens; without a state nothing is sharpened.
    """

    def __init__(self, size: int = 8, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.vocabulary = Vocabulary(size=size)
        generator = torch.Generator().manual_seed(1)
        self.table = torch.nn.Parameter(torch.randn(size, size, generator=generator))
        self.idle = torch.nn.Parameter(torch.ones(3))  # unused, so it never has a gradient
        self.dropout = torch.nn.Dropout(dropout)
        self.states: list[State | None] = []
        """The state given to each call of the loss."""
        self.poison_at: int | None = None
        """The call of the loss, counted from 0, that returns NaN."""

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        before = torch.zeros(len(batch))
        if isinstance(state, TensorState):
            before = state["seen"]
        sharpness = 1 + 0.1 * before[:, None, None]
        rows = self.dropout(self.table[batch.tokens[:, :-1]]) * sharpness
        chosen = torch.log_softmax(rows, -1).gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)
        per_token = chosen * batch.targets_mask()[:, 1:]
        state = TensorState({"seen": before + batch.lengths - 1})
        return LogProbs(per_token=per_token, kind="exact", state=state)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        scored = self.log_prob(batch, state=state)
        total = -scored.totals.sum()
        if len(self.states) == self.poison_at:
            total = total * float("nan")
        self.states.append(state)
        return Loss(total, torch.tensor(float(batch.count))), scored.state


class ListedBatches:
    """The same given batches in every epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def batches_per_epoch(self, number: int = 0) -> int:
        return len(self.batches)

    def epoch(self, number: int, start: int = 0) -> Any:
        return iter(self.batches[start:])


@pytest.fixture
def bigram() -> type[Bigram]:
    return Bigram


@pytest.fixture
def batches() -> list[Batch]:
    """Four batches of different sizes and lengths."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for rows, time in ((4, 5), (3, 7), (6, 4), (2, 9)):
        tokens = torch.randint(5, 8, (rows, time), generator=generator)
        lengths = torch.randint(2, time + 1, (rows,), generator=generator)
        made.append(Batch(tokens=tokens, lengths=lengths, rows=torch.arange(rows)))
    return made


MakeJob = Callable[..., FitJob]


@pytest.fixture
def make_job(tmp_path: Path, batches: list[Batch]) -> MakeJob:
    """Factory of fitting jobs: a bigram on listed batches, in a folder of its own."""

    def make(
        *,
        name: str = "run",
        system: System | None = None,
        train: list[Batch] | None = None,
        held_out: list[Batch] | None = None,
        **settings: Any,
    ) -> FitJob:
        config = TrainingConfig(**settings)
        run = RunFolder(tmp_path / name)
        run.create()
        train = batches if train is None else train
        data = TrainingData(
            dataset=None,  # type: ignore[arg-type]
            train=ListedBatches(train),
            carries_state=any(batch.continues_previous for batch in train),
            held_out=None if held_out is None else ListedBatches(held_out),
            held_out_split=None if held_out is None else "validation",
        )
        return FitJob(
            system=system or Bigram(),
            data=data,
            config=config,
            run=run,
            accelerator=make_accelerator(),
            reporter=Reporter(run.metrics, config, quiet=True),
        )

    return make
