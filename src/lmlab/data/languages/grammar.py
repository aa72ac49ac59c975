"""PCFG of English: number agreement across nested relative clauses, exact entropy.

Subjects agree with their verbs in number over relative clauses of any depth, and `gives … to …`
must be closed whatever intervenes. The grammar is unambiguous, because a relative clause or a
preposition attaches only to the preceding word and word classes do not overlap; so the entropy of
derivations is the entropy of sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter

import numpy as np

from lmlab.data.corpus import Corpus
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, sampled_corpus

_Ends = dict[int, float]


@dataclass(frozen=True)
class GrammarRule:
    """One production of a nonterminal, with its probability."""

    probability: float
    symbols: tuple[str, ...]


def grammar_rule(probability: float, symbols: str) -> GrammarRule:
    """A production from a space-separated string: `grammar_rule(0.3, "Verb NounPhrase")`."""
    return GrammarRule(probability, tuple(symbols.split()))


def word_rules(text: str) -> tuple[GrammarRule, ...]:
    """Productions that give each of these words the same probability."""
    return tuple(GrammarRule(1 / len(text.split()), (word,)) for word in text.split())


class GrammarTruth:
    """The distribution over sentences of a PCFG; a symbol without productions is a terminal.

    The grammar must have no empty productions and no left recursion (so that parsing takes one pass
    from right to left), and be subcritical (so that derivations end with probability one).
    `log_prob` sums over derivations and is right for any such grammar; `entropy` is that of
    derivations, which equals that of sentences if the grammar is unambiguous.
    """

    def __init__(self, rules: Mapping[str, Sequence[GrammarRule]], *, start: str) -> None:
        self.rules = {name: tuple(options) for name, options in rules.items()}
        self.start = start
        for name, options in self.rules.items():
            mass = math.fsum(option.probability for option in options)
            assert abs(mass - 1) < 1e-9, f"the rules of {name} have probability {mass}, not one"
            assert all(option.symbols for option in options), f"{name} has an empty rule"
        # A cycle among the first symbols is left recursion and raises here.
        firsts = {name: {o.symbols[0] for o in options} for name, options in self.rules.items()}
        self._order = [s for s in TopologicalSorter(firsts).static_order() if s in self.rules]
        self._children = self._expected_children()
        self.growth = float(max(abs(np.linalg.eigvals(self._children))))
        """Spectral radius of the expected children; below one, derivations end."""
        assert self.growth < 1, f"growth {self.growth} is not under one: sentences may never end"
        self.entropy = self._expected_total(lambda option: -math.log(option.probability))
        self.expected_tokens = 1 + self._expected_total(
            lambda option: sum(symbol not in self.rules for symbol in option.symbols)
        )
        """Expected words of a sentence, plus its end."""

    def log_prob(self, text: str) -> float:
        """The log-probability of a sentence in nats by the inside algorithm, O(T³) at worst.

        `inside[i][A]` maps each end j to log p(A yields the words i to j - 1). Going from right to
        left, with nonterminals after those they may start with, everything a production needs is
        already computed: no recursion, however long the sentence.
        """
        words = text.split(" ")
        if any(word in self.rules for word in words):  # the name of a nonterminal is no word
            return -math.inf
        inside: list[dict[str, _Ends]] = [{} for _ in range(len(words) + 1)]
        for start in range(len(words) - 1, -1, -1):
            inside[start][words[start]] = {start + 1: 0.0}
            for name in self._order:
                ends: _Ends = {}
                for option in self.rules[name]:
                    if option.symbols[0] in inside[start]:
                        _add_yields(ends, option, start, inside)
                if ends:
                    inside[start][name] = ends
        return inside[0].get(self.start, {}).get(len(words), -math.inf)

    def sample(self, generator: np.random.Generator) -> str:
        """Sample a sentence, expanding the leftmost nonterminal until only words are left."""
        words: list[str] = []
        pending = [self.start]
        while pending:
            symbol = pending.pop()
            if symbol in self.rules:
                rule = _choose(self.rules[symbol], generator.random())
                pending.extend(reversed(rule.symbols))
            else:
                words.append(symbol)
        return " ".join(words)

    def _expected_children(self) -> np.ndarray:
        """M[A, B] = expected number of B in one expansion of A."""
        index = {name: row for row, name in enumerate(self.rules)}
        children = np.zeros((len(index), len(index)))
        for name, options in self.rules.items():
            for option in options:
                for symbol in option.symbols:
                    if symbol in index:
                        children[index[name], index[symbol]] += option.probability
        return children

    def _expected_total(self, cost: Callable[[GrammarRule], float]) -> float:
        """Expected cost of a derivation, x = c + M x with c the expected cost of a production.

        With cost -log p this is the entropy (Grenander 1967; Chi 1999).
        """
        costs = [sum(o.probability * cost(o) for o in options) for options in self.rules.values()]
        totals = np.linalg.solve(np.eye(len(costs)) - self._children, np.array(costs))
        return float(totals[list(self.rules).index(self.start)])


def _add_yields(
    ends: _Ends, option: GrammarRule, start: int, inside: list[dict[str, _Ends]]
) -> None:
    """Add the yields of one production from `start` on to the log-probabilities by end."""
    reached = {start: math.log(option.probability)}
    for symbol in option.symbols:
        following: _Ends = {}
        for middle, before in reached.items():
            for end, after in inside[middle].get(symbol, {}).items():
                _add_log(following, end, before + after)
        reached = following
    for end, value in reached.items():
        _add_log(ends, end, value)


def _add_log(logs: _Ends, key: int, value: float) -> None:
    """logs[key] = log(exp(logs[key]) + exp(value))."""
    old = logs.get(key)
    logs[key] = value if old is None else float(np.logaddexp(old, value))


def _choose(options: tuple[GrammarRule, ...], point: float) -> GrammarRule:
    """The production whose share of [0, 1) contains the point."""
    for option in options:
        point -= option.probability
        if point < 0:
            return option
    return options[-1]  # rounding: the probabilities sum to slightly below one


DESCRIPTION = "English sentences of a probabilistic grammar, clauses inside clauses"

_CLAUSES = {
    "Sentence": (grammar_rule(0.85, "Clause"), grammar_rule(0.15, "Clause , but Clause")),
    "Clause": (grammar_rule(0.6, "One DoesOne"), grammar_rule(0.4, "Many DoMany")),
    "Object": (grammar_rule(0.6, "One"), grammar_rule(0.4, "Many")),
    "One": (
        grammar_rule(0.3, "Name"),
        grammar_rule(0.45, "the NounOne"),
        grammar_rule(0.25, "a NounOne"),
    ),
    "Many": (
        grammar_rule(0.5, "the NounMany"),
        grammar_rule(0.2, "some NounMany"),
        grammar_rule(0.3, "NounMany"),
    ),
    # An object relative clause has its own subject, whose verb lacks its object.
    "ObjectGap": (grammar_rule(0.6, "One SeesOne"), grammar_rule(0.4, "Many SeeMany")),
}

_WORDS = {
    "Name": word_rules("mary john anna peter"),
    "Adjective": word_rules("big small tall young red clever"),
    "Adverb": word_rules("quietly often alone"),
    "Preposition": word_rules("near behind with"),
    "SingularNoun": word_rules("dog cat bird girl boy teacher farmer king"),
    "PluralNoun": word_rules("dogs cats birds girls boys teachers farmers kings"),
    "SleepsOne": word_rules("sleeps sings runs waits"),
    "SleepMany": word_rules("sleep sing run wait"),
    "SeesOne": word_rules("sees likes follows hears"),
    "SeeMany": word_rules("see like follow hear"),
    "ThinksOne": word_rules("thinks says"),
    "ThinkMany": word_rules("think say"),
}


def _in_number(
    number: str, noun: str, do: str, sleep: str, see: str, think: str, give: str
) -> dict[str, tuple[GrammarRule, ...]]:
    """Productions that depend on number: nouns with their clauses, and verb phrases."""
    return {
        f"Noun{number}": (
            grammar_rule(0.6, noun),
            grammar_rule(0.2, f"Adjective Noun{number}"),
            grammar_rule(0.1, f"{noun} that {do}"),
            grammar_rule(0.1, f"{noun} that ObjectGap"),
        ),
        do: (
            grammar_rule(0.25, sleep),
            grammar_rule(0.1, f"{sleep} Adverb"),
            grammar_rule(0.1, f"{sleep} Preposition Object"),
            grammar_rule(0.35, f"{see} Object"),
            grammar_rule(0.1, f"{give} Object to Object"),
            grammar_rule(0.1, f"{think} that Clause"),
        ),
    }


@cache
def truth() -> GrammarTruth:
    """The true distribution: probabilities, entropy, samples."""
    singular = ("One", "SingularNoun", "DoesOne", "SleepsOne", "SeesOne", "ThinksOne", "gives")
    plural = ("Many", "PluralNoun", "DoMany", "SleepMany", "SeeMany", "ThinkMany", "give")
    rules = _CLAUSES | _in_number(*singular) | _in_number(*plural) | _WORDS
    return GrammarTruth(rules, start="Sentence")


def corpus(seed: int = 0, *, sentences: int = TRAIN_SENTENCES) -> Corpus:
    """Independent samples from the grammar, with its exact entropy."""
    return sampled_corpus(
        "grammar",
        truth(),
        description=DESCRIPTION,
        tokenizer="word",
        sentences=sentences,
        seed=seed,
    )
