"""Neural PCFG: rule probabilities from symbol embeddings, and sentence probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.inside import Rules, at_root, grow_scaled, inside
from lmlab.inference.prefix_probabilities import prefix_probabilities
from lmlab.layers.residual_mlp import ResidualMLP


@dataclass(frozen=True, kw_only=True, eq=False)
class PCFGTables:
    """Normalised log-probabilities of a grammar with N nonterminals and P preterminals."""

    rules: Rules
    """Root and binary rules; the root's may sum to less than one, for the empty sentence."""
    empty: Tensor
    """() log-probability of the empty sentence."""
    words: Tensor
    """(V, P) of each word given each preterminal; -inf at special tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceBatch:
    """The words of a batch, without start and end token."""

    tokens: Tensor
    """(B, T) ids, 0 ≤ T."""
    counts: Tensor
    """(B,) number of words of each sentence."""
    complete: Tensor
    """(B,) bool: whether the sentence has its end; else it is truncated."""


class NeuralPCFG(nn.Module):
    """Rules from an embedding per symbol (Kim et al. 2019, without their sentence vector).

        P(root → A) = softmax(u_A · f(w_root))     A any symbol, or nothing (an empty sentence)
        P(A → B C) = softmax(u_BC · w_A)           A nonterminal; B, C any symbol
        P(A → s) = softmax(u_s · g(w_A))           A preterminal

    In Kim et al. the root has nonterminal children only, so that a sentence has at least two words;
    with preterminals and the empty sentence every sentence has a probability.
    """

    special_token_mask: Tensor

    def __init__(self, trees: int, leaves: int, width: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        symbols = trees + leaves
        self.nonterminals, self.preterminals = trees, leaves
        self.root_vector = nn.Parameter(torch.randn(width))
        self.tree_vectors = nn.Parameter(torch.randn(trees, width))
        self.leaf_vectors = nn.Parameter(torch.randn(leaves, width))
        self.root_network, self.leaf_network = ResidualMLP(width), ResidualMLP(width)
        self.root_scores = nn.Linear(width, symbols + 1)
        self.rule_scores = nn.Linear(width, symbols**2)
        self.word_scores = nn.Linear(width, vocabulary.size)
        ids = [i for i in (*vocabulary.unpredictable, vocabulary.end) if i is not None]
        special_token_mask = torch.zeros(vocabulary.size, dtype=torch.bool)
        special_token_mask[ids] = True
        self.register_buffer("special_token_mask", special_token_mask, persistent=False)

    def grammar(self) -> PCFGTables:
        """The current rules: N S² + P V numbers."""
        symbols = self.nonterminals + self.preterminals
        root = torch.log_softmax(self.root_scores(self.root_network(self.root_vector)), -1)
        binary = torch.log_softmax(self.rule_scores(self.tree_vectors), -1)
        scores = self.word_scores(self.leaf_network(self.leaf_vectors))
        words = torch.log_softmax(scores.masked_fill(self.special_token_mask, -torch.inf), -1)
        rules = Rules(root=root[:-1], binary=binary.view(-1, symbols, symbols))
        return PCFGTables(rules=rules, empty=root[-1], words=words.t())


def extract_sentences(batch: Batch, end: int | None, longest: int) -> SentenceBatch:
    """The words of a batch; raises a UserError if they are no sentences to parse."""
    last = batch.tokens.gather(1, (batch.lengths - 1).clamp(min=0)[:, None]).squeeze(1)
    complete = (last == -1 if end is None else last == end) & (batch.lengths > 1)
    counts = (batch.lengths - 1 - complete.long()).clamp(min=0)
    most = int(counts.max()) if len(batch) else 0
    if most > longest:
        raise UserError(
            f"a sentence must have at most {longest} words, got {most} (parsing cost is cubic in "
            f"the length); cut the text, or build the grammar with longest={most}."
        )
    tokens = batch.tokens[:, 1 : 1 + most]
    inside_words = torch.arange(most, device=tokens.device) < counts[:, None]
    if end is not None and ((tokens == end) & inside_words).any():
        raise UserError(
            "a grammar models single sentences, but a text contains an end of sentence; use a "
            "corpus of sentences instead of contiguous text."
        )
    return SentenceBatch(tokens=tokens, counts=counts, complete=complete)


def word_potentials(grammar: PCFGTables, given: SentenceBatch) -> Tensor:
    """(B, T, P) log P(word | preterminal); 0 at padding."""
    places = torch.arange(given.tokens.shape[1], device=given.tokens.device)
    behind = places >= given.counts[:, None]
    return F.embedding(given.tokens, grammar.words).masked_fill(behind[..., None], 0.0)


def token_log_probs(grammar: PCFGTables, given: SentenceBatch, places: int) -> Tensor:
    """(B, places) log p(word | words before), then of the end if it is known; 0 at padding.

    A word's is the ratio of two prefix probabilities, the end's that of the sentence probability
    and its words' prefix probability; so they sum to `sentence_log_probs`.
    """
    zeros = grammar.empty.expand(len(given.tokens), 1) * 0
    begun, whole = zeros, grammar.empty.expand(len(given.tokens), 1)
    if given.tokens.shape[1]:
        chart = inside(word_potentials(grammar, given), grammar.rules, grow_scaled)
        begun = torch.cat(
            [zeros, at_root(prefix_probabilities(chart, grammar.rules), grammar.rules)], 1
        )
        whole = torch.cat([whole, at_root(chart, grammar.rules)], 1)
    ends = (whole - begun).gather(1, given.counts[:, None])
    ratios = F.pad(begun.diff(dim=1), (0, places - begun.shape[1] + 1))
    place = torch.arange(places, device=ratios.device)
    at_end = (place == given.counts[:, None]) & given.complete[:, None]
    found = torch.where(at_end, ends, torch.where(place < given.counts[:, None], ratios, 0.0))
    return found


def sentence_log_probs(grammar: PCFGTables, given: SentenceBatch) -> Tensor:
    """(B,) log-probability of each sentence, or of its prefix if it is truncated."""
    if not given.tokens.shape[1]:
        return torch.where(given.complete, grammar.empty, grammar.empty * 0)
    chart = inside(word_potentials(grammar, given), grammar.rules, grow_scaled)
    whole = at_root(chart, grammar.rules)
    whole = torch.cat([grammar.empty.expand(len(whole), 1), whole], 1)
    found = whole.gather(1, given.counts[:, None]).squeeze(1)
    if given.complete.all():
        return found
    begun = at_root(prefix_probabilities(chart, grammar.rules), grammar.rules)
    begun = F.pad(begun, (1, 0)).gather(1, given.counts[:, None]).squeeze(1)
    return torch.where(given.complete, found, begun)


@torch.no_grad()
def sample_sentences(
    grammar: PCFGTables, rows: int, most: int, generator: torch.Generator | None
) -> list[tuple[list[int], bool]]:
    """Leftmost derivations of all rows in parallel: each one's words, and whether it ended.

    A derivation is cut off at `most` words.
    """
    trees = grammar.rules.nonterminal_count
    root = torch.cat([grammar.rules.root, grammar.empty[None]]).exp()
    pairs, words = grammar.rules.binary.flatten(1).exp(), grammar.words.t().exp()

    def draw(weights: Tensor) -> list[int]:
        drawn: list[int] = torch.multinomial(weights, 1, generator=generator).squeeze(1).tolist()
        return drawn

    empty = len(root) - 1
    stacks = [[] if symbol == empty else [symbol] for symbol in draw(root.expand(rows, -1))]
    written: list[list[int]] = [[] for _ in range(rows)]
    while going := [r for r in range(rows) if stacks[r] and len(written[r]) < most]:
        tops = {row: stacks[row].pop() for row in going}
        inner = [row for row in going if tops[row] < trees]
        leaves = [row for row in going if tops[row] >= trees]
        if inner:
            for row, pair in zip(inner, draw(pairs[[tops[r] for r in inner]]), strict=True):
                stacks[row] += [pair % empty, pair // empty]  # the left child is rewritten first
        if leaves:
            chosen = draw(words[[tops[r] - trees for r in leaves]])
            for row, word in zip(leaves, chosen, strict=True):
                written[row].append(word)
    return [(written[row], not stacks[row]) for row in range(rows)]
