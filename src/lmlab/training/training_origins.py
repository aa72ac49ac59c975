"""The runs that a training starts from: one that it continues, a base, an encoder, a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.training.base_models import BaseModel, resolve_base
from lmlab.training.compression_config import OPTION_SETTINGS
from lmlab.training.config import TrainingConfig
from lmlab.training.continued_training import ContinuedRun, check_continued, resolve_continued
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder
from lmlab.training.run_records import BaseRecord
from lmlab.training.train_options import TrainOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingOrigins:
    """What `--base`, `--encoder`, `--teacher` and `--predecessor` name, or the resumed run
    records."""

    continued: ContinuedRun | None
    base: BaseModel | None
    """For a continued run, the base that it was built on."""
    encoder: BaseModel | None
    teacher: BaseModel | None = None
    predecessor: BaseModel | None = None

    @property
    def models(self) -> list[BaseModel]:
        """All but the continued run."""
        models = (self.base, self.encoder, self.teacher, self.predecessor)
        return [model for model in models if model is not None]

    @property
    def settings_models(self) -> list[BaseModel]:
        """Those whose settings are the defaults of the system's."""
        models = (self.base, self.encoder, self.predecessor)
        return [model for model in models if model is not None]

    @property
    def tokenizer_model(self) -> BaseModel | None:
        """The one whose tokenizers the new run takes over, unless it continues another run."""
        return self.base or self.teacher or self.predecessor

    @property
    def continued_record(self) -> BaseRecord | None:
        """The entry of the continued run in config.json."""
        return None if self.continued is None else self.continued.description

    def check_option_settings(self, config: TrainingConfig) -> None:
        """A UserError for a setting that only an option reads, where it is not given."""
        given = {"teacher": self.teacher, "predecessor": self.predecessor}
        defaults = TrainingConfig()
        for option, names in OPTION_SETTINGS.items():
            for name in sorted(names) if given[option] is None else ():
                value = getattr(config, name)
                value = tuple(value) if isinstance(value, list) else value  # lists come from JSON
                if value != getattr(defaults, name):
                    raise UserError(f"--set {name} applies only with --{option} RUN; remove it.")

    @property
    def size(self) -> str | None:
        """The size of the predecessor, from whose settings those of the new run start."""
        return None if self.predecessor is None else self.predecessor.description.size

    def record(self, role: str) -> BaseRecord | None:
        """The entry in config.json of the one in a role."""
        found = [model.description for model in self.models if model.role == role]
        return found[0] if found else None

    def sentences(self) -> list[str]:
        """What each is to the new run, for the first lines of the output."""
        if self.continued is not None:
            teacher = [] if self.teacher is None else [self.teacher.sentence()]
            return [self.continued.sentence(), *teacher]
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
    teacher = resolve_base(card, "teacher", options.teacher, resumed, run)
    predecessor = resolve_base(card, "predecessor", options.predecessor, resumed, run)
    if predecessor is not None:
        _check_predecessor(card, predecessor, options, resumed)
    if continued is None:
        base = resolve_base(card, "base", options.base, resumed, run)
        encoder = resolve_base(card, "encoder", options.encoder, resumed, run)
        return TrainingOrigins(
            continued=None, base=base, encoder=encoder, teacher=teacher, predecessor=predecessor
        )
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
    return TrainingOrigins(continued=continued, base=continued.base, encoder=None, teacher=teacher)


def _check_predecessor(
    card: Card, predecessor: BaseModel, options: TrainOptions, resumed: RunConfig | None
) -> None:
    """A UserError for a run of another system, and for options that a predecessor decides."""
    name = predecessor.description.path
    if predecessor.description.system != card.name:
        raise UserError(
            f"the predecessor {name} is a run of {predecessor.description.system}, and its layers "
            f"can only be replaced by those of {predecessor.description.system}; train that."
        )
    decided = {"teacher": options.teacher, "encoder": options.encoder, "base": options.base}
    decided |= {"size": options.size if resumed is None else None}
    if refused := [option for option, value in decided.items() if value is not None]:
        raise UserError(
            f"--{refused[0]} does not apply with --predecessor, from which weights and settings "
            "are taken; remove it."
        )
