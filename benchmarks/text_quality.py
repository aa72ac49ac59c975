"""Quality and diversity of generated texts: BLEU by sacreBLEU, self-BLEU, distinct n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu

PRETOKENISED = "none"
"""sacreBLEU's `tokenize` option: the texts are tokenised already."""


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU (0 to 100), with all references for every text."""
    streams = [[reference] * len(texts) for reference in references]
    metric = sacrebleu.BLEU(tokenize=PRETOKENISED, smooth_method="exp")
    return float(metric.corpus_score(list(texts), streams).score)


def self_bleu(texts: Sequence[str]) -> float:
    """Self-BLEU (Zhu et al. 2018): mean BLEU of a text against the others; low is diverse."""
    metric = sacrebleu.BLEU(tokenize=PRETOKENISED, smooth_method="exp", effective_order=True)
    scores = [
        metric.sentence_score(text, [other for j, other in enumerate(texts) if j != i]).score
        for i, text in enumerate(texts)
    ]
    return sum(scores) / len(scores)


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct-n (Li et al. 2016): unique n-grams divided by all n-grams."""
    tokenised = [text.split() for text in texts]
    grams = [tuple(words[i : i + n]) for words in tokenised for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
