"""Multi-hop questions from WordNet: supported by their paragraphs, split by entity."""

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


def all_edges(row):
    return [tuple(edge) for edge in (*row["path"], *row["hops"], *row["irrelevant"])]


def test_question_kinds_have_their_proportions(splits):
    assert Counter(row["kind"] for row in splits["train"]) == {
        "two-hop": 20,
        "three-hop": 10,
        "alternative": 5,
        "yes-no": 5,
    }


def test_every_hop_is_stated_in_its_source_paragraph(splits):
    for rows in splits.values():
        for row in rows:
            for a, b in all_edges(row):
                assert find_entity_name(row["paragraphs"][a], b) is not None, (
                    row["question"],
                    a,
                    b,
                )


def test_entities_of_question_paths_belong_to_one_split(splits):
    for split, rows in splits.items():
        for row in rows:
            sources = {*row["start"], *(a for a, _ in row["path"])}
            assert {split_of_entity(name) for name in sources} == {split}


def test_question_relations_lead_to_a_unique_answer(splits):
    """Follow the facts themselves, not the path stored in the row."""
    for row in splits["train"]:
        if row["kind"] not in ("two-hop", "three-hop"):
            continue
        words = row["question"].removesuffix(" ?").split()
        relation_words = words[3 : -len(row["start"][0].split())]
        relations = [word for word in relation_words if word in RELATION_SENTENCES]
        level = set(row["start"])
        for relation in reversed(relations):
            level = {t for name in level for t in wordnet_entities().facts(name).get(relation, ())}
        assert level == {row["answer"]}


def test_comparison_answers_agree_with_the_taxonomy(splits):
    for row in splits["test"]:
        if row["kind"] not in ("alternative", "yes-no"):
            continue
        [kind] = {b for _, b in row["path"]}
        is_kind = [kind in wordnet_entities().facts(name).get("kind", ()) for name in row["start"]]
        assert any(is_kind)
        if row["kind"] == "yes-no":
            assert row["answer"] == ("yes" if all(is_kind) else "no")
        else:
            assert is_kind == [name == row["answer"] for name in row["start"]]


def test_paragraphs_on_the_path_have_distractor_facts(splits):
    for row in splits["train"]:
        if row["kind"] in ("two-hop", "three-hop"):
            assert all(len(wordnet_entities().facts(a)) >= 2 for a, _ in row["path"])


def test_multihop_questions_are_deterministic(splits):
    assert multihop_questions(SIZES) == splits


def test_paragraph_states_facts_as_sentences():
    entities = wordnet_entities()
    name = next(name for name in entities if list(entities.facts(name)) == ["kind", "part"])
    [kind], parts = entities.facts(name)["kind"], entities.facts(name)["part"]
    sentences = [f"{name} is a kind of {kind} .", *(f"a part of it is {part} ." for part in parts)]
    assert entities[name].startswith(" ".join(sentences))
    low, high = find_entity_name(entities[name], kind)
    assert sentence_around(entities[name], low, high) == sentences[0]


def test_path_with_several_endpoints_gives_no_question():
    """If the last relation leads to several entities there is no single answer."""
    entities = wordnet_entities()
    ambiguous = next(n for n in entities if len(entities.facts(n).get("part", ())) > 1)
    assert follow_relations(entities, ambiguous, ["part"]) is None
    assert chain_question(entities, ambiguous, ["part", "substance", "field"]) is None
