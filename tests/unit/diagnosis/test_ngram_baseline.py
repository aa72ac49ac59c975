"""Diagnosis compares a model's loss with n-grams and reports skipped checks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmlab.diagnosis.checks.predictions import worse_than_ngram
from lmlab.diagnosis.examination import all_checks, examine_run
from lmlab.diagnosis.measurements import leading_sequences
from lmlab.diagnosis.run_evidence import RunEvidence
from lmlab.diagnosis.text_report import checks_line, report_lines
from lmlab.interop.hf.checkpoint_export import export_hf
from lmlab.interop.hf.checkpoint_import import import_hf
from lmlab.training.train import train

pytestmark = pytest.mark.xdist_group("doctor ngrams")
TINY = {"data": "grammar", "size": "tiny", "quiet": True}


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT with a loss between unigram and bigram: trained, but worse than a bigram."""
    out = tmp_path_factory.mktemp("behind") / "gpt"
    train("gpt", out=out, steps=120, settings={"learning_rate": 0.003}, **TINY)
    return out


def test_gpt_worse_than_a_bigram_is_a_serious_finding(gpt: Path, tmp_path: Path) -> None:
    examination = examine_run(gpt)
    levels = {level.name: level.value for level in examination.levels}
    best = examination.history.best
    assert best is not None and levels["bigram"] < best.loss < levels["unigram"]
    [finding] = [
        candidate for candidate in examination.findings if candidate.name == "worse than an n-gram"
    ]
    assert finding.severity == "serious" and not examination.healthy
    # The figures are those of the systems themselves, trained on the same corpus.
    for order, name in ((2, "bigram"), (3, "trigram")):
        result = train("ngram", out=tmp_path / name, settings={"order": order}, **TINY)
        assert finding.numbers[name] == pytest.approx(result.loss)
    assert f"{best.loss:.3f} nats per token on validation" in finding.observed
    assert (
        f"{levels['trigram']:.3f}" in finding.observed
        and f"{levels['bigram']:.3f}" in finding.observed
    )


def test_loss_between_bigram_and_trigram_is_mild(gpt: Path) -> None:
    evidence = RunEvidence(gpt)
    low, high = (evidence.levels[name].value for name in ("trigram", "bigram"))
    assert high - low > 0.04
    last_point = evidence.history.held_out[-1]

    def with_loss(loss: float):
        history = evidence.history
        changed = [type(last_point)(**{**vars(last_point), "loss": loss})]
        evidence.history = type(history)(**{**vars(history), "held_out": tuple(changed)})
        return worse_than_ngram(evidence)

    assert with_loss((low + high) / 2).severity == "mild"
    assert with_loss(high + 0.1).severity == "serious"
    assert with_loss(low + 0.01) is None and with_loss(low - 1) is None


def test_imported_checkpoint_reports_skipped_checks(gpt: Path, tmp_path: Path) -> None:
    export_hf(gpt, tmp_path / "checkpoint")
    import_hf(tmp_path / "checkpoint", tmp_path / "run")
    examination = examine_run(tmp_path / "run")
    made, missing, others = (
        len(examination.checks),
        len(examination.skipped),
        len(examination.not_applicable),
    )
    assert made + missing + others == len(all_checks()) and missing > 10
    last = checks_line(examination)
    # Causality needs no training history and no corpus.
    assert examination.checks == ("causality",) and last.startswith("No finding among 1 check; ")
    assert examination.causality is not None and examination.causality.verdict == "causal"
    # No findings do not mean healthy where nothing was checked.
    unchecked = replace(examination, checks=())
    assert not unchecked.findings and not unchecked.healthy
    assert checks_line(unchecked).startswith("Nothing was checked; ")
    assert f"; {missing} were not made: " in last
    assert "because the model comes from elsewhere and its training corpus is unknown" in last
    assert last == [line for line, _ in report_lines(examination)][-1]
    # With --data the loss is measured and compared with n-grams of that text.
    again = examine_run(tmp_path / "run", data="grammar")
    [finding] = [
        candidate for candidate in again.findings if candidate.name == "worse than an n-gram"
    ]
    assert "validation tokens; an interpolated Kneser-Ney" in finding.observed
    trained = examine_run(gpt).history.best
    assert trained is not None and finding.numbers["loss"] == pytest.approx(trained.loss, abs=0.1)


def test_pseudo_likelihood_is_not_compared_with_ngrams(tmp_path: Path) -> None:
    train("bert", out=tmp_path / "bert", steps=2, **TINY)
    examination = examine_run(tmp_path / "bert")
    [skipped] = [check for check in examination.skipped if check.check == "worse than ngram"]
    assert skipped.reason == "its score is of kind pseudo, which no n-gram's loss compares with"
    assert f"not checked: worse than ngram ({skipped.reason})" in [
        line for line, _ in report_lines(examination)
    ]
    assert f"; 1 was not made, because {skipped.reason}; " in checks_line(examination)
    assert checks_line(examination).startswith("No finding among ") and examination.healthy
    assert json.dumps(examination.as_dict()["not_applicable"])


def test_ngram_check_measures_log_prob_where_the_loss_differs(tmp_path: Path) -> None:
    """XLNet is validated by its loss, and its left-to-right score is a log-probability."""
    train("xlnet", out=tmp_path / "xlnet", steps=2, **TINY)
    examination = examine_run(tmp_path / "xlnet")
    assert examination.levels == ()
    [finding] = [
        candidate for candidate in examination.findings if candidate.name == "worse than an n-gram"
    ]
    assert "validation tokens" in finding.observed


def test_leading_sequences_stop_at_the_token_limit() -> None:
    tokens, offsets = np.arange(10), np.array([0, 4, 7, 10])
    for max_tokens, ends in (
        (10, [0, 4, 7, 10]),
        (9, [0, 4, 7]),
        (7, [0, 4, 7]),
        (4, [0, 4]),
        (3, [0, 3]),
    ):
        selected, new_offsets = leading_sequences(tokens, offsets, max_tokens)
        assert new_offsets.tolist() == ends and selected.tolist() == list(range(ends[-1]))
