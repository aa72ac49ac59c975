"""N-gram table output layer: interpolated modified Kneser-Ney, fitted by counting, with backoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.backoff import TEXT_BREAK, BackoffModel, BackoffTables
from lmlab.inference.kneser_ney import KneserNeyFit, fit_kneser_ney

BUFFERS = ("level_ends", "keys", "table_log_probs", "table_log_backoffs")


class NgramTable(Emission):
    """N-gram model p(w | the last n - 1 words) from interpolated modified Kneser-Ney tables.

    The hidden state is the context itself: ids (…, n - 1), latest last, -1 where there is no word.
    Log-probabilities are natural and in double precision; those of padding, start and mask are
    -inf. The tables are buffers, saved like weights; before `fit` they hold the uniform
    distribution. Rows in reading order are fastest (several million per second, as each row extends
    the one before); any order is correct.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"contexts"})
    level_ends: Tensor
    keys: Tensor
    table_log_probs: Tensor
    table_log_backoffs: Tensor

    def __init__(self, order: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self._model: BackoffModel | None = None
        no_tokens = np.empty(0, dtype=np.int64)
        self.set_tables(
            fit_kneser_ney(no_tokens, np.array([0]), order=order, vocabulary=vocabulary).tables
        )

    @property
    def order(self) -> int:
        """Order n: words in the longest n-gram, the predicted one included."""
        return len(self.level_ends)

    def fit(self, tokens: np.ndarray, offsets: np.ndarray) -> KneserNeyFit:
        """Replace the tables by those of a corpus; see `lmlab.inference.kneser_ney.fit_kneser_ney`.

        The record has the discounts, and the orders at which the corpus was too small for them.
        """
        fitted = fit_kneser_ney(tokens, offsets, order=self.order, vocabulary=self.vocabulary)
        self.set_tables(fitted.tables)
        return fitted

    def set_tables(self, tables: BackoffTables) -> None:
        """Replace the tables, for example by those of an ARPA file; the order is set to theirs."""
        if tables.vocabulary != self.vocabulary:
            raise UserError(
                f"expected tables for {self.vocabulary}, got tables for {tables.vocabulary}; "
                "build the model with the vocabulary that belongs to the tables."
            )
        arrays = (tables.level_ends, tables.keys, tables.log_probs, tables.log_backoffs)
        for name, array in zip(BUFFERS, arrays, strict=True):
            self.register_buffer(name, torch.from_numpy(array.copy()))
        self._model = None

    @property
    def tables(self) -> BackoffTables:
        """The tables as arrays that share the buffers' memory."""
        level_ends, keys, log_probs, log_backoffs = (
            self.get_buffer(name).numpy() for name in BUFFERS
        )
        return BackoffTables(
            vocabulary=self.vocabulary,
            level_ends=level_ends,
            keys=keys,
            log_probs=log_probs,
            log_backoffs=log_backoffs,
        )

    @property
    def model(self) -> BackoffModel:
        """The tables with their index, built on first use."""
        if self._model is None:
            self._model = BackoffModel(self.tables)
        return self._model

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        predictions = self.model.predict(self._contexts(hidden), self._ids(targets, lowest=0))
        return _like(predictions.log_probs, hidden)

    def log_probs(self, hidden: Tensor) -> Tensor:
        log_probs = self.model.distribution(self._contexts(hidden.flatten(0, -2)))
        return _like(log_probs, hidden).view(*hidden.shape[:-1], self.vocabulary.size)

    def matched_order(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) order of the longest known n-gram of each target: 1 is the unigram.

        It shows how much context was used, and where the model backed off.
        """
        predictions = self.model.predict(self._contexts(hidden), self._ids(targets, lowest=0))
        return torch.from_numpy(predictions.orders.astype(np.int64)).to(hidden.device)

    def _contexts(self, hidden: Tensor) -> np.ndarray:
        if hidden.shape[-1] != self.order - 1:
            raise UserError(
                f"a model of order {self.order} takes contexts of {self.order - 1} words, got "
                f"{hidden.shape[-1]}; use the model's own context length."
            )
        return self._ids(hidden, lowest=TEXT_BREAK)

    def _ids(self, tokens: Tensor, *, lowest: int) -> np.ndarray:
        ids = tokens.detach().cpu().numpy()
        if ids.size and (ids.min() < lowest or ids.max() >= self.vocabulary.size):
            raise UserError(
                f"token ids must be from {lowest} to {self.vocabulary.size - 1}, got {ids.min()} "
                f"to {ids.max()}; encode the text with the model's own tokenizer."
            )
        return ids

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NgramTable:
        """No-op: lookup runs on the CPU, and rounded tables would not sum to one."""
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **words: Any
    ) -> None:
        # A stored table has its own size and precision, whatever this one was built with.
        for name in BUFFERS:
            stored = state_dict.get(prefix + name)
            if stored is not None:
                self.register_buffer(name, torch.empty_like(stored, device="cpu"))
        super()._load_from_state_dict(state_dict, prefix, *rest, **words)
        self._model = None
        _ = self.tables  # raises at once if they are inconsistent


def _like(values: np.ndarray, other: Tensor) -> Tensor:
    """As a tensor on the other's device; Apple's has no double precision."""
    tensor = torch.from_numpy(values)
    return tensor.float().to("mps") if other.device.type == "mps" else tensor.to(other.device)
