"""Validation of a run's config.json, field by field; memory guard for building stored models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.memory_budget import memory_budget
from lmlab.core.untrusted_input import check_type, parse_dataclass
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Layout
from lmlab.training.config import TrainingConfig

MAX_WIDENING = 4
"""Maximum bytes in memory per byte of stored weights: 8-bit numbers become 32-bit ones."""
OVERHEAD = 256 << 20
"""Bytes of a model in addition to its stored weights: masks, position tables."""
OVERHEAD_TENSORS = 1000
"""Parameters of a model in addition to its stored ones."""
UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What building a model from an invalid config raises."""


@dataclass(frozen=True, kw_only=True)
class _Corpus:
    name: str
    spec: str
    fingerprint: str
    seed: int
    errors: str = "strict"


@dataclass(frozen=True, kw_only=True)
class _Task:
    name: str
    labels: list[str] = ()  # type: ignore[assignment]
    head: bool = True
    frozen: bool = False


def check_run_config(config: Mapping[str, Any]) -> None:
    """A ValueError (or UserError) that names the first invalid field of a config.json."""
    hints: dict[str, Any] = {
        "system": str,
        "size": str | None,
        "recipe": str | None,
        "seed": int,
        "tokenizer": str,
        "tokenizer_fingerprint": str,
        "source_tokenizer": str,
        "system_config": dict[str, Any],
        "memories": dict[str, Any],
        "imported": dict[str, Any],
        "rows": dict[str, Any],
        "task": dict[str, Any],
        "base": dict[str, Any] | None,
    }
    for name, hint in hints.items():
        if name in config:
            check_type(name, config[name], hint)
    for name in ("vocabulary", "source_vocabulary"):
        if name in config:
            _check(name, lambda name=name: _check_vocabulary(config[name]))
    _check("layout", lambda: parse_dataclass(Layout, config["layout"]))
    _check("corpus", lambda: parse_dataclass(_Corpus, _known_fields(_Corpus, config["corpus"])))
    _check(
        "training",
        lambda: parse_dataclass(TrainingConfig, _known_fields(TrainingConfig, config["training"])),
    )
    if "task" in config:
        _check("task", lambda: parse_dataclass(_Task, _known_fields(_Task, config["task"])))
    for name, memory in config.get("memories", {}).items():
        if name not in ("documents", "knowledge") or not isinstance(memory, dict):
            raise ValueError(f"memories.{name} is not known")
        check_type(f"memories.{name}.fingerprint", memory.get("fingerprint"), str)
    if config.get("base") is not None:
        _check("base", lambda: _check_base(config["base"]))


def _check(name: str, check: Any) -> None:
    """Run a check, and prefix its error with the part of the file."""
    try:
        check()
    except (ValueError, UserError) as error:
        raise ValueError(f"{name}: {str(error).rstrip('.')}") from None


def _known_fields(dataclass_type: Any, values: Any) -> Any:
    """Only the known fields of a record: those of other versions are ignored."""
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object, got {type(values).__name__}")
    names = {spec.name for spec in fields(dataclass_type)}
    return {key: value for key, value in values.items() if key in names}


def _check_base(base: Mapping[str, Any]) -> None:
    check_type("system", base.get("system"), str)
    check_type("system_config", base.get("system_config"), dict[str, Any])
    if base.get("source_vocabulary") is not None:
        _check_vocabulary(base["source_vocabulary"])
    if base.get("base") is not None:
        check_type("base", base["base"], dict[str, Any])
        _check_base(base["base"])


def _check_vocabulary(values: Any) -> Vocabulary:
    vocabulary = parse_dataclass(Vocabulary, values)
    if vocabulary.size < 1:
        raise ValueError(f"size must be 1 or more, got {vocabulary.size}")
    for name, token in asdict(vocabulary).items():
        if name != "size" and token is not None and not 0 <= token < vocabulary.size:
            raise ValueError(f"{name} must be an id below {vocabulary.size}, got {token}")
    if vocabulary.start is None and vocabulary.end is None:
        raise ValueError("it has neither a start nor an end token")
    return vocabulary


@contextmanager
def stored_model_guard(folder: Path, weights: Path | int) -> Iterator[None]:
    """Guard for building a stored model: memory bounded by its weights, one-sentence errors.

    `weights` is the file of its weights, or their size in bytes. Any failure here is due to the
    files, which are not trusted.
    """
    config = folder / "config.json"
    if isinstance(weights, Path):
        weights = weights.stat().st_size if weights.is_file() else 0
    try:
        budget = MAX_WIDENING * weights + OVERHEAD
        # A parameter has 2 bytes or more, and most have hundreds.
        max_tensors = weights // 2 + OVERHEAD_TENSORS
        with memory_budget(f"the model that {config} describes", budget, tensors=max_tensors):
            yield
    except UserError:
        raise
    except UNBUILDABLE as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(
            f"{config} describes no model that can be built ({reason[:200]}); restore it, or make "
            "the model again."
        ) from error
