"""Measurements shared by the checks: n-gram losses, unknown rate, epochs, embedding norms."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import LogProb
from lmlab.core.system import System
from lmlab.data.dataset import TokenDataset
from lmlab.diagnosis.baselines import BIGRAM, TRIGRAM, kneser_ney_loss
from lmlab.diagnosis.run_evidence import RunEvidence


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
