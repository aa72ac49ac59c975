"""Inside algorithm (PCFG) over semirings: partition, marginals, Viterbi, samples; prefixes.

A tree's score is the sum of log-potentials: of its root, of a rule A → B C at each inner node, and
of a word at each leaf. There are N nonterminals and P preterminals, S = N + P in all; a rule's
children may be of either kind. A span of two or more words has a nonterminal, a single word a
preterminal. Cost T³ S² + T² N S² for a sentence of T words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.inference.semirings import (
    ENTROPY,
    LOG,
    MAX,
    SampleSemiring,
    Semiring,
    structure_marginals,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """Log-potentials of a grammar; normalised log-probabilities for a PCFG."""

    root: Tensor
    """(S,) the root symbol: the N nonterminals, then the P preterminals."""
    binary: Tensor
    """(N, S, S) A → B C."""

    @property
    def nonterminal_count(self) -> int:
        """N."""
        return len(self.binary)

    def children(self, left: bool, right: bool) -> Tensor:
        """(N, L, R) the rules by kind of their children: nonterminal (true) or preterminal."""
        n = self.nonterminal_count
        rows = self.binary[:, :n] if left else self.binary[:, n:]
        return rows[:, :, :n] if right else rows[:, :, n:]


@dataclass(frozen=True, eq=False)
class Chart:
    """A semiring element for each span and symbol."""

    words: Tensor
    """(…, T, P) single words."""
    nonterminals: dict[int, Tensor]
    """By width w: (…, T - w + 1, N), entry i is the span of w words that begins at i."""


@dataclass(frozen=True, eq=False)
class Pairing:
    """All splits of the spans of one width into a left and a right part of given kinds."""

    kinds: tuple[bool, bool]
    """Whether left and right are nonterminals."""
    left: Tensor
    """(…, spans, splits, L)"""
    right: Tensor
    """(…, spans, splits, R)"""


Grow = Callable[[list[Pairing], Rules], Tensor]
"""From all splits of the spans of one width to their elements (…, spans, N)."""


def pairings(width: int, left: Chart, right: Chart) -> Iterator[Pairing]:
    """All splits of spans of this width, the left part from one chart, the right from another.

    For inside probabilities both charts are the same.
    """
    spans = left.words.shape[-2] - width + 1

    def stack(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, dim=-2)

    first, last = left.words[..., :spans, :], right.words[..., width - 1 :, :]
    if width == 2:
        yield Pairing((False, False), stack([first]), stack([last]))
    if width - 1 in right.nonterminals:
        rest = right.nonterminals[width - 1][..., 1 : 1 + spans, :]
        yield Pairing((False, True), stack([first]), stack([rest]))
    if width - 1 in left.nonterminals:
        rest = left.nonterminals[width - 1][..., :spans, :]
        yield Pairing((True, False), stack([rest]), stack([last]))
    inner = [
        k for k in range(2, width) if k in left.nonterminals and width - k in right.nonterminals
    ]
    if inner:
        yield Pairing(
            (True, True),
            stack([left.nonterminals[k][..., :spans, :] for k in inner]),
            stack([right.nonterminals[width - k][..., k : k + spans, :] for k in inner]),
        )


def grow_over(semiring: Semiring) -> Grow:
    """Reference implementation: sum over splits, then over the rules' children, then over kinds."""

    def grow(splits: list[Pairing], rules: Rules) -> Tensor:
        elements = []
        for split in splits:
            left, right = split.left[..., :, None], split.right[..., None, :]
            children = semiring.sum(semiring.times(left, right), -3)
            potentials = rules.children(*split.kinds)
            # As many dimensions as the children have, so that a semiring may add its own in front.
            potentials = potentials[(None,) * (left.ndim - 3 - semiring.dimensions)]
            applied = semiring.times(children[..., None, :, :], semiring.lift(potentials))
            elements.append(semiring.sum(applied.flatten(-2), -1))
        return semiring.sum(torch.stack(elements, dim=-1), -1)

    return grow


