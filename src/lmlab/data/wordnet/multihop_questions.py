"""Multi-hop questions generated from WordNet's relations, with the paragraphs that answer them.

An entity is a noun; its paragraph states its relations, one sentence each in random order, and then
its gloss:

    axle is a kind of shaft . the whole of it is wheel . a shaft on which a wheel rotates .

    two and three hops   what is the kind of the whole of axle ?
    alternative          which is a kind of shaft , axle or spoke ?
    yes or no            are axle and driveshaft both a kind of shaft ?

Every paragraph on the path also has a fact of another relation, so that the question must say which
to follow. If a relation leads to several entities, all must be explored, and the answer is unique
whichever of them leads on. A network that sees only the difference of two entities can't tell
"both" from "neither", so in a yes-no question at least one of the two is of the kind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from random import Random
from typing import Any

import numpy as np

from lmlab.data.name_matching import find_entity_name, sentence_around
from lmlab.data.wordnet.database import WordNet, load_wordnet
from lmlab.data.wordnet.glosses import tokenize_gloss
from lmlab.data.wordnet.synsets import Synset

Row = dict[str, Any]
Edge = tuple[str, str]

RELATION_SENTENCES = {
    "kind": ("hypernym", "{subject} is a kind of {object} ."),
    "example": ("hyponym", "an example of {subject} is {object} ."),
    "whole": ("part holonym", "the whole of {subject} is {object} ."),
    "part": ("part meronym", "a part of {subject} is {object} ."),
    "group": ("member holonym", "the group of {subject} is {object} ."),
    "member": ("member meronym", "a member of {subject} is {object} ."),
    "field": ("topic", "the field of {subject} is {object} ."),
    "substance": ("substance meronym", "a substance of {subject} is {object} ."),
}
"""Question word of each relation, WordNet's name of it, and the sentence that states it."""
QUESTION_COUNTS = {"train": 6000, "validation": 500, "test": 1000}
"""Number of questions per split."""
QUESTION_SHARES = {"two-hop": 0.5, "three-hop": 0.25, "alternative": 0.125, "yes-no": 0.125}
"""Fraction of each question type."""
MAX_OBJECTS = 3
"""A relation with more objects is not stated."""
MAX_FACTS = 7
MAX_NAME_WORDS = 3
"""Maximum number of words of an entity's name."""
MAX_GLOSS_WORDS = 8
MAX_HOPS = 5
"""Maximum number of entities between the first and the answer."""
MAX_SHARE_ALIKE = 0.125
"""Maximum fraction of a question type with the same sequence of relations."""


def split_of_entity(name: str) -> str:
    """Split of the questions that read an entity's paragraph, by a hash of its name.

    50 % train, 20 % validation, 30 % test. Entities that are only named, as answers, may occur in
    several splits.
    """
    bucket = zlib.crc32(b"hops " + name.encode()) % 10
    return "train" if bucket < 5 else "validation" if bucket < 7 else "test"


@dataclass(frozen=True, slots=True)
class _Entity:
    """Facts and paragraph of an entity."""

    facts: Mapping[str, tuple[str, ...]]
    paragraph: str


