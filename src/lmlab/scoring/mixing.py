"""Mixing trained runs (`lmlab mix`): weights tuned on held-out text, the mixture saved as a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlab.core.atomic_files import new_folder
from lmlab.core.errors import UserError
from lmlab.core.locks import held_lock
from lmlab.core.notebook import NotebookRecord
from lmlab.core.registry import catalogue, system_module
from lmlab.core.score import SCORE_KINDS
from lmlab.core.system_protocols import StepSystem
from lmlab.data.corpus import Corpus, Split
from lmlab.inference.interpolation import InterpolationFit, fit_weights, interpolated_log_probs
from lmlab.models.mixture import InterpolatedLM, checked_weights
from lmlab.scoring.split_evaluation import ProgressCallback, scorer_for
from lmlab.training.base_models import base_record
from lmlab.training.config import TrainingConfig
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel
from lmlab.training.run_records import CorpusRecord, TuningRecord, unknown_corpus
from lmlab.training.setting_records import DEFAULT_SIZE
from lmlab.training.system_building import build_system

MAX_TUNING_TOKENS = 2_000_000
"""Tokens that weights are tuned on at most, which bounds the memory: 8 bytes for each and model."""
SMALL_WEIGHT = 0.001
"""Below this a component hardly contributes."""

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutText:
    """A split of a corpus, or a file that is not divided."""

    corpus: Corpus
    split: str
    """Its key in the corpus."""
    spec: str
    """The corpus as named by the user."""
    label: str
    """Its name: validation, test; all for a file that is not divided."""

    @property
    def text(self) -> Split:
        return self.corpus.splits[self.split]


@dataclass(frozen=True, kw_only=True)
class MixedRun:
    """One component of a mixture."""

    name: str
    path: str
    system: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class MixFigures:
    """Losses on one text, in nats per token: before and after mixing."""

    data: str
    split: str
    tokens: int
    tuned: bool
    """Whether the weights were tuned on this text."""
    runs: tuple[float, ...]
    """Of each component alone, scored as the mixture is (with its window)."""
    mixture: float


@dataclass(frozen=True, kw_only=True)
class MixResult(NotebookRecord):
    """A mixture that was made."""

    path: Path
    """The folder of the new run."""
    runs: tuple[MixedRun, ...]
    figures: tuple[MixFigures, ...]
    fit: InterpolationFit | None
    """How the weights were fitted; None where they were given."""
    notes: tuple[str, ...] = ()
    """Caveats, each a sentence."""

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each run."""
        return tuple(run.weight for run in self.runs)

    def as_dict(self) -> dict[str, object]:
        """A JSON-serialisable dict."""
        return asdict(self) | {"path": str(self.path)}

    def table_rows(self) -> Iterator[Mapping[str, Any]]:
        """The runs with their weights and losses in nats per token, and the mixture last."""
        for index, run in enumerate(self.runs):
            row = {"model": run.name, "system": run.system, "weight": run.weight}
            yield row | {f"{f.split} loss": f.runs[index] for f in self.figures}
        row = {"model": self.path.name, "system": "mix", "weight": None}
        yield row | {f"{f.split} loss": f.mixture for f in self.figures}

    def html_notes(self) -> Sequence[str]:
        return self.notes


