"""`lmlab systems` and `lmlab find`."""

from __future__ import annotations

import json

from lmlab.core.registry import catalogue


def test_systems_json_has_every_card(lmlab) -> None:
    result = lmlab("systems", "--json")
    listed = json.loads(result.out)
    assert result.err == ""
    assert [card["name"] for card in listed] == list(catalogue())
    for card in listed:
        assert {"name", "aliases", "family", "kind", "paper", "source"} <= set(card)
    assert next(card for card in listed if card["name"] == "lstm")["aliases"] == ["DLM12"]


def test_systems_prints_one_line_per_system(lmlab) -> None:
    lines = lmlab("systems").out.splitlines()
    assert len(lines) == 1 + len(catalogue())
    assert {line.split()[0] for line in lines[1:]} == set(catalogue())


def test_find_by_alias_shows_the_card(lmlab) -> None:
    output = lmlab("find", "dlm12").out
    card = catalogue()["lstm"]
    for part in (card.paper, card.source, "LogProb, Step", "c' = f∘c + i∘g", "next-token"):
        assert part in output
    # A setting with its values at tiny, small and base, and what it does.
    [width] = [line for line in output.splitlines() if line.startswith("width ")]
    assert width.split()[:5] == ["width", "int", "16", "128", "650"]
    assert "Size of hidden states and embeddings" in width


def test_find_by_name_shows_the_card_and_lists_others(lmlab) -> None:
    output = lmlab("find", "lstm").out
    assert output.startswith("lstm\n")
    assert "lstm-peephole" in output.splitlines()[-1]


def test_find_by_author_lists_the_systems(lmlab) -> None:
    lines = lmlab("find", "gers").out.splitlines()
    assert {line.split()[1] for line in lines if line.startswith("system")} == {
        "lstm",
        "lstm-peephole",
    }


def test_find_with_several_words(lmlab) -> None:
    first = lmlab("find", "forget", "gate", "one", "minus").out.splitlines()[1]
    assert first.split()[:2] == ["system", "lstm-coupled"]
