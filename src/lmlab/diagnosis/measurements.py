"""Measured losses: uniform, unigram, n-gram (Kneser-Ney), true entropy; and what checks share."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lmlab.backbones.window import NgramContext
from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import LogProb
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus
from lmlab.data.dataset import TokenDataset
from lmlab.diagnosis.findings import Baseline
from lmlab.emissions.ngram_table import NgramTable
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

if TYPE_CHECKING:
    from lmlab.diagnosis.run_evidence import RunEvidence


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


def epochs_seen(evidence: RunEvidence) -> float:
    """Epochs: passes over the training text, by tokens seen."""
    return evidence.history.tokens / max(evidence.texts.train.total_tokens, 1)


def unknown_token_rate(dataset: TokenDataset) -> float:
    """Share of unknown tokens among the predicted ones."""
    return dataset.unknown / max(dataset.total_tokens, 1)


def trigram_gain(evidence: RunEvidence) -> float:
    """Gain of a trigram over a bigram model on held-out text, in nats."""
    if evidence.normalised:
        return evidence.levels[BIGRAM].value - evidence.levels[TRIGRAM].value
    bigram, trigram = (ngram_loss(evidence, evidence.validation_batches, order) for order in (2, 3))
    return bigram - trigram


def ngram_loss(evidence: RunEvidence, batches: list[Batch], order: int) -> float:
    """Nats per token of a Kneser-Ney n-gram model, fitted on the run's own tokens."""
    return kneser_ney_loss(evidence.texts.train, batches, evidence.vocabulary, order=order)


def sample_loss(system: System, evidence: RunEvidence) -> float:
    """Nats per token of a system on the held-out sample."""
    assert isinstance(system, LogProb)
    total, count, device = 0.0, 0, device_of(system)
    generator = torch.Generator(device=device).manual_seed(0)
    with evaluation_mode(system):
        for batch in evidence.sample:
            total -= float(system.log_prob(batch.to(device), generator=generator).totals.sum())
            count += batch.count
    return total / max(count, 1)


def with_equal_norms(system: System, name: str) -> System:
    """A copy in which all rows of an embedding table have the mean norm."""
    equalised = copy.deepcopy(system)
    rows = equalised.get_parameter(name)
    with torch.no_grad():
        norms = rows.norm(dim=1, keepdim=True)
        rows.mul_(norms.mean() / norms.clamp(min=1e-12))
    return equalised


def norm_frequency_correlation(vectors: Tensor, train: TokenDataset) -> float:
    """Pearson correlation of vector norm and log frequency, over the tokens seen in train."""
    counts = np.bincount(np.asarray(train.stream, dtype=np.int64), minlength=len(vectors))
    occurs = counts > 0
    norms = vectors.norm(dim=1).double().cpu().numpy()[occurs]
    if occurs.sum() < 3 or norms.std() == 0:
        return 0.0
    return float(np.corrcoef(np.log(counts[occurs]), norms)[0, 1])
