"""The doctor holds a model's loss against n-grams, and says what it did not check."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lmlab.diagnosis.baselines import leading_sequences
from lmlab.diagnosis.checks.ngram_baseline import worse_than_ngram
from lmlab.diagnosis.examination import all_checks, examine_run
from lmlab.diagnosis.run_evidence import RunEvidence
from lmlab.diagnosis.text_report import checks_line, report_lines
from lmlab.interop.hf.checkpoint_export import export_hf
from lmlab.interop.hf.checkpoint_import import import_hf
from lmlab.training.train import train

pytestmark = pytest.mark.xdist_group("doctor ngrams")
TINY = {"data": "grammar", "size": "tiny", "quiet": True}


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT below the unigram and above the bigram: trained, and worth less than counting pairs."""
    out = tmp_path_factory.mktemp("behind") / "gpt"
    train("gpt", out=out, steps=120, settings={"learning_rate": 0.003}, **TINY)
    return out


def test_a_gpt_worse_than_a_bigram_is_found(gpt: Path, tmp_path: Path) -> None:
    found = examine_run(gpt)
    levels = {level.name: level.value for level in found.levels}
    best = found.history.best
    assert best is not None and levels["bigram"] < best.loss < levels["unigram"]
    [finding] = [each for each in found.findings if each.name == "worse than an n-gram"]
    assert finding.severity == "serious" and not found.healthy
    # The figures are those of the systems themselves, trained on the same corpus.
    for order, name in ((2, "bigram"), (3, "trigram")):
        result = train("ngram", out=tmp_path / name, settings={"order": order}, **TINY)
        assert finding.numbers[name] == pytest.approx(result.loss)
    assert f"{best.loss:.3f} nats per token on validation" in finding.observed
    assert (
        f"{levels['trigram']:.3f}" in finding.observed
        and f"{levels['bigram']:.3f}" in finding.observed
    )


def test_between_bigram_and_trigram_is_mild(gpt: Path) -> None:
    evidence = RunEvidence(gpt)
    low, high = (evidence.levels[name].value for name in ("trigram", "bigram"))
    assert high - low > 0.04
    look = evidence.history.held_out[-1]

    def with_loss(loss: float):
        history = evidence.history
        changed = [type(look)(**{**vars(look), "loss": loss})]
        evidence.history = type(history)(**{**vars(history), "held_out": tuple(changed)})
        return worse_than_ngram(evidence)

    assert with_loss((low + high) / 2).severity == "mild"
    assert with_loss(high + 0.1).severity == "serious"
    assert with_loss(low + 0.01) is None and with_loss(low - 1) is None


def test_an_imported_checkpoint_says_what_was_not_checked(gpt: Path, tmp_path: Path) -> None:
    export_hf(gpt, tmp_path / "checkpoint")
    import_hf(tmp_path / "checkpoint", tmp_path / "run")
    found = examine_run(tmp_path / "run")
    made, missing, others = len(found.checks), len(found.skipped), len(found.not_applicable)
    assert made + missing + others == len(all_checks()) and missing > 10
    last = checks_line(found)
    # Nothing found is no health where nothing was checked.
    assert made == 0 and last.startswith("Nothing was checked; ")
    assert not found.findings and not found.healthy
    assert f"; {missing} were not made: " in last
    assert "because the model comes from elsewhere and its training corpus is unknown" in last
    assert last == [line for line, _ in report_lines(found)][-1]
    # With its corpus at hand the loss is measured, and held against the n-grams of that text.
    again = examine_run(tmp_path / "run", data="grammar")
    [finding] = [each for each in again.findings if each.name == "worse than an n-gram"]
    assert "validation tokens; an interpolated Kneser-Ney" in finding.observed
    trained = examine_run(gpt).history.best
    assert trained is not None and finding.numbers["loss"] == pytest.approx(trained.loss, abs=0.1)


def test_a_pseudo_likelihood_is_not_compared(tmp_path: Path) -> None:
    train("bert", out=tmp_path / "bert", steps=2, **TINY)
    found = examine_run(tmp_path / "bert")
    [skipped] = [each for each in found.skipped if each.check == "worse than ngram"]
    assert skipped.reason == "its score is of kind pseudo, which no n-gram's loss compares with"
    assert f"not checked: worse than ngram ({skipped.reason})" in [
        line for line, _ in report_lines(found)
    ]
    assert f"; 1 was not made, because {skipped.reason}; " in checks_line(found)
    assert checks_line(found).startswith("No finding among ") and found.healthy
    assert json.dumps(found.as_dict()["not_applicable"])


def test_a_loss_of_another_sort_is_measured(tmp_path: Path) -> None:
    """XLNet is watched by its loss, and its score from left to right is a log-probability."""
    train("xlnet", out=tmp_path / "xlnet", steps=2, **TINY)
    found = examine_run(tmp_path / "xlnet")
    assert found.levels == ()
    [finding] = [each for each in found.findings if each.name == "worse than an n-gram"]
    assert "validation tokens" in finding.observed


def test_only_so_many_tokens_are_counted() -> None:
    tokens, offsets = np.arange(10), np.array([0, 4, 7, 10])
    for most, ends in (
        (10, [0, 4, 7, 10]),
        (9, [0, 4, 7]),
        (7, [0, 4, 7]),
        (4, [0, 4]),
        (3, [0, 3]),
    ):
        kept, places = leading_sequences(tokens, offsets, most)
        assert places.tolist() == ends and kept.tolist() == list(range(ends[-1]))
