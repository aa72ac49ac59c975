"""Questions over several hops from WordNet: told by their paragraphs, apart by entities."""

from __future__ import annotations

from collections import Counter

import pytest

from lmlab.data.name_matching import find_entity_name, sentence_around
from lmlab.data.wordnet.multihop_questions import (
    RELATION_SENTENCES,
    chain_question,
    follow_relations,
    multihop_questions,
    split_of_entity,
    wordnet_entities,
)

SIZES = {"train": 40, "validation": 16, "test": 24}


@pytest.fixture(scope="module")
def splits():
    return multihop_questions(SIZES)


def every_edge(row):
    return [tuple(edge) for edge in (*row["path"], *row["hops"], *row["irrelevant"])]


def test_all_sorts_come_in_their_shares(splits):
    assert Counter(row["kind"] for row in splits["train"]) == {
        "two-hop": 20,
        "three-hop": 10,
        "alternative": 5,
        "yes-no": 5,
    }


def test_every_step_is_told_by_the_paragraph_it_starts_from(splits):
    for rows in splits.values():
        for row in rows:
            for a, b in every_edge(row):
                assert find_entity_name(row["paragraphs"][a], b) is not None, (
                    row["question"],
                    a,
                    b,
                )


def test_entities_that_are_read_are_of_one_split_alone(splits):
    for split, rows in splits.items():
        for row in rows:
            read = {*row["start"], *(a for a, _ in row["path"])}
            assert {split_of_entity(name) for name in read} == {split}


def test_the_relations_of_a_question_lead_to_its_answer_and_to_no_other(splits):
    """Followed by the facts themselves, and not by the rows' own path."""
    for row in splits["train"]:
        if row["kind"] not in ("two-hop", "three-hop"):
            continue
        words = row["question"].removesuffix(" ?").split()
        asked = words[3 : -len(row["start"][0].split())]
        relations = [word for word in asked if word in RELATION_SENTENCES]
        level = set(row["start"])
        for relation in reversed(relations):
            level = {t for name in level for t in wordnet_entities().facts(name).get(relation, ())}
        assert level == {row["answer"]}


def test_comparisons_say_what_the_taxonomy_says(splits):
    for row in splits["test"]:
        if row["kind"] not in ("alternative", "yes-no"):
            continue
        [kind] = {b for _, b in row["path"]}
        true = [kind in wordnet_entities().facts(name).get("kind", ()) for name in row["start"]]
        assert any(true)
        if row["kind"] == "yes-no":
            assert row["answer"] == ("yes" if all(true) else "no")
        else:
            assert true == [name == row["answer"] for name in row["start"]]


def test_paragraphs_on_the_way_have_other_facts_too(splits):
    for row in splits["train"]:
        if row["kind"] in ("two-hop", "three-hop"):
            assert all(len(wordnet_entities().facts(a)) >= 2 for a, _ in row["path"])


def test_the_same_seed_gives_the_same_rows(splits):
    assert multihop_questions(SIZES) == splits


def test_a_paragraph_tells_its_facts_in_sentences():
    here = wordnet_entities()
    name = next(name for name in here if list(here.facts(name)) == ["kind", "part"])
    [kind], parts = here.facts(name)["kind"], here.facts(name)["part"]
    told = [f"{name} is a kind of {kind} .", *(f"a part of it is {part} ." for part in parts)]
    assert here[name].startswith(" ".join(told))
    low, high = find_entity_name(here[name], kind)
    assert sentence_around(here[name], low, high) == told[0]


def test_a_way_with_two_ends_is_no_question():
    """Where the last relation leads to several entities there is no single answer."""
    here = wordnet_entities()
    several = next(n for n in here if len(here.facts(n).get("part", ())) > 1)
    assert follow_relations(here, several, ["part"]) is None
    assert chain_question(here, several, ["part", "substance", "field"]) is None
