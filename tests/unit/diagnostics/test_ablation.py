"""Ablation: which sets are trained, what the table says of them, and going on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lmlab
from lmlab.core.errors import UserError
from lmlab.experiments import ablation_runs
from lmlab.experiments.ablation import (
    Ablation,
    AblationPlan,
    AblationTrial,
    plan_ablation,
    summarise_trials,
)
from lmlab.experiments.ablation_tables import ablation_latex, ablation_markdown
from lmlab.training import loop
from lmlab.training.reporting import read_metrics

pytestmark = pytest.mark.xdist_group("ablation")  # its trainings are shared, so made once

QUICK = {"size": "tiny", "epochs": 2, "settings": {"tokens_per_batch": 100}, "quiet": True}
"""Three steps an epoch, on `corpus`."""


def question(system: str = "gru-minimal", **words) -> AblationPlan:
    given = {
        "data": "grammar",
        "switches": None,
        "each": False,
        "pairs": False,
        "seeds": 2,
        "epochs": 4,
        "at": (2, 4),
        "size": "tiny",
        "settings": {},
        "tokenizer": None,
        "recipe": None,
    }
    return plan_ablation(system, **given | words)


def trial(off: tuple[int, ...], seed: int, *losses: float, parameters: int = 10, failed: str = ""):
    return AblationTrial(
        disabled=off,
        seed=seed,
        run="runs/x",
        parameters=parameters,
        seconds=10.0 * (1 + seed),
        losses=tuple(enumerate(losses, 1)),
        failed=failed,
    )


def test_differences_are_paired_by_seed():
    trials = [
        trial((), 0, 5.0, 4.0, 3.5, 3.0, parameters=12),
        trial((), 1, 5.0, 4.4, 3.5, 3.6, parameters=12),
        trial((4,), 0, 5.0, 4.1, 3.5, 2.8),
        trial((4,), 1, 5.0, 4.3, 3.5, 3.2),
    ]
    found = summarise_trials(question(switches="4;5"), trials, path=Path("x"), split="test")
    better, intact = found.rows  # best first, by the loss at epoch 4: 3.0 and 3.3
    assert (better.disabled, intact.disabled, intact.intact) == ((4,), (), True)
    assert (better.parameters, intact.parameters) == (10, 12)
    assert better.losses[2].mean == pytest.approx((4.1 + 4.3) / 2)
    # seed by seed: 4.1 - 4.0 and 4.3 - 4.4; 2.8 - 3.0 and 3.2 - 3.6
    assert better.differences[2].mean == pytest.approx((0.1 - 0.1) / 2, abs=1e-12)
    assert better.differences[2].standard_deviation == pytest.approx((2 * 0.1**2) ** 0.5)
    assert better.differences[4].mean == pytest.approx((-0.2 - 0.4) / 2)
    assert better.differences[4].standard_deviation == pytest.approx((2 * 0.1**2) ** 0.5)
    assert intact.differences == {}
    assert better.seconds == pytest.approx(15)
    assert not found.finished  # 5 is missing


def test_a_table_with_one_seed_and_a_failure():
    trials = [
        trial((), 0, 5.0, 4.0, 3.5, 3.0),
        trial((4,), 0, 5.0, failed="the loss is not finite"),
    ]
    asked = question(switches="4", seeds=1)
    found = summarise_trials(asked, trials, path=Path("x"), split="test")
    text = ablation_markdown(found)
    assert found.finished
    assert "| intact |  | 4.0000 | – | 3.0000 | – | 10 | 10.0 s |" in text
    assert "| 4 | candidate-hidden | not finite | – | not finite | – | 10 | 10.0 s |" in text
    assert r"\toprule" in ablation_latex(
        found
    ) and r" & candidate-hidden & not finite & -- &" in ablation_latex(found)


def test_every_switch_by_itself():
    assert question().ablated_sets == ((), *((k,) for k in range(8)))
    assert question(switches="4;4,0", each=True).ablated_sets[:3] == ((), (4,), (0, 4))


def test_pairs_leave_out_what_means_nothing():
    asked = question(pairs=True)
    assert len(asked.ablated_sets) == 1 + 8 * 7 // 2 - 1  # without keep and admit together
    assert asked.notes == (
        "6 keep, 7 admit was left out: with both keep and admit (6 and 7) off nothing is left of "
        "the state; leave one of them on.",
    )


def test_what_is_off_in_the_settings_is_off_everywhere():
    asked = question("mgru", settings={"off": "4,no-centring"}, each=True)
    assert asked.ablated_sets == (
        (4, 6),
        *(tuple(sorted({4, 6, k})) for k in range(12) if k not in (4, 6)),
    )
    alone = question("mgru", each=True)
    assert len(alone.ablated_sets) == 1 + 12 - 3 and len(alone.notes) == 3  # 7, 8, 9 need 6


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"system": "gru"}, "gru declares no switches .* gru-minimal, mgru"),
        ({"system": "mgru", "switches": "7"}, "switch off 6 too"),
        ({"switches": "9"}, "no switch '9'"),
        ({"seeds": 0}, "at least one seed"),
        ({"at": (5,)}, "epochs 1 to 4"),
        ({"epochs": None, "settings": {"steps": 5}}, "ablation is in epochs"),
        ({"settings": {"minutes": 5}}, "ablation is in epochs"),
        ({"settings": {"seed": 3}}, "sets its seeds itself"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, sentence):
    with pytest.raises(UserError, match=sentence):
        question(**words)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of a few sentences."""
    folder = tmp_path_factory.mktemp("corpus")
    sentences = [f"{who} {what}s the {whom}" for who in "abc" for what in "de" for whom in "fghi"]
    for name in ("train.txt", "valid.txt"):
        (folder / name).write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def done(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """Two sets and two seeds."""
    out = tmp_path_factory.mktemp("ablation") / "whole"
    return lmlab.ablate("gru-minimal", data=corpus, out=out, switches="4;0,4,5", seeds=2, **QUICK)


def test_trains_and_writes_the_table(done: Ablation):
    assert done.finished and done.report_epochs == (2,) and done.split == "validation"
    assert sorted(row.disabled for row in done.rows) == [(), (0, 4, 5), (4,)]
    for each in done.trials:
        lines = read_metrics(done.path / each.run / "metrics.jsonl")
        assert each.losses[-1][1] == [x["loss"] for x in lines if x["event"] == "validation"][-1]
        assert json.loads((done.path / each.run / "config.json").read_text())["seed"] == each.seed
    by_off = {row.disabled: row for row in done.rows}
    assert by_off[()].parameters - by_off[(4,)].parameters == 16 * 16
    assert by_off[(4,)].parameters - by_off[(0, 4, 5)].parameters == 16 * 16 + 16
    written = json.loads((done.path / "ablation.json").read_text())
    assert written["rows"] == done.as_dict()["rows"] and written["format"] == 1
    assert (done.path / "ablation.md").read_text() == ablation_markdown(done)
    assert (done.path / "ablation.tex").read_text() == ablation_latex(done)
    assert "candidate-hidden off" in (done.path / "ablation.svg").read_text()
    assert (done.path / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_finished_trainings_are_not_repeated(done: Ablation, monkeypatch):
    def none(**words):
        raise AssertionError(f"trained again: {words}")

    monkeypatch.setattr(ablation_runs, "train", none)
    again = lmlab.ablate(
        "DLM46", data=done.corpus, out=done.path, switches="candidate-hidden", seeds=2, **QUICK
    )
    assert again.finished and [row.disabled for row in again.rows if not row.intact] == [(4,)]
    # What this table does not show is kept for one that does.
    whole = lmlab.ablate(
        "gru-minimal", data=done.corpus, out=done.path, switches="4;0,4,5", seeds=2, **QUICK
    )
    assert whole.rows == done.rows


def test_another_setting_needs_another_folder(done: Ablation):
    with pytest.raises(UserError, match="started with epochs=2, got 3"):
        lmlab.ablate(
            "gru-minimal", data=done.corpus, out=done.path, switches="4", **QUICK | {"epochs": 3}
        )


def ablate_two_sets(data: str, out: Path) -> Ablation:
    return lmlab.ablate("gru-minimal", data=data, out=out, switches="4;0,4,5", seeds=2, **QUICK)


def test_stopped_and_resumed_it_is_the_same(done: Ablation, tmp_path, monkeypatch):
    """Ctrl-C in the middle of the third training, then the same command again."""
    begun = []

    class AskedInTheThird(loop.StopSignals):
        def __enter__(self):
            begun.append(self)
            self.stop_requested = len(begun) == 3
            return self

    with monkeypatch.context() as patched:
        patched.setattr(loop, "StopSignals", AskedInTheThird)
        stopped = ablate_two_sets(done.corpus, tmp_path)
    assert not stopped.finished and len(stopped.trials) == 2 and len(begun) == 3
    unfinished = read_metrics(tmp_path / "runs" / "off-0-4-5-seed0" / "metrics.jsonl")
    assert unfinished[-1]["step"] == 1
    resumed = ablate_two_sets(done.corpus, tmp_path)
    assert resumed.finished
    assert [each.losses for each in resumed.trials] == [each.losses for each in done.trials]


def test_a_training_that_breaks_down_is_a_row(corpus, tmp_path):
    words = QUICK | {"settings": {"tokens_per_batch": 100, "learning_rate": 1e30}}
    found = lmlab.ablate("gru-minimal", data=corpus, out=tmp_path, switches="4", seeds=1, **words)
    assert found.finished and all("not finite" in row.failed for row in found.rows)
    assert "not finite" in (tmp_path / "ablation.md").read_text()


def test_two_at_a_time_gives_the_same(done: Ablation, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = {"switches": "4", "seeds": 1, "jobs": 2}
    found = lmlab.ablate("gru-minimal", data=done.corpus, out=tmp_path, **one, **QUICK)
    expected = {each.disabled: each.losses for each in done.trials if each.seed == 0}
    assert {each.disabled: each.losses for each in found.trials} == {
        off: expected[off] for off in ((), (4,))
    }


def test_a_mistake_in_a_process_is_told(tmp_path, monkeypatch):
    def begin(question, book, task, environment):
        (book.runs / f"{task.folder}.log").write_text("a remark\nlmlab: there is no corpus here.\n")
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])

    monkeypatch.setattr(ablation_runs, "_begin", begin)
    words = {"data": "nothing", "switches": "4", "seeds": 1, "jobs": 2, **QUICK}
    with pytest.raises(UserError, match=r"^there is no corpus here\.$"):
        lmlab.ablate("gru-minimal", out=tmp_path, **words)
    assert list(tmp_path.iterdir()) == []  # as it was before
