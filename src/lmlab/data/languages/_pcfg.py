"""Probabilistic context-free grammars: exact probabilities, entropy and expected length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np

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
                chosen = _choose(self.rules[symbol], generator.random())
                pending.extend(reversed(chosen.symbols))
            else:
                words.append(symbol)
        return " ".join(words)

    def _expected_children(self) -> np.ndarray:
        """M[A, B] = expected number of B in one expansion of A."""
        place = {name: row for row, name in enumerate(self.rules)}
        children = np.zeros((len(place), len(place)))
        for name, options in self.rules.items():
            for option in options:
                for symbol in option.symbols:
                    if symbol in place:
                        children[place[name], place[symbol]] += option.probability
        return children

    def _expected_total(self, cost: Callable[[GrammarRule], float]) -> float:
        """Expected cost of a derivation, x = c + M x with c the expected cost of a production.

        With cost -log p this is the entropy (Grenander 1967; Chi 1999).
        """
        own = [sum(o.probability * cost(o) for o in options) for options in self.rules.values()]
        totals = np.linalg.solve(np.eye(len(own)) - self._children, np.array(own))
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