class WordNetEntities(Mapping[str, str]):
    """The paragraph of every entity by name, built lazily."""

    def __init__(self, wordnet: WordNet) -> None:
        self._wordnet = wordnet
        self._entities: dict[str, _Entity] = {}

    @cached_property
    def _synsets(self) -> dict[str, str]:
        """Synset of each noun's most frequent sense, by name."""
        synsets: dict[str, str] = {}
        for synset, senses in self._wordnet.senses("n"):
            for sense in senses:
                name = tokenize_gloss(sense.lemma)
                fits = name and len(name.split()) <= MAX_NAME_WORDS and name not in synsets
                if sense.number == 1 and fits:
                    synsets[name] = synset
                    break
        return synsets

    @cached_property
    def _names(self) -> dict[str, str]:
        return {synset: name for name, synset in self._synsets.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._synsets)

    def __len__(self) -> int:
        return len(self._synsets)

    def __getitem__(self, name: str) -> str:
        return self._entity(name).paragraph

    def facts(self, name: str) -> Mapping[str, tuple[str, ...]]:
        """The facts in an entity's paragraph: objects by relation word, in order."""
        return self._entity(name).facts

    def _entity(self, name: str) -> _Entity:
        if name not in self._entities:
            synset = self._wordnet[self._synsets[name]]
            facts = self._stated_facts(synset, seed=zlib.crc32(name.encode()))
            pairs = [(word, target) for word, targets in facts.items() for target in targets]
            sentences = [
                RELATION_SENTENCES[word][1].format(subject="it" if index else name, object=target)
                for index, (word, target) in enumerate(pairs)
            ]
            gloss = tokenize_gloss(synset.definition).split()[:MAX_GLOSS_WORDS]
            self._entities[name] = _Entity(facts, " ".join([*sentences, *gloss, "."]))
        return self._entities[name]

    def _stated_facts(self, synset: Synset, *, seed: int) -> dict[str, tuple[str, ...]]:
        words, facts, count = list(RELATION_SENTENCES), {}, 0
        Random(seed).shuffle(words)
        for word in words:
            targets = dict.fromkeys(synset.related(RELATION_SENTENCES[word][0]))
            named = tuple(self._names[target] for target in targets if target in self._names)
            if 1 <= len(named) <= MAX_OBJECTS and count + len(named) <= MAX_FACTS:
                facts[word] = named
                count += len(named)
        return facts

    def states(self, name: str, word: str, target: str) -> bool:
        """Whether the first mention of the target in the paragraph is in this fact's sentence."""
        paragraph, ending = self[name], RELATION_SENTENCES[word][1].rpartition("{subject}")[2]
        span = find_entity_name(paragraph, target)
        clause = ending.format(object=target).strip()
        return span is not None and sentence_around(paragraph, *span).endswith(clause)


@dataclass(frozen=True, kw_only=True)
class RelationPath:
    """The result of following a chain of relations."""

    answer: str
    path: tuple[Edge, ...]
    """Edges from the start to the answer."""
    hops: tuple[Edge, ...]
    """Dead ends: edges to entities from which the next relation does not continue."""


