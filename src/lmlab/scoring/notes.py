"""Notes under a table: what a reader must know before comparing its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields

from lmlab.core.score import Convention
from lmlab.data.corpus import Corpus
from lmlab.scoring.comparison import Row

FEW_TEXTS = 30
"""Below so many texts a bootstrap over them is not to be trusted."""


def notes_on(rows: Sequence[Row], corpus: Corpus, split: str) -> Iterator[str]:
    """A sentence for each thing that could mislead; none where all is alike."""
    yield from _mixed(rows)
    for row in rows:
        yield from _about(row)
    if len(rows) > 1 and rows[0].sequences < FEW_TEXTS:
        yield (
            f"Only {rows[0].sequences} texts were scored: resampling so few says little, and the "
            "intervals and p-values of the differences are too sure of themselves."
        )
    if any(row.spread is not None for row in rows):
        yield "± is the standard deviation over seeds; nats are their mean, perplexity its exp."
    if corpus.truth is not None and any(row.floor is None for row in rows):
        yield (
            f"The truth of {corpus.name} is a floor only where whole texts of its own are scored "
            "with their ends."
        )
    if split not in corpus.splits:
        yield f"{corpus.name} has no {split} split; another stands in for it."


def _mixed(rows: Sequence[Row]) -> Iterator[str]:
    kinds = sorted({row.kind for row in rows})
    if len(kinds) > 1:
        yield (
            f"The rows hold scores of different kinds ({', '.join(kinds)}): they are ranked within "
            "a kind only, and no difference is taken between kinds."
        )
    if len({row.tokenization for row in rows}) > 1:
        yield (
            "The rows have different tokens: nats per token and perplexity compare only where the "
            "tokens are the same; bits per character compare everywhere, unknown words aside."
        )
    differing = [
        spec.name
        for spec in fields(Convention)
        if spec.name != "tokenizer"
        and len({getattr(row.convention, spec.name) for row in rows}) > 1
    ]
    if differing:
        yield f"The rows were scored by different conventions ({', '.join(differing)})."


def _about(row: Row) -> Iterator[str]:
    if len(set(row.seeds)) < len(row.seeds):
        yield f"{row.name}: some of its runs share a seed, so their spread is not one over seeds."
    if math.isinf(row.nats_per_token):
        yield f"{row.name} gives some text probability zero, so its perplexity is infinite."
    if math.isnan(row.nats_per_token):
        yield f"{row.name} gives scores that are not numbers: its training has gone wrong."
    if row.unknown:
        share = row.unknown / max(row.tokens, 1)
        yield (
            f"{row.name}: {row.unknown:,} of {row.tokens:,} tokens ({share:.1%}) are unknown and "
            "counted as the one token <unk>, which is easier than the word itself."
        )
