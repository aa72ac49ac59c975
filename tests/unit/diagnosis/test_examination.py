"""Examination of healthy runs: no findings, and no file is changed."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.diagnosis.examination import all_checks, examine_run
from lmlab.diagnosis.examination_figures import write_loss_figure
from lmlab.diagnosis.findings import Examination, ReferenceBand, parse_training_history
from lmlab.diagnosis.run_evidence import ANY_FAMILY, find_reference_band, read_reference_bands
from lmlab.diagnosis.text_report import report_lines
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

SYSTEMS = ("ngram", "window", "lstm", "gru-mixture", "independent")
ENOUGH = {"size": "tiny", "epochs": 4, "settings": {"learning_rate": 0.01}, "quiet": True}
"""A training after which a small network is as good as a bigram on a Markov chain."""

pytestmark = pytest.mark.xdist_group("healthy")  # share the costly fixtures


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    for system in SYSTEMS:
        train(system, data="markov", out=folder / system, **ENOUGH)
    return folder


@pytest.fixture(scope="module")
def examined(runs: Path) -> Examination:
    return examine_run(runs / "lstm")


@pytest.mark.parametrize("system", SYSTEMS)
def test_healthy_run_has_no_finding(runs: Path, system: str) -> None:
    examination = examine_run(runs / system)
    assert examination.findings == ()
    assert examination.skipped == ()
    assert examination.healthy
    assert f". No finding among {len(examination.checks)} checks" in examination.verdict
    assert len(examination.checks) + len(examination.not_applicable) == len(all_checks())


def test_baseline_levels_match_their_definitions(runs: Path, examined: Examination) -> None:
    levels = {level.name: level.value for level in examined.levels}
    assert levels["uniform"] == pytest.approx(math.log(12))  # ten words, <unk> and </s>
    corpus = open_corpus("markov")
    texts = list(corpus.split("validation").texts())
    tokens = sum(len(text.split()) + 1 for text in texts)
    assert corpus.truth is not None
    truth = -sum(corpus.truth.log_prob(text) for text in texts) / tokens
    assert levels["entropy"] == pytest.approx(truth)
    # In a Markov chain the previous word determines the next: a bigram is optimal.
    assert levels["entropy"] < levels["bigram"] < levels["entropy"] + 0.02
    assert levels["bigram"] < levels["unigram"] < levels["uniform"]


def test_bigram_level_equals_the_loss_of_the_ngram_system(
    examined: Examination, tmp_path: Path
) -> None:
    result = train("ngram", data="markov", out=tmp_path / "two", settings={"order": 2}, quiet=True)
    bigram = next(level.value for level in examined.levels if level.name == "bigram")
    assert bigram == pytest.approx(result.loss)


def test_examination_changes_no_file(runs: Path) -> None:
    def digest() -> dict[str, str]:
        files = [file for file in (runs / "lstm").rglob("*") if file.is_file()]
        return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    before = digest()
    examine_run(runs / "lstm")
    assert digest() == before


def test_reference_band_contains_the_run(runs: Path, examined: Examination) -> None:
    assert examined.reference_band is not None
    assert (examined.reference_band.corpus, examined.reference_band.family) == (
        "markov",
        "recurrent",
    )
    best = examined.history.best
    expected = examined.reference_band.at(examined.history.tokens)
    assert best is not None
    assert expected is not None
    assert expected[0] - 0.05 <= best.loss <= expected[1] + 0.05
    config = load_run(runs / "lstm").config
    other = find_reference_band(config, "a family that has none of its own")
    assert other is not None and other.family == ANY_FAMILY
    assert find_reference_band(replace(config, tokenizer="bpe"), "recurrent") is None
    elsewhere = replace(config, corpus=replace(config.corpus, spec="poems.txt"))
    assert find_reference_band(elsewhere, "recurrent") is None


def test_reference_bands_are_ordered_and_decreasing() -> None:
    """Lower bounds below upper bounds, and both decreasing."""
    assert {"markov", "grammar", "capitals"} <= read_reference_bands().keys()
    for corpus in read_reference_bands().values():
        for entry in corpus["families"].values():
            lows, highs = ([point[i] for point in entry["points"]] for i in (1, 2))
            assert all(low <= high for low, high in zip(lows, highs, strict=True))
            assert lows == sorted(lows, reverse=True)
            assert highs == sorted(highs, reverse=True)


def test_reference_band_interpolates_between_points() -> None:
    points = ((100.0, 2.0, 4.0), (200.0, 1.0, 3.0))
    band = ReferenceBand(corpus="c", family="f", systems=("s",), points=points)
    assert band.at(99) is None
    assert band.at(150) == (1.5, 3.5)
    assert band.at(1000) == (1.0, 3.0)


def test_examination_as_json(examined: Examination) -> None:
    record = json.loads(json.dumps(examined.as_dict()))
    assert record["healthy"] is True
    assert record["key_figures"]["epochs"] == pytest.approx(4.0)
    assert record["levels"][0]["name"] == "uniform"
    assert len(record["checks"]) >= 12
    assert record["reference_band"]["points"][0][1] <= record["reference_band"]["points"][0][2]


def test_text_report(examined: Examination) -> None:
    report = "\n".join(line for line, _ in report_lines(examined))
    for word in ("this run", "bigram", "trigram", "entropy", "by now healthy runs"):
        assert word in report
    made, others = len(examined.checks), len(examined.not_applicable)
    assert report.splitlines()[-1] == (
        f"No finding among {made} checks; {others} do not apply to this system or corpus."
    )
    for check in examined.not_applicable:
        assert f"does not apply: {check.check} ({check.reason})" in report


def test_loss_figure(examined: Examination, tmp_path: Path) -> None:
    svg, png = write_loss_figure(examined, tmp_path / "new")
    svg_text = svg.read_text(encoding="utf-8")
    for word in ("unigram", "bigram", "entropy", "healthy runs", "validation", "training"):
        assert word in svg_text
    assert png.read_bytes().startswith(b"\x89PNG")
    [again, _] = write_loss_figure(examined, tmp_path / "again")
    assert again.read_text(encoding="utf-8") == svg_text


def test_moved_corpus_skips_checks_until_given(tmp_path: Path) -> None:
    """Checks that need it are reported as skipped; --data gives its new path."""
    text, moved = tmp_path / "text.txt", tmp_path / "moved.txt"
    text.write_text("\n".join(open_corpus("grammar").split("train").texts()), encoding="utf-8")
    train("ngram", data=text, out=tmp_path / "run", size="tiny", quiet=True)
    text.rename(moved)
    lost = examine_run(tmp_path / "run")
    assert {check.check for check in lost.skipped} >= {
        "many unknown tokens",
        "leakage between splits",
    }
    assert all("--data" in check.reason for check in lost.skipped)
    assert lost.levels == ()
    assert f"{len(lost.skipped)} were not made, because its corpus" in lost.verdict
    again = examine_run(tmp_path / "run", data=moved)
    assert again.skipped == ()
    assert [level.name for level in again.levels] == ["uniform", "unigram", "bigram", "trigram"]
    with pytest.raises(UserError, match="no file or folder"):
        examine_run(tmp_path / "run", data=tmp_path / "nowhere.txt")


def test_contiguous_corpus_is_examined(tmp_path: Path) -> None:
    texts = list(open_corpus("markov").split("train").texts())[:1500]
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    spec = f"contiguous:{tmp_path / 'text.txt'}"
    settings = {"stream_batch_size": 10, "bptt": 20, "learning_rate": 0.01}
    out = tmp_path / "run"
    train("gru", data=spec, out=out, size="tiny", epochs=3, settings=settings, quiet=True)
    examination = examine_run(out)
    names = {finding.name for finding in examination.findings}
    assert names <= {
        "leakage between splits",
        "repeated training texts",
    }  # sampled text, not marked as such
    levels = {level.name: level.value for level in examination.levels}
    assert levels["bigram"] < levels["unigram"] < levels["uniform"]


def test_run_without_metrics(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "ngram", run)
    (run / "metrics.jsonl").unlink()
    examination = examine_run(run)
    assert {check.reason for check in examination.skipped} == {
        "its metrics.jsonl has no training step"
    }
    assert examination.history == parse_training_history([])
    assert write_loss_figure(examination, tmp_path / "figures") == []


def test_checks_are_the_documented_functions_of_their_modules() -> None:
    names = list(all_checks())
    assert {"overfitting", "unused states", "leakage between splits"} <= set(names)
    assert not any(name.startswith(" ") for name in names)
    for check in all_checks().values():
        assert check.__doc__
        assert list(check.__annotations__) == ["evidence", "return"]
