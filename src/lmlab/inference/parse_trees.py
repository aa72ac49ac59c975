"""Parse trees as nested labelled spans, for figures and tables."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ParseTree:
    """A labelled span of words and its children."""

    label: int
    """Its symbol: nonterminals first, then preterminals."""
    first: int
    """Index of its first word."""
    last: int
    """Index after its last word."""
    children: tuple[ParseTree, ...] = ()
    """Two for an inner node, none for a leaf."""

    def brackets(self, words: list[str]) -> str:
        """Bracket notation: (0 (3 the) (5 dog))."""
        if not self.children:
            return f"({self.label} {words[self.first]})"
        inner = " ".join(child.brackets(words) for child in self.children)
        return f"({self.label} {inner})"


def tree_from_indicators(of_words: Tensor, of_spans: Tensor, length: int) -> ParseTree:
    """The tree of `length` words given by indicators (T, P) and (T, T, N)."""
    count = of_spans.shape[-1]
    labels = {
        (first, first + width + 1): symbol for first, width, symbol in of_spans.nonzero().tolist()
    }

    def read(first: int, last: int) -> ParseTree:
        if last - first == 1:
            return ParseTree(count + int(of_words[first].argmax()), first, last)
        # Exactly one split of a span has both parts in the tree.
        middle = next(
            k
            for k in range(first + 1, last)
            if (k - first == 1 or (first, k) in labels) and (last - k == 1 or (k, last) in labels)
        )
        return ParseTree(
            labels[first, last], first, last, (read(first, middle), read(middle, last))
        )

    return read(0, length)
