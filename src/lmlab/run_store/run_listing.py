"""`RunListing`: runs below a folder, filtered and sorted, and the settings in which they differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.html import Html, join_html, plain_table
from lmlab.core.notebook import NotebookRecord, more_html
from lmlab.core.setting_differences import differing_names
from lmlab.run_store.find_runs import find_runs
from lmlab.run_store.read_run import read_run
from lmlab.run_store.run_cells import cell
from lmlab.run_store.run_filter import parse_condition, text_of
from lmlab.run_store.run_index import RunIndex
from lmlab.run_store.run_record import RECORD_FIELDS, RunRecord

DEFAULT_COLUMNS = ("run", "system", "data", "status", "best", "kind", "disk", "age", "differs")
NUMBERS = ("best", "disk", "age", "seed", "step", "epoch", "seconds", "progress", "seconds_left")
"""Columns that are aligned right and sorted as numbers."""
MAX_SHOWN = 200
"""Runs that a notebook shows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunListing(NotebookRecord, Sequence[RunRecord]):
    """The runs of a listing, in order; a sequence of their records."""

    folder: Path
    records: tuple[RunRecord, ...]
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    now: float = field(default_factory=time.time)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> RunRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RunRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> RunRecord | tuple[RunRecord, ...]:
        return self.records[index]

    @cached_property
    def differing(self) -> Mapping[str, tuple[str, ...]]:
        """By system, the settings that have several values among its runs; seed is one."""
        by_system: dict[str, list[RunRecord]] = {}
        for record in self.records:
            by_system.setdefault(record.system, []).append(record)
        return {system: differing_settings(runs) for system, runs in by_system.items()}

    def value(self, record: RunRecord, key: str) -> Any:
        """The value of a run in a column: a field, a derived one, or a setting."""
        if key in DERIVED:
            return DERIVED[key](self, record)
        if key in record.settings:
            return record.settings[key]
        return getattr(record, key) if key in RECORD_FIELDS else None

    def differences(self, record: RunRecord) -> dict[str, Any]:
        """The settings of a run in which those of its system differ."""
        names = self.differing.get(record.system, ())
        return {name: self.value(record, name) for name in names}

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each run: its fields, and its settings."""
        for record in self.records:
            own = {name: getattr(record, name) for name in RECORD_FIELDS}
            settings = {k: v for k, v in record.settings.items() if k not in own}
            yield {"run": self.value(record, "run"), **own, **settings}

    def html_body(self) -> Html:
        """The table that a terminal shows."""
        rows = [[cell(self, record, name) for name in self.columns] for record in self.records]
        numbers = [name in NUMBERS for name in self.columns]
        table = plain_table(self.columns, rows[:MAX_SHOWN], numbers=numbers)
        hidden = len(rows) - MAX_SHOWN
        return join_html([table, more_html(hidden)]) if hidden > 0 else table

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict: all fields of the runs, and the names of what differs."""
        runs = [
            record.as_dict() | {key: self.value(record, key) for key in ("run", "age", "differs")}
            for record in self.records
        ]
        return {"folder": str(self.folder), "runs": runs}


DERIVED: Mapping[str, Callable[[RunListing, RunRecord], Any]] = {
    "run": lambda listing, record: run_name(record, listing.folder),
    # A file server's clock may be ahead of ours.
    "age": lambda listing, record: max(listing.now - record.changed, 0.0),
    "tag": lambda listing, record: record.tags,
    "kind": lambda listing, record: record.best_kind,
    "differs": RunListing.differences,
}
"""Columns that are no fields of a record, and how they are computed."""


def list_runs(
    folder: Path,
    *,
    sort: str | None = None,
    where: str | None = None,
    columns: Sequence[str] = (),
    index: RunIndex | None = None,
) -> RunListing:
    """The runs at and below a folder that meet a condition, sorted by a key (-KEY: descending)."""
    records = find_runs(folder, index=index)
    listing = RunListing(folder=folder.resolve(), records=tuple(records))
    keys = known_keys(records)
    for column in columns:
        check_key(column, keys)
    if where is not None:
        condition = parse_condition(where, keys)
        listing = RunListing(
            folder=listing.folder,
            records=tuple(r for r in records if condition(partial(listing.value, r))),
            now=listing.now,
        )
    key = (sort or "run").removeprefix("-")
    check_key(key, keys)
    return RunListing(
        folder=listing.folder,
        records=sorted_records(listing, key, descending=(sort or "").startswith("-")),
        columns=tuple(columns) or DEFAULT_COLUMNS,
        now=listing.now,
    )


def known_keys(records: Iterable[RunRecord]) -> frozenset[str]:
    """What a run can be filtered and sorted by: its fields, and the settings of any run."""
    settings = {id(record.settings): record.settings for record in records}
    return frozenset({*RECORD_FIELDS, *DERIVED}.union(*settings.values()))


def check_key(key: str, keys: Iterable[str]) -> None:
    """A UserError with the nearest ones for an unknown key."""
    if key not in set(keys):
        raise unknown_name("key", key, keys)


def sorted_records(listing: RunListing, key: str, *, descending: bool) -> tuple[RunRecord, ...]:
    """Records by a key, numbers before texts; runs without it are last in both directions."""
    values = [(listing.value(record, key), record) for record in listing.records]
    present = [pair for pair in values if pair[0] is not None]
    missing = [record for value, record in values if value is None]
    present.sort(key=lambda pair: _rank(pair[0]), reverse=descending)
    return (*(record for _, record in present), *missing)


def _rank(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, text_of(value))


def differing_settings(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """The settings that have several values among runs that have them, and seed if that differs."""
    seeds = ("seed",) if len({record.seed for record in records}) > 1 else ()
    return (*differing_names(record.settings for record in records), *seeds)


def run_name(record: RunRecord, folder: Path) -> str:
    """The path of a run from the listed folder; its own name if that is the folder."""
    path, root = str(record.path), str(folder)
    return record.path.name if path == root else path.removeprefix(f"{root.rstrip('/')}/")


def open_run_record(path: str | Path) -> RunRecord:
    """The record of one run; a UserError if there is none."""
    folder = Path(path)
    if not folder.exists():
        raise UserError(f"there is no run at {folder}; check the path.")
    record = read_run(folder.resolve())
    if record is None:
        raise UserError(f"{folder} is not a run: it has no config.json of one.")
    return record
