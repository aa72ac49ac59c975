"""The tables of docs/notes.md: the notes' figures beside ours at epochs 20 and 30."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from rows import Record, Row, Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from record_file import mean_and_half_range

COLUMNS = (
    *("row", "system", "the notes, E20", "E30", "leak", "ours, E20", "E30"),
    *("by sentence", "best", "training loss", "schedule of 20 epochs"),
)


def figure(value: float | None) -> str:
    """A number with three decimals; empty for None."""
    return "" if value is None else f"{value:.3f}"


def held_out(record: Record) -> dict[int, float]:
    """Held-out loss by epoch."""
    return {line["epoch"]: float(line["loss"]) for line in record["held_out"]}


def at_epoch(records: list[Record], epoch: int) -> str:
    """Mean over seeds ± half their range after an epoch; empty if none reached it."""
    losses = [held_out(record).get(epoch) for record in records]
    return mean_and_half_range([loss for loss in losses if loss is not None])


def ours(row: Row, records: list[Record]) -> list[str]:
    """Our figures: E20, E30, by sentence, best epoch of the first seed, training loss."""
    if not records:
        return ["not run" if row.epochs != 20 else "", "", "", "", ""]
    by_epoch = held_out(records[0])
    last = max(by_epoch)
    final = at_epoch(records, 30)
    if last != 30:  # a longer training, or EM, which ends where it gains no more
        final = f"{final or figure(by_epoch[last])} at {last}" if last < 30 else final
        final = final if last < 30 else f"{final}; {figure(by_epoch[last])} at {last}"
    by_sentence = [record["row"].get("nats_per_token_by_sentence") for record in records]
    best = min(by_epoch, key=lambda epoch: by_epoch[epoch])
    return [
        at_epoch(records, 20),
        final,
        mean_and_half_range([value for value in by_sentence if value is not None]),
        f"{figure(by_epoch[best])} at {best}",
        figure(records[0]["last_training_loss"]),
    ]


def line(row: Row, table: Table) -> str:
    """One row of the table."""
    records = [] if row.epochs == 20 else row.records(table.protocol)
    earlier = row.record_of_20(table.protocol)
    notes_30 = figure(row.notes_30)
    if row.notes_last is not None:
        notes_30 = f"{figure(row.notes_last)} at {row.epochs}"
    off = f" without {', '.join(map(str, row.off))}" if row.off else ""
    cells = [
        row.label,
        f"`{row.system}`{off}",
        figure(row.notes_20),
        notes_30,
        "leak" if row.leaks else "",
        *ours(row, records),
        figure(earlier["row"]["nats_per_token"]) if earlier else "",
    ]
    return f"| {' | '.join(cells)} |"


def rank(row: Row, table: Table) -> float:
    """By our last figure, else by that of the schedule of 20 epochs; then what was not run."""
    records = [] if row.epochs == 20 else row.records(table.protocol)
    found = records[0] if records else row.record_of_20(table.protocol)
    return float(found["row"]["nats_per_token"]) if found else math.inf


def markdown(table: Table) -> str:
    """The table, sorted by our figures."""
    if table.perplexity:
        return perplexities(table)
    rows = sorted(table.rows, key=lambda row: rank(row, table))
    head = [f"### {table.title}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*head, *(line(row, table) for row in rows)])


def perplexities(table: Table) -> str:
    """Test perplexity of the best epoch beside the published one."""
    lines = [f"### {table.title}", "", "| row | system | published | ours |", "|---|---|---|---|"]
    for row in table.rows:
        records = row.records(table.protocol)
        ours = f"{records[0]['row']['perplexity']:.1f}" if records else "not run"
        published = "" if row.notes_last is None else f"{row.notes_last:g}"
        lines.append(f"| {row.label} | `{row.system}` | {published} | {ours} |")
    return "\n".join(lines)


def replace_between(page: Path, begin: str, end: str, content: str) -> None:
    """Replace what stands between two markers of a page, if it has the first."""
    before, marker, rest = page.read_text(encoding="utf-8").partition(begin)
    if marker:
        _, found, after = rest.partition(end)
        assert found, f"{page} has {begin} without {end}"
        page.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")
