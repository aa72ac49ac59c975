"""Values of runs as texts: status with progress, times, bytes, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmlab.run_store.run_details import Ancestor, RunDetails
    from lmlab.run_store.run_listing import RunListing
    from lmlab.run_store.run_record import RunRecord


def cell(listing: RunListing, record: RunRecord, column: str) -> str:
    """The text of a run in a column."""
    value = listing.value(record, column)
    if value is None:
        return ""
    if column in FORMATS:
        return str(FORMATS[column](value))
    if column == "status":
        return status_text(record)
    return value_text(value)


def status_text(record: RunRecord) -> str:
    """A status with its progress: `running 42 %, 3 min left`."""
    if record.status == "finished" or record.progress is None:
        return record.status
    left = "" if record.seconds_left is None else f", {duration_text(record.seconds_left)} left"
    return f"{record.status} {record.progress:.0%}{left}"


def value_text(value: Any) -> str:
    """A value on one line: lists with commas, numbers as short as they can be."""
    if isinstance(value, dict):
        return " ".join(f"{name}={value_text(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(value_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def duration_text(seconds: float) -> str:
    """A time in the largest unit of which there are two or more: 95 s, 3 min, 30 h, 4 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def bytes_text(count: float) -> str:
    """A number of bytes: 512 B, 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


FORMATS: Mapping[str, Any] = {
    "best": lambda value: f"{value:.4f}",
    "age": duration_text,
    "seconds": duration_text,
    "seconds_left": duration_text,
    "disk": bytes_text,
    "progress": lambda value: f"{value:.0%}",
}


def shown_lines(details: RunDetails) -> list[tuple[str, str]]:
    """What `runs show` prints: a name and a value for each line."""
    record = details.record
    best = "" if record.best is None else f"{record.best:.4f} ({record.best_kind})"
    rows = [
        ("run", str(record.path)),
        ("system", f"{record.system} {record.size}".strip()),
        ("status", status_text(record) + (f": {record.reason}" if record.reason else "")),
        ("best", best),
        ("steps", f"{record.step:,} in {duration_text(record.seconds)}" if record.step else ""),
        ("data", record.data),
        ("tokenizer", details.tokenizer),
        ("task", record.task or ""),
        ("imported from", record.imported or ""),
        *((_ancestor_label(a.role), _ancestor_text(a)) for a in details.ancestors),
        ("tags", ", ".join(record.tags)),
        ("disk", bytes_text(record.disk)),
        ("lmlab", details.lmlab),
        ("settings", value_text({"seed": record.seed, **record.settings})),
        ("environment", value_text(details.environment)),
    ]
    return [(name, value) for name, value in rows if value]


def _ancestor_label(role: str) -> str:
    return role.replace("_", " ")


def _ancestor_text(ancestor: Ancestor) -> str:
    origin = [f"imported from {ancestor.imported}"] if ancestor.imported else []
    origin += [f"trained on {ancestor.data}"] if ancestor.data else []
    origin += [f"fine-tuned to {ancestor.finetuned}"] if ancestor.finetuned else []
    indent = "  " * (ancestor.depth - 1)
    return f"{indent}{ancestor.path}: {ancestor.system} {ancestor.size}, {', '.join(origin)}"
