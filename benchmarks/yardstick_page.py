"""The page docs/yardstick.md: a template, filled in from the catalogue and the records."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment import Folders
from yardstick_corpora import MAX_BYTES, PAIRS_PER_KIND, SPECS, TEST_LINES, VALIDATION_LINES
from yardstick_rows import MINUTES, POINTS, SEED, TRIAL_MINUTES, TUNED_ON, Record, read_record
from yardstick_systems import ORDERS, SECTIONS, SIZE, WIDE, measured_systems, systems_left_out

from lmlab.core.atomic_files import write_text
from lmlab.core.card import Card
from lmlab.core.score import NORMALISED_KINDS

TITLES = {"multi30k": "multi30k (English captions)", "wordnet": "WordNet's glosses"}
MISSING = "not there yet"
TEMPLATE = Path(__file__).with_suffix(".md")
"""The prose of the page."""
COLUMNS = (
    *("system", "family", "score", "bits per byte", "seconds to the best n-gram", "minimal pairs"),
    *("parameters", "training, bytes/s", "scoring, bytes/s", "peak memory, MiB"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """A system on a corpus: its card, and its record if it was measured."""

    card: Card
    record: Record | None

    @property
    def test(self) -> Record:
        return {} if self.record is None else self.record.get("test", {})

    @property
    def kind(self) -> str:
        """The kind of score that was measured, or else the card's."""
        return str(self.test.get("kind", self.card.kind))

    @property
    def bits(self) -> float | None:
        value = self.test.get("bits_per_byte")
        return None if value is None else float(value)

    @property
    def accuracy(self) -> float | None:
        pairs = self.test.get("pairs")
        return None if pairs is None else float(pairs["all"]["accuracy"])

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Seconds of training and bits per byte on the validation split."""
        training = {} if self.record is None else self.record["training"]
        return [(seconds, bits) for seconds, bits in training.get("curve", [])]


def rows_of(corpus: str, folders: Folders) -> list[Row]:
    """A row for each system that is measured, whether its record is there or not."""
    cards = measured_systems()
    return [Row(card=card, record=read_record(folders, corpus, card.name)) for card in cards]


def best_ngram(rows: Sequence[Row]) -> float | None:
    """Bits per byte of the counted model on the validation split."""
    counted = [row.curve[-1][1] for row in rows if row.card.fitting == "counting" and row.curve]
    return min(counted, default=None)


def seconds_to(curve: Sequence[tuple[float, float]], bits: float) -> float | None:
    """Seconds of the first validation with at most so many bits per byte; None if there is none."""
    return next((seconds for seconds, reached in curve if reached <= bits), None)


def order_bits(record: Record) -> dict[int, float]:
    """Validation bits per byte of an n-gram by its order; the end of each text is predicted too."""
    size, lines = record["corpus"]["bytes"]["validation"], record["corpus"]["lines"]["validation"]
    factor = (size + lines) / math.log(2) / size
    return {one["settings"]["order"]: one["loss"] * factor for one in record["trials"]}


def section_of(row: Row) -> str:
    return next(section for section, kinds in SECTIONS.items() if row.kind in kinds)


def ranked(rows: Sequence[Row], section: str) -> list[Row]:
    """By bits where they are comparable, else by minimal pairs; what is not there comes last."""

    def key(row: Row) -> tuple[bool, float, str]:
        by_bits = section in ("exact", "estimate", "reconstruction")
        accuracy = None if row.accuracy is None else -row.accuracy
        value = row.bits if by_bits else accuracy
        return value is None, value or 0.0, row.card.name

    return sorted(rows, key=key)


def table(rows: Sequence[Row], target: float | None) -> list[str]:
    """The table of a section as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return [*lines, *(f"| {' | '.join(cells(row, target))} |" for row in rows)]


def cells(row: Row, target: float | None) -> list[str]:
    first = [f"[{row.card.name}](atlas/{row.card.name}.md)", row.card.family, row.kind]
    blank = [""] * (len(COLUMNS) - len(first) - 1)
    if row.record is None:
        return [*first, f"*{MISSING}*", *blank]
    if "failed" in row.record:
        return [*first, f"*failed: {row.record['failed']}*", *blank]
    training, test = row.record["training"], row.test
    return [
        *first,
        shown_bits(row),
        shown_seconds(row, target),
        "" if row.accuracy is None else f"{row.accuracy:.3f}",
        f"{training['parameters']:,}",
        f"{training['bytes_per_second']:,.0f}",
        f"{test['bytes_per_second']:,.0f}",
        f"{training['peak_mebibytes']:,}",
    ]


def shown_bits(row: Row) -> str:
    if row.bits is None:
        return "none"
    mark = "≤ " if row.kind == "bound" else ""
    return f"{mark}{row.bits:.3f} ± {row.test['standard_error']:.3f}"


