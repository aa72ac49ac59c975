"""Words that a search bans or requires, in a tokeniser's own spelling."""

from __future__ import annotations

import unicodedata
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.ideographs import IDEOGRAPH
from lmlab.objectives.whole_units import WORD_RULES
from lmlab.sampling.constraints import Borders, Spellings

BEFORE = ("", "a ", "(")
"""What may stand before a word, as far as its spelling depends on it: nothing, a word, a sign."""
HALF = "\ufffd"
"""What a piece of a character is decoded to."""


def borders_of(tokenizer: Any) -> Borders:
    """Where the words of a tokeniser begin and end.

    As for hiding whole words (WordPiece's ## goes on, Ġ and ▁ begin), but that signs are no part
    of a word: `dog.` is a word and a sign, by whatever tokens.
    """
    size = tokenizer.vocabulary.size
    rule = WORD_RULES.get(tokenizer.kind, WORD_RULES["word"])
    begins, ends = rule([tokenizer.token(id) for id in range(size)])
    texts = [str(tokenizer.decode([id])).strip().removeprefix("##") for id in range(size)]
    return Borders(
        inside=frozenset(
            id for id, text in enumerate(texts) if not begins[id] and _in_words(text[:1])
        ),
        ends=frozenset(id for id, text in enumerate(texts) if ends[id] or not _in_words(text[-1:])),
    )


def _in_words(character: str) -> bool:
    """Whether it is a letter, digit or accent of words that are more than itself."""
    if character in ("", HALF):
        return character == HALF
    return unicodedata.category(character)[0] in "LMN" and not IDEOGRAPH.match(character)


def spellings_of(text: str, tokenizer: Any, what: str) -> Spellings:
    """How the tokeniser spells words that a text may hold: at its beginning, after a word, a sign.

    A UserError where they hold what the model never writes; `what` they are is for its sentence.
    """
    known(text, tokenizer, what)
    found = []
    for before in BEFORE:
        ids = tokenizer.encode(before + text)
        # Most tokenisers count a space to the word after it, those of characters do not.
        for given in map(tokenizer.encode, (before, before.strip())):
            if ids[: len(given)] == given and tokenizer.vocabulary.unknown not in ids:
                found.append(tuple(ids[len(given) :]))
                break
    return tuple(dict.fromkeys(phrase for phrase in found if phrase)) or ((),)


def known(text: str, tokenizer: Any, what: str) -> tuple[int, ...]:
    """The tokens of what a translation must or must not hold, all of which it could write."""
    tokens = tuple(tokenizer.encode(text))
    if tokenizer.vocabulary.unknown in tokens:
        raise UserError(
            f"the {what} {text!r} holds what the model has no token for, so it is never written; "
            "leave it out."
        )
    return tokens
