"""PCFG of English: number agreement across nested relative clauses, exact entropy.

Subjects agree with their verbs in number over relative clauses of any depth, and `gives … to …`
must be closed whatever intervenes. The grammar is unambiguous, because a relative clause or a
preposition attaches only to the preceding word and word classes do not overlap; so the entropy of
derivations is the entropy of sentences.
"""

from __future__ import annotations

from functools import cache

from lmlab.data.corpus import Corpus
from lmlab.data.languages._pcfg import GrammarRule, GrammarTruth, grammar_rule, word_rules
from lmlab.data.languages._sampled_corpus import (
    TRAIN_SENTENCES,
    sampled_corpus,
)

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
