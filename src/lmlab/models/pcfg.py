"""Neural PCFG: sentence and prefix probabilities, sampling, Viterbi trees, tree posteriors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.capture import NON_NEGATIVE, UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import TrainableSystem
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.inside import (
    ParseTree,
    Rules,
    at_root,
    entropy,
    grow_scaled,
    inside,
    prefix_probabilities,
    span_marginals,
    tree_from_indicators,
    viterbi_tree,
)
from lmlab.layers.feed_forward import ResidualMLP


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

    def __init__(
        self, nonterminals: int, preterminals: int, width: int, vocabulary: Vocabulary
    ) -> None:
        super().__init__()
        symbols = nonterminals + preterminals
        self.nonterminals, self.preterminals = nonterminals, preterminals
        self.root_vector = nn.Parameter(torch.randn(width))
        self.tree_vectors = nn.Parameter(torch.randn(nonterminals, width))
        self.leaf_vectors = nn.Parameter(torch.randn(preterminals, width))
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


def extract_sentences(batch: Batch, end: int | None, max_length: int) -> SentenceBatch:
    """The words of a batch; raises a UserError if they are no sentences to parse."""
    last = batch.tokens.gather(1, (batch.lengths - 1).clamp(min=0)[:, None]).squeeze(1)
    complete = (last == -1 if end is None else last == end) & (batch.lengths > 1)
    counts = (batch.lengths - 1 - complete.long()).clamp(min=0)
    longest = int(counts.max()) if len(batch) else 0
    check_words(longest, max_length)
    tokens = batch.tokens[:, 1 : 1 + longest]
    inside_words = torch.arange(longest, device=tokens.device) < counts[:, None]
    if end is not None and ((tokens == end) & inside_words).any():
        raise UserError(
            "a grammar models single sentences, but a text contains an end of sentence; use a "
            "corpus of sentences instead of contiguous text."
        )
    return SentenceBatch(tokens=tokens, counts=counts, complete=complete)


def check_words(words: int, max_length: int) -> None:
    """Raise a UserError if a sentence of so many words is too long to parse."""
    if words > max_length:
        raise UserError(
            f"a sentence must have at most {max_length} words, got {words} (parsing cost is "
            f"cubic in the length); cut the text, or train with --set max_length={words}."
        )


def word_potentials(grammar: PCFGTables, sentences: SentenceBatch) -> Tensor:
    """(B, T, P) log P(word | preterminal); 0 at padding."""
    positions = torch.arange(sentences.tokens.shape[1], device=sentences.tokens.device)
    is_padding = positions >= sentences.counts[:, None]
    return F.embedding(sentences.tokens, grammar.words).masked_fill(is_padding[..., None], 0.0)


def token_log_probs(grammar: PCFGTables, sentences: SentenceBatch, length: int) -> Tensor:
    """(B, length) log p(word | words before), then of the end if it is known; 0 at padding.

    A word's is the ratio of two prefix probabilities, the end's that of the sentence probability
    and its words' prefix probability; so they sum to `sentence_log_probs`.
    """
    zeros = grammar.empty.expand(len(sentences.tokens), 1) * 0
    prefix, complete = zeros, grammar.empty.expand(len(sentences.tokens), 1)
    if sentences.tokens.shape[1]:
        chart = inside(word_potentials(grammar, sentences), grammar.rules, grow_scaled)
        prefix = torch.cat(
            [zeros, at_root(prefix_probabilities(chart, grammar.rules), grammar.rules)], 1
        )
        complete = torch.cat([complete, at_root(chart, grammar.rules)], 1)
    ends = (complete - prefix).gather(1, sentences.counts[:, None])
    ratios = F.pad(prefix.diff(dim=1), (0, length - prefix.shape[1] + 1))
    position = torch.arange(length, device=ratios.device)
    at_end = (position == sentences.counts[:, None]) & sentences.complete[:, None]
    in_words = position < sentences.counts[:, None]
    return torch.where(at_end, ends, torch.where(in_words, ratios, 0.0))


def sentence_log_probs(grammar: PCFGTables, sentences: SentenceBatch) -> Tensor:
    """(B,) log-probability of each sentence, or of its prefix if it is truncated."""
    if not sentences.tokens.shape[1]:
        return torch.where(sentences.complete, grammar.empty, grammar.empty * 0)
    chart = inside(word_potentials(grammar, sentences), grammar.rules, grow_scaled)
    complete = at_root(chart, grammar.rules)
    complete = torch.cat([grammar.empty.expand(len(complete), 1), complete], 1)
    log_probs = complete.gather(1, sentences.counts[:, None]).squeeze(1)
    if sentences.complete.all():
        return log_probs
    prefix = at_root(prefix_probabilities(chart, grammar.rules), grammar.rules)
    prefix = F.pad(prefix, (1, 0)).gather(1, sentences.counts[:, None]).squeeze(1)
    return torch.where(sentences.complete, log_probs, prefix)


@torch.no_grad()
def sample_sentences(
    grammar: PCFGTables, rows: int, max_length: int, generator: torch.Generator | None
) -> list[tuple[list[int], bool]]:
    """Leftmost derivations of all rows in parallel: each one's words, and whether it ended.

    A derivation is cut off at `max_length` words.
    """
    nonterminals = grammar.rules.nonterminal_count
    root = torch.cat([grammar.rules.root, grammar.empty[None]]).exp()
    pairs, words = grammar.rules.binary.flatten(1).exp(), grammar.words.t().exp()

    def draw(weights: Tensor) -> list[int]:
        sampled: list[int] = torch.multinomial(weights, 1, generator=generator).squeeze(1).tolist()
        return sampled

    empty = len(root) - 1
    stacks = [[] if symbol == empty else [symbol] for symbol in draw(root.expand(rows, -1))]
    sentences: list[list[int]] = [[] for _ in range(rows)]
    while active := [r for r in range(rows) if stacks[r] and len(sentences[r]) < max_length]:
        tops = {row: stacks[row].pop() for row in active}
        branching = [row for row in active if tops[row] < nonterminals]
        leaves = [row for row in active if tops[row] >= nonterminals]
        if branching:
            for row, pair in zip(branching, draw(pairs[[tops[r] for r in branching]]), strict=True):
                stacks[row] += [pair % empty, pair // empty]  # the left child is rewritten first
        if leaves:
            new_words = draw(words[[tops[r] - nonterminals for r in leaves]])
            for row, word in zip(leaves, new_words, strict=True):
                sentences[row].append(word)
    return [(sentences[row], not stacks[row]) for row in range(rows)]


def viterbi_trees(grammar: PCFGTables, sentences: SentenceBatch) -> list[ParseTree | None]:
    """The most probable tree of each sentence; None if it has no words."""
    trees: list[ParseTree | None] = []
    # One by one: a batch would hold the sums over rules of all sentences at once.
    for row, count in enumerate(sentences.counts.tolist()):
        if not count:
            trees.append(None)
            continue
        words = word_potentials(grammar, _row(sentences, row, count))
        word_indicators, span_indicators = viterbi_tree(words, grammar.rules)
        trees.append(tree_from_indicators(word_indicators[0], span_indicators[0], count))
    return trees


def tree_entropy(grammar: PCFGTables, sentences: SentenceBatch) -> Tensor:
    """(B,) entropy in nats of the posterior over a sentence's trees; 0 if it has no words."""
    entropies = grammar.empty.new_zeros(len(sentences.counts))
    with torch.no_grad():
        for row, count in enumerate(sentences.counts.tolist()):
            if count:
                words = word_potentials(grammar, _row(sentences, row, count))
                entropies[row] = entropy(words, grammar.rules)[0]
    return entropies


