"""Quality and diversity of texts: BLEU by sacreBLEU, self-BLEU, distinct n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu

SPLIT_BY_SPACES = "none"
"""The texts are tokenised already."""


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU (0 to 100) where every reference counts for every text."""
    streams = [[reference] * len(texts) for reference in references]
    metric = sacrebleu.BLEU(tokenize=SPLIT_BY_SPACES, smooth_method="exp")
    return float(metric.corpus_score(list(texts), streams).score)


def self_bleu(texts: Sequence[str]) -> float:
    """Mean BLEU (0 to 100) of each text against the others (Zhu et al. 2018): low is various."""
    metric = sacrebleu.BLEU(tokenize=SPLIT_BY_SPACES, smooth_method="exp", effective_order=True)
    scores = [
        metric.sentence_score(text, [other for j, other in enumerate(texts) if j != i]).score
        for i, text in enumerate(texts)
    ]
    return sum(scores) / len(scores)


def distinct(texts: Sequence[str], n: int) -> float:
    """Different n-grams over all n-grams (Li et al. 2016)."""
    words = [text.split() for text in texts]
    grams = [tuple(each[i : i + n]) for each in words for i in range(len(each) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
