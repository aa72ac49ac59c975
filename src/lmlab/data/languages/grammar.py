"""A probabilistic grammar of English: agreement across clauses inside clauses, exact entropy.

Subjects agree with their verbs in number over relative clauses of any depth, and `gives … to …`
must be closed however much stands between. The grammar is unambiguous, because a relative clause
or a preposition only ever joins the word before it, and the classes of words do not overlap; so
the entropy of derivations is the entropy of sentences.
"""

from __future__ import annotations

from functools import cache

from lmlab.data.corpus import Corpus
from lmlab.data.languages._pcfg import GrammarTruth, Rule, rule, words
from lmlab.data.languages._sampled_corpus import (
    SENTENCES,
    drawn_corpus,
)

DESCRIPTION = "English sentences of a probabilistic grammar, clauses inside clauses"

_CLAUSES = {
    "Sentence": (rule(0.85, "Clause"), rule(0.15, "Clause , but Clause")),
    "Clause": (rule(0.6, "One DoesOne"), rule(0.4, "Many DoMany")),
    "Object": (rule(0.6, "One"), rule(0.4, "Many")),
    "One": (rule(0.3, "Name"), rule(0.45, "the NounOne"), rule(0.25, "a NounOne")),
    "Many": (rule(0.5, "the NounMany"), rule(0.2, "some NounMany"), rule(0.3, "NounMany")),
    # An object relative clause has its own subject, whose verb lacks its object.
    "ObjectGap": (rule(0.6, "One SeesOne"), rule(0.4, "Many SeeMany")),
}

_WORDS = {
    "Name": words("mary john anna peter"),
    "Adjective": words("big small tall young red clever"),
    "Adverb": words("quietly often alone"),
    "Preposition": words("near behind with"),
    "SingularNoun": words("dog cat bird girl boy teacher farmer king"),
    "PluralNoun": words("dogs cats birds girls boys teachers farmers kings"),
    "SleepsOne": words("sleeps sings runs waits"),
    "SleepMany": words("sleep sing run wait"),
    "SeesOne": words("sees likes follows hears"),
    "SeeMany": words("see like follow hear"),
    "ThinksOne": words("thinks says"),
    "ThinkMany": words("think say"),
}


def _in_number(
    number: str, noun: str, do: str, sleep: str, see: str, think: str, give: str
) -> dict[str, tuple[Rule, ...]]:
    """The rules that differ in number only: nouns with their clauses, and verb phrases."""
    return {
        f"Noun{number}": (
            rule(0.6, noun),
            rule(0.2, f"Adjective Noun{number}"),
            rule(0.1, f"{noun} that {do}"),
            rule(0.1, f"{noun} that ObjectGap"),
        ),
        do: (
            rule(0.25, sleep),
            rule(0.1, f"{sleep} Adverb"),
            rule(0.1, f"{sleep} Preposition Object"),
            rule(0.35, f"{see} Object"),
            rule(0.1, f"{give} Object to Object"),
            rule(0.1, f"{think} that Clause"),
        ),
    }


@cache
def truth() -> GrammarTruth:
    """The language itself: probabilities, entropy, samples."""
    singular = ("One", "SingularNoun", "DoesOne", "SleepsOne", "SeesOne", "ThinksOne", "gives")
    plural = ("Many", "PluralNoun", "DoMany", "SleepMany", "SeeMany", "ThinkMany", "give")
    rules = _CLAUSES | _in_number(*singular) | _in_number(*plural) | _WORDS
    return GrammarTruth(rules, start="Sentence")


def corpus(seed: int = 0, *, sentences: int = SENTENCES) -> Corpus:
    """Independent draws from the grammar, with its exact entropy."""
    return drawn_corpus(
        "grammar",
        truth(),
        description=DESCRIPTION,
        tokenizer="word",
        sentences=sentences,
        seed=seed,
    )
