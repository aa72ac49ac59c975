"""Sweeps: equal to single trainings, the same whatever interrupts them, checked before training."""

from __future__ import annotations

import csv
import hashlib
import json
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder
from lmlab.experiments import executors
from lmlab.experiments.executors import InProcessExecutor
from lmlab.experiments.sweep_results import Sweep
from lmlab.experiments.sweep_tables import sweep_table
from lmlab.experiments.tasks import Task, TaskOutcome, run_task
from lmlab.experiments.training_tasks import thread_count
from lmlab.training import loop
from lmlab.training.training_logs import read_metrics

pytestmark = pytest.mark.xdist_group("sweep")  # share the trained runs


def spec(data: str, **changes: Any) -> dict[str, Any]:
    return {
        "system": "gru",
        "data": data,
        "size": "tiny",
        "epochs": 2,
        "settings": {"tokens_per_batch": 100},
        "search": "grid",
        "space": {"learning_rate": [1e-2, 1e-3], "width": [4, 8]},
        **changes,
    }


def results(sweep: Sweep) -> list[tuple[Any, ...]]:
    """All but clock times."""
    return [
        (t.number, t.point, t.state, t.value, dict(t.values), t.losses, t.parameters)
        for t in sweep.trials
    ]


@pytest.fixture(scope="module")
def grid(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    out = tmp_path_factory.mktemp("sweep") / "grid"
    return lmlab.sweep(spec(corpus, seeds=2), out=out, quiet=True)


def test_grid_trains_the_product_by_every_seed(grid: Sweep):
    assert grid.finished and len(grid.trials) == 4
    points = [(t.point["learning_rate"], t.point["width"]) for t in grid.trials]
    assert sorted(points) == sorted(product([1e-2, 1e-3], [4, 8]))
    values = [trial.value for trial in grid.trials]
    assert values == sorted(values) and grid.best is grid.trials[0]
    assert grid.best.point["learning_rate"] == 1e-2
    for trial in grid.trials:
        assert trial.value == mean(trial.values.values())
        assert trial.spread == stdev(trial.values.values())
        configs = [json.loads((grid.path / run / "config.json").read_text()) for run in trial.runs]
        assert [config["seed"] for config in configs] == [0, 1]
        assert {config["system_config"]["width"] for config in configs} == {trial.point["width"]}
        environment = json.loads((grid.path / trial.runs[0] / "environment.json").read_text())
        assert environment["threads"] == 1
    assert grid.importances is not None and grid.importances.method == "ANOVA"
    assert sum(grid.importances.shares.values()) + grid.importances.interactions == pytest.approx(1)


def test_a_run_equals_a_single_training_bit_by_bit(grid: Sweep, corpus: str, tmp_path: Path):
    trial = grid.trials[1]
    with thread_count(1):
        alone = lmlab.train(
            "gru",
            data=corpus,
            out=tmp_path / "alone",
            size="tiny",
            epochs=2,
            seed=1,
            settings={"tokens_per_batch": 100, **trial.point},
            quiet=True,
        )
    assert alone.best == trial.values[1]
    weights = [alone.path / "model.safetensors", grid.path / trial.runs[1] / "model.safetensors"]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in weights}
    assert len(digests) == 1


