"""Records inside a run's config.json: corpus, base, memories, import, task, rows.

Each has `from_json`, which raises a ValueError about the first invalid field, and `to_json`, which
gives the keys in the order of the file. Fields of later versions are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from lmlab.core.system_origin import SystemOrigin, parse_origin
from lmlab.core.untrusted_input import check_type, parse_dataclass
from lmlab.core.vocabulary import Vocabulary

RecordT = TypeVar("RecordT")


def parse_known_fields(kind: type[RecordT], values: object) -> RecordT:
    """A dataclass from its known fields; those of other versions are ignored."""
    return parse_dataclass(kind, _known_fields(kind, values))


def _known_fields(kind: Any, values: object) -> dict[str, Any]:
    names = {spec.name for spec in fields(kind)}
    return {key: value for key, value in _checked_object(values).items() if key in names}


def _checked_object(values: object) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object, got {type(values).__name__}")
    return values


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that have a value: a record writes no others."""
    return {key: value for key, value in values.items() if value is not None}


def parse_vocabulary(values: object) -> Vocabulary:
    """A vocabulary whose special tokens are ids of it."""
    vocabulary = parse_dataclass(Vocabulary, values)
    if vocabulary.size < 1:
        raise ValueError(f"size must be 1 or more, got {vocabulary.size}")
    for name, token in asdict(vocabulary).items():
        if name != "size" and token is not None and not 0 <= token < vocabulary.size:
            raise ValueError(f"{name} must be an id below {vocabulary.size}, got {token}")
    if vocabulary.start is None and vocabulary.end is None:
        raise ValueError("it has neither a start nor an end token")
    return vocabulary


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """What a run was trained on."""

    name: str
    spec: str
    """The corpus as named by the user; empty if unknown (imported models)."""
    fingerprint: str
    """Content hash; empty if unknown."""
    seed: int
    """Random seed for splitting a corpus without splits."""
    errors: str | None = None
    """Handling of undecodable bytes; None where no text was read."""

    @property
    def decode_errors(self) -> str:
        """Handling of undecodable bytes, which defaults to strict."""
        return self.errors or "strict"

    @classmethod
    def from_json(cls, values: object) -> Self:
        known = _known_fields(cls, values)
        if "errors" in known:
            check_type("errors", known["errors"], str)
        return parse_dataclass(cls, known)

    def to_json(self) -> dict[str, Any]:
        return without_none(asdict(self))


def unknown_corpus(name: str = "") -> CorpusRecord:
    """The corpus of a model that was not trained here: neither its text nor its hash is known."""
    return CorpusRecord(name=name, spec="", fingerprint="", seed=0)


BASE_ROLES = ("base", "encoder", "continued_from", "teacher", "predecessor")
"""Other runs that a run's weights come from."""


@dataclass(frozen=True, kw_only=True)
class BaseRecord:
    """A run that another is built on (`--base`), starts from (`--encoder`), continues (`--base` of
    its own system) or learns from (`--teacher`, `--predecessor`); enough to rebuild its system."""

    path: str
    """Its folder, as named by the user."""
    system: str
    size: str
    system_config: Mapping[str, Any]
    corpus: CorpusRecord
    base: BaseRecord | None = None
    """Its own base."""
    encoder: BaseRecord | None = None
    """The run that its encoder was initialised from."""
    continued_from: BaseRecord | None = None
    """The run of the same system that it continued itself."""
    components: tuple[BaseRecord, ...] = ()
    """The runs that it is made of itself, if it is a mixture."""
    teacher: BaseRecord | None = None
    """The run that it was distilled from."""
    predecessor: BaseRecord | None = None
    """The run of more layers whose modules it replaced."""
    source_vocabulary: Vocabulary | None = None
    plugin: SystemOrigin | None = None
    """Where its system comes from, if it is not lmlab's own."""
    imported: str | None = None
    """The checkpoint that it was imported from."""
    finetuned: str | None = None
    """The task and the rows that it was fine-tuned on."""
    weights: str
    """SHA-256 of its weights."""

    def history(self) -> str:
        """Its system and what it was trained on, the earliest first."""
        texts = [f"imported from {self.imported}"] if self.imported else []
        texts += [f"trained on {self.corpus.spec}"] if self.corpus.spec else []
        if self.predecessor is not None:
            texts += [f"compressed from {self.predecessor.path}"]
        texts += [f"taught by {self.teacher.path}"] if self.teacher is not None else []
        texts += [f"fine-tuned to {self.finetuned}"] if self.finetuned else []
        own = " and ".join(texts) or "trained on an unknown text"
        if self.continued_from is None:
            return f"{self.system}, {own}"
        return f"{self.continued_from.history()}, then {own}"

    @classmethod
    def from_json(cls, values: object) -> Self:
        values = _checked_object(values)
        check_type("system", values.get("system"), str)
        check_type("system_config", values.get("system_config"), dict[str, Any])
        for name in ("path", "size", "weights"):
            check_type(name, values.get(name), str)
        source = values.get("source_vocabulary")
        for name in ("imported", "finetuned"):
            check_type(name, values.get(name), str | None)
        others = {
            name: None if values.get(name) is None else BaseRecord.from_json(values[name])
            for name in BASE_ROLES
        }
        return cls(
            path=values["path"],
            system=values["system"],
            size=values["size"],
            system_config=values["system_config"],
            corpus=CorpusRecord.from_json(values.get("corpus")),
            **others,
            components=parse_components(values.get("components")),
            source_vocabulary=None if source is None else parse_vocabulary(source),
            plugin=parse_origin(values.get("plugin")),
            imported=values.get("imported"),
            finetuned=values.get("finetuned"),
            weights=values["weights"],
        )

    def to_json(self) -> dict[str, Any]:
        source = self.source_vocabulary
        others = {name: getattr(self, name) for name in BASE_ROLES}
        return without_none(
            {
                "path": self.path,
                "system": self.system,
                "size": self.size,
                "system_config": dict(self.system_config),
                "corpus": self.corpus.to_json(),
                **{k: None if other is None else other.to_json() for k, other in others.items()},
                "components": components_json(self.components),
                "source_vocabulary": None if source is None else asdict(source),
                "plugin": None if self.plugin is None else asdict(self.plugin),
                "imported": self.imported,
                "finetuned": self.finetuned,
                "weights": self.weights,
            }
        )


