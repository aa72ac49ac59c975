"""PCFG posteriors of given sentences: Viterbi trees, entropies, and captures for figures."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.capture import NON_NEGATIVE, UNIT_INTERVAL, Capture
from lmlab.inference import inside
from lmlab.inference.parse_trees import (
    ParseTree,
    tree_from_indicators,
)
from lmlab.layers.neural_pcfg import (
    PCFGTables,
    SentenceBatch,
    word_potentials,
)


def viterbi_trees(grammar: PCFGTables, given: SentenceBatch) -> list[ParseTree | None]:
    """The most probable tree of each sentence; None if it has no words."""
    found: list[ParseTree | None] = []
    # One by one: a batch would hold the sums over rules of all sentences at once.
    for row, count in enumerate(given.counts.tolist()):
        if not count:
            found.append(None)
            continue
        words = word_potentials(grammar, _row(given, row, count))
        of_words, of_spans = inside.viterbi_tree(words, grammar.rules)
        found.append(tree_from_indicators(of_words[0], of_spans[0], count))
    return found


def tree_entropy(grammar: PCFGTables, given: SentenceBatch) -> Tensor:
    """(B,) entropy in nats of the posterior over a sentence's trees; 0 if it has no words."""
    entropies = grammar.empty.new_zeros(len(given.counts))
    with torch.no_grad():
        for row, count in enumerate(given.counts.tolist()):
            if count:
                words = word_potentials(grammar, _row(given, row, count))
                entropies[row] = inside.entropy(words, grammar.rules)[0]
    return entropies


def posterior_captures(grammar: PCFGTables, given: SentenceBatch) -> dict[str, Capture]:
    """Rules, posterior spans, symbol usage, and the entropy of the trees."""
    rules = _rule_captures(grammar)
    if not given.tokens.shape[1]:
        return rules
    of_words, of_spans = inside.span_marginals(
        word_potentials(grammar, given), grammar.rules, lengths=given.counts.clamp(min=1)
    )
    some = (given.counts > 0)[:, None, None]
    use = torch.cat([of_spans.flatten(0, 2).sum(0), (of_words * some).flatten(0, 1).sum(0)])
    return {
        **rules,
        "spans": Capture(
            values=_by_ends(of_spans.sum(-1)),
            axes=("batch", "time", "source"),
            caption="Posterior probability that a phrase begins and ends at these words; single "
            "words are not counted.",
            bounds=UNIT_INTERVAL,
            titles={"time": "last word", "source": "first word"},
        ),
        "symbol use": Capture(
            values=use / use.sum(),
            axes=("state",),
            caption=f"Share of the trees' nodes that each symbol labels; {_numbers(grammar)}.",
            sums_to_one="state",
            titles={"state": "symbol"},
        ),
        "tree entropy": Capture(
            values=tree_entropy(grammar, given),
            axes=("batch",),
            caption="Entropy of the posterior over each sentence's parse trees; 0 is certain.",
            bounds=NON_NEGATIVE,
            unit="nats",
        ),
    }


def _rule_captures(grammar: PCFGTables) -> dict[str, Capture]:
    """The children of each nonterminal, the other child summed out, and the preterminals' words."""
    binary = grammar.rules.binary.detach().exp()
    return {
        "left children": _children(binary.sum(2), "left child B", "right child C"),
        "right children": _children(binary.sum(1), "right child C", "left child B"),
        "words of the preterminals": Capture(
            values=_words_of_symbols(grammar),
            axes=("token", "state"),
            caption=f"The most probable words of each preterminal; {_numbers(grammar)}.",
            bounds=UNIT_INTERVAL,
            titles={"state": "symbol"},
        ),
    }


def _children(values: Tensor, child: str, other: str) -> Capture:
    """(N, N + P) probabilities of one child of each nonterminal."""
    return Capture(
        values=values,
        axes=("state", "next state"),
        caption=f"Probability of the {child} given the nonterminal A: P(A → B C) summed over the "
        f"{other}.",
        sums_to_one="next state",
        titles={"state": "nonterminal A", "next state": child},
    )


def _words_of_symbols(grammar: PCFGTables) -> Tensor:
    """(V, N + P) P(word | symbol); nan for nonterminals, which have no words."""
    words = grammar.words.detach().exp()
    none = words.new_full((len(words), len(grammar.rules.binary)), torch.nan)
    return torch.cat([none, words], dim=1)


def _numbers(grammar: PCFGTables) -> str:
    """Which symbols have which numbers."""
    first = len(grammar.rules.binary)
    last = first + grammar.words.shape[1] - 1
    return f"symbols 0 to {first - 1} are nonterminals, {first} to {last} preterminals"


def _by_ends(spans: Tensor) -> Tensor:
    """(B, last word, first word) from (B, first word, width less one)."""
    time = spans.shape[1]
    found = torch.zeros_like(spans)
    for width in range(time):
        firsts = torch.arange(time - width, device=spans.device)
        found[:, firsts + width, firsts] = spans[:, : time - width, width]
    return found


def _row(given: SentenceBatch, row: int, count: int) -> SentenceBatch:
    rows = slice(row, row + 1)
    return replace(
        given,
        tokens=given.tokens[rows, :count],
        counts=given.counts[rows],
        complete=given.complete[rows],
    )