def mix_models(
    models: Sequence[TrainedModel],
    names: Sequence[str],
    *,
    out: Path,
    weights: Sequence[float] | None = None,
    held_out: HeldOutText | None = None,
    test: HeldOutText | None = None,
    progress: ProgressCallback | None = None,
) -> MixResult:
    """Interpolate models, called by these names, into the new run `out`, which stores them.

    Without `weights` they are tuned on the held-out text. Cost: each text is scored once by each
    model; memory: a number for each token and model.
    """
    check_components(models, names)
    if weights is not None:
        weights = checked_weights(weights, len(models))
    if weights is None and held_out is None:
        raise UserError("there is no text to tune the weights on; name a corpus, or give weights.")
    mixture = _mixture_in_memory(models, names, out)
    matrices = {
        text: _component_log_probs(mixture, text, progress)
        for text in (held_out, test)
        if text is not None
    }
    fit = None
    if weights is None:
        assert held_out is not None
        fit = fit_weights(matrices[held_out])
        weights = fit.weights
    figures = tuple(
        _figures(text, matrix, weights, tuned=fit is not None and text is held_out)
        for text, matrix in matrices.items()
    )
    system = _interpolation(mixture)
    system.set_weights(weights)
    tuning = None if fit is None or held_out is None else _tuning_record(held_out, figures[0])
    config = replace(
        mixture.config,
        system_config=asdict(
            system_module(mixture.card.name).Config(weights=weights, names=tuple(names))
        ),
        components=tuple(base_record(model, model.path) for model in models),
        tuning=tuning,
    )
    with new_folder(out) as partial:
        RunFolder(partial).write_description(config, mixture.tokenizer, weights=system)
    mixed = [
        MixedRun(name=name, path=str(model.path), system=model.card.name, weight=weight)
        for name, model, weight in zip(names, models, weights, strict=True)
    ]
    notes = _notes(models, mixed, figures)
    return MixResult(path=out, runs=tuple(mixed), figures=figures, fit=fit, notes=notes)


def check_components(models: Sequence[TrainedModel], names: Sequence[str]) -> None:
    """A UserError where models can't be interpolated, or can't be stored in a run."""
    if len(models) < 2:
        raise UserError(f"a mixture needs two runs or more, got {len(models)}; name another.")
    for model, name in zip(models, names, strict=True):
        _check_component(model, name)
    first = models[0]
    for model, name in zip(models[1:], names[1:], strict=True):
        if model.tokenizer.fingerprint() != first.tokenizer.fingerprint():
            raise UserError(
                f"{names[0]} and {name} have different tokenizers, so their tokens do not "
                f"correspond; train one with the other's (--tokenizer {first.path}/tokenizer.json)."
            )
        if (model.system.vocabulary, model.layout) != (first.system.vocabulary, first.layout):
            raise UserError(
                f"{names[0]} and {name} were trained on text in different layouts (contiguous or "
                "in sentences, with or without ends, cut) or with different special tokens; train "
                "them on one corpus."
            )


def _check_component(model: TrainedModel, name: str) -> None:
    if not model.stored:
        raise UserError(
            f"{name} is no run, and a mixture stores the runs it is made of; import a checkpoint "
            "by lmlab import-hf (a wrapped module can't be stored)."
        )
    if held_lock(model.path):
        raise UserError(f"{model.path} is being written by another process; wait until it ends.")
    if model.card.conditional or model.layout.kind == "pairs":
        raise UserError(
            f"{name} ({model.card.name}) scores a text given its source, and a mixture takes "
            "models of single texts; remove it."
        )
    if not isinstance(model.system, StepSystem) or model.system.scorer_kind != "left-to-right":
        raise UserError(
            f"{name} ({model.card.name}) gives no next-token distribution; a mixture takes systems "
            "with Step (lmlab systems), such as ngram, lstm or gpt."
        )
    if model.card.kind != SCORE_KINDS[0]:
        raise UserError(
            f"the scores of {name} ({model.card.name}) are of kind {model.card.kind}, and a "
            "mixture takes exact next-token probabilities; remove it."
        )
    if model.config.memories:
        raise UserError(
            f"{name} ({model.card.name}) has documents or a knowledge base of its own, which a "
            "mixture does not store; remove it."
        )


def _interpolation(model: TrainedModel) -> InterpolatedLM:
    assert isinstance(model.system, InterpolatedLM)
    return model.system


