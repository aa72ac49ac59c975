"""`lmlab ablate`: table, JSON and errors."""

from __future__ import annotations

import json

QUICK = ("--data", "grammar", "--size", "tiny", "--epochs", "1", "--set", "tokens_per_batch=4000")


def test_table_and_json(lmlab, tmp_path):
    command = ("ablate", "DLM47", *QUICK, "--switches", "4,6", "--seeds", "1", "--out", tmp_path)
    shown = lmlab(*command)
    assert shown.code == 0
    assert "tanh, no-centring" in shown.out and "loss E1" in shown.out
    assert "[2/2] mgru, 4 tanh, 6 no-centring off, seed 0" in shown.err
    again = lmlab(*command, "--json")
    assert again.code == 0
    output = json.loads(again.out)
    assert output["system"] == "mgru" and output["finished"] is True
    assert sorted(row["terms"] for row in output["rows"]) == ["4 tanh, 6 no-centring", "intact"]
    assert "2 of 2 trainings were done before" in again.err


def test_usage_errors_are_one_sentence(lmlab, tmp_path):
    for words, sentence in (
        (("ablate", "lstm"), "lstm declares no switches to turn off; those that do: "),
        (("ablate", "mgru", "--at", "x"), "--at must be epochs separated by commas"),
        (("ablate", "mgru", "--jobs", "0"), "jobs must be at least 1"),
        (("ablate", "mgruu"), "did you mean"),
    ):
        result = lmlab(*words, *QUICK, "--out", tmp_path / "none")
        assert result.code == 2 and result.out == ""
        assert sentence in result.err and len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_switches_are_listed_in_the_catalogue(lmlab):
    cards = {card["name"]: card for card in json.loads(lmlab("systems", "--json").out)}
    assert cards["gru-minimal"]["switches"][4] == "candidate-hidden"
    assert cards["lstm"]["switches"] == []
    output = lmlab("find", "mgru").out
    assert "4 tanh" in output and "11 no-heads" in output
