"""Validation of texts given by a caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lmlab.core.errors import UserError


def check_text(text: object, what: str = "a text") -> str:
    """The text itself; raises a UserError if it is no string, or has half of a surrogate pair.

    The latter is what a byte that is not UTF-8 becomes on the command line.
    """
    if not isinstance(text, str):
        raise UserError(f"{what} must be a string, got {type(text).__name__} ({repr(text)[:40]}).")
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()[:60]
        raise UserError(f"the text {shown!r} is not UTF-8; convert it first.") from None
    return text


def checked_texts(texts: Iterable[object]) -> Iterator[str]:
    """Texts one by one, each validated; an error gives the text's number."""
    for number, text in enumerate(texts, 1):
        yield check_text(text, f"text {number}")


def check_texts(texts: object, verb: str, *, what: str = "text") -> None:
    """Raise a UserError if a caller gives one text, or no texts at all, instead of several."""
    if isinstance(texts, str):
        raise UserError(f"{verb} takes a list of {what}s, got one {what}; put it in a list.")
    if not isinstance(texts, Iterable):
        raise UserError(f"{verb} takes a list of {what}s, got {type(texts).__name__}.")
