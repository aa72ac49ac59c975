"""Unknown-token (OOV) rate: the fraction of a text's tokens mapped to <unk>, with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import UNKNOWN

WARN_ABOVE = 0.05
"""Fraction of unknown tokens above which the user is warned."""
MAX_EXAMPLES = 5
MAX_DIFFERENT = 100_000
"""Maximum number of distinct unknown words stored."""
MAX_CHARACTERS = 131_072
"""Maximum number of characters examined per text, to bound the memory."""


class UnknownWords:
    """Counts the tokens and the unknown tokens of texts.

    A literal <unk> in a text counts as known.
    """

    def __init__(self, tokenizer: TokenizerProtocol) -> None:
        self.tokenizer = tokenizer
        self.tokens = 0
        self.unknown = 0
        self.words: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Count one text."""
        text, unknown = text[:MAX_CHARACTERS], self.tokenizer.vocabulary.unknown
        ids = self.tokenizer.encode(text)
        self.tokens += len(ids)
        if unknown is None or unknown not in ids:
            return
        ids, spans = self.tokenizer.encode_with_offsets(text)
        for id, (start, end) in zip(ids, spans, strict=True):
            word = text[start:end]
            if id == unknown and word != UNKNOWN:
                self.unknown += 1
                if word in self.words or len(self.words) < MAX_DIFFERENT:
                    self.words[word] += 1

    def counting(self, texts: Iterable[str]) -> Iterator[str]:
        """Pass texts through, counting each."""
        for text in texts:
            self.add(text)
            yield text

    @property
    def share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    def warning(self) -> str | None:
        """A warning with the most frequent unknown words if the rate is too high, else None."""
        if self.share <= WARN_ABOVE:
            return None
        unit = {"word": "words", "char": "characters"}.get(self.tokenizer.kind, "tokens")
        listed = ", ".join(
            f"{word!r}" + (f" ({count:,} times)" if count > 1 else "")
            for word, count in self.words.most_common(MAX_EXAMPLES)
        )
        more = ", …" if len(self.words) > MAX_EXAMPLES else ""
        return (
            f"{100 * self.share:.0f} % of the {unit} ({self.unknown:,} of {self.tokens:,}) are "
            f"unknown to this tokenizer and encoded as {UNKNOWN}: {listed}{more}"
        )
