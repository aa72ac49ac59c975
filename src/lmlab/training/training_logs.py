"""Training logs: progress bar, metrics.jsonl (write, read), trackers, retrieved documents."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from lmlab.core.atomic_files import disk_error, no_follow, telling_disk_errors, write_text
from lmlab.core.errors import escape_control_characters
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.progress_bars import progress_bar, shows_bars
from lmlab.core.retrieval_protocols import Retrieve, WithDocuments
from lmlab.core.system import NATS_PER_TOKEN, System
from lmlab.core.untrusted_input import parse_json
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader
from lmlab.training.progress import Budget, Progress
from lmlab.training.trackers import Trackers
from lmlab.training.validation import ValidationLoss
from lmlab.training.weight_statistics import UpdateMonitor

LOGGED_TEXTS = 3
"""Number of held-out texts that are logged."""
NO_RETRIEVED_DOCUMENT = "no document"
RETRIEVED_EVENT = "looked up"
"""The event name in metrics.jsonl."""


def retrieved_documents(system: System, loader: BatchLoader) -> list[dict[str, Any]]:
    """The query of each text, and p(document | query) by document name.

    The query is the source where there is one, else the text. Empty for systems without retrieval.
    """
    if not isinstance(system, Retrieve):
        return []
    tokenizer, batch = system.tokenizer, next(iter(loader.epoch(0)))
    queries = batch if batch.condition is None else batch.condition
    queries = queries.select(list(range(min(LOGGED_TEXTS, len(queries))))).to(
        next(system.parameters()).device
    )
    with evaluation_mode(system):
        retrieved = system.retrieve(queries)
    texts = zip(queries.tokens.tolist(), queries.lengths.tolist(), strict=True)
    documents = zip(retrieved.numbers.tolist(), retrieved.log_probs.exp().tolist(), strict=True)
    return [
        {
            "text": "" if tokenizer is None else tokenizer.decode(tokens[:length]),
            "documents": {
                system.documents[number].name if number >= 0 else NO_RETRIEVED_DOCUMENT: round(
                    probability, 6
                )
                for number, probability in zip(numbers, probabilities, strict=True)
                if probability > 0
            },
        }
        for (tokens, length), (numbers, probabilities) in zip(texts, documents, strict=True)
    ]


def index_recall(system: System) -> float | None:
    """Recall@10 of a system's approximate index, measured when it was built."""
    return system.index_recall if isinstance(system, WithDocuments) else None


SECONDS_BETWEEN_LINES = 20.0
"""Seconds between lines where there is no terminal for a progress bar."""
NOT_FINITE = "not finite"
"""The last event of a training whose loss or gradient became non-finite."""

MEASURED = (
    *("loss", "count", "learning_rate", "gradient_norm", "tokens_per_second", "update_ratio"),
    "seconds",
)
"""Numeric fields of a metrics line."""


