"""BLEU and chrF equal sacreBLEU's; invalid inputs are rejected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.scoring.translation_metrics import SentenceUtility, score_translations

pytest.importorskip("sacrebleu", reason="translation metrics need lmlab[translation]")

REFERENCES = ["the dog runs in the park", "a man sits on a bench", "two girls play with a ball"] * 5
FIRST = ["the dog runs in a park", "a man sits on the bench", "two girls play with a ball"] * 5
SECOND = ["dog park", "a man is on a bench", "girls play ball with two"] * 5


def test_scores_equal_the_sacrebleu_command(tmp_path: Path):
    for name, lines in {"refs": REFERENCES, "first": FIRST, "second": SECOND}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    for metric in ("bleu", "chrf"):
        scores = {
            each.system: each
            for each in score_translations([metric], {"a": FIRST, "b": SECOND}, REFERENCES)
        }
        for name, system in {"first": "a", "second": "b"}.items():
            command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "refs.txt")]
            command += ["-i", str(tmp_path / f"{name}.txt"), "-m", metric, "-w", "6"]
            command += ["--tokenize", "none"] if metric == "bleu" else []
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            expected = json.loads(output)
            assert scores[system].score == pytest.approx(expected["score"], abs=1e-5)
            assert expected["signature"].split("|case")[0].startswith("nrefs:1")
            assert "tok:none" in scores[system].signature or metric == "chrf"


def test_significance_of_different_and_equal_systems():
    better, worse = score_translations(["bleu"], {"a": FIRST, "b": SECOND}, REFERENCES)
    assert better.p_value is None and better.score > worse.score
    assert worse.p_value is not None and worse.p_value < 0.01
    _, same = score_translations(["bleu"], {"a": FIRST, "b": list(FIRST)}, REFERENCES)
    assert same.p_value == 1.0
    turned = [SECOND[p] if p % 2 else FIRST[p] for p in range(15)]
    other = [FIRST[p] if p % 2 else SECOND[p] for p in range(15)]
    _, mixed = score_translations(["bleu"], {"a": turned, "b": other}, REFERENCES)
    assert mixed.p_value is not None and mixed.p_value > 0.1


def test_perfect_translation_has_maximal_utility():
    assert SentenceUtility("chrf")("a b c", "a b c") == pytest.approx(100)
    assert SentenceUtility("bleu")("a b c", "a b c") == pytest.approx(100)
    assert SentenceUtility("chrf")("x y z", "a b c") < 10


def test_invalid_inputs_are_rejected():
    with pytest.raises(UserError, match="14 translations for 15 references"):
        score_translations(["bleu"], {"a": FIRST[:-1]}, REFERENCES)
    with pytest.raises(UserError, match="did you mean 'bleu'"):
        score_translations(["blue"], {"a": FIRST}, REFERENCES)
    with pytest.raises(UserError, match="no text"):
        score_translations(["bleu"], {"a": []}, [])