def posterior_captures(grammar: PCFGTables, sentences: SentenceBatch) -> dict[str, Capture]:
    """Rules, posterior spans, symbol usage, and the entropy of the trees."""
    rules = _rule_captures(grammar)
    if not sentences.tokens.shape[1]:
        return rules
    words, spans = span_marginals(
        word_potentials(grammar, sentences), grammar.rules, lengths=sentences.counts.clamp(min=1)
    )
    nonempty = (sentences.counts > 0)[:, None, None]
    usage = torch.cat([spans.flatten(0, 2).sum(0), (words * nonempty).flatten(0, 1).sum(0)])
    return {
        **rules,
        "spans": Capture(
            values=_spans_by_end(spans.sum(-1)),
            axes=("batch", "time", "source"),
            caption="Posterior probability that a phrase begins and ends at these words; single "
            "words are not counted.",
            bounds=UNIT_INTERVAL,
            titles={"time": "last word", "source": "first word"},
        ),
        "symbol use": Capture(
            values=usage / usage.sum(),
            axes=("state",),
            caption=f"Share of the trees' nodes that each symbol labels; {_symbol_key(grammar)}.",
            sums_to_one="state",
            titles={"state": "symbol"},
        ),
        "tree entropy": Capture(
            values=tree_entropy(grammar, sentences),
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
            caption=f"The most probable words of each preterminal; {_symbol_key(grammar)}.",
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
    no_words = words.new_full((len(words), len(grammar.rules.binary)), torch.nan)
    return torch.cat([no_words, words], dim=1)


def _symbol_key(grammar: PCFGTables) -> str:
    """Which symbols have which numbers."""
    first = len(grammar.rules.binary)
    last = first + grammar.words.shape[1] - 1
    return f"symbols 0 to {first - 1} are nonterminals, {first} to {last} preterminals"


def _spans_by_end(spans: Tensor) -> Tensor:
    """(B, last word, first word) from (B, first word, width less one)."""
    time = spans.shape[1]
    by_ends = torch.zeros_like(spans)
    for width in range(time):
        firsts = torch.arange(time - width, device=spans.device)
        by_ends[:, firsts + width, firsts] = spans[:, : time - width, width]
    return by_ends


def _row(sentences: SentenceBatch, row: int, count: int) -> SentenceBatch:
    rows = slice(row, row + 1)
    return replace(
        sentences,
        tokens=sentences.tokens[rows, :count],
        counts=sentences.counts[rows],
        complete=sentences.complete[rows],
    )


class PCFG(TrainableSystem):
    """PCFG with exact `log_prob` by inside and prefix probabilities; samples whole sentences."""

    scorer_kind = "left-to-right"

    def __init__(self, rules: NeuralPCFG, vocabulary: Vocabulary, *, max_length: int) -> None:
        super().__init__()
        self.vocabulary, self.rules, self.max_length = vocabulary, rules, max_length

    def check_length(self, tokens: int) -> None:
        """A UserError before training; a text with <s> and </s> has two tokens more than words."""
        check_words(tokens - 2, self.max_length)

    def _parser_inputs(self, batch: Batch) -> tuple[PCFGTables, SentenceBatch]:
        sentences = extract_sentences(batch, self.vocabulary.end, self.max_length)
        return self.rules.grammar(), sentences

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: Generator | None = None
    ) -> tuple[Loss, None]:
        """Minus the log-probability of whole sentences, by the inside algorithm."""
        total = -sentence_log_probs(*self._parser_inputs(batch)).sum()
        return Loss(total, total.new_tensor(float(batch.count))), None

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: Generator | None = None
    ) -> LogProbs:
        """Per token, given the tokens before: ratios of prefix probabilities."""
        length = max(batch.tokens.shape[1] - 1, 0)
        by_token = token_log_probs(*self._parser_inputs(batch), length)
        return LogProbs(per_token=by_token, kind="exact")

    def sample(
        self,
        rows: int,
        *,
        max_length: int,
        condition: Batch | None = None,
        generator: Generator | None = None,
    ) -> list[list[int]]:
        """Ids of sentences; one truncated at `max_length` tokens has no end token."""
        samples = sample_sentences(self.rules.grammar(), rows, max_length, generator)
        end = [] if self.vocabulary.end is None else [self.vocabulary.end]
        return [
            [*words, *end] if ended and len(words) < max_length else words
            for words, ended in samples
        ]

    def best_tree(self, batch: Batch) -> list[ParseTree | None]:
        """Viterbi parse of each sentence, None where it has no words."""
        return viterbi_trees(*self._parser_inputs(batch))

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        return posterior_captures(*self._parser_inputs(batch))