def parse_components(values: object) -> tuple[BaseRecord, ...]:
    """The components of a mixture from JSON; none where it has none."""
    check_type("components", values, list[dict[str, Any]] | None)
    assert values is None or isinstance(values, list)
    return tuple(BaseRecord.from_json(value) for value in values or ())


def components_json(components: tuple[BaseRecord, ...]) -> list[dict[str, Any]] | None:
    """The components of a mixture for JSON; None where it has none."""
    return [component.to_json() for component in components] or None


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """The text on which the weights of a mixture were tuned."""

    data: str
    """As named by the user."""
    split: str
    """Its split; `all` for a file that was not divided."""
    fingerprint: str
    """Content hash."""
    tokens: int
    nats_per_token: float
    """The loss of the mixture on it, which is lower than on unseen text."""


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """Documents or a knowledge base of a run."""

    spec: str = ""
    """Their source as named by the user; empty for the system's default."""
    fingerprint: str
    """Content hash."""

    @classmethod
    def from_json(cls, name: str, values: object) -> Self:
        """The record of the memory of that name."""
        if name not in ("documents", "knowledge") or not isinstance(values, dict):
            raise ValueError(f"memories.{name} is not known")
        entries = {"spec": values.get("spec", ""), "fingerprint": values.get("fingerprint")}
        for key, value in entries.items():
            check_type(f"memories.{name}.{key}", value, str)
        return cls(**entries)


@dataclass(frozen=True, kw_only=True)
class ImportRecord:
    """Where an imported checkpoint came from."""

    source: str
    """Its folder's name, or its name on the Hub."""
    notes: tuple[str, ...] = ()
    """What was left out."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its own config.json."""
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        hints = {
            "from": str,
            "notes": list[str],
            "config": dict[str, Any],
            "tokenizer_config": dict[str, Any],
        }
        for name, hint in hints.items():
            if name in values:
                check_type(name, values[name], hint)
        return cls(
            source=values.get("from", ""),
            notes=tuple(values.get("notes", ())),
            config=values.get("config", {}),
            tokenizer_config=values.get("tokenizer_config", {}),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "notes": list(self.notes),
            "config": dict(self.config),
            "tokenizer_config": dict(self.tokenizer_config),
        }


@dataclass(frozen=True, kw_only=True)
class WrapperRecord:
    """A torch module that is used in memory (`lmlab.wrap`)."""

    module: str
    """The name of its class."""
    kind: str
    pads: bool
    """Whether the module takes an attention mask, so that texts can be padded."""
    notes: tuple[str, ...] = ()
    """Irregularities of the module."""


@dataclass(frozen=True, kw_only=True)
class RowsRecord:
    """How the rows of a fine-tuning were read."""

    seed: int
    """The seed by which they were split."""
    errors: str = "strict"
    """Handling of undecodable bytes."""


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """The task that a run was fine-tuned to."""

    name: str
    labels: tuple[str, ...] = ()
    head: bool = True
    """Whether it has a head, so that the run is no longer a language model."""
    frozen: bool = False
    """Whether only the head was trained."""
    data: str = ""
    """The rows, as named by the user."""
    run: str = ""
    """The run that was fine-tuned."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the task itself records: its settings, the strategy for long texts."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = _known_fields(cls, values)
        known.pop("details", None)  # those are the other keys
        details = {key: value for key, value in values.items() if key not in known}
        task = parse_dataclass(cls, known)
        return cls(**{**vars(task), "labels": tuple(task.labels), "details": details})

    def to_json(self) -> dict[str, Any]:
        own = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        del own["details"]
        return {**own, "labels": list(self.labels), **self.details}