def grow_scaled(splits: list[Pairing], rules: Rules) -> Tensor:
    """Fast implementation for probabilities: matrix products, each span with its own scale."""
    sums, scales = [], []
    for split in splits:
        maxima = [x.detach().amax(-1, keepdim=True) for x in (split.left, split.right)]
        scale = (maxima[0] + maxima[1]).amax(-2, keepdim=True)
        left = (split.left - maxima[0] + (maxima[0] + maxima[1] - scale)).exp()
        children = left.transpose(-1, -2) @ (split.right - maxima[1]).exp()
        potentials = rules.children(*split.kinds).exp().flatten(1)
        sums.append(children.flatten(-2) @ potentials.t())
        scales.append(scale.squeeze(-1))
    top = torch.stack(scales).amax(0)
    total = sum(part * (scale - top).exp() for part, scale in zip(sums, scales, strict=True))
    assert isinstance(total, Tensor)
    return total.clamp_min(torch.finfo(total.dtype).tiny).log() + top


def inside(words: Tensor, rules: Rules, grow: Grow, spans: Tensor | None = None) -> Chart:
    """The inside chart of a sentence, narrow spans first.

    `words` (…, T, P) are lifted log-potentials; `spans` (…, T, T, N), if given, is multiplied into
    the span that begins at the first index and has the width one plus the second.
    """
    chart = Chart(words, {})
    for width in range(2, words.shape[-2] + 1):
        grown = grow(list(pairings(width, chart, chart)), rules)
        if spans is not None:
            grown = grown + spans[..., : grown.shape[-2], width - 1, :]
        chart.nonterminals[width] = grown
    return chart


def at_root(chart: Chart, rules: Rules, semiring: Semiring = LOG) -> Tensor:
    """(…, T) the element of the first w words as a whole sentence, for w from 1 to T."""
    n, elements = rules.nonterminal_count, []
    for width in range(1, chart.words.shape[-2] + 1):
        parts = [(chart.nonterminals[width], rules.root[:n])] if width in chart.nonterminals else []
        parts += [(chart.words, rules.root[n:])] if width == 1 else []
        values = torch.cat([values[..., 0, :] for values, _ in parts], dim=-1)
        root = torch.cat([root for _, root in parts])
        potentials = semiring.lift(root[(None,) * (values.ndim - 1 - semiring.dimensions)])
        elements.append(semiring.sum(semiring.times(values, potentials), -1))
    return torch.stack(elements, dim=-1)


def total(
    words: Tensor,
    rules: Rules,
    *,
    semiring: Semiring = LOG,
    lengths: Tensor | None = None,
    spans: Tensor | None = None,
) -> Tensor:
    """(…) the semiring's sum over all trees of the first `lengths` (…,) words."""
    lifted = semiring.lift(words)
    chart = inside(lifted, rules, grow_over(semiring), spans)
    values = at_root(chart, rules, semiring)
    if lengths is None:
        return semiring.value(values[..., -1])
    index = (lengths - 1).expand(values.shape[:-1])[..., None]
    return semiring.value(values.gather(-1, index).squeeze(-1))


def log_partition(words: Tensor, rules: Rules, *, lengths: Tensor | None = None) -> Tensor:
    """(…) log Σ_trees exp(score), by scaled products."""
    values = at_root(inside(words, rules, grow_scaled), rules)
    if lengths is None:
        return values[..., -1]
    return values.gather(-1, (lengths - 1)[..., None]).squeeze(-1)


def entropy(words: Tensor, rules: Rules, *, lengths: Tensor | None = None) -> Tensor:
    """(…) entropy of the posterior over labelled trees, in nats."""
    return total(words, rules, semiring=ENTROPY, lengths=lengths)