def test_files_hold_the_table(grid: Sweep):
    with (grid.path / "sweep.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in grid.trials]
    assert rows[0]["loss"] == f"{grid.trials[0].value:.4f} ± {grid.trials[0].spread:.4f}"
    record = json.loads((grid.path / "sweep.json").read_text())
    assert record["trials"] == grid.as_dict()["trials"] and record["spec"]["threads"] == 1
    for name, word in (("parallel", "learning_rate"), ("importance", "interactions")):
        assert word in (grid.path / f"{name}.svg").read_text()
        assert (grid.path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "Importance (ANOVA" in (grid.path / "sweep.md").read_text()
    assert r"\toprule" in (grid.path / "sweep.tex").read_text()


def test_finished_trainings_are_not_repeated(grid: Sweep, corpus: str, monkeypatch):
    monkeypatch.setattr(executors, "run_task", pytest.fail)
    again = lmlab.sweep(spec(corpus, seeds=2), out=grid.path, quiet=True)
    assert results(again) == results(grid) and again.finished


def test_another_spec_needs_another_folder(grid: Sweep, corpus: str):
    for changes, name in (
        ({"seeds": 3}, "seeds"),
        ({"seeds": 2, "epochs": 3}, "size, tokenizer or budget"),
        ({"seeds": 2, "space": {"width": [4]}}, "space"),
    ):
        with pytest.raises(UserError, match=f"started with another {name} than this spec's"):
            lmlab.sweep(spec(corpus, **changes), out=grid.path, quiet=True)


def test_interrupted_sweep_continues_from_its_checkpoint(
    grid: Sweep, corpus: str, tmp_path: Path, monkeypatch
):
    """Ctrl-C in the middle of the third training, then the same command again."""
    started = []

    class StopInTheThird(loop.StopSignals):
        def __enter__(self):
            started.append(self)
            self.stop_requested = len(started) == 3
            return self

    with monkeypatch.context() as patched:
        patched.setattr(loop, "StopSignals", StopInTheThird)
        stopped = lmlab.sweep(spec(corpus, seeds=2), out=tmp_path, quiet=True)
    assert not stopped.finished and len(started) == 3
    assert [trial.state for trial in stopped.trials] == ["finished", "planned"]
    unfinished = read_metrics(tmp_path / "runs" / "trial-001-seed0" / "metrics.jsonl")
    assert unfinished[-1]["step"] == 1
    log = tmp_path / "trials.jsonl"
    log.write_text(log.read_text() + '{"event": "training", "na')  # killed while writing
    resumed = lmlab.sweep(spec(corpus, seeds=2), out=tmp_path, quiet=True)
    assert results(resumed) == results(grid) and resumed.finished


class ShuffledExecutor:
    """Runs up to `jobs` tasks at once in effect: outcomes come in the opposite order."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.tasks, self.stopping = jobs, [], False
        self.most = 0

    @property
    def free(self) -> int:
        return self.jobs - len(self.tasks)

    def submit(self, task: Task) -> None:
        self.tasks.append(Task.from_json(task.to_json()))
        self.most = max(self.most, len(self.tasks))

    def wait(self) -> list[TaskOutcome]:
        return [run_task(self.tasks.pop())]

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        pass


def adaptive(data: str) -> dict[str, Any]:
    return spec(
        data,
        seeds=2,
        search={"method": "tpe", "startup_trials": 2},
        space={
            "learning_rate": {"low": 1e-6, "high": 3e-2, "log": True},
            "width": {"low": 4, "high": 8},
        },
        trials=6,
        concurrency=3,
        prune={"startup_trials": 1, "warmup": 0},
    )


def test_results_do_not_depend_on_the_number_of_jobs(corpus: str, tmp_path: Path):
    one = lmlab.sweep(adaptive(corpus), out=tmp_path / "one", quiet=True)
    executor = ShuffledExecutor(5)
    many = lmlab.sweep(adaptive(corpus), out=tmp_path / "many", executor=executor, quiet=True)
    assert executor.most == 3 and results(one) == results(many)
    assert {trial.state for trial in one.trials} == {"finished", "pruned"}
    for trial in one.trials:  # the first seed of a hopeless trial decides for all
        assert len(trial.runs) == (1 if trial.state == "pruned" else 2)


def test_larger_budget_continues_a_search(corpus: str, tmp_path: Path):
    search = spec(
        corpus, search="random", epochs=1, space={"learning_rate": {"low": 1e-3, "high": 1e-2}}
    )
    first = lmlab.sweep({**search, "trials": 2}, out=tmp_path, quiet=True)
    more = lmlab.sweep({**search, "trials": 3}, out=tmp_path, quiet=True)
    assert [t for t in results(more) if t[0] < 2] == results(first)
    assert len(more.trials) == 3


def test_no_trial_starts_after_the_hours(corpus: str, tmp_path: Path):
    timed = spec(corpus, search="random", hours=1e-9, space={"width": {"low": 4, "high": 8}})
    assert lmlab.sweep(timed, out=tmp_path, quiet=True).trials == ()


def test_pruning_keeps_the_best(corpus: str, tmp_path: Path):
    """Rates of which one is good, and two too small to learn anything."""
    rates = [2e-3, 1e-2, 1e-6]
    course = spec(corpus, epochs=3, space={"learning_rate": rates, "width": [8, 4]}, concurrency=1)
    whole = lmlab.sweep(course, out=tmp_path / "whole", quiet=True)
    pruning = {"method": "median", "startup_trials": 2, "warmup": 1}
    pruned = lmlab.sweep(course | {"prune": pruning}, out=tmp_path / "pruned", quiet=True)
    assert pruned.best is not None and whole.best is not None
    assert (pruned.best.point, pruned.best.value) == (whole.best.point, whole.best.value)
    hopeless = [trial for trial in pruned.trials if trial.state == "pruned"]
    assert [t.number for t in hopeless if t.point["learning_rate"] == 1e-6] == [4, 5]
    by_number = {trial.number: trial for trial in whole.trials}
    for trial in hopeless:  # they ended at a validation, and are the beginning of the whole ones
        assert trial.losses == by_number[trial.number].losses[: len(trial.losses)]
        assert len(trial.losses) == 2
    assert "pruned" in sweep_table(pruned).markdown()


def test_killed_after_its_last_validation_a_pruned_training_stays_pruned(corpus: str, tmp_path):
    course = spec(corpus, epochs=3, space={"learning_rate": [1e-2, 1e-7]}, concurrency=1)
    course["prune"] = {"startup_trials": 1, "warmup": 0}
    once = lmlab.sweep(course, out=tmp_path, quiet=True)
    log = tmp_path / "trials.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # its outcome is lost
    assert results(lmlab.sweep(course, out=tmp_path, quiet=True)) == results(once)
    assert once.trials[-1].state == "pruned"


def test_failed_trials_are_recorded_and_do_not_stop_the_others(corpus: str, tmp_path: Path):
    course = spec(corpus, system="gru-minimal", space={"learning_rate": [1e30, 1e-2]})
    sweep = lmlab.sweep(course, out=tmp_path, quiet=True)
    assert [trial.state for trial in sweep.trials] == ["finished", "failed"] and sweep.finished
    assert "not finite" in sweep.trials[1].failure and "1 of 2 trials failed" in sweep.notes[0]
    again = lmlab.sweep(course, out=tmp_path, retry_failed=True, quiet=True)
    assert results(again) == results(sweep)


def test_selects_by_a_metric_of_compare(corpus: str, tmp_path: Path):
    course = spec(corpus, system=["ngram", "gru"], select="bits_per_character", epochs=1)
    course |= {"space": {"vocabulary_size": [9, 20]}}
    sweep = lmlab.sweep(course, out=tmp_path, quiet=True)
    assert sweep.finished and sweep.varied == ("system", "vocabulary_size")
    validation = Path(corpus) / "valid.txt"
    (tmp_path / "as-test").mkdir()
    for split in ("train", "test"):
        (tmp_path / "as-test" / f"{split}.txt").write_text(validation.read_text())
    best = sweep.best
    assert best is not None
    [row] = lmlab.compare([sweep.path / best.runs[0]], data=tmp_path / "as-test").rows
    assert row["bits_per_character"] == pytest.approx(best.value)


def test_dry_run_lists_the_trials_and_writes_nothing(corpus: str, tmp_path: Path):
    out = tmp_path / "none"
    listed = lmlab.sweep(spec(corpus), out=out, dry_run=True)
    assert [trial.state for trial in listed.trials] == ["planned"] * 4 and not out.exists()
    random = spec(corpus, search="random", trials=3, space={"width": {"low": 4, "high": 99}})
    listed = lmlab.sweep(random, out=out, dry_run=True)
    ran = lmlab.sweep({**random, "epochs": 1}, out=out, quiet=True)
    assert sorted(t.point["width"] for t in listed.trials) == sorted(
        t.point["width"] for t in ran.trials
    )


def test_dry_run_of_an_adaptive_search_says_that_later_trials_are_open(corpus: str, tmp_path: Path):
    space = {"width": {"low": 4, "high": 99}}
    adaptive = spec(corpus, search="tpe", trials=9, space=space)
    listed = lmlab.sweep(adaptive, out=tmp_path / "none", dry_run=True)
    assert len(listed.trials) == 4  # as many as start without a result
    assert listed.notes == ("The other trials depend on results.",)


def test_sampled_points_can_all_be_trained(corpus: str, tmp_path: Path):
    """A width must be a multiple of the heads."""
    course = spec(corpus, system="gpt", search="random", trials=9)
    course["space"] = {"width": [8, 9], "heads": [2, 3]}
    listed = lmlab.sweep(course, out=tmp_path / "none", dry_run=True)
    assert sorted((t.point["width"], t.point["heads"]) for t in listed.trials) == [(8, 2), (9, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": "gruu"}, "did you mean"),
        ({"data": "nothing"}, "nothing"),
        ({"space": {"widht": [4, 8]}}, "no setting called 'widht'; did you mean 'width'"),
        ({"space": {"width": [4, -8]}}, "width must be at least 1, got -8"),
        ({"space": {"learning_rate": {"low": -1.0, "high": 1.0, "step": 1.0}}}, "above 0, got -1"),
        ({"space": {"width": {"low": 1.5, "high": 4, "step": 0.5}}}, "width is a whole number"),
        ({"space": {"schedule": {"low": 1, "high": 2}}}, "schedule is no number"),
        ({"space": {"size": ["tiny", "huge"]}, "size": None}, "no size of gru called 'huge'"),
        ({"space": {"learning_rate": {"low": 1e-3, "high": 1e-2}}}, "a list of values for learn"),
        ({"space": {"seed": [1, 2]}}, "seeds repeat every trial"),
        ({"space": {"tokens_per_batch": [1]}}, "both fixed and in the space"),
        ({"space": {"data": ["a"]}}, "both fixed and in the space"),
        ({"space": {"base": ["a", "b"]}}, "base can't be varied"),
        ({"space": {"tokenizer": ["char", "word"]}}, "select by bits_per_character"),
        ({"select": "perplexy"}, "to select by called 'perplexy'; did you mean"),
        ({"select": "parameters"}, "has no better end"),
        ({"search": "tpe"}, "search tpe needs a budget"),
        ({"trials": 3}, "a grid has as many trials as points"),
        ({"search": "random", "trials": 10**9}, "at most 100,000"),
        ({"hours": -1}, "hours must be positive"),
        ({"seeds": []}, "seeds must be a number or a list"),
        ({"epochs": "two"}, "epochs must be a whole number"),
        ({"learning_rate": 3}, "learning_rate is a setting; put it under settings"),
        ({"system": "residual-ebm"}, "needs a trained base model"),
        ({"system": "gpt", "space": {"width": [8, 9], "heads": [2, 3]}}, "width=8, heads=3 can't"),
        ({"settings": {"select_by": "bleu"}, "select": "losss"}, "did you mean 'loss'"),
    ],
)
def test_wrong_specs_are_refused_before_training(changes, message, corpus: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as raised:
        lmlab.sweep(spec(corpus) | changes, out=tmp_path / "none", quiet=True)
    assert "\n" not in str(raised.value) and not (tmp_path / "none").exists()


def test_corpus_without_validation_split_is_refused(tmp_path: Path):
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("a b c\n" * 30)
    with pytest.raises(UserError, match="has no validation split"):
        lmlab.sweep(spec(str(tmp_path)), out=tmp_path / "none")


def test_two_sweeps_in_one_folder_are_refused(corpus: str, tmp_path: Path):
    with (
        lock_folder(tmp_path / "out"),
        pytest.raises(UserError, match="being written by another lmlab process"),
    ):
        lmlab.sweep(spec(corpus), out=tmp_path / "out", quiet=True)


def test_an_executor_can_be_given(corpus: str, tmp_path: Path):
    course = spec(corpus, epochs=1, space={"width": [4]})
    assert lmlab.sweep(course, out=tmp_path, executor=InProcessExecutor(), quiet=True).finished
