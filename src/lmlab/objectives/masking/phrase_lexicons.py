"""Phrase and entity lexicons for ERNIE's masking."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.data.languages.capitals import country_table
from lmlab.data.wordnet import load_wordnet


def read_lexicon(names: str) -> tuple[str, ...]:
    """The names of several lexicons joined by commas, deduplicated, in order.

    `countries`: countries, capitals and cities in Chinese and English. `wordnet`: WordNet's
    multi-word lemmas. Anything else is a UTF-8 file with one name per line.
    """
    found: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        found.update(
            dict.fromkeys(
                BUILTIN_LEXICONS[name]() if name in BUILTIN_LEXICONS else _read_file(name)
            )
        )
    return tuple(found)


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
