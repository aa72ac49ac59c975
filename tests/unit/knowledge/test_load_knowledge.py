"""Loading knowledge bases from tables and WordNet: contents, and errors for invalid rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.lines import ReadingReport
from lmlab.data.wordnet.database import load_wordnet
from lmlab.data.wordnet.inflections import base_forms
from lmlab.knowledge.knowledge_base import Alias, Entity, Fact
from lmlab.knowledge.load_knowledge import load_knowledge
from lmlab.knowledge.wordnet_knowledge import Inflections


def write_tables(folder: Path, **tables: str) -> Path:
    for name, text in tables.items():
        stem, _, ending = name.partition("__")
        (folder / f"{stem}.{ending or 'tsv'}").write_text(text, encoding="utf-8")
    return folder


ENTITIES = "Q142\tFrance\ta country\nQ90\tParis\nQ1\n"


def test_knowledge_from_tsv_tables(tmp_path):
    folder = write_tables(
        tmp_path,
        entities=ENTITIES,
        aliases="France\tQ142\t9\nparis\tQ90\n",
        facts="Q142\tcapital\tQ90\nQ90\tcapital of\tQ142\nQ142\tcapital\tQ90\n",
    )
    knowledge = load_knowledge(folder)
    assert knowledge.entities == (
        Entity(name="Q142", title="France", description="a country"),
        Entity(name="Q90", title="Paris"),
        Entity(name="Q1"),
    )
    assert knowledge.aliases == (Alias("France", 0, 9.0), Alias("paris", 1, 1.0))
    assert knowledge.relations == ("capital", "capital of")
    # The third row is a duplicate of the first.
    assert knowledge.facts == (Fact(0, 0, 1), Fact(1, 1, 0))


def test_knowledge_from_json_lines(tmp_path):
    rows = [{"name": "Q142", "title": "France", "description": "a country"}, {"name": "Q90"}]
    facts = {"subject": "Q142", "relation": "capital", "object": "Q90"}
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    folder = write_tables(tmp_path, entities__jsonl=text, facts__jsonl=json.dumps(facts))
    knowledge = load_knowledge(folder)
    assert [e.title for e in knowledge.entities] == ["France", ""]
    # Without an alias table, titles are the aliases, or names if there is no title.
    assert knowledge.aliases == (Alias("France", 0, 1.0), Alias("Q90", 1, 1.0))
    assert knowledge.facts == (Fact(0, 0, 1),)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"entities": "Q1\tone\nQ1\tagain\n"}, "entities.tsv, line 2: there is already an entity"),
        ({"entities": "a\tb\tc\td\n"}, "entities.tsv, line 1: expected 1 to 3 columns"),
        ({"entities": ENTITIES, "aliases": "France\tQ7\n"}, "aliases.tsv, line 1: there is no"),
        ({"entities": ENTITIES, "aliases": "x\tQ1\n\ny\tQ1\tmany\n"}, "line 3: expected a number"),
        ({"entities": ENTITIES, "aliases": "x\tQ1\t-2\n"}, "expected a count above 0"),
        (
            {"entities": ENTITIES, "facts": "Q142\tcapital\n"},
            "facts.tsv, line 1: expected 3 columns",
        ),
        ({"entities": ENTITIES, "facts": "Q142\tcapital\tQ7\n"}, "line 1: there is no entity"),
        ({"entities": ENTITIES, "facts": ""}, "facts.tsv has no row of subject, relation, object"),
        ({"entities": ""}, "entities.tsv has no row of name, title, description; add one."),
        ({"entities__jsonl": '{"title": "x"}\n'}, "entities.jsonl, line 1: expected 1 to 3"),
        ({"entities__jsonl": "[1]\n"}, "line 1: expected an object, got list"),
        ({"facts": "a\tb\tc\n"}, "expected entities.tsv"),
    ],
)
def test_invalid_row_is_reported_with_its_line(tmp_path, tables, message):
    folder = write_tables(tmp_path, **tables)
    with pytest.raises(UserError) as error:
        load_knowledge(folder)
    assert message in str(error.value)


def test_invalid_rows_are_skipped_and_counted_on_replace(tmp_path):
    folder = write_tables(
        tmp_path,
        entities=ENTITIES + "Q1\ttwice\n",
        facts="Q142\tcapital\tQ90\nQ142\tcapital\nQ8\tcapital\tQ90\n",
    )
    report = ReadingReport()
    knowledge = load_knowledge(folder, errors="replace", report=report)
    assert report.bad_rows == 3
    assert (len(knowledge.entities), len(knowledge.facts)) == (3, 1)


def test_invalid_knowledge_source_is_refused(tmp_path):
    with pytest.raises(UserError, match="did you mean"):
        load_knowledge("wordnet-comon")
    (tmp_path / "facts.tsv").write_text("a\tb\tc\n", encoding="utf-8")
    with pytest.raises(UserError, match="give the folder"):
        load_knowledge(tmp_path / "facts.tsv")


def test_wordnet_letters_knowledge():
    """`a` has seven senses in WordNet, and the ampere is a unit of current."""
    knowledge = load_knowledge("wordnet-letters")
    named = {
        knowledge.entities[alias.entity].title for alias in knowledge.aliases if alias.words == "a"
    }
    assert (
        named
        == {
            lemmas[0]
            for lemmas in (load_wordnet()[name].lemmas for name in load_wordnet().lemmas["a"])
        }
        and {"ampere", "angstrom", "vitamin A"} <= named
    )
    ampere = next(n for n, e in enumerate(knowledge.entities) if e.title == "ampere")
    above = knowledge.objects[ampere, knowledge.relation("hypernym")]
    assert [knowledge.entities[number].title for number in above] == ["current unit"]


def test_wordnet_common_knowledge():
    """44,781 synsets are tagged in some text or have an example; priors are sense counts."""
    knowledge = load_knowledge("wordnet-common")
    assert len(knowledge.entities) == 44_781
    dog = knowledge.number("02084071-n")
    assert knowledge.entities[dog].title == "dog"
    assert knowledge.entities[dog].description.startswith("a member of the genus canis")
    named = {alias.words: alias.count for alias in knowledge.aliases if alias.entity == dog}
    # Sense 1 of dog was tagged 42 times, `domestic dog` never.
    assert named["dog"] == named["dogs"] == 42 + 1
    assert named["domestic dog"] == named["domestic dogs"] == 0 + 1
    assert knowledge.fingerprint() == knowledge.fingerprint()


def test_inflections_are_inverted_by_lemmatisation():
    """By WordNet's morphology, the lemma is a base form of each inflected form."""
    forms = Inflections(load_wordnet().exceptions)
    assert forms("wolf", "n")[-1] == "wolves"
    assert forms("abet", "v")[-2:] == ["abetted", "abetting"]
    assert forms("look up", "v") == ["looks up", "looked up", "looking up"]
    assert forms("domestic dog", "n") == ["domestic dogs"]
    assert forms("quickly", "r") == []
    regular = {"n": ("dog", "box", "city", "day"), "v": ("carry", "bake", "see", "play", "miss")}
    for part, lemmas in regular.items():
        for lemma in lemmas:
            for form in forms(lemma, part):
                assert lemma in base_forms(form, part), (lemma, form)
