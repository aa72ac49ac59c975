"""Ablation: planned sets, summary table, resuming and parallel jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmlab
from lmlab.core.errors import UserError
from lmlab.experiments import executors
from lmlab.experiments.ablation import (
    Ablation,
    AblationPlan,
    AblationTrial,
    plan_ablation,
    summarise_trials,
)
from lmlab.experiments.ablation_tables import ablation_table
from lmlab.training import loop
from lmlab.training.training_logs import read_metrics

pytestmark = pytest.mark.xdist_group("ablation")  # share the trained runs

QUICK = {"size": "tiny", "epochs": 2, "settings": {"tokens_per_batch": 100}, "quiet": True}
"""Three steps per epoch, on `corpus`."""


def make_plan(system: str = "gru-minimal", **options) -> AblationPlan:
    defaults = {
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
    return plan_ablation(system, **defaults | options)


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
    ablation = summarise_trials(make_plan(switches="4;5"), trials, path=Path("x"), split="test")
    better, intact = ablation.rows  # best first, by the loss at epoch 4: 3.0 and 3.3
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
    assert not ablation.finished  # 5 is missing


def test_table_with_one_seed_and_a_failed_run():
    trials = [
        trial((), 0, 5.0, 4.0, 3.5, 3.0),
        trial((4,), 0, 5.0, failed="the loss is not finite"),
    ]
    plan = make_plan(switches="4", seeds=1)
    ablation = summarise_trials(plan, trials, path=Path("x"), split="test")
    text = ablation_table(ablation).markdown()
    assert ablation.finished
    assert "| intact |  | 4.0000 | – | 3.0000 | – | 10 | 10.0 s |" in text
    assert "| 4 | candidate-hidden | not finite | – | not finite | – | 10 | 10.0 s |" in text
    assert (
        r"\toprule" in ablation_table(ablation).latex()
        and r" & candidate-hidden & not finite & -- &" in ablation_table(ablation).latex()
    )


def test_each_switch_is_ablated_separately():
    assert make_plan().ablated_sets == ((), *((k,) for k in range(8)))
    assert make_plan(switches="4;4,0", each=True).ablated_sets[:3] == ((), (4,), (0, 4))


def test_pairs_skip_invalid_combinations():
    plan = make_plan(pairs=True)
    assert len(plan.ablated_sets) == 1 + 8 * 7 // 2 - 1  # without keep and admit together
    assert plan.notes == (
        "6 keep, 7 admit was left out: with both keep and admit (6 and 7) off nothing is left of "
        "the state; leave one of them on.",
    )


def test_switches_off_in_settings_are_off_in_every_set():
    plan = make_plan("mgru", settings={"off": "4,no-centring"}, each=True)
    assert plan.ablated_sets == (
        (4, 6),
        *(tuple(sorted({4, 6, k})) for k in range(12) if k not in (4, 6)),
    )
    default_plan = make_plan("mgru", each=True)
    assert (
        len(default_plan.ablated_sets) == 1 + 12 - 3 and len(default_plan.notes) == 3
    )  # 7, 8, 9 need 6


@pytest.mark.parametrize(
    ("options", "message"),
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
def test_invalid_plans_are_refused_before_training(options, message):
    with pytest.raises(UserError, match=message):
        make_plan(**options)


@pytest.fixture(scope="module")
def finished(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """Two sets and two seeds."""
    out = tmp_path_factory.mktemp("ablation") / "whole"
    return lmlab.ablate("gru-minimal", data=corpus, out=out, switches="4;0,4,5", seeds=2, **QUICK)


def test_trains_and_writes_the_table(finished: Ablation):
    assert finished.finished and finished.report_epochs == (2,) and finished.split == "validation"
    assert sorted(row.disabled for row in finished.rows) == [(), (0, 4, 5), (4,)]
    for trial_result in finished.trials:
        lines = read_metrics(finished.path / trial_result.run / "metrics.jsonl")
        assert (
            trial_result.losses[-1][1]
            == [x["loss"] for x in lines if x["event"] == "validation"][-1]
        )
        assert (
            json.loads((finished.path / trial_result.run / "config.json").read_text())["seed"]
            == trial_result.seed
        )
    by_off = {row.disabled: row for row in finished.rows}
    assert by_off[()].parameters - by_off[(4,)].parameters == 16 * 16
    assert by_off[(4,)].parameters - by_off[(0, 4, 5)].parameters == 16 * 16 + 16
    written = json.loads((finished.path / "ablation.json").read_text())
    assert written["rows"] == finished.as_dict()["rows"] and written["format"] == 1
    assert (finished.path / "ablation.md").read_text() == ablation_table(finished).markdown()
    assert (finished.path / "ablation.tex").read_text() == ablation_table(finished).latex()
    assert "candidate-hidden off" in (finished.path / "ablation.svg").read_text()
    assert (finished.path / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_finished_trainings_are_not_repeated(finished: Ablation, monkeypatch):
    def fail_if_called(task, *, quiet):
        raise AssertionError(f"trained again: {task}")

    monkeypatch.setattr(executors, "run_task", fail_if_called)
    again = lmlab.ablate(
        "DLM46",
        data=finished.corpus,
        out=finished.path,
        switches="candidate-hidden",
        seeds=2,
        **QUICK,
    )
    assert again.finished and [row.disabled for row in again.rows if not row.intact] == [(4,)]
    # Runs that this table does not show are kept for later tables.
    whole = lmlab.ablate(
        "gru-minimal", data=finished.corpus, out=finished.path, switches="4;0,4,5", seeds=2, **QUICK
    )
    assert whole.rows == finished.rows


def test_different_settings_need_another_folder(finished: Ablation):
    with pytest.raises(UserError, match="started with epochs=2, got 3"):
        lmlab.ablate(
            "gru-minimal",
            data=finished.corpus,
            out=finished.path,
            switches="4",
            **QUICK | {"epochs": 3},
        )


def ablate_two_sets(data: str, out: Path) -> Ablation:
    return lmlab.ablate("gru-minimal", data=data, out=out, switches="4;0,4,5", seeds=2, **QUICK)


def test_resumed_ablation_equals_an_uninterrupted_one(finished: Ablation, tmp_path, monkeypatch):
    """Ctrl-C in the middle of the third training, then the same command again."""
    started = []

    class StopInTheThird(loop.StopSignals):
        def __enter__(self):
            started.append(self)
            self.stop_requested = len(started) == 3
            return self

    with monkeypatch.context() as patched:
        patched.setattr(loop, "StopSignals", StopInTheThird)
        stopped = ablate_two_sets(finished.corpus, tmp_path)
    assert not stopped.finished and len(stopped.trials) == 2 and len(started) == 3
    unfinished = read_metrics(tmp_path / "runs" / "off-0-4-5-seed0" / "metrics.jsonl")
    assert unfinished[-1]["step"] == 1
    resumed = ablate_two_sets(finished.corpus, tmp_path)
    assert resumed.finished
    assert [finished_trial.losses for finished_trial in resumed.trials] == [
        finished_trial.losses for finished_trial in finished.trials
    ]


def test_diverged_training_is_a_table_row(corpus, tmp_path):
    options = QUICK | {"settings": {"tokens_per_batch": 100, "learning_rate": 1e30}}
    ablation = lmlab.ablate(
        "gru-minimal", data=corpus, out=tmp_path, switches="4", seeds=1, **options
    )
    assert ablation.finished and all("not finite" in row.failed for row in ablation.rows)
    assert "not finite" in (tmp_path / "ablation.md").read_text()


def test_parallel_jobs_give_the_same_losses(finished: Ablation, tmp_path):
    options = {"switches": "4", "seeds": 1, "jobs": 2}
    ablation = lmlab.ablate("gru-minimal", data=finished.corpus, out=tmp_path, **options, **QUICK)
    expected = {
        finished_trial.disabled: finished_trial.losses
        for finished_trial in finished.trials
        if finished_trial.seed == 0
    }
    assert {
        finished_trial.disabled: finished_trial.losses for finished_trial in ablation.trials
    } == {off: expected[off] for off in ((), (4,))}


def test_error_of_a_training_is_reported(tmp_path):
    with pytest.raises(UserError, match="nothing"):
        lmlab.ablate("gru-minimal", data="nothing", out=tmp_path, switches="4", seeds=1, **QUICK)
    assert list(tmp_path.iterdir()) == []  # as it was before
