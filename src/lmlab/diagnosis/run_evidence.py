"""Evidence for a run's diagnosis, loaded lazily: files, model, corpus, losses of healthy runs.

A check takes a `RunEvidence` and uses what it needs. What is unavailable (a moved corpus, weights
that were never saved) raises `MissingEvidence`, and the check is reported as skipped with the
reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.registry import find_system
from lmlab.core.score import NORMALISED_KINDS
from lmlab.core.system import NATS_PER_TOKEN, System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import LengthBatches, StreamBatches
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.data.tokenizers import Tokenizer
from lmlab.diagnosis.causality import CausalityReport
from lmlab.diagnosis.causality_probe import examine_causality
from lmlab.diagnosis.findings import (
    Baseline,
    ReferenceBand,
    TrainingHistory,
    ValidationPoint,
    parse_training_history,
)
from lmlab.diagnosis.measurements import compute_baselines
from lmlab.inspection.gradient_flow import (
    GradientByDistance,
    ParameterGradient,
    measure_gradient_by_distance,
    measure_parameter_gradients,
)
from lmlab.interop.load_model import load_model
from lmlab.training.config import TrainingConfig
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel
from lmlab.training.training_logs import read_metrics

ANY_FAMILY = "any"
"""The band of all families, for a family without its own."""
REFERENCE_FILE = "reference_bands.json"


def find_reference_band(config: RunConfig, family: str) -> ReferenceBand | None:
    """The reference band for a run with this config.json; None if there is none.

    The corpus must be built in and tokenised as in the reference runs.
    """
    corpus = read_reference_bands().get(config.corpus.spec)
    if corpus is None or corpus["tokenizer"] != config.tokenizer:
        return None
    if corpus["vocabulary"] != config.vocabulary.size:
        return None
    chosen = family if family in corpus["families"] else ANY_FAMILY
    entry = corpus["families"].get(chosen)
    if entry is None:
        return None
    return ReferenceBand(
        corpus=config.corpus.spec,
        family=chosen,
        systems=tuple(entry["systems"]),
        points=tuple((float(t), float(low), float(high)) for t, low, high in entry["points"]),
    )


@cache
def read_reference_bands() -> dict[str, Any]:
    """The bands by corpus."""
    file = resources.files("lmlab.data") / REFERENCE_FILE
    if not file.is_file():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8"))["corpora"])


SAMPLE_TOKENS = 3000
"""Held-out tokens to run the model on: a second or two for a small one."""
SAMPLE_BATCH = 512
SAMPLE_STREAMS, SAMPLE_BPTT = 8, 64
"""Rows and tokens of a batch of contiguous text in the sample."""


class MissingEvidence(Exception):
    """A check's input is unavailable; the message says what, as half a sentence."""


