"""Figures of a run, in its own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import (
    inner_folder,
    write_text,
)
from lmlab.core.system import NATS_PER_TOKEN
from lmlab.data.builtin_corpora import (
    builtin_descriptions,
    open_builtin,
)
from lmlab.plotting.training_curves import (
    draw_training_curves,
    loss_curve_from_metrics,
)
from lmlab.training.reporting import read_metrics
from lmlab.training.run_folder import RunFolder


def write_run_figures(
    path: Path, *, unit: str = NATS_PER_TOKEN, loss_is_comparable: bool = True
) -> list[Path]:
    """Write figures/curves.svg of a run from its metrics; nothing where it has none.

    `unit` is the unit of its losses; the entropy is a floor of log-probabilities only. Where
    training losses do not compare with held-out ones, the curve is labelled so.
    """
    run = RunFolder(path)
    lines = read_metrics(run.metrics)
    # Named by the system, not by the folder: the same training gives the same figure anywhere.
    name = str(run.read_config()["system"]) if lines else path.name
    curve = loss_curve_from_metrics(name, lines, contrast=not loss_is_comparable)
    if not curve.train and not curve.held_out:
        return []
    inner_folder(run.figures, of=run.path)
    picture = run.figures / "curves.svg"
    floor = true_entropy(run.read_config()) if unit == NATS_PER_TOKEN else None
    write_text(picture, draw_training_curves([curve], floor=floor, unit=unit))
    return [picture]


def true_entropy(config: dict[str, Any]) -> float | None:
    """The true entropy in nats per token of a run's training corpus; None where it is unknown.

    It is counted in the tokens of the corpus's own tokeniser, so it is no floor for another.
    """
    spec, seed = config["corpus"]["spec"], int(config["corpus"]["seed"])
    if spec not in builtin_descriptions():
        return None
    corpus = open_builtin(spec, seed)
    expected: float | None = getattr(corpus.truth, "expected_tokens", None)
    if corpus.truth is None or expected is None or config["tokenizer"] != corpus.tokenizer:
        return None
    return corpus.truth.entropy / expected
