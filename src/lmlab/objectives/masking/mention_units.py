"""Mentions and phrases as masking units (ERNIE): annotated, or matched against a lexicon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import NO_ENTITY
from lmlab.core.errors import UserError
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.countries import country_table
from lmlab.data.wordnet import load_wordnet
from lmlab.objectives.masking.token_masking import shift_right
from lmlab.objectives.masking.whole_word_masking import WordUnits


def read_lexicon(names: str) -> tuple[str, ...]:
    """The names of several lexicons joined by commas, deduplicated, in order.

    `countries`: countries, capitals and cities in Chinese and English. `wordnet`: WordNet's
    multi-word lemmas. Anything else is a UTF-8 file with one name per line.
    """
    phrases: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        phrases.update(
            dict.fromkeys(
                BUILTIN_LEXICONS[name]() if name in BUILTIN_LEXICONS else _read_file(name)
            )
        )
    return tuple(phrases)


@cache
def country_names() -> tuple[str, ...]:
    """Names in the corpora `capitals` and `capitals-en`."""
    fields = ("country_zh", "capital_zh", "city_zh", "country_en", "capital_en", "city_en")
    return tuple(
        name for pair in country_table() for field in fields if (name := getattr(pair, field))
    )


@cache
def wordnet_phrases() -> tuple[str, ...]:
    """Multi-word lemmas, in lower case as in the glosses."""
    return tuple(lemma for lemma in load_wordnet().lemmas if " " in lemma)


BUILTIN_LEXICONS = {"countries": country_names, "wordnet": wordnet_phrases}


def _read_file(path: str) -> Iterable[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"mentions must be {' or '.join(BUILTIN_LEXICONS)} or a UTF-8 file with one name per "
            f"line; can't read {path!r}: {reason}."
        ) from error
    return filter(None, (line.strip() for line in text.splitlines()))


class MentionUnits:
    """Mentions where there are any, and words everywhere else (Sun et al. 2019).

    A text with annotated mentions (`Batch.entities`) has these and no others, each from its first
    token to its last, at word boundaries or not; adjacent mentions of one entity are merged. Other
    texts are matched against a lexicon.

    Lexicon names are compared as tokens, left to right, longest match first, at word boundaries. A
    name with a token unknown to the tokenizer is never matched. The lexicon is read when the
    tokenizer is known; before that there are no names, and scoring needs none. Cost: O(T) table
    look-ups for each length of the names with the same first token.
    """

    def __init__(self, lexicon: Callable[[], Sequence[str]], words: WordUnits) -> None:
        self.lexicon = lexicon
        self.words = words
        self.names: Sequence[str] = ()
        self._numbers: dict[tuple[int, ...], int] = {}
        self._lengths: dict[int, tuple[int, ...]] = {}
        """Possible name lengths by first token, longest first."""

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Tokenise the names, and learn where words begin."""
        self.words.setup_tokenizer(tokenizer)
        self.names = self.lexicon()
        unknown = self.words.vocabulary.unknown
        self._numbers, lengths = {}, dict[int, set[int]]()
        for number, name in enumerate(self.names):
            tokens = tuple(tokenizer.encode(name))
            if tokens and unknown not in tokens:
                self._numbers.setdefault(tokens, number)
                lengths.setdefault(tokens[0], set()).add(len(tokens))
        self._lengths = {first: tuple(sorted(all, reverse=True)) for first, all in lengths.items()}

    def mention_ids(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) id of the name that covers each position, -1 where none.

        Entities annotated in the corpus are numbered after the lexicon's names.
        """
        return self._mentions(batch, allowed, self.words.starts(batch, allowed))[0]

    def starts(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) bool: where a mention begins, or a word outside of mentions."""
        starts = self.words.starts(batch, allowed)
        covering, first = self._mentions(batch, allowed, starts)
        inside = covering >= 0
        # An annotated mention may end within a word, whose rest is then a unit of its own.
        rest = allowed & shift_right(inside, fill=False)
        return torch.where(inside, first, starts | rest)

    def name(self, number: int) -> str:
        """The name with this id; a placeholder for entities annotated in the corpus."""
        in_lexicon = number < len(self.names)
        return self.names[number] if in_lexicon else f"told {number - len(self.names)}"

    def _mentions(self, batch: Batch, allowed: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) which name covers each position, and whether it begins there."""
        covering, first = self._by_lexicon(batch, allowed, starts)
        if batch.entities is None:
            return covering, first
        entities = batch.entities.masked_fill(~allowed, NO_ENTITY)
        inside, previous = entities != NO_ENTITY, entities.roll(1, 1)  # position 0 is never allowed
        has_annotation = inside.any(1, keepdim=True)
        numbers = torch.where(inside, entities + len(self.names), -1)
        is_first = inside & (entities != previous)
        return torch.where(has_annotation, numbers, covering), torch.where(
            has_annotation, is_first, first
        )

    def _by_lexicon(self, batch: Batch, allowed: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        covering = torch.full(allowed.shape, -1)
        first = torch.zeros(allowed.shape, dtype=torch.bool)
        if self._numbers:
            # A mention ends where the next word begins, or where the text ends.
            stops = starts | ~allowed
            rows = zip(batch.tokens.tolist(), starts.tolist(), stops.tolist(), strict=True)
            for row, (tokens, is_start, is_stop) in enumerate(rows):
                for position, length, number in self._match(tokens, is_start, [*is_stop, True]):
                    covering[row, position : position + length] = number
                    first[row, position] = True
        return covering.to(allowed.device), first.to(allowed.device)

    def _match(
        self, tokens: list[int], is_start: list[bool], is_stop: list[bool]
    ) -> list[tuple[int, int, int]]:
        """Position, length and name id of each mention in a row."""
        matches, next_free = [], 0
        for position, token in enumerate(tokens):
            if not is_start[position] or position < next_free:
                continue
            for length in self._lengths.get(token, ()):
                end = position + length
                number = self._numbers.get(tuple(tokens[position:end]))
                if number is not None and end < len(is_stop) and is_stop[end]:
                    matches.append((position, length, number))
                    next_free = end
                    break
        return matches
