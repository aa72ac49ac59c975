"""Tokenised dataset: a split as ids, memory-mapped if large, cached by content."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlab.core.cache_folder import default_cache
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.column_store import Columns, ColumnWriter, cache_key, open_columns
from lmlab.data.corpus import Layout, Split
from lmlab.data.corpus_encoding import EntityNumbering, encoded_chunks
from lmlab.data.lines import ReadingReport
from lmlab.data.tokenizers import Tokenizer

MAX_IN_MEMORY = 2**20
"""Splits of at most so many tokens are tokenised in memory each time and leave no files."""


class TokenDataset:
    """Token sequences by index, following a layout.

    Sentences and pairs: `<s> w … </s>`, truncated as the layout says. Contiguous text: one stream
    `</s> w … </s> w … </s>` whose first token is context only, so that every token of the text is
    predicted once; sequence i is line i with the preceding `</s>`. In each sequence the first token
    is context and the others are predicted.
    """

    def __init__(
        self, columns: Columns, layout: Layout, vocabulary: Vocabulary, report: ReadingReport
    ) -> None:
        self.layout = layout
        self.vocabulary = vocabulary
        self.report = report
        """Counts of the reader when the split was tokenised."""
        self.characters = columns["characters"]
        """(N,) characters of each text; for a truncated text, up to the end of its last token."""
        self.unknown_counts = columns["unknown"]
        """(N,) unknown tokens among the predicted ones of each sequence."""
        self._tokens = columns["tokens"]
        self._offsets = columns["offsets"]
        self._condition_tokens = columns.get("condition_tokens")
        self._condition_offsets = columns.get("condition_offsets")
        self._entities = columns.get("entities")
        # A line of contiguous text includes the preceding </s>, which belongs to the line before.
        self._overlap = 1 if layout.kind == "contiguous" else 0

    @classmethod
    def build(
        cls,
        split: Split,
        tokenizer: Tokenizer,
        layout: Layout,
        *,
        cache: Path | str | None = None,
        progress: bool = True,
        condition_tokenizer: Tokenizer | None = None,
        in_memory: int = MAX_IN_MEMORY,
        entities: EntityNumbering | None = None,
    ) -> TokenDataset:
        """Tokenise a split, or open its cache.

        `cache`: folder of the memory-mapped files; LMLAB_CACHE or the user's cache folder by
        default. `condition_tokenizer`: for the source side of pairs, if different. `in_memory`: a
        split of more tokens goes to files, in constant memory. `entities`: entity ids, for
        annotated corpora.
        """
        source = condition_tokenizer or tokenizer
        folder = (default_cache() if cache is None else Path(cache)) / cache_key(
            split=split.fingerprint(),
            tokenizers=[tokenizer.fingerprint(), source.fingerprint()],
            # They decide which tokens frame a text and which one counts as unknown.
            vocabularies=[asdict(tokenizer.vocabulary), asdict(source.vocabulary)],
            layout=asdict(layout),
            **({} if entities is None else {"entities": entities.fingerprint()}),
        )
        stored = open_columns(folder)
        if stored is not None:
            return cls(stored.columns, layout, tokenizer.vocabulary, stored.report)
        chunks = encoded_chunks(
            split, tokenizer, source, layout, progress=progress, entities=entities
        )
        first, tokens = [], 0
        for chunk in chunks:
            first.append(chunk)
            tokens += len(chunk["tokens"])
            if tokens > in_memory:
                break
        else:
            columns = {name: np.concatenate([chunk[name] for chunk in first]) for name in first[0]}
            return cls(columns, layout, tokenizer.vocabulary, split.report)
        with ColumnWriter(folder) as writer:
            for chunk in chain(first, chunks):
                writer.append(chunk)
            writer.finish(split.report)
        stored = open_columns(folder)
        assert stored is not None, f"{folder} was written and cannot be read"
        return cls(stored.columns, layout, tokenizer.vocabulary, stored.report)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> NDArray[Any]:
        """Ids of sequence `index`, context token first; a read-only view."""
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        return self._tokens[self._offsets[index] - self._overlap : self._offsets[index + 1]]

    def condition(self, index: int) -> NDArray[Any]:
        """Ids of the condition of sequence `index`: `<s> w … </s>` of the source sentence."""
        if self._condition_tokens is None or self._condition_offsets is None:
            raise UserError("only a corpus of pairs has conditions; this one holds single texts.")
        offsets = self._condition_offsets
        return self._condition_tokens[offsets[index] : offsets[index + 1]]

    @property
    def has_entities(self) -> bool:
        """Whether tokens are annotated with entities."""
        return self._entities is not None

    def entities(self, index: int) -> NDArray[Any]:
        """The entity of each token of sequence `index`, -1 for none."""
        assert self._entities is not None, "built without entities"
        return self._entities[self._offsets[index] : self._offsets[index + 1]]

    @property
    def has_condition(self) -> bool:
        """Whether sequences have a condition (source)."""
        return self._condition_tokens is not None

    @property
    def stream(self) -> NDArray[Any]:
        """All ids concatenated; in contiguous text the first is context, the others predicted."""
        return self._tokens

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(N + 1,) start of each sequence in the stream, and the end of the last."""
        return self._offsets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) tokens of each sequence, context included."""
        return self.lengths_between(0, len(self))

    def lengths_between(self, low: int, high: int) -> NDArray[np.int64]:
        """Lengths of sequences low to high - 1, without reading the others."""
        return np.diff(self._offsets[low : high + 1]) + self._overlap

    def condition_lengths_between(self, low: int, high: int) -> NDArray[np.int64]:
        """Lengths of the conditions of sequences low to high - 1."""
        assert self._condition_offsets is not None, "only pairs have conditions"
        return np.diff(self._condition_offsets[low : high + 1])

    @property
    def total_tokens(self) -> int:
        """Number of predicted tokens."""
        return len(self._tokens) - (1 if self._overlap else len(self))

    @property
    def unknown(self) -> int:
        """Number of unknown tokens among the predicted ones."""
        return int(self.unknown_counts.sum(dtype=np.int64))
