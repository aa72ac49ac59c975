"""N-gram language model: interpolated modified Kneser-Ney, fitted by counting."""

from __future__ import annotations

import numpy as np

from lmlab.emissions.ngram_table import NgramTable
from lmlab.models.causal_lm import AutoregressiveLM


class NgramModel(AutoregressiveLM):
    """N-gram model, fitted in one pass of counting."""

    emission: NgramTable

    @property
    def parameter_count(self) -> int:
        """Number of probabilities and backoff weights in its tables."""
        return self.emission.table_log_probs.numel() + self.emission.table_log_backoffs.numel()

    def fit_counts(self, tokens: np.ndarray, offsets: np.ndarray) -> str | None:
        orders = self.emission.fit(tokens, offsets).fallback_orders
        if not orders:
            return None
        which = ", ".join(map(str, orders))
        return f"too little text to estimate the discounts of order {which}; using 0.5, 1 and 1.5."
