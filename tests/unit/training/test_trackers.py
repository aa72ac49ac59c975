from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.tracking import GeneralTracker

import lmlab
from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.tracking_options import (
    TRACKERS,
    Tracker,
    check_tracker_names,
    check_trackers,
    parse_trackers,
)
from lmlab.training.trackers import Trackers


class RecordingTracker(GeneralTracker):
    """Notes what it is given; the call `fails_at` raises."""

    name = "recording"
    requires_logging_directory = False

    def __init__(self, fails_at: str = "") -> None:
        super().__init__()
        self.fails_at = fails_at
        self.calls: list[str] = []
        self.settings: dict[str, Any] = {}
        self.logged: list[tuple[int | None, dict[str, float]]] = []

    @property
    def tracker(self) -> list[str]:
        return self.calls

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if what == self.fails_at:
            raise RuntimeError("no connection\nto the server")

    def start(self) -> None:
        self._called("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._called("settings")
        self.settings = values

    def log(self, values: Mapping[str, float], step: int | None = None, **_: Any) -> None:
        self._called("log")
        self.logged.append((step, dict(values)))

    def finish(self) -> None:
        self._called("finish")


INSTALLED = SimpleNamespace(origin="package/__init__.py")


def train(out: Path, tracker: RecordingTracker, **options: Any) -> None:
    lmlab.train(
        "gpt",
        data="grammar",
        out=out,
        size="tiny",
        settings={"log_every": 1, "checkpoint_steps": 1, **options.pop("settings", {})},
        quiet=True,
        track=[tracker],
        **options,
    )


def test_tracker_gets_the_settings_and_the_figures_of_metrics_jsonl(tmp_path: Path) -> None:
    tracker = RecordingTracker()
    train(tmp_path / "run", tracker, steps=2, settings={"width": 8})
    assert isinstance(tracker, Tracker)
    assert tracker.calls == ["start", "settings", "log", "log", "log", "finish"]
    assert (tracker.settings["system"], tracker.settings["width"]) == ("gpt", 8)
    assert all(isinstance(v, (str, int, float, bool)) for v in tracker.settings.values())
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    expected = [(line["step"], f"{line['event']}/loss", line["loss"]) for line in lines]
    assert [name for _, name, _ in expected] == ["train/loss"] * 2 + ["validation/loss"]
    logged = [
        (step, name, value)
        for step, values in tracker.logged
        for name, value in values.items()
        if name.endswith("/loss")
    ]
    assert logged == expected
    resumed = RecordingTracker()
    train(tmp_path / "run", resumed, steps=3, resume=True)
    assert [step for step, _ in resumed.logged] == [3, 3]


@pytest.mark.parametrize("moment", ["start", "settings", "log", "finish"])
def test_failing_tracker_gives_one_warning_and_training_goes_on(
    tmp_path: Path, moment: str
) -> None:
    tracker, other = RecordingTracker(fails_at=moment), RecordingTracker()
    other.name = "other"
    trackers = Trackers([tracker, other], tmp_path, {"lr": 0.1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trackers.start(after=0)
        trackers.log({"train/loss": 1.0}, 1)
        trackers.log({"train/loss": 0.5}, 2)
        trackers.finish()
    [warning] = caught
    assert warning.category is LmlabWarning
    assert str(warning.message) == (
        "the tracker recording failed and gets nothing more (RuntimeError: no connection to the "
        "server); the training goes on, and metrics.jsonl has all its figures."
    )
    assert tracker.calls[-1] == moment
    assert other.calls == ["start", "settings", "log", "log", "finish"]
    assert other.logged == [(1, {"train/loss": 1.0}), (2, {"train/loss": 0.5})]


def test_training_survives_its_tracker(tmp_path: Path) -> None:
    with pytest.warns(LmlabWarning, match="recording failed"):
        train(tmp_path / "run", RecordingTracker(fails_at="log"), steps=2)
    assert (tmp_path / "run/model.safetensors").exists()


def test_nothing_is_tracked_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trackers, "_make", lambda *_: pytest.fail("a tracker was made"))
    lmlab.train("gpt", data="grammar", out=tmp_path / "run", size="tiny", steps=1, quiet=True)
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_names_are_checked_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_trackers("TensorBoard, wandb,") == ["tensorboard", "wandb"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, package in TRACKERS.items():
        with pytest.raises(UserError, match=rf"^{name} is not installed; pip install {package}\.$"):
            lmlab.train("gpt", data="grammar", out=tmp_path / "run", track=[name])
    with pytest.raises(UserError, match="no tracker called 'tensorbord'; did you mean 'tensorboa"):
        lmlab.finetune("nowhere", task="tag", data="x", out=tmp_path / "run", track=["tensorbord"])
    with pytest.raises(UserError, match="not installed"):
        lmlab.sweep({"system": "gpt"}, out=tmp_path / "sweep", track=["wandb"])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: INSTALLED)
    assert check_trackers("wandb,wandb") == ("wandb",)
    assert check_tracker_names(["mlflow"]) == ("mlflow",)
    with pytest.raises(UserError, match="a sweep takes trackers by name"):
        check_tracker_names([RecordingTracker()])


def test_sweep_passes_trackers_on_to_its_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = RecordingTracker()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: INSTALLED)
    monkeypatch.setattr(Trackers, "_make", lambda self, name, after: tracker)
    spec = {"system": "gru", "data": "grammar", "size": "tiny", "steps": 1, "search": "grid"}
    lmlab.sweep(
        {**spec, "space": {"width": [4, 8]}}, out=tmp_path / "s", track=["trackio"], quiet=True
    )
    assert tracker.calls.count("start") == tracker.calls.count("finish") == 2


def test_finetuning_is_tracked(tmp_path: Path) -> None:
    lmlab.train("gpt", data="grammar", out=tmp_path / "base", size="tiny", steps=1, quiet=True)
    rows = [
        {"text": text, "label": text[:1]} for text in ("the dog sleeps", "a cat sees mary") * 12
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tracker = RecordingTracker()
    lmlab.finetune(
        tmp_path / "base",
        task="classify",
        data=tmp_path / "rows.jsonl",
        out=tmp_path / "task",
        epochs=1,
        quiet=True,
        track=[tracker],
    )
    assert {name for _, values in tracker.logged for name in values} >= {
        "train/loss",
        "validation/loss",
    }
