"""Word vector queries: nearest neighbours, analogies and word similarity benchmarks.

All use cosine similarity. An out-of-vocabulary word is an error that names the nearest spellings,
or, in a list of pairs, is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.errors import UserError, nearest_names
from lmlab.core.notebook import Records
from lmlab.core.protocols import Vectors
from lmlab.core.system import System
from lmlab.data.tokenizers import Tokenizer
from lmlab.data.wordnet.noun_similarity import SimilarityPair
from lmlab.training.weight_statistics import token_vectors

QUERIES_PER_BATCH = 256
"""Analogies whose cosines to all words are computed together."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A neighbouring word and its cosine similarity."""

    word: str
    cosine: float


@dataclass(frozen=True, kw_only=True)
class SimilarityCorrelation:
    """Word similarity: rank correlation of cosines with human judgements."""

    spearman: float
    """Rank correlation, 1 for the same order; ties have their mean rank."""
    pairs: int
    """Pairs of which both words have a vector …"""
    left_out: int
    """… and those of which one has none."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class WordVectors:
    """Unique words and their vectors, (N, W)."""

    def __init__(self, words: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
        assert len(words) == len(vectors) and vectors.ndim == 2, vectors.shape
        self.words = list(words)
        self.vectors = np.asarray(vectors, dtype=np.float32)
        self.index: Mapping[str, int] = {word: index for index, word in enumerate(words)}

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def unit_vectors(self) -> NDArray[np.float32]:
        """Vectors (N, W) normalised to length one; zero vectors stay."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        unit: NDArray[np.float32] = self.vectors / np.maximum(lengths, np.float32(1e-30))
        return unit

    def index_of(self, word: str) -> int:
        """The index of a word, or an error that names similar spellings."""
        if word in self.index:
            return self.index[word]
        close = nearest_names(word, self.words)
        guess = f"did you mean {' or '.join(map(repr, close))}?" if close else "choose another."
        raise UserError(f"there is no vector for {word!r} among these {len(self)} words; {guess}")

    def cosine(self, first: str, second: str) -> float:
        """The cosine similarity of two words."""
        return float(
            self.unit_vectors[self.index_of(first)] @ self.unit_vectors[self.index_of(second)]
        )

    def nearest(self, word: str, count: int = 10) -> Records[Neighbour]:
        """The nearest neighbours of a word, best first, itself excluded."""
        index = self.index_of(word)
        return self._best(self.unit_vectors[index][None], [[index]], count)[0]

    def analogy(self, first: str, second: str, third: str, count: int = 10) -> Records[Neighbour]:
        """Analogy 3CosAdd (Mikolov et al. 2013): nearest to second - first + third.

        On normalised vectors, the three words excluded.
        """
        return self.analogies([(first, second, third)], count)[0]

    def analogies(
        self, questions: Sequence[tuple[str, str, str]], count: int = 1
    ) -> list[Records[Neighbour]]:
        """Answer many analogies, in batches of one matrix product each."""
        neighbours: list[Records[Neighbour]] = []
        for low in range(0, len(questions), QUERIES_PER_BATCH):
            batch = questions[low : low + QUERIES_PER_BATCH]
            indices = np.array([[self.index_of(word) for word in question] for question in batch])
            one, two, three = (self.unit_vectors[indices[:, column]] for column in range(3))
            neighbours += self._best(two - one + three, indices.tolist(), count)
        return neighbours

    def similarity_correlation(self, pairs: Iterable[SimilarityPair]) -> SimilarityCorrelation:
        """Spearman's correlation of the cosines with given similarities."""
        similarities, cosines, left_out = [], [], 0
        for pair in pairs:
            if pair.first in self.index and pair.second in self.index:
                similarities.append(pair.similarity)
                cosines.append(self.cosine(pair.first, pair.second))
            else:
                left_out += 1
        if len(set(similarities)) < 2 or len(set(cosines)) < 2:
            raise UserError(
                f"{len(cosines)} of {len(cosines) + left_out} pairs have vectors for both words, "
                "and a rank correlation needs at least two that differ; give other pairs."
            )
        return SimilarityCorrelation(
            spearman=spearman(similarities, cosines), pairs=len(similarities), left_out=left_out
        )

    def _best(
        self, queries: NDArray[np.float32], excluded: Sequence[Sequence[int]], count: int
    ) -> list[Records[Neighbour]]:
        lengths = np.linalg.norm(queries, axis=1, keepdims=True)
        cosines = (queries / np.maximum(lengths, 1e-30)) @ self.unit_vectors.T
        neighbours = []
        for row, excluded_row in zip(cosines, excluded, strict=True):
            row[list(excluded_row)] = -np.inf
            size = max(0, min(count, len(row) - len(set(excluded_row))))
            top = np.argpartition(-row, min(size, len(row) - 1))[:size]
            best = top[np.argsort(-row[top], kind="stable")]
            neighbours.append(
                Records(Neighbour(word=self.words[i], cosine=float(row[i])) for i in best)
            )
        return neighbours


def word_vectors(system: System, tokenizer: Tokenizer) -> WordVectors:
    """The word vectors of a system, without its special tokens.

    A system with `Vectors` says which they are; for any other it is its token embedding table, the
    first (input) one of several.
    """
    if isinstance(system, Vectors):
        table = system.vectors()
    else:
        tables = token_vectors(system)
        if not tables:
            raise UserError(
                "this system has no vector for each of its tokens; use one that has, such as "
                "skipgram, cbow, lstm, elmo or bert."
            )
        table = next(iter(tables.values()))
    vocabulary = tokenizer.vocabulary
    special_tokens = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    ids = [id for id in range(vocabulary.size) if id not in special_tokens]
    vectors = table.detach().to("cpu", torch.float32).numpy()[ids]
    return WordVectors([tokenizer.token(id) for id in ids], vectors)


def read_similarity_pairs(path: Path | str) -> list[SimilarityPair]:
    """Read word similarity pairs: two words and a number per line, separated by tabs, commas or
    spaces.

    The format of WordSim-353, SimLex-999 and the like; further columns, a heading and lines that
    begin with # are skipped.
    """
    pairs: list[SimilarityPair] = []
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the pairs in {path}: {reason}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        mark = next((mark for mark in ("\t", ",", ";") if mark in line), None)
        parts = [part.strip() for part in line.split(mark)]
        value = _first_number(parts[2:])
        if value is not None:
            pairs.append(SimilarityPair(first=parts[0], second=parts[1], similarity=value))
        elif pairs:
            raise UserError(
                f"{path}, line {number}: expected two words and a number, got {line!r}."
            )
    if not pairs:
        raise UserError(f"{path} has no line of two words and a number; check the file.")
    return pairs


def _first_number(parts: Sequence[str]) -> float | None:
    """SimLex-999 has a part of speech before its number."""
    for part in parts:
        try:
            return float(part)
        except ValueError:
            continue
    return None


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, ties at their mean rank."""
    first, second = (_ranks(np.asarray(values, dtype=np.float64)) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