class Reporter:
    """Prints progress and writes the metrics. On all processes but the main one it does nothing."""

    def __init__(
        self,
        metrics: Path,
        config: TrainingConfig,
        *,
        quiet: bool = False,
        silent: bool = False,
        trackers: Trackers | None = None,
        unit: str = NATS_PER_TOKEN,
        compares: bool = True,
    ) -> None:
        """`quiet` prints nothing, `silent` writes no files either; losses are in `unit`, training
        losses only where they compare with held-out ones (`compares`)."""
        self.unit = unit
        self._compares = compares
        self._path = metrics
        self._config = config
        self._silent = silent
        self._console = Console(stderr=True, quiet=quiet or silent)
        self._file: IO[str] | None = None
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._last_printed = time.perf_counter()
        self._last_loss = float("nan")
        self._held_out = ""
        self._trackers = None if silent else trackers

    def print_message(self, sentence: str) -> None:
        """Print a sentence to the user."""
        self._console.print(
            escape_control_characters(sentence), highlight=False, markup=False, soft_wrap=True
        )

    def begin(self, *, after: int) -> None:
        """Open the metrics, dropping lines of later steps, which will be written again."""
        if self._silent:
            return
        retained = [line for line in read_metrics(self._path) if line["step"] <= after]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in retained)
        losses = [float(line["loss"]) for line in retained if line.get("event") == "train"]
        self._last_loss = losses[-1] if losses and after else float("nan")
        write_text(self._path, text if after else "")
        with telling_disk_errors(self._path):
            self._file = open(self._path, "a", encoding="utf-8", opener=no_follow)  # noqa: SIM115
        if self._trackers is not None:
            self._trackers.start(after=after)

    def __enter__(self) -> Self:
        if shows_bars(self._console):
            self._bar = progress_bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[figures]}"),
                TextColumn("{task.fields[left]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("training", total=1.0, figures="", left="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._trackers is not None:
            self._trackers.finish()

    def step(
        self,
        progress: Progress,
        budget: Budget,
        *,
        learning_rate: float,
        flush: bool,
        norm: float | None = None,
        tokens: int | None = None,
        monitor: UpdateMonitor | None = None,
    ) -> None:
        """Report a step; every `log_every` steps, and on `flush`, write the mean loss since.

        The speed is that of `tokens` since then, by default of predictions.
        """
        if not flush and progress.step % self._config.log_every and progress.step > 1:
            return
        loss = progress.window_total / max(progress.window_count, 1)
        tokens_since = progress.window_count if tokens is None else tokens
        speed = tokens_since / max(progress.window_seconds, 1e-9)
        self.write(
            "train",
            progress,
            loss=loss,
            count=int(progress.window_count),
            learning_rate=learning_rate,
            **({} if norm is None else {"gradient_norm": norm}),
            tokens_per_second=round(speed, 1),
            epochs=round(budget.epochs_done(progress), 4),
            **({} if monitor is None else monitor.statistics()),
        )
        progress.window_total = progress.window_count = progress.window_seconds = 0.0
        self.show(progress, budget, speed)

    def report_validation(
        self,
        progress: Progress,
        evaluation: ValidationLoss,
        split: str,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Report a held-out loss, with the validation metrics in `metrics`."""
        metrics = metrics or {}
        unit = {} if self.unit == NATS_PER_TOKEN else {"unit": self.unit}
        self.write(split, progress, loss=evaluation.loss, count=evaluation.count, **unit, **metrics)
        metric_text = "".join(f", {name} {value:.2f}" for name, value in metrics.items())
        self._held_out = f" · {split} {evaluation.loss:.4f}{metric_text}"
        if self._bar is None:
            self.print_message(
                f"epoch {progress.current_epoch}, step {progress.step}: {self._training_loss()}"
                f"{split} {evaluation.loss:.4f} {self.unit}{metric_text}"
            )
            self._last_printed = time.perf_counter()

    def _training_loss(self) -> str:
        """The last training loss, labelled where its unit is not that of the held-out one; empty
        before the first line."""
        if math.isnan(self._last_loss):
            return ""
        if self._compares:
            return f"training {self._last_loss:.4f}, "
        return f"training loss {self._last_loss:.4f} (another loss), "

    def write(self, event: str, progress: Progress, **values: Any) -> None:
        """Write one line of metrics.jsonl."""
        if event == "train":
            self._last_loss = values["loss"]
        if self._trackers is not None and (figures := _flatten(values)):
            named = {f"{event}/{name}": value for name, value in figures.items()}
            self._trackers.log(named, progress.step)
        if self._file is None:
            return
        line = {"step": progress.step, "epoch": progress.epoch, "event": event, **values}
        line["seconds"] = round(progress.seconds, 3)
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise disk_error(self._path, error) from error

    def flush(self) -> None:
        """Flush everything written so far to the operating system."""
        if self._file is not None:
            with telling_disk_errors(self._path):
                self._file.flush()

    def show(self, progress: Progress, budget: Budget, speed: float | None = None) -> None:
        """Update the progress bar, or print a line if the last one is some time ago."""
        spent = min(budget.fraction_spent(progress), 1.0)
        seconds_left = progress.seconds * (1 - spent) / max(spent, 1e-9)
        loss = "" if math.isnan(self._last_loss) else f"loss {self._last_loss:.4f}"
        figures = f"{loss}{self._held_out}"
        figures += "" if speed is None else f" · {speed:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=spent,
                description=f"epoch {progress.current_epoch}",
                figures=figures,
                left=f"{format_duration(seconds_left)} left",
            )
        elif time.perf_counter() - self._last_printed > SECONDS_BETWEEN_LINES:
            self._last_printed = time.perf_counter()
            self.print_message(
                f"epoch {progress.current_epoch}, step {progress.step}: {figures}, "
                f"{format_duration(seconds_left)} left"
            )


def _flatten(values: dict[str, Any]) -> dict[str, float]:
    """Flatten the numbers of a line: nested ones get both names."""
    return {
        f"{name}/{key}".rstrip("/"): number
        for name, value in values.items()
        for key, number in (value if isinstance(value, dict) else {"": value}).items()
        if isinstance(number, (int, float))
    }


def format_duration(seconds: float) -> str:
    """Format an estimated time, rounded; `format_exact_duration` is for measured ones."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def format_exact_duration(seconds: float) -> str:
    """Format a measured time consistently: 12.3 s, 4 min 05 s, 2 h 07 min."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; damaged and incomplete ones are left out."""
    lines = []
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = parse_json(text)
            except ValueError:
                continue
            if isinstance(line, dict) and _is_valid(line):
                lines.append(line)
    return lines


def _is_valid(line: Mapping[str, Any]) -> bool:
    """Whether its numbers are valid: steps and sums finite, losses and norms possibly not."""
    norms = line.get("vector_norms", {})
    measured = [line[name] for name in MEASURED if name in line]
    return (
        all(type(value) is int and value >= 0 for value in (line.get("step"), line.get("epoch", 0)))
        and all(type(value) in (int, float) for value in measured)
        and all(math.isfinite(line.get(name, 0)) for name in ("count", "seconds"))
        and isinstance(norms, dict)
        and all(type(value) in (int, float) for value in norms.values())
    )
