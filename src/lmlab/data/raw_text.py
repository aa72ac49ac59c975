"""Raw text: capitals at the beginning of sentences, punctuation attached to words, by a sample."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

SAMPLED_TEXTS = 1000
MIN_SHARE = 0.2
"""Share of texts from which a corpus counts as raw."""
MAX_EXAMPLES = 3
ATTACHED = re.compile(r"[^\W\d_][,;:!?)\]}\"”’]+$|^[(\[{\"“][^\W\d_]")
"""Marks that tokenised text separates; a period may belong to an abbreviation."""
MARKS = string.punctuation + "“”‘’"
FINAL = re.compile(r"[^\W\d_][.!?]+[\"”’)]*$")
"""The end of a sentence on its last word."""


@dataclass(frozen=True, kw_only=True)
class RawText:
    """What looks raw in a sample of texts."""

    texts: int
    """Texts in the sample."""
    attached: int
    """Texts with punctuation attached to a word."""
    attached_words: Counter[str]
    capitals: int
    """Texts whose first word begins with a capital and is known in lower case too."""
    capital_words: Counter[str]

    @property
    def has_attached(self) -> bool:
        return self.attached >= MIN_SHARE * max(self.texts, 1)

    @property
    def has_capitals(self) -> bool:
        return self.capitals >= MIN_SHARE * max(self.texts, 1)

    def warning(self, *, lowercase: bool) -> str:
        """What a tokenizer that splits at spaces makes of it, and what to do; empty if nothing.

        `lowercase`: whether the tokenizer changes texts to lower case.
        """
        seen, settings = [], []
        if self.has_attached:
            share = f"{self.attached / self.texts:.0%} of the texts"
            words = _examples(self.attached_words)
            seen.append(f"{share} have punctuation attached to words ({words})")
            settings.append("punctuation=split")
        if self.has_capitals and not lowercase:
            share = f"{self.capitals / self.texts:.0%}"
            words = ", ".join(
                f"{word!r} beside {word.lower()!r}"
                for word, _ in self.capital_words.most_common(MAX_EXAMPLES)
            )
            seen.append(f"{share} begin with a capital letter ({words})")
            settings.append("lowercase=true")
        if not seen:
            return ""
        return (
            f"warning: the corpus looks raw: {' and '.join(seen)}; the tokenizer word splits at "
            f"spaces, so each of these is a word of its own. Try --set {' '.join(settings)}, or "
            "--tokenizer bpe"
        )


def _examples(words: Counter[str]) -> str:
    return ", ".join(repr(word) for word, _ in words.most_common(MAX_EXAMPLES))


def raw_text_warning(texts: Iterable[str], tokenizer: Any, *, lowercase: bool) -> str:
    """The warning for raw texts and a tokenizer that splits at spaces alone; empty if none."""
    if not tokenizer.splits_at_spaces_alone:
        return ""
    return examine_raw_text(texts).warning(lowercase=lowercase)


def examine_raw_text(texts: Iterable[str]) -> RawText:
    """Examine the first texts of a corpus."""
    sample = [words for text in islice(texts, SAMPLED_TEXTS) if (words := text.split())]
    inner = {word.strip(MARKS) for words in sample for word in words[1:]}
    attached_words: Counter[str] = Counter()
    capital_words: Counter[str] = Counter()
    attached = 0
    for words in sample:
        marked = [word for word in words if ATTACHED.search(word)]
        marked += [words[-1]] if FINAL.search(words[-1]) and words[-1] not in marked else []
        attached += bool(marked)
        attached_words.update(marked)
        first = words[0]
        if first[0].isupper() and first[1:] == first[1:].lower() and first.lower() in inner:
            capital_words[first] += 1
    return RawText(
        texts=len(sample),
        attached=attached,
        attached_words=attached_words,
        capitals=capital_words.total(),
        capital_words=capital_words,
    )
