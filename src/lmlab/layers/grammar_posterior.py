"""What a grammar makes of given sentences: best trees, and posteriors for pictures."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.capture import Capture
from lmlab.inference import inside
from lmlab.inference.trees import Tree, read_tree
from lmlab.layers.grammar import Grammar, Sentences, word_potentials


def best_trees(grammar: Grammar, given: Sentences) -> list[Tree | None]:
    """The most probable tree of each sentence; None where it has no words."""
    found: list[Tree | None] = []
    # One by one: the best tree needs sums over rules that a batch would hold all at once.
    for row, count in enumerate(given.counts.tolist()):
        if not count:
            found.append(None)
            continue
        words = word_potentials(grammar, _row(given, row, count))
        of_words, of_spans = inside.best(words, grammar.rules)
        found.append(read_tree(of_words[0], of_spans[0], count))
    return found


def tree_entropy(grammar: Grammar, given: Sentences) -> Tensor:
    """(B,) entropy in nats of the posterior over a sentence's trees; 0 where it has no words."""
    entropies = grammar.empty.new_zeros(len(given.counts))
    with torch.no_grad():
        for row, count in enumerate(given.counts.tolist()):
            if count:
                words = word_potentials(grammar, _row(given, row, count))
                entropies[row] = inside.entropy(words, grammar.rules)[0]
    return entropies


def captures(grammar: Grammar, given: Sentences) -> dict[str, Capture]:
    """Posterior spans, the use of symbols, and how sure the grammar is of its trees."""
    rules = {
        "rules": Capture(
            values=grammar.rules.binary.detach().exp().sum(-1),
            axes=("state", "next state"),
            reading="Each row tells which symbols an inner symbol has as its left child.",
        )
    }
    if not given.tokens.shape[1]:
        return rules
    of_words, of_spans = inside.marginals(
        word_potentials(grammar, given), grammar.rules, lengths=given.counts.clamp(min=1)
    )
    some = (given.counts > 0)[:, None, None]
    use = torch.cat([of_spans.flatten(0, 2).sum(0), (of_words * some).flatten(0, 1).sum(0)])
    return {
        **rules,
        "spans": Capture(
            values=_by_ends(of_spans.sum(-1)),
            axes=("batch", "time", "source"),
            reading="How surely a phrase goes from the word at the column to that at the row.",
        ),
        "symbol use": Capture(
            values=use / use.sum(),
            axes=("state",),
            reading="Share of all nodes of the trees that each symbol labels, inner ones first.",
        ),
        "tree entropy": Capture(
            values=tree_entropy(grammar, given),
            axes=("batch",),
            reading="How many nats of doubt are left about a sentence's tree; 0 is none.",
        ),
    }


def _by_ends(spans: Tensor) -> Tensor:
    """(B, last word, first word) from (B, first word, width less one)."""
    time = spans.shape[1]
    found = torch.zeros_like(spans)
    for width in range(time):
        firsts = torch.arange(time - width, device=spans.device)
        found[:, firsts + width, firsts] = spans[:, : time - width, width]
    return found


def _row(given: Sentences, row: int, count: int) -> Sentences:
    rows = slice(row, row + 1)
    return replace(
        given,
        tokens=given.tokens[rows, :count],
        counts=given.counts[rows],
        complete=given.complete[rows],
    )
