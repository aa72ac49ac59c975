"""The runs that a training starts from: one that it continues, or a base and an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.training.base_models import BaseModel, resolve_base
from lmlab.training.continued_training import ContinuedRun, check_continued, resolve_continued
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder
from lmlab.training.run_records import BaseRecord
from lmlab.training.train_options import TrainOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingOrigins:
    """What `--base` and `--encoder` name, or the resumed run records."""

    continued: ContinuedRun | None
    base: BaseModel | None
    """For a continued run, the base that it was built on."""
    encoder: BaseModel | None

    @property
    def models(self) -> list[BaseModel]:
        """The models that the system is built with."""
        return [model for model in (self.base, self.encoder) if model is not None]

    @property
    def continued_record(self) -> BaseRecord | None:
        """The entry of the continued run in config.json."""
        return None if self.continued is None else self.continued.description

    def sentences(self) -> list[str]:
        """What each is to the new run, for the first lines of the output."""
        if self.continued is not None:
            return [self.continued.sentence()]
        return [model.sentence() for model in self.models]


def resolve_origins(
    card: Card,
    options: TrainOptions,
    settings: Mapping[str, object],
    resumed: RunConfig | None,
    run: RunFolder,
) -> TrainingOrigins:
    """The origins of a training; a UserError where options contradict them."""
    continued = resolve_continued(card, options.base, resumed, run)
    if continued is None:
        base = resolve_base(card, "base", options.base, resumed, run)
        encoder = resolve_base(card, "encoder", options.encoder, resumed, run)
        return TrainingOrigins(continued=None, base=base, encoder=encoder)
    check_continued(
        continued,
        settings,
        size=options.size if resumed is None else None,
        tokenizer=options.tokenizer,
        source_tokenizer=options.source_tokenizer,
        encoder=options.encoder,
        documents=options.documents,
        knowledge=options.knowledge,
    )
    return TrainingOrigins(continued=continued, base=continued.base, encoder=None)