def span_marginals(
    words: Tensor, rules: Rules, *, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(…, T, P) posterior of each word's preterminal; (…, T, T, N) of each labelled span.

    Spans are indexed by their first word and their width less one.
    """

    def program(words: Tensor, spans: Tensor) -> Tensor:
        values = at_root(inside(words, rules, grow_scaled, spans), rules)
        last = torch.full_like(values[..., 0], words.shape[-2]).long()
        index = (last if lengths is None else lengths) - 1
        return values.gather(-1, index[..., None]).squeeze(-1)

    return _indicators(program, words, rules)


def viterbi_tree(
    words: Tensor, rules: Rules, *, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The Viterbi tree as indicators, shaped as `span_marginals`; ties are broken arbitrarily."""
    return _structure(words, rules, MAX, lengths)


def sample_tree(
    words: Tensor,
    rules: Rules,
    *,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """A tree sampled from the posterior, as indicators shaped as `span_marginals`."""
    return _structure(words, rules, SampleSemiring(generator), lengths)


def _structure(
    words: Tensor, rules: Rules, semiring: Semiring, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    def program(words: Tensor, spans: Tensor) -> Tensor:
        return total(words, rules, semiring=semiring, lengths=lengths, spans=spans)

    return _indicators(program, words, rules)


def _indicators(
    program: Callable[[Tensor, Tensor], Tensor], words: Tensor, rules: Rules
) -> tuple[Tensor, Tensor]:
    time = words.shape[-2]
    spans = words.new_zeros(*words.shape[:-2], time, time, rules.nonterminal_count)
    word_marginals, spans_gradient = structure_marginals(program, words, spans)
    return word_marginals, spans_gradient


def prefix_probabilities(chart: Chart, rules: Rules) -> Chart:
    """From the inside chart of normalised rules to log P(symbol yields the span, and maybe more).

        prefix(A, i…j) = Σ_{A→B C} prefix(B, i…j) + Σ_{A→B C, k} inside(B, i…k) prefix(C, k…j)

    The sum over all leftmost derivations whose first words are these (Jelinek and Lafferty 1991).
    The first sum is recursive in left children; its closure (I - L)⁻¹, with L[A, B] = Σ_C P(A → B
    C), covers all depths. Cost: as the inside algorithm's.
    """
    n = rules.nonterminal_count
    left_child = rules.binary.exp().sum(-1)
    identity = torch.eye(n, dtype=left_child.dtype, device=left_child.device)
    closure = torch.linalg.inv(identity - left_child[:, :n])
    prefixes = Chart(chart.words, {1: _log_product(chart.words, closure @ left_child[:, n:])})
    for width in range(2, chart.words.shape[-2] + 1):
        right_prefixes = grow_scaled(list(pairings(width, chart, prefixes)), rules)
        prefixes.nonterminals[width] = _log_product(right_prefixes, closure)
    return prefixes


def _log_product(logs: Tensor, matrix: Tensor) -> Tensor:
    """log(M exp(x)) for the vectors x in the last dimension."""
    top = logs.detach().amax(-1, keepdim=True)
    product = (logs - top).exp() @ matrix.t()
    return product.clamp_min(torch.finfo(product.dtype).tiny).log() + top


@dataclass(frozen=True)
class ParseTree:
    """A parse tree as nested labelled spans: one span of words and its children."""

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


def tree_from_indicators(words: Tensor, spans: Tensor, length: int) -> ParseTree:
    """The tree of `length` words given by indicators (T, P) and (T, T, N)."""
    count = spans.shape[-1]
    labels = {
        (first, first + width + 1): symbol for first, width, symbol in spans.nonzero().tolist()
    }

    def build(first: int, last: int) -> ParseTree:
        if last - first == 1:
            return ParseTree(count + int(words[first].argmax()), first, last)
        # Exactly one split of a span has both parts in the tree.
        middle = next(
            k
            for k in range(first + 1, last)
            if (k - first == 1 or (first, k) in labels) and (last - k == 1 or (k, last) in labels)
        )
        return ParseTree(
            labels[first, last], first, last, (build(first, middle), build(middle, last))
        )

    return build(0, length)
