"""BLiMP: minimal pairs of an acceptable and an unacceptable sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmlab.scoring.alternatives import Alternatives
from lmlab.scoring.minimal_pairs import UNLABELLED, read_minimal_pairs
from lmlab.scoring.suite import Suite


def read_pairs(path: Path) -> Sequence[Alternatives]:
    """Minimal pairs as alternatives; a file without UIDs is a paradigm of its own."""
    items = []
    for pair in read_minimal_pairs([path]):
        paradigm = pair.uid or Path(pair.file).stem
        phenomenon = paradigm if pair.phenomenon == UNLABELLED else pair.phenomenon
        texts = (pair.good, pair.bad)
        items.append(Alternatives(phenomenon=phenomenon, paradigm=paradigm, texts=texts))
    return items


SUITE = Suite(
    name="blimp",
    title="BLiMP: minimal pairs of English grammar",
    source="Warstadt et al. 2020, BLiMP: The Benchmark of Linguistic Minimal Pairs for English",
    read=read_pairs,
    paradigms=67,
    babylm_task="blimp",
)
