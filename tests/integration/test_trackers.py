"""Metrics that trackers hold, read back by their own readers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import lmlab
from lmlab.core.tracking_options import TRACKERS

Curve = dict[int, float]


def train(out: Path, tracker: str, steps: int, *, resume: bool = False) -> None:
    lmlab.train(
        "gpt",
        data="grammar",
        out=out,
        size="tiny",
        steps=steps,
        settings={"log_every": 1, "evaluate_every": 3},
        quiet=True,
        resume=resume,
        track=[tracker],
    )


def logged_losses(run: Path, event: str) -> Curve:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == event}


def read_tensorboard(run: Path, name: str) -> Curve:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {scalar.step: scalar.value for scalar in events.Scalars(name)}


def read_mlflow(run: Path, name: str) -> Curve:
    import mlflow

    client = mlflow.MlflowClient()
    [experiment] = client.search_experiments(filter_string="name = 'lmlab'")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == run.name
    return {m.step: m.value for m in client.get_metric_history(found.info.run_id, name)}


def written_files(run: Path, name: str) -> Curve:
    """Of wandb and trackio the tests know that they ran, here on this machine alone."""
    return logged_losses(run, name.partition("/")[0])


READERS: Mapping[str, Callable[[Path, str], Curve]] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
}
INSTALLED = [name for name, package in TRACKERS.items() if importlib.util.find_spec(package)]


@pytest.mark.parametrize("tracker", INSTALLED)
@pytest.mark.filterwarnings("error::lmlab.core.errors.LmlabWarning")
def test_tracker_has_the_losses_of_metrics_jsonl(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run = tmp_path / "run"
    train(run, tracker, 6)
    read = READERS.get(tracker, written_files)
    for event, steps in (("train", range(1, 7)), ("validation", (3, 6))):
        expected = logged_losses(run, event)
        assert [*expected] == [*steps]
        assert read(run, f"{event}/loss") == pytest.approx(expected, rel=1e-6)


def test_tensorboard_continues_a_resumed_training(tmp_path: Path) -> None:
    assert "tensorboard" in INSTALLED
    run = tmp_path / "run"
    train(run, "tensorboard", 4)
    train(run, "tensorboard", 8, resume=True)
    assert read_tensorboard(run, "train/loss") == pytest.approx(logged_losses(run, "train"))
    [settings] = {
        path.read_text() for path in run.rglob("hparams.yml") if "steps: 4" in path.read_text()
    }
    assert "system: gpt" in settings and "width: 16" in settings
