"""Report data of a model comparison (curves, samples, train commands); the loss figure of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from lmlab.core.atomic_files import inner_folder, write_text
from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of
from lmlab.core.protocols import Sample, Step
from lmlab.core.registry import find_system
from lmlab.core.system import NATS_PER_TOKEN
from lmlab.data.builtin_corpora import builtin_descriptions, open_builtin
from lmlab.data.corpus_encoding import encode_with_special_tokens
from lmlab.inspection.figure_files import SavedFigure, read_figure_files
from lmlab.plotting.training_curves import LossCurve, draw_training_curves, loss_curve_from_metrics
from lmlab.sampling.decoding import sample_sequences
from lmlab.scoring.comparison_records import Comparison, ComparisonRow
from lmlab.training.config import BUDGETS
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel
from lmlab.training.setting_records import format_value
from lmlab.training.training_logs import read_metrics
from lmlab.training.training_plan import make_training_plan


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
    name = run.read_config().system if lines else path.name
    curve = loss_curve_from_metrics(name, lines, comparable=loss_is_comparable)
    if not curve.train and not curve.held_out:
        return []
    inner_folder(run.figures, of=run.path)
    figure_path = run.figures / "curves.svg"
    floor = true_entropy(run.read_config()) if unit == NATS_PER_TOKEN else None
    write_text(figure_path, draw_training_curves([curve], floor=floor, unit=unit))
    return [figure_path]


def true_entropy(config: RunConfig) -> float | None:
    """The true entropy in nats per token of a run's training corpus; None where it is unknown.

    It is counted in the tokens of the corpus's own tokenizer, so it is no floor for another.
    """
    spec, seed = config.corpus.spec, config.corpus.seed
    if spec not in builtin_descriptions():
        return None
    corpus = open_builtin(spec, seed)
    expected: float | None = getattr(corpus.truth, "expected_tokens", None)
    if corpus.truth is None or expected is None or config.tokenizer != corpus.tokenizer:
        return None
    return corpus.truth.entropy / expected


def train_command(config: RunConfig, out: Path) -> str | None:
    """`lmlab train …` with everything that differs from the defaults, shell-quoted.

    `lmlab mix …` for a mixture; None for an imported model (an ARPA file), which can't be
    retrained.
    """
    if config.components:
        weights = ",".join(map(str, config.system_config.get("weights", ())))
        paths = [component.path for component in config.components]
        return shlex.join(["lmlab", "mix", *paths, "--weights", weights, "--out", str(out)])
    if not config.corpus.spec:
        return None
    plan = make_training_plan(
        find_system(config.system), config.size, config.recipe, {}, {}, config.seed
    )
    command = ["lmlab", "train", config.system, "--data", config.corpus.spec]
    command += ["--out", str(out)]
    if config.predecessor is None:
        command += ["--size", config.size]
    learned_from = {"teacher": config.teacher, "predecessor": config.predecessor}
    given = [(f"--{role}", other.path) for role, other in learned_from.items() if other is not None]
    command += [*given[0]] if given else ["--tokenizer", config.tokenizer]
    command += ["--recipe", config.recipe] if config.recipe else []
    defaults = asdict(plan.system_config) | asdict(plan.training)
    for name, value in {**config.system_config, **asdict(config.training)}.items():
        if name not in (*BUDGETS, "seed") and value != defaults.get(name):
            command += ["--set", f"{name}={format_value(value, empty='')}"]
    budget = {name: getattr(config.training, name) for name in BUDGETS}
    if any(value != defaults[name] for name, value in budget.items()):
        for name, value in budget.items():
            command += [] if value is None else [f"--{name}", format_value(value, empty="")]
    return shlex.join([*command, "--seed", str(config.seed)])


SAMPLE_COUNT = 5
SAMPLE_TOKENS = 60


@dataclass(frozen=True, kw_only=True)
class SampledText:
    """A generated text, and its log-probability in nats."""

    text: str
    log_prob: float | None


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A comparison with the data of its rows, by row name."""

    comparison: Comparison
    curves: tuple[LossCurve, ...] = ()
    """In the order of the rows."""
    entropy: float | None = None
    """The true entropy in nats per token, where it is the same for all rows."""
    samples: Mapping[str, tuple[SampledText, ...]] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inspection_figures: Mapping[str, tuple[SavedFigure, ...]] = field(default_factory=dict)
    """Figures that `lmlab inspect` saved for a row's first run."""
    colour_indices: Mapping[str, int] = field(default_factory=dict)
    """Each row's index in the palette."""

    def colour_index(self, name: str) -> int:
        """The palette index of the row of that name."""
        return self.colour_indices.get(name, 0)


def make_report_section(
    comparison: Comparison, models: Sequence[TrainedModel], *, seed: int = 0
) -> ReportSection:
    """Collect what a report shows besides the scores of a comparison of these models."""
    by_path = {str(model.path): model for model in models}
    rows = comparison.rows
    first = {row.name: by_path[row.runs[0]] for row in rows}
    entropies = {true_entropy(model.config) for model in models if model.config.corpus.spec}
    sources = [pair.source for pair in comparison.sentences if pair.source is not None]
    return ReportSection(
        comparison=comparison,
        curves=tuple(_curve(row, first[row.name]) for row in rows),
        entropy=entropies.pop() if len(entropies) == 1 else None,
        # One seed per text: with the same one all would begin with the same word.
        samples={
            row.name: sample_texts(first[row.name], seed=seed + number, sources=sources)
            for number, row in enumerate(rows)
        },
        commands={row.name: _commands(row, by_path) for row in rows},
        inspection_figures={
            row.name: read_figure_files(RunFolder(first[row.name].path).figures) for row in rows
        },
    )


def _commands(row: ComparisonRow, by_path: Mapping[str, TrainedModel]) -> tuple[str, ...]:
    """Commands that repeat the runs of a row, where possible."""
    models = [by_path[run] for run in row.runs]
    commands = [train_command(model.config, model.path) for model in models]
    return tuple(command for command in commands if command is not None)


def _curve(row: ComparisonRow, model: TrainedModel) -> LossCurve:
    """The loss curve of a row's first run."""
    lines = read_metrics(RunFolder(model.path).metrics)
    comparable = model.system.loss_is_comparable and model.config.loss_is_comparable
    return loss_curve_from_metrics(row.name, lines, comparable=comparable)


def sample_texts(
    model: TrainedModel, *, seed: int, sources: Sequence[str] = ()
) -> tuple[SampledText, ...]:
    """Sample a few texts of a model by ancestral sampling; none where it can't generate.

    With sources, one text is sampled for each of them and shown after it.
    """
    if not isinstance(model.system, (Step, Sample)):
        return ()
    encoded_sources = [
        encode_with_special_tokens(model.effective_source_tokenizer, source) for source in sources
    ]
    condition = (
        Batch.collate(encoded_sources, model.system.vocabulary.pad) if encoded_sources else None
    )
    samples = sample_sequences(
        model.system,
        len(encoded_sources) or SAMPLE_COUNT,
        max_length=SAMPLE_TOKENS,
        generator=torch.Generator().manual_seed(seed),
        condition=None if condition is None else condition.to(device_of(model.system)),
    )
    prefixes = [f"{source} → " for source in sources] or [""] * len(samples)
    return tuple(
        SampledText(
            text=prefix + model.tokenizer.decode(sample.tokens) + ("" if sample.finished else " …"),
            log_prob=sample.log_prob,
        )
        for prefix, sample in zip(prefixes, samples, strict=True)
    )