def relation_chains(
    world: WordNetEntities, start: str, hops: int, split: str
) -> Iterator[tuple[str, ...]]:
    """Relation words that lead from an entity to a unique answer, via entities of the split."""

    def walk(level: frozenset[str], words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        remaining = hops - len(words)
        for word in dict.fromkeys(word for name in sorted(level) for word in world.facts(name)):
            # After a hop the clue states the relation that led there, so two hops by the same
            # relation before the last would be indistinguishable.
            if remaining > 1 and word in words[-1:]:
                continue
            onward = _objects(world, level, word)
            if remaining == 1 and len(onward) == 1:
                yield (*words, word)
            elif remaining > 1 and all(split_of_entity(name) == split for name in onward):
                yield from walk(onward, (*words, word))

    yield from walk(frozenset([start]), ())


def _objects(world: WordNetEntities, level: Iterable[str], word: str) -> frozenset[str]:
    return frozenset(target for name in level for target in world.facts(name).get(word, ()))


def follow_relations(
    world: WordNetEntities, start: str, words: Sequence[str]
) -> RelationPath | None:
    """Follow a chain of relations; None without a unique answer or if the question is poor.

    Every entity on the path must have other facts too.
    """
    levels, edges = [frozenset([start])], []
    for word in words:
        edges.append([(a, b) for a in sorted(levels[-1]) for b in world.facts(a).get(word, ())])
        levels.append(frozenset(b for _, b in edges[-1]))
    everything = [name for level in levels for name in level]
    if len(levels[-1]) != 1 or len(set(everything)) != len(everything):
        return None
    path: list[Edge] = []
    hops: list[Edge] = []
    alive = levels[-1]
    for steps in reversed(edges):
        path = [step for step in steps if step[1] in alive] + path
        hops = [step for step in steps if step[1] not in alive] + hops
        alive = frozenset(a for a, b in steps if b in alive)
    if len(everything) > 2 + MAX_HOPS or any(len(world.facts(a)) < 2 for a, _ in path):
        return None
    labelled_edges = zip(words, edges, strict=True)
    if not all(world.states(a, word, b) for word, steps in labelled_edges for a, b in steps):
        return None
    [answer] = levels[-1]
    return RelationPath(answer=answer, path=tuple(path), hops=tuple(hops))


def chain_question(world: WordNetEntities, start: str, words: Sequence[str]) -> Row | None:
    """The question for a chain of relations, with answer, path and distractors."""
    result = follow_relations(world, start, words)
    if result is None:
        return None
    description = " of ".join(f"the {word}" for word in reversed(words))
    return {
        "question": f"what is {description} of {start} ?",
        "kind": {2: "two-hop", 3: "three-hop"}[len(words)],
        "start": [start],
        "answer": result.answer,
        "path": [list(edge) for edge in result.path],
        "hops": [list(edge) for edge in result.hops],
        "irrelevant": _distractors(world, [a for a, _ in result.path], words),
    }


def _distractors(
    world: WordNetEntities, visited: Sequence[str], relations: Sequence[str]
) -> list[list[str]]:
    """Distractors: entities named in paragraphs by relations not in the question, at most three."""
    edges = [
        [name, target]
        for name in dict.fromkeys(visited)
        for word, targets in world.facts(name).items()
        for target in targets[:1]
        if word not in relations and target not in visited and world.states(name, word, target)
    ]
    return edges[:: max(1, len(edges) // 3)][:3]


class _QuestionSampler:
    """Samples the questions of one split."""

    def __init__(self, world: WordNetEntities, split: str, names: Sequence[str], seed: int) -> None:
        self.world, self.split = world, split
        self.generator = np.random.default_rng([seed, zlib.crc32(split.encode())])
        order = self.generator.permutation(len(names))
        self.names = [names[i] for i in order if split_of_entity(names[i]) == split]
        self.alike: dict[tuple[str, ...], int] = {}

    def rows(self, size: int) -> list[Row]:
        wanted = {kind: round(size * share) for kind, share in QUESTION_SHARES.items()}
        rows = self._chains(3, wanted["three-hop"]) + self._chains(2, wanted["two-hop"])
        rows += self._comparisons(wanted["alternative"], wanted["yes-no"])
        return [rows[i] for i in self.generator.permutation(len(rows))]

    def _chains(self, hops: int, wanted: int) -> list[Row]:
        rows: list[Row] = []
        for start in self.names:
            if len(rows) == wanted:
                break
            row = self._chain(start, hops, wanted)
            rows += [] if row is None else [row]
        return rows

    def _chain(self, start: str, hops: int, wanted: int) -> Row | None:
        if len(self.world.facts(start)) < 2:
            return None
        every = list(relation_chains(self.world, start, hops, self.split))
        order = [every[i] for i in self.generator.permutation(len(every))]
        # Prefer first relations with several objects: there is more to explore.
        order.sort(key=lambda words: -len(self.world.facts(start)[words[0]]))
        for words in order:
            if self.alike.get(words, 0) >= max(1, MAX_SHARE_ALIKE * wanted):
                continue
            if (row := chain_question(self.world, start, words)) is not None:
                self.alike[words] = self.alike.get(words, 0) + 1
                return row
        return None

    def _comparisons(self, alternatives: int, decisions: int) -> list[Row]:
        """Comparison questions: pairs of entities, at least one of which is of the queried kind."""
        siblings = self._siblings(8 * (alternatives + decisions))
        kinds = [kind for kind, names in siblings.items() if len(names) >= 2]
        rows: list[Row] = []
        for _ in range(4 * (alternatives + decisions) if len(kinds) > 1 else 0):
            if len(rows) == alternatives + decisions:
                break
            kind, other = (kinds[i] for i in self.generator.choice(len(kinds), 2, replace=False))
            alternative = len(rows) < alternatives
            both = not alternative and len(rows) % 2 == 0
            first, second = self._pair(siblings[kind], siblings[kind if both else other])
            if kind in (first, second) or (not both and find_entity_name(self.world[second], kind)):
                continue
            rows.append(self._comparison(kind, first, second, alternative=alternative, both=both))
        return rows

    def _siblings(self, count: int) -> dict[str, list[str]]:
        """Some entities with exactly one kind, by that kind."""
        siblings: dict[str, list[str]] = {}
        for name in self.names[: max(count, 1000)]:
            kinds = self.world.facts(name).get("kind", ())
            if len(kinds) == 1 and self.world.states(name, "kind", kinds[0]):
                siblings.setdefault(kinds[0], []).append(name)
        return siblings

    def _pair(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, str]:
        if first is second:
            a, b = self.generator.choice(len(first), 2, replace=False)
            return first[a], first[b]
        return (
            first[int(self.generator.integers(len(first)))],
            second[int(self.generator.integers(len(second)))],
        )

    def _comparison(
        self, kind: str, first: str, second: str, *, alternative: bool, both: bool
    ) -> Row:
        start = [first, second]
        if self.generator.random() < 0.5:
            start.reverse()
        question = f"are {start[0]} and {start[1]} both a kind of {kind} ?"
        if alternative:
            question = f"which is a kind of {kind} , {start[0]} or {start[1]} ?"
        return {
            "question": question,
            "kind": "alternative" if alternative else "yes-no",
            "start": start,
            "answer": first if alternative else "yes" if both else "no",
            "path": [[name, kind] for name in (start if both else [first])],
            "hops": [],
            "irrelevant": [
                edge for edge in _distractors(self.world, start, ["kind"]) if edge[1] != kind
            ],
        }


@cache
def wordnet_entities() -> WordNetEntities:
    """WordNet's nouns as entities; loaded once, then shared."""
    return WordNetEntities(load_wordnet())


def multihop_questions(
    sizes: Mapping[str, int] | None = None, *, seed: int = 0
) -> dict[str, list[Row]]:
    """Questions by split, each with the paragraphs of all entities it may lead to.

    Entities whose paragraphs are read are in one split only. Deterministic given the seed; about
    fifteen seconds for `QUESTION_COUNTS`.
    """
    entities = wordnet_entities()
    names = sorted(entities)
    splits = {
        split: _QuestionSampler(entities, split, names, seed).rows(size)
        for split, size in (sizes or QUESTION_COUNTS).items()
    }
    for rows in splits.values():
        for row in rows:
            row["paragraphs"] = question_paragraphs(entities, row)
    return splits


def question_paragraphs(entities: WordNetEntities, row: Row) -> dict[str, str]:
    """Paragraphs of the entities of a question, and of those named in the start paragraphs.

    Of the leaf entities, one in eight has no paragraph.
    """
    edges = [*row["path"], *row["hops"], *row["irrelevant"]]
    visited = dict.fromkeys([*row["start"], *(name for edge in edges for name in edge)])
    explored = {*row["start"], *(a for a, _ in edges), *(b for _, b in row["hops"])}
    facts = [entities.facts(name).values() for name in row["start"]]
    named = [target for objects in facts for targets in objects for target in targets]
    paragraphs = {}
    for name in dict.fromkeys([*visited, *named]):
        known = name in explored or zlib.crc32(f"known {name}".encode()) % 8
        if name in entities and known:
            paragraphs[name] = entities[name]
    return paragraphs
