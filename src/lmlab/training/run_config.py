"""Contents of a run's config.json, as one typed record, read and written here alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self, TypeVar

from lmlab.core.errors import UserError
from lmlab.core.system_origin import SystemOrigin, parse_origin
from lmlab.core.untrusted_input import check_type, parse_dataclass
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.training.config import TrainingConfig
from lmlab.training.run_records import (
    BASE_ROLES,
    BaseRecord,
    CorpusRecord,
    ImportRecord,
    MemoryRecord,
    RowsRecord,
    TaskRecord,
    TuningRecord,
    WrapperRecord,
    components_json,
    parse_components,
    parse_known_fields,
    parse_vocabulary,
)

T = TypeVar("T")

RUN_FORMAT = 1
"""Version of the folder format; a larger one was written by a later lmlab."""
REQUIRED_FIELDS = (
    "system",
    "size",
    "recipe",
    "system_config",
    "vocabulary",
    "tokenizer",
    "layout",
    "corpus",
    "training",
)
"""Fields that every config.json has."""
PLAIN_FIELDS: Mapping[str, Any] = {
    "system": str,
    "size": str,
    "recipe": str | None,
    "seed": int,
    "tokenizer": str,
    "tokenizer_fingerprint": str,
    "source_tokenizer": str,
    "system_config": dict[str, Any],
}
"""Fields that are no records, with their types."""
OBJECTS = ("memories", "imported", "rows", "task", "plugin")
"""Optional fields that are JSON objects."""


class IncompleteConfig(ValueError):
    """A config.json without all fields, so not that of a run."""


def lmlab_version() -> str:
    """The version of the installed package."""
    try:
        return version("lmlab")
    except PackageNotFoundError:
        return "0+source"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run is: enough to rebuild its system, and to repeat its training."""

    system: str
    size: str
    recipe: str | None = None
    seed: int = 0
    system_config: Mapping[str, Any]
    """The fields of the system's own `Config`; lists where that has tuples, once read."""
    vocabulary: Vocabulary
    """The system's; for contiguous text not quite the tokenizer's."""
    tokenizer: str
    """Kind of the tokenizer: word, char, bpe …"""
    tokenizer_fingerprint: str | None = None
    layout: Layout
    corpus: CorpusRecord
    training: TrainingConfig
    source_vocabulary: Vocabulary | None = None
    """That of the source tokenizer, where it is a different one."""
    source_tokenizer: str | None = None
    """Kind of the source tokenizer."""
    base: BaseRecord | None = None
    encoder: BaseRecord | None = None
    continued_from: BaseRecord | None = None
    """The run of the same system whose training it continues."""
    components: tuple[BaseRecord, ...] = ()
    """The runs that a mixture is made of; their weights are among its own."""
    tuning: TuningRecord | None = None
    """The text on which the weights of a mixture were tuned, if they were."""
    teacher: BaseRecord | None = None
    """The run that it is distilled from."""
    predecessor: BaseRecord | None = None
    """The run of the same system and more layers whose modules it replaces."""
    memories: Mapping[str, MemoryRecord] = field(default_factory=dict)
    """Documents and knowledge base, by these names."""
    imported: ImportRecord | None = None
    wrapped: WrapperRecord | None = None
    """In memory only: a wrapped module has no folder."""
    plugin: SystemOrigin | None = None
    """Where the system comes from, if it is not lmlab's own."""
    task: TaskRecord | None = None
    rows: RowsRecord | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of later versions, which are kept."""
    lmlab: str = field(default_factory=lmlab_version)
    """The version that wrote it."""

    @property
    def loss_is_comparable(self) -> bool:
        """Whether the training losses are the system's own, without a teacher or a predecessor."""
        return self.teacher is None and self.predecessor is None

    @property
    def task_head(self) -> bool:
        """Whether it was fine-tuned with a task head, so that it is no longer a language model."""
        return self.task is not None and self.task.head

    @property
    def tuned_to_generate(self) -> bool:
        """Whether it was fine-tuned without a head, and so is a language model still."""
        return self.task is not None and not self.task.head

    def base_of_role(self, role: str) -> BaseRecord | None:
        """The run of one of BASE_ROLES."""
        assert role in BASE_ROLES, role
        record: BaseRecord | None = getattr(self, role)
        return record

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Parse config.json; a ValueError names the first invalid field."""
        if missing := [name for name in REQUIRED_FIELDS if name not in values]:
            raise IncompleteConfig(f"it lacks {', '.join(missing)}")
        for name, hint in PLAIN_FIELDS.items():
            if name in values:
                check_type(name, values[name], hint)
        for name in OBJECTS:
            if name in values:
                check_type(name, values[name], dict[str, Any])
        for name in BASE_ROLES:
            if name in values:
                check_type(name, values[name], dict[str, Any] | None)
        optional: dict[str, Callable[[Any], Any]] = {
            "source_vocabulary": parse_vocabulary,
            **dict.fromkeys(BASE_ROLES, BaseRecord.from_json),
            "components": parse_components,
            "tuning": lambda tuning: parse_known_fields(TuningRecord, tuning),
            "imported": ImportRecord.from_json,
            "plugin": parse_origin,
            "task": TaskRecord.from_json,
            "rows": lambda rows: parse_known_fields(RowsRecord, rows),
        }
        parsed: dict[str, Any] = {
            "vocabulary": _parse("vocabulary", values, parse_vocabulary),
            "layout": _parse("layout", values, lambda layout: parse_dataclass(Layout, layout)),
            "corpus": _parse("corpus", values, CorpusRecord.from_json),
            "training": _parse(
                "training", values, lambda training: parse_known_fields(TrainingConfig, training)
            ),
            "memories": {
                name: MemoryRecord.from_json(name, memory)
                for name, memory in values.get("memories", {}).items()
            },
        }
        parsed |= {
            name: _parse(name, values, parse)
            for name, parse in optional.items()
            if values.get(name) is not None
        }
        plain = {name: values[name] for name in PLAIN_FIELDS if name in values}
        handled = {"format", "lmlab", *plain, *parsed, *optional}
        return cls(
            **plain,
            **parsed,
            lmlab=str(values.get("lmlab", "?")),
            unknown={key: value for key, value in values.items() if key not in handled},
        )

    def to_json(self) -> dict[str, Any]:
        """The contents of config.json, in the order of the file."""
        source, rows = self.source_vocabulary, self.rows
        entries = {
            "format": RUN_FORMAT,
            "lmlab": self.lmlab,
            "source_vocabulary": None if source is None else asdict(source),
            "source_tokenizer": self.source_tokenizer,
            "system": self.system,
            "size": self.size,
            "recipe": self.recipe,
            "seed": self.seed,
            "system_config": dict(self.system_config),
            "vocabulary": asdict(self.vocabulary),
            "tokenizer": self.tokenizer,
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "layout": asdict(self.layout),
            "corpus": self.corpus.to_json(),
            "training": asdict(self.training),
            **{
                role: None if (record := self.base_of_role(role)) is None else record.to_json()
                for role in BASE_ROLES
            },
            "components": components_json(self.components),
            "tuning": None if self.tuning is None else asdict(self.tuning),
            "memories": {k: asdict(memory) for k, memory in self.memories.items()} or None,
            "imported": None if self.imported is None else self.imported.to_json(),
            "wrapped": None if self.wrapped is None else asdict(self.wrapped),
            "plugin": None if self.plugin is None else asdict(self.plugin),
            "task": None if self.task is None else self.task.to_json(),
            "rows": None if rows is None else asdict(rows),
        }
        # A recipe is written even where there is none.
        return {k: v for k, v in entries.items() if v is not None or k == "recipe"} | dict(
            self.unknown
        )


def _parse(name: str, values: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
    """Parse one part of the file, whose name prefixes its errors."""
    try:
        return parse(values[name])
    except RecursionError:
        raise ValueError(f"{name}: it is nested too deeply") from None
    except (ValueError, UserError) as error:
        raise ValueError(f"{name}: {str(error).rstrip('.')}") from None
