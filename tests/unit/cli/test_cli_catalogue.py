"""`lmlab systems` and `lmlab find`."""

from __future__ import annotations

import json

from lmlab.core.registry import catalogue


def test_systems_as_json_is_one_document_with_every_card(lmlab) -> None:
    result = lmlab("systems", "--json")
    listed = json.loads(result.out)
    assert result.err == ""
    assert [each["name"] for each in listed] == list(catalogue())
    for each in listed:
        assert {"name", "aliases", "family", "kind", "paper", "source"} <= set(each)
    assert next(each for each in listed if each["name"] == "lstm")["aliases"] == ["DLM12"]


def test_systems_lists_a_line_each(lmlab) -> None:
    lines = lmlab("systems").out.splitlines()
    assert len(lines) == 1 + len(catalogue())
    assert {line.split()[0] for line in lines[1:]} == set(catalogue())


def test_find_by_alias_shows_the_whole_card(lmlab) -> None:
    told = lmlab("find", "dlm12").out
    card = catalogue()["lstm"]
    for part in (card.paper, card.source, "LogProb, Step", "c' = f∘c + i∘g", "next-token"):
        assert part in told
    # A setting with its values at tiny, small and base, and what it does.
    [width] = [line for line in told.splitlines() if line.startswith("width ")]
    assert width.split()[:5] == ["width", "int", "16", "128", "650"]
    assert "Size of hidden states and embeddings" in width


def test_find_by_name_shows_that_one_and_mentions_the_others(lmlab) -> None:
    told = lmlab("find", "lstm").out
    assert told.startswith("lstm\n")
    assert "lstm-peephole" in told.splitlines()[-1]


def test_find_an_author_lists_the_systems_of_the_paper(lmlab) -> None:
    lines = lmlab("find", "gers").out.splitlines()
    assert {line.split()[1] for line in lines if line.startswith("system")} == {
        "lstm",
        "lstm-peephole",
    }


def test_find_takes_several_words(lmlab) -> None:
    first = lmlab("find", "forget", "gate", "one", "minus").out.splitlines()[1]
    assert first.split()[:2] == ["system", "lstm-coupled"]