def _mixture_in_memory(
    models: Sequence[TrainedModel], names: Sequence[str], path: Path
) -> TrainedModel:
    """The mixture with equal weights."""
    card, first = next(card for card in catalogue().values() if card.components), models[0]
    system = build_system(
        card.name,
        {"names": tuple(names)},
        first.system.vocabulary,
        seed=0,
        components=[model.system for model in models],
    )
    config = RunConfig(
        system=card.name,
        size=DEFAULT_SIZE,
        system_config={},
        vocabulary=first.system.vocabulary,
        tokenizer=first.tokenizer.kind,
        tokenizer_fingerprint=first.tokenizer.fingerprint(),
        layout=first.layout,
        corpus=_shared_corpus(models),
        training=TrainingConfig(),
    )
    return TrainedModel(
        system=system.eval(),
        tokenizer=first.tokenizer,
        layout=first.layout,
        config=config,
        card=card,
        path=path,
        stored=False,
    )


def _shared_corpus(models: Sequence[TrainedModel]) -> CorpusRecord:
    """The corpus that all were trained on, as far as it is known; unknown if there are several."""
    known = {model.config.corpus.fingerprint: model.config.corpus for model in models}
    known.pop("", None)
    return next(iter(known.values())) if len(known) == 1 else unknown_corpus()


def _component_log_probs(
    mixture: TrainedModel, text: HeldOutText, progress: ProgressCallback | None
) -> Values:
    """(N, K) log-probabilities of the text's tokens by each component, scored as the mixture is.

    A component is scored as the mixture in which it has all the weight.
    """
    system = _interpolation(mixture)
    count = len(system.components)
    columns = []
    for index, name in enumerate(system.names):
        system.set_weights([float(index == other) for other in range(count)])
        report = None if progress is None else _renamed(progress, name)
        scores = scorer_for(mixture, text.corpus, report).score_examples(text.text)
        values = (token.log_prob for score in scores for token in score.per_token)
        columns.append(np.fromiter(islice(values, MAX_TUNING_TOKENS), dtype=np.float64))
    matrix = np.stack(columns, 1)
    impossible = int(np.isneginf(matrix.max(1)).sum())
    if impossible:
        raise UserError(
            f"{impossible} tokens of {text.spec} ({text.label}) have probability zero in every "
            "model, so that no weights fit the text; give another, or models that smooth."
        )
    return matrix


def _renamed(progress: ProgressCallback, name: str) -> Callable[[str, int], None]:
    return lambda _, tokens: progress(name, tokens)


def _figures(
    text: HeldOutText, matrix: Values, weights: Sequence[float], *, tuned: bool
) -> MixFigures:
    mixed = interpolated_log_probs(matrix, np.array(weights))
    return MixFigures(
        data=text.spec,
        split=text.label,
        tokens=len(matrix),
        tuned=tuned,
        runs=tuple(0.0 - float(value) for value in matrix.mean(0)),
        mixture=0.0 - float(mixed.mean()),
    )


def _tuning_record(text: HeldOutText, figures: MixFigures) -> TuningRecord:
    return TuningRecord(
        data=text.spec,
        split=text.label,
        fingerprint=text.text.fingerprint(),
        tokens=figures.tokens,
        nats_per_token=figures.mixture,
    )


def _notes(
    models: Sequence[TrainedModel], runs: Sequence[MixedRun], figures: Sequence[MixFigures]
) -> tuple[str, ...]:
    notes = [
        f"The weights were tuned on {item.data} ({item.split}): report figures on other text."
        for item in figures
        if item.tuned
    ]
    notes += [
        f"Only the first {item.tokens:,} tokens of {item.data} ({item.split}) were used."
        for item in figures
        if item.tokens == MAX_TUNING_TOKENS
    ]
    notes += [
        f"{run.name} has a weight of {run.weight:.2g}: the mixture is hardly worse without it."
        for run in runs
        if run.weight < SMALL_WEIGHT
    ]
    if len({model.config.corpus.fingerprint for model in models} - {""}) > 1:
        notes.append(
            "The runs were trained on different corpora: the text must be unseen by all of them."
        )
    return tuple(notes)


def perplexity(nats_per_token: float) -> float:
    """exp of the nats per token."""
    return math.exp(min(nats_per_token, 700.0))
