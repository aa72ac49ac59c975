"""Baseline losses: uniform, unigram, n-gram (Kneser-Ney) and true entropy."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from lmlab.backbones.window import NgramContext
from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus
from lmlab.data.dataset import TokenDataset
from lmlab.diagnosis.findings import Baseline
from lmlab.emissions.ngram_table import NgramTable
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

UNIFORM, UNIGRAM, ENTROPY = "uniform", "unigram", "entropy"
BIGRAM, TRIGRAM = "bigram", "trigram"
MAX_TOKENS = 3_000_000
"""Most training tokens for n-gram counts: a few seconds, some hundred megabytes."""
BASELINE_MEANINGS = {
    UNIFORM: "every token equally probable",
    UNIGRAM: "unigram frequencies in train, no context",
    BIGRAM: "one token of context, by counts in train (Kneser-Ney)",
    TRIGRAM: "two tokens of context, by counts in train (Kneser-Ney)",
    ENTROPY: "the loss of the true distribution on this split; no valid loss is below",
}


def compute_baselines(
    corpus: Corpus,
    split: str,
    train: TokenDataset,
    held_out: TokenDataset,
    batches: Iterable[Batch],
    vocabulary: Vocabulary,
) -> tuple[Baseline, ...]:
    """Baselines on a split, highest first; `batches` are those of the split, in order."""
    batches = list(batches)
    values = {UNIFORM: math.log(vocabulary.size - len(vocabulary.unpredictable))}
    for name, order in ((UNIGRAM, 1), (BIGRAM, 2), (TRIGRAM, 3)):
        values[name] = kneser_ney_loss(train, batches, vocabulary, order=order)
    floor = true_distribution_loss(corpus, split, held_out)
    if floor is not None:
        values[ENTROPY] = floor
    counted = f"; the first {MAX_TOKENS:,} tokens" if train.total_tokens > MAX_TOKENS else ""
    meanings = {n: m + (counted if "train" in m else "") for n, m in BASELINE_MEANINGS.items()}
    return tuple(Baseline(name=n, value=v, meaning=meanings[n]) for n, v in values.items())


def kneser_ney_loss(
    train: TokenDataset, batches: Iterable[Batch], vocabulary: Vocabulary, *, order: int
) -> float:
    """Nats per token of a Kneser-Ney n-gram model of this order, fitted on train.

    Only the first `MAX_TOKENS` training tokens are counted.
    """
    emission = NgramTable(order, vocabulary)
    emission.fit(*leading_sequences(*flatten_dataset(train), MAX_TOKENS))
    ngram = AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=NgramContext(order - 1),
        emission=emission,
        objective=NextToken(),
    )
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            # A batch of contiguous text carries the token before it; a trigram lacks only the one
            # before that, at the first position of a row of thousands.
            total -= float(ngram.log_prob(batch).per_token.sum())
            count += batch.count
    return total / max(count, 1)


def flatten_dataset(dataset: TokenDataset) -> tuple[np.ndarray, np.ndarray]:
    """All ids concatenated, and the sequence offsets; a stream is one sequence."""
    if dataset.layout.kind == "contiguous":
        return dataset.stream, np.array([0, len(dataset.stream)], dtype=np.int64)
    return dataset.stream, dataset.offsets


def leading_sequences(
    tokens: np.ndarray, offsets: np.ndarray, max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """The whole sequences within the first `most` ids, at least one; a longer one is cut."""
    if len(tokens) <= max_tokens:
        return tokens, offsets
    selected = offsets[: max(int(np.searchsorted(offsets, max_tokens, side="right")), 1)]
    selected = selected if len(selected) > 1 else np.array([0, max_tokens], dtype=offsets.dtype)
    return tokens[: int(selected[-1])], selected


def true_distribution_loss(corpus: Corpus, split: str, dataset: TokenDataset) -> float | None:
    """Nats per token of the true distribution on the split; None if it is unknown.

    Also None for truncated texts or unknown words, whose probability differs from the text's.
    """
    if corpus.truth is None or dataset.layout.cut is not None or dataset.unknown:
        return None
    total = sum(corpus.truth.log_prob(text) for text in corpus.splits[split].texts())
    return -total / max(dataset.total_tokens, 1)
