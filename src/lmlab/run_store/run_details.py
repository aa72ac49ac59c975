"""All that is known of a run (`lmlab runs show`), and how several differ (`lmlab runs diff`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lmlab.core.errors import UserError
from lmlab.core.notebook import NotebookRecord
from lmlab.core.untrusted_input import read_json_object
from lmlab.run_store.read_run import read_config
from lmlab.run_store.run_listing import open_run_record
from lmlab.run_store.run_record import RunRecord

Section = Literal["settings", "data", "environment", "figures"]
FIGURES = ("status", "best", "metric", "split", "unit", "kind", "step", "epoch", "seconds")
DATA = ("data", "task", "base", "continued_from", "imported")
MAX_ANCESTORS = 100


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """A run that a run's weights come from, or were learned from."""

    role: str
    """base, encoder, continued_from, teacher, predecessor or component."""
    depth: int
    """1 for its own, 2 for that one's …"""
    path: str
    system: str
    size: str
    data: str
    """What it was trained on; empty if unknown."""
    imported: str | None = None
    finetuned: str | None = None
    weights: str = ""
    """SHA-256 of its weights."""


@dataclass(frozen=True, kw_only=True)
class RunDetails(NotebookRecord):
    """A run with the texts, the environment and the other runs that it comes from."""

    record: RunRecord
    corpus: Mapping[str, Any]
    """The corpus as config.json records it: name, fingerprint, seed of the split."""
    tokenizer: str
    lmlab: str
    """The version that wrote it."""
    ancestors: tuple[Ancestor, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each line of `lmlab runs show`."""
        from lmlab.run_store.run_cells import shown_lines

        return [{"key": name, "value": value} for name, value in shown_lines(self)]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return asdict(self) | {"record": self.record.as_dict()}


@dataclass(frozen=True, kw_only=True)
class DifferingValue:
    """A value in which runs differ."""

    section: Section
    key: str
    values: tuple[Any, ...]
    """One for each run; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class RunDiff(NotebookRecord):
    """How two or more runs differ."""

    runs: tuple[str, ...]
    rows: tuple[DifferingValue, ...]

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each value, with a column for each run."""
        for row in self.rows:
            values = dict(zip(self.runs, row.values, strict=True))
            yield {"section": row.section, "key": row.key, **values}

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return asdict(self)


def run_details(path: str | Path) -> RunDetails:
    """All that is known of a run, without loading its model."""
    record = open_run_record(path)
    config = read_config(record.path) or {}
    corpus = config.get("corpus")
    return RunDetails(
        record=record,
        corpus=corpus if isinstance(corpus, dict) else {},
        tokenizer=str(config.get("tokenizer", "")),
        lmlab=str(config.get("lmlab", "")),
        ancestors=tuple(_ancestors(config, 1)),
        environment=read_environment(record.path),
    )


def _ancestors(config: Mapping[str, Any], depth: int) -> list[Ancestor]:
    """The runs that a config names, each followed by those that it names itself."""
    found: list[Ancestor] = []
    roles = ("continued_from", "base", "encoder", "teacher", "predecessor")
    others = [(role, config.get(role)) for role in roles]
    components = config.get("components")
    others += [("component", o) for o in components] if isinstance(components, list) else []
    for role, other in others:
        if not isinstance(other, dict) or depth > MAX_ANCESTORS:
            continue
        corpus = other.get("corpus")
        found.append(
            Ancestor(
                role=role,
                depth=depth,
                path=str(other.get("path", "")),
                system=str(other.get("system", "")),
                size=str(other.get("size", "")),
                data=str(corpus.get("spec", "")) if isinstance(corpus, dict) else "",
                imported=other.get("imported"),
                finetuned=other.get("finetuned"),
                weights=str(other.get("weights", "")),
            )
        )
        found += _ancestors(other, depth + 1)
    return found


def read_environment(folder: Path) -> dict[str, Any]:
    """The machine and the packages that a run was trained with; empty if not recorded."""
    try:
        environment = read_json_object(folder / "environment.json")
    except (OSError, ValueError, UserError):
        return {}
    packages = environment.pop("packages", None)
    return environment | (packages if isinstance(packages, dict) else {})


def diff_runs(paths: Sequence[str | Path]) -> RunDiff:
    """The settings, data, environment and figures in which runs differ."""
    if len(paths) < 2:
        raise UserError(f"a difference needs two runs or more, got {len(paths)}; name another.")
    details = [run_details(path) for path in paths]
    rows: list[DifferingValue] = []
    for section in ("settings", "data", "environment", "figures"):
        tables = [_values(detail, section) for detail in details]
        for key in dict.fromkeys(name for table in tables for name in table):
            values = tuple(table.get(key) for table in tables)
            if any(value != values[0] for value in values):
                rows.append(DifferingValue(section=section, key=key, values=values))
    return RunDiff(runs=tuple(map(str, paths)), rows=tuple(rows))


def _values(details: RunDetails, section: str) -> dict[str, Any]:
    record = details.record
    if section == "settings":
        own = {name: getattr(record, name) for name in ("system", "size", "recipe", "seed")}
        return {**own, "tokenizer": details.tokenizer, **record.settings}
    if section == "data":
        corpus = {f"corpus {name}": value for name, value in details.corpus.items()}
        return {name: getattr(record, name) for name in DATA} | corpus
    if section == "environment":
        return {"lmlab": details.lmlab, **details.environment}
    return {name: getattr(record, name) for name in FIGURES}