def shown_seconds(row: Row, target: float | None) -> str:
    """Seconds until the validation bits of the best n-gram; empty where bits don't compare."""
    if target is None or row.kind not in NORMALISED_KINDS or not row.curve:
        return ""
    seconds = seconds_to(row.curve, target)
    return f"not in {60 * MINUTES:.0f}" if seconds is None else f"{seconds:,.1f}"


# The page ---------------------------------------------------------------------------------------


def page(folders: Folders) -> str:
    """The whole page as Markdown: the template with tables and figures filled in."""
    rows = {corpus: rows_of(corpus, folders) for corpus in SPECS}
    sections = {section: "\n".join(section_tables(rows, section)).strip() for section in SECTIONS}
    parts = {
        "summary": summary(rows),
        "orders": orders(rows),
        "left_out": left_out(),
        "corpora": corpora(rows),
        "recipes": recipes(rows[TUNED_ON]),
    }
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        sections | {name: "\n".join(lines) for name, lines in parts.items()},
        minutes=f"{MINUTES:g}",
        trial_seconds=f"{60 * TRIAL_MINUTES:g}",
        size=SIZE,
        max_bytes=MAX_BYTES,
        validation_lines=VALIDATION_LINES,
        test_lines=TEST_LINES,
        points=POINTS,
        wide=WIDE,
        tuned_on=TUNED_ON,
        pairs=2 * PAIRS_PER_KIND,
        seed=SEED,
    )


def section_tables(rows: dict[str, list[Row]], section: str) -> Iterator[str]:
    """The table of a section for each corpus."""
    for corpus, all_rows in rows.items():
        chosen = ranked([row for row in all_rows if section_of(row) == section], section)
        yield f"**{TITLES[corpus]}**"
        yield ""
        yield from table(chosen, best_ngram(all_rows))
        yield ""


def summary(rows: dict[str, list[Row]]) -> Iterator[str]:
    """How much is there, and the best rows."""
    for corpus, all_rows in rows.items():
        done = [row for row in all_rows if row.record is not None]
        line = f"- **{TITLES[corpus]}**: {len(done)} of {len(all_rows)} rows."
        compared = ranked([row for row in done if section_of(row) == "exact" and row.bits], "exact")
        if compared:
            best = ", ".join(f"`{row.card.name}` {row.bits:.3f}" for row in compared[:3])
            line += f" Fewest bits per byte so far: {best}."
        target = best_ngram(all_rows)
        if target is not None:
            reached = [
                row.card.name
                for row in compared
                if row.card.fitting != "counting" and seconds_to(row.curve, target) is not None
            ]
            names = ", ".join(f"`{name}`" for name in reached) or "none"
            line += f" At least as good as the best n-gram on the validation lines: {names}."
        yield line


def orders(rows: dict[str, list[Row]]) -> Iterator[str]:
    """The n-grams of each order."""
    counted = {
        corpus: row.record
        for corpus, all_rows in rows.items()
        for row in all_rows
        if row.card.fitting == "counting" and row.record is not None and row.record["trials"]
    }
    if not counted:
        yield "The n-grams of each order are not there yet."
        return
    yield f"| order | {' | '.join(map(str, ORDERS))} |"
    yield "|---" * (len(ORDERS) + 1) + "|"
    for corpus, record in counted.items():
        bits = (f"{trial['test']['bits_per_byte']:.3f}" for trial in record["trials"])
        yield f"| {corpus} | {' | '.join(bits)} |"


def left_out() -> Iterator[str]:
    yield "| system | reason |"
    yield "|---|---|"
    for name, reason in systems_left_out().items():
        yield f"| [{name}](atlas/{name}.md) | {reason} |"


def recipes(rows: Sequence[Row]) -> Iterator[str]:
    yield "| system | chosen | trials |"
    yield "|---|---|---|"
    for row in rows:
        if row.record is None or row.card.fitting == "counting":
            continue
        trials = "; ".join(
            f"{shown_settings(one['settings'])}: {one['loss']:.3f}"
            if "loss" in one
            else f"{shown_settings(one['settings'])}: failed"
            for one in row.record["trials"]
        )
        yield f"| {row.card.name} | {shown_settings(row.record['recipe'])} | {trials or 'none'} |"


def shown_settings(settings: dict[str, Any]) -> str:
    parts = (
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in settings.items()
    )
    return ", ".join(parts) or "default"


def corpora(rows: dict[str, list[Row]]) -> Iterator[str]:
    """What is in each corpus, from the first of its records."""
    for corpus, all_rows in rows.items():
        record = next((row.record for row in all_rows if row.record is not None), None)
        if record is not None:
            sizes, dropped = record["corpus"]["bytes"], record["corpus"]["dropped"]
            yield (
                f"  - {corpus}: {sizes['train']:,} bytes of training text and {sizes['test']:,} of "
                f"test text; {dropped['train']:,} training lines are too long."
            )


def write_page(path: Path, folders: Folders) -> None:
    write_text(path, page(folders))
