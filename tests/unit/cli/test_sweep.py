"""`lmlab sweep`: the table, JSON, a dry run, errors."""

from __future__ import annotations

import json

SPEC = """
system: gru
data: grammar
size: tiny
epochs: 1
settings: {tokens_per_batch: 4000}
search: grid
space:
  learning_rate: [1e-2, 1e-4]
"""


def test_table_json_and_dry_run(lmlab, tmp_path):
    spec, out = tmp_path / "sweep.yaml", tmp_path / "out"
    spec.write_text(SPEC)
    planned = lmlab("sweep", spec, "--out", out, "--dry-run")
    assert planned.code == 0 and planned.out.count("planned") == 2 and not out.exists()
    shown = lmlab("sweep", spec, "--out", out)
    assert shown.code == 0 and "learning_rate" in shown.out and "0.0001" in shown.out
    assert "[2/2] trial-001-seed0 (learning_rate=0.0001): " in shown.err
    again = lmlab("sweep", spec, "--out", out, "--json")
    record = json.loads(again.out)
    assert [trial["point"]["learning_rate"] for trial in record["trials"]] == [0.01, 0.0001]
    assert "2 trainings were done before" in again.err


def test_usage_errors_are_one_sentence(lmlab, tmp_path):
    spec = tmp_path / "sweep.yaml"
    for text, arguments, sentence in (
        (SPEC, ("--jobs", "0"), "jobs must be at least 1, got 0"),
        (SPEC + "sed: 3\n", (), "called 'sed'; did you mean 'seed'"),
        (SPEC.replace("grid", "grit"), (), "did you mean 'grid'"),
        (SPEC.replace("gru", "grue"), (), "did you mean"),
        ("system: [gru\n", (), "can't be read"),
    ):
        spec.write_text(text)
        result = lmlab("sweep", spec, "--out", tmp_path / "none", *arguments)
        assert result.code == 2 and result.out == ""
        assert sentence in result.err and len(result.err.strip().splitlines()) == 1
    missing = lmlab("sweep", tmp_path / "nope.yaml", "--out", tmp_path / "none")
    assert "there is no file" in missing.err and not (tmp_path / "none").exists()