class NotApplicable(Exception):
    """The check does not apply to this system or corpus."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedSplits:
    """A corpus as split and tokenised by the run."""

    corpus: Corpus
    train: TokenDataset
    held_out: TokenDataset | None
    split: str | None
    """validation or test, as monitored in training; None if nothing is held out."""


class RunEvidence:
    """A run and everything derived from it, lazily."""

    def __init__(
        self, run: Path | str, *, data: str | Path | Corpus | None = None, text: str | None = None
    ) -> None:
        self.folder = RunFolder(Path(run))
        self.config = self.folder.read_config()
        self.folder.verify()
        self.card: Card = find_system(self.config.system)
        self._data = data
        self._text = text

    @property
    def settings(self) -> TrainingConfig:
        """Training settings."""
        return self.config.training

    @property
    def normalised(self) -> bool:
        """Whether the losses are normalised log-probabilities, so that baselines apply.

        The validation metric of a noise-contrastive loss is none.
        """
        return self.card.kind in NORMALISED_KINDS and self.unit == NATS_PER_TOKEN

    @property
    def unit(self) -> str:
        """Unit of the losses, as far as known."""
        try:
            return self.system.loss_unit
        except MissingEvidence:
            return NATS_PER_TOKEN

    @property
    def by_gradient(self) -> bool:
        """Whether the run was trained by gradient steps; the system's config may decide."""
        fitting = self.config.system_config.get("fitting", self.card.fitting)
        return bool(fitting == "gradient")

    @cached_property
    def history(self) -> TrainingHistory:
        """The training history."""
        history = parse_training_history(read_metrics(self.folder.metrics))
        if not history.train and not history.held_out:
            raise MissingEvidence("its metrics.jsonl has no training step")
        return history

    @property
    def best_validation(self) -> ValidationPoint:
        """The evaluation with the lowest held-out loss."""
        if self.history.best is None:
            raise MissingEvidence("there was no validation during training")
        return self.history.best

    @cached_property
    def model(self) -> TrainedModel:
        """The trained model."""
        try:
            return load_model(self.folder.path)
        except UserError as error:
            raise MissingEvidence(str(error).rstrip(".")) from error

    @property
    def system(self) -> System:
        return self.model.system

    @cached_property
    def causality(self) -> CausalityReport:
        """What each prediction depends on."""
        try:
            return examine_causality(self.model, text=self._text)
        except UserError as error:
            raise NotApplicable(str(error).rstrip(".")) from error

    @property
    def losses_comparable(self) -> bool:
        """Whether training and held-out losses are of the same kind, as far as known."""
        try:
            return self.system.loss_is_comparable and self.model.config.loss_is_comparable
        except MissingEvidence:
            return True

    @cached_property
    def texts(self) -> TokenizedSplits:
        """The training corpus, tokenised as in training."""
        corpus = self._corpus()
        try:
            tokenizer = Tokenizer.load(self.folder.tokenizer)
            layout = self.config.layout
            split = next((name for name in ("validation", "test") if name in corpus.splits), None)
            built = {
                name: TokenDataset.build(corpus.splits[name], tokenizer, layout, progress=False)
                for name in ("train", split)
                if name is not None
            }
        except UserError as error:
            raise MissingEvidence(str(error).rstrip(".")) from error
        held_out = None if split is None else built[split]
        return TokenizedSplits(corpus=corpus, train=built["train"], held_out=held_out, split=split)

    def _corpus(self) -> Corpus:
        if isinstance(self._data, Corpus):
            return self._data
        trained_on = self.config.corpus
        spec = trained_on.spec if self._data is None else str(self._data)
        if not spec:
            raise MissingEvidence(
                "the model comes from elsewhere and its training corpus is unknown"
            )
        # Another spec is another location, not another split: the run's seed stays.
        try:
            corpus = open_corpus(spec, errors=trained_on.decode_errors, seed=trained_on.seed)
        except UserError as error:
            if self._data is not None:
                raise
            reason = str(error).rstrip(".")
            raise MissingEvidence(
                f"its corpus can't be read ({reason}); --data says where it is"
            ) from error
        if self._data is None and corpus.fingerprint() != trained_on.fingerprint:
            raise MissingEvidence(
                f"{spec} has changed since; --data says where what it was trained on is"
            )
        return corpus

    @cached_property
    def sample(self) -> list[Batch]:
        """Some held-out text (train if nothing is held out), in batches."""
        texts = self.texts
        dataset = texts.train if texts.held_out is None else texts.held_out
        source: LengthBatches | StreamBatches
        if dataset.layout.kind == "contiguous":
            source = StreamBatches(dataset, batch_size=SAMPLE_STREAMS, bptt=SAMPLE_BPTT)
        else:
            source = LengthBatches(dataset, tokens_per_batch=SAMPLE_BATCH, seed=0)
        batches: list[Batch] = []
        tokens = 0
        for batch in source.epoch(0):
            batches.append(replace(batch, continues_previous=False))
            tokens += batch.count
            if tokens >= SAMPLE_TOKENS:
                break
        return batches

    @cached_property
    def validation_batches(self) -> list[Batch]:
        """All of the split monitored in training (train if nothing is held out)."""
        texts = self.texts
        dataset = texts.train if texts.held_out is None else texts.held_out
        if dataset.layout.kind == "contiguous":
            return list(StreamBatches(dataset, batch_size=1, bptt=4096).epoch(0))
        return list(LengthBatches(dataset, tokens_per_batch=8192, shuffle=False).epoch(0))

    @property
    def vocabulary(self) -> Vocabulary:
        return self.config.vocabulary

    @cached_property
    def levels(self) -> dict[str, Baseline]:
        """Baseline losses, by name."""
        if not self.normalised:
            raise NotApplicable("its losses are not those of a distribution over texts")
        texts = self.texts
        dataset = texts.train if texts.held_out is None else texts.held_out
        split = texts.split or "train"
        baselines = compute_baselines(
            texts.corpus, split, texts.train, dataset, self.validation_batches, self.vocabulary
        )
        return {level.name: level for level in baselines}

    @cached_property
    def reference_band(self) -> ReferenceBand | None:
        """Reference band of healthy runs, for built-in corpora."""
        return find_reference_band(self.config, self.card.family) if self.normalised else None

    @cached_property
    def captures(self) -> dict[str, Tensor]:
        """Captures of the model rather than of single sentences: means over the sample.

        By name; sequence and position axes are averaged out.
        """
        sums: dict[str, Tensor] = {}
        weight = 0.0
        with evaluation_mode(self.system), torch.random.fork_rng():
            torch.manual_seed(0)
            for batch in self.sample:
                weight += len(batch)
                for name, capture in self.system.capture_internals(batch).items():
                    mean_axes = [i for i, a in enumerate(capture.axes) if a in ("batch", "time")]
                    values = capture.values.double().cpu()
                    mean = values.mean(dim=mean_axes) if mean_axes else values
                    if name not in sums:
                        sums[name] = torch.zeros_like(mean)
                    if sums[name].shape == mean.shape:
                        sums[name] += mean * len(batch)
        return {name: total / max(weight, 1.0) for name, total in sums.items()}

    @cached_property
    def distance_gradients(self) -> GradientByDistance:
        """Gradient norm by distance back in time."""
        try:
            return measure_gradient_by_distance(self.system, self.sample)
        except UserError as error:
            raise NotApplicable(str(error).rstrip(".")) from error

    @cached_property
    def parameter_gradients(self) -> dict[str, ParameterGradient]:
        """Gradient of each parameter tensor."""
        if not self.by_gradient:
            raise NotApplicable("it was not trained by gradient descent")
        return measure_parameter_gradients(self.system, self.sample)
