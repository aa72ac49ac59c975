from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.training.config import TrainingConfig
from lmlab.training.progress import Budget, Progress
from lmlab.training.training_logs import (
    Reporter,
    format_duration,
    format_exact_duration,
    read_metrics,
)
from lmlab.training.validation import ValidationLoss


def reporter(path: Path, *, quiet: bool = True, silent: bool = False) -> Reporter:
    return Reporter(path, TrainingConfig(log_every=2), quiet=quiet, silent=silent)


def test_metrics_line_fields(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = reporter(path)
    recorder.begin(after=0)
    progress = Progress(step=2, window_total=30.0, window_count=10.0, window_seconds=0.5)
    with recorder:
        recorder.step(
            progress, Budget(TrainingConfig(), 4), learning_rate=0.1, norm=2.5, flush=False
        )
        recorder.report_validation(progress, ValidationLoss(total=8.0, count=4), "validation")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {
        "step": 2,
        "epoch": 0,
        "event": "train",
        "loss": 3.0,
        "count": 10,
        "learning_rate": 0.1,
        "gradient_norm": 2.5,
        "tokens_per_second": 20.0,
        "epochs": 0.0,
        "seconds": 0.0,
    }
    assert (second["event"], second["loss"], second["count"]) == ("validation", 2.0, 4)
    assert (progress.window_total, progress.window_count) == (0.0, 0.0)


def test_lines_after_checkpoint_and_damaged_lines_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 0.1 + step}) for step in (1, 2, 3, 4)]
    path.write_text("\n".join(lines) + '\n{"step": 5, "lo')
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4]
    recorder = reporter(path)
    recorder.begin(after=3)
    with recorder:
        recorder.write("train", Progress(step=4), loss=9.0)
    assert path.read_text().splitlines()[:3] == lines[:3]
    assert [line["loss"] for line in read_metrics(path)] == [1.1, 2.1, 3.1, 9.0]
    recorder = reporter(path)
    recorder.begin(after=0)
    with recorder:
        assert path.read_text() == ""


def test_silent_reporter_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = reporter(path, silent=True)
    recorder.begin(after=0)
    with recorder:
        recorder.write("train", Progress(step=1), loss=1.0)
    assert not path.exists()


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere to write metrics.jsonl to"):
        reporter(tmp_path / "nowhere" / "metrics.jsonl").begin(after=0)


def test_progress_lines_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = reporter(tmp_path / "metrics.jsonl", quiet=False)
    recorder.begin(after=0)
    with recorder:
        progress = Progress(step=2, epoch=1, window_total=30.0, window_count=10.0)
        recorder.step(
            progress, Budget(TrainingConfig(), 4), learning_rate=0.1, norm=1.0, flush=True
        )
        recorder.report_validation(progress, ValidationLoss(total=8.0, count=4), "validation")
    assert capsys.readouterr().err == (
        "epoch 1, step 2: training 3.0000, validation 2.0000 nats per token\n"
    )


def test_sampled_loss_is_not_reported_in_nats_per_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Reporter(tmp_path / "metrics.jsonl", TrainingConfig(log_every=2), compares=False)
    recorder.begin(after=0)
    with recorder:
        progress = Progress(step=2, epoch=1, window_total=30.0, window_count=10.0)
        recorder.step(
            progress, Budget(TrainingConfig(), 4), learning_rate=0.1, norm=1.0, flush=True
        )
        recorder.report_validation(progress, ValidationLoss(total=8.0, count=4), "validation")
    assert capsys.readouterr().err == (
        "epoch 1, step 2: training loss 3.0000 (another loss), validation 2.0000 nats per token\n"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.2, "3 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_approximate_duration_format(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_progress_bar_shows_loss_speed_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    recorder = reporter(tmp_path / "metrics.jsonl", quiet=False)
    recorder.begin(after=0)
    with recorder:
        progress = Progress(
            step=2, epoch=2, seconds=60, window_total=30, window_count=10, window_seconds=0.01
        )
        recorder.step(
            progress, Budget(TrainingConfig(epochs=8), 4), learning_rate=1, norm=1, flush=True
        )
    shown = capsys.readouterr().err
    # A quarter of the budget took a minute, so three are left; ten tokens in a hundredth second.
    for text in ("epoch 2", "25%", "loss 3.0000", "1,000 tokens/s", "3 min left"):
        assert text in shown


def test_lines_of_a_step_name_the_same_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lmlab.training.training_logs.SECONDS_BETWEEN_LINES", -1.0)
    recorder = reporter(tmp_path / "metrics.jsonl", quiet=False)
    recorder.begin(after=0)
    budget, progress, named = Budget(TrainingConfig(epochs=2), 2), Progress(), []
    with recorder:
        for _ in range(4):
            progress.advance(2.0, 1.0, 0.1, 1, per_epoch=2)
            recorder.step(progress, budget, learning_rate=0.1, norm=1.0, flush=True)
            recorder.report_validation(progress, ValidationLoss(total=8.0, count=4), "validation")
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 2
            named.append([line.partition(":")[0] for line in lines])
    expected = ["epoch 1, step 1", "epoch 1, step 2", "epoch 2, step 3", "epoch 2, step 4"]
    assert named == [[text, text] for text in expected]


def test_resumed_reporter_knows_the_last_training_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "event": "train", "loss": float(step)} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for after, text in ((2, "training 2.0000, average"), (0, "average")):
        recorder = reporter(path, quiet=False)
        recorder.begin(after=after)
        with recorder:
            recorder.report_validation(
                Progress(step=2, epoch=1), ValidationLoss(total=8.0, count=4), "average"
            )
        shown = f"epoch 1, step 2: {text} 2.0000 nats per token\n"
        assert capsys.readouterr().err == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.21, "3.2 s"), (59.97, "1 min 00 s"), (61, "1 min 01 s"), (3725, "1 h 02 min")],
)
def test_exact_duration_format(seconds: float, text: str) -> None:
    assert format_exact_duration(seconds) == text
