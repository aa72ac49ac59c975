"""Fixtures: a small RNN with fixed weights, and tokenizers trained on a few sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run_configs import run_config
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.distribution import Categorical
from lmlab.core.protocols import LogProbs
from lmlab.core.state import TensorState
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.training.run_config import RunConfig


class TinyRecurrent(System):
    """h' = tanh(A h + e(x)), p = softmax(O h'): every token depends on all before it."""

    scorer_kind = "left-to-right"

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        seed: int = 0,
        carries: bool = True,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.longest = window
        self.carries = carries
        generator = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> torch.nn.Parameter:
            values = torch.randn(*shape, generator=generator, dtype=torch.float64)
            return torch.nn.Parameter(values)

        self.embedding = weights(vocabulary.size, 6)
        self.transition = weights(6, 6)
        self.output = weights(6, vocabulary.size)
        self.dropout = torch.nn.Dropout(0.5)
        self.largest_batch = 0

    @property
    def window(self) -> int | None:
        return self.longest

    def _next(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return torch.tanh(hidden @ self.transition + self.embedding[tokens])

    def _log_probs(self, hidden: Tensor) -> Tensor:
        logits = self.dropout(hidden) @ self.output
        logits[:, list(self.vocabulary.unpredictable)] = float("-inf")
        return torch.log_softmax(logits, -1)

    def log_prob(
        self,
        batch: Batch,
        *,
        state: TensorState | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        self.largest_batch = max(self.largest_batch, batch.tokens.numel())
        rows, time = batch.tokens.shape
        hidden = torch.zeros(rows, 6, dtype=torch.float64) if state is None else state["hidden"]
        columns = []
        for position in range(time - 1):
            hidden = self._next(hidden, batch.tokens[:, position])
            columns.append(
                Categorical(self._log_probs(hidden)).log_prob(batch.tokens[:, position + 1])
            )
        per_token = torch.stack(columns, 1) if columns else torch.zeros(rows, 0)
        per_token = per_token * batch.targets_mask()[:, 1:]
        after = TensorState({"hidden": hidden}) if self.carries else None
        return LogProbs(per_token=per_token.nan_to_num(0.0), kind="exact", state=after)

    def start(self, rows: int, *, condition: Batch | None = None) -> TensorState:
        hidden = torch.zeros(rows, 6, dtype=torch.float64)
        first = torch.full((rows,), self.vocabulary.start or 0)
        return TensorState({"hidden": self._next(hidden, first)})

    def peek(self, state: TensorState) -> Categorical:
        return Categorical(self._log_probs(state["hidden"]))

    def advance(self, state: TensorState, tokens: Tensor) -> TensorState:
        return TensorState({"hidden": self._next(state["hidden"], tokens)})


SENTENCES = [
    "the cat sat on the mat",
    "the dog sat on the cat",
    "a dog saw the mat",
    "a bird saw a cat on a mat",
]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return SENTENCES


@pytest.fixture(scope="session")
def word_tokenizer() -> Tokenizer:
    return train_tokenizer("word", SENTENCES)


@pytest.fixture(scope="session")
def char_tokenizer() -> Tokenizer:
    return train_tokenizer("char", SENTENCES)


@pytest.fixture(scope="session")
def tiny_recurrent() -> type[TinyRecurrent]:
    return TinyRecurrent


@dataclass(frozen=True, kw_only=True, eq=False)
class FakeModel:
    """The attributes of a trained run that a comparison uses."""

    system: System
    tokenizer: Tokenizer
    path: Path
    card: Card
    layout: Layout = field(default_factory=Layout)
    config: RunConfig

    @property
    def effective_source_tokenizer(self) -> Tokenizer:
        return self.tokenizer


@pytest.fixture(scope="session")
def fake_model() -> Callable[..., FakeModel]:
    """Factory of runs with the given name, seed, settings and weights."""

    def make(
        name: str, folder: str, system: System, tokenizer: Tokenizer, **more: Any
    ) -> FakeModel:
        config = run_config(name, seed=more.pop("seed", 0), system_config=more.pop("set", {}))
        card = Card(
            family="test", kind="exact", paper="", source="", protocols=("LogProb",), name=name
        )
        return FakeModel(
            system=system,
            tokenizer=tokenizer,
            path=Path("runs") / folder,
            card=card,
            config=config,
            **more,
        )

    return make
