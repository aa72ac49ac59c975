"""A model comparison in a notebook: the table by groups of comparable rows, the differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmlab.core.html import Html, join_html, plain_table, tag, visible_text
from lmlab.scoring.comparison_records import Comparison
from lmlab.scoring.comparison_tables import caption, row_groups, table_columns
from lmlab.scoring.difference_tables import difference_tables


def comparison_body(comparison: Comparison) -> Html:
    """The caption, a table of each group, and the differences; the best of a group is bold."""
    columns, groups = table_columns(comparison), row_groups(comparison)
    numbers = [column.number for column in columns]
    parts = [tag("div", visible_text(caption(comparison)), class_="faint")]
    for group in groups:
        if len(groups) > 1:
            parts.append(tag("div", tag("i", visible_text(group.title))))
        cells = [[column.show(row) for column in columns] for row in group.rows]
        best = [len(cells) > 1, *(False for _ in cells[1:])]
        headings = [column.heading for column in columns]
        parts.append(plain_table(headings, cells, numbers=numbers, bold=best))
    for table in difference_tables(comparison):
        shown = plain_table(table.headings, table.rows, numbers=table.numbers)
        parts.append(tag("details", tag("summary", visible_text(table.caption)), shown))
    return join_html(parts)


def comparison_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """A row for each model: what it is, and all its metrics."""
    for row in comparison.rows:
        yield {
            "model": row.name,
            "system": row.system,
            "kind": row.kind,
            "tokenizer": row.convention.tokenizer,
            "seeds": len(row.seeds),
            **row.settings,
            **row.values,
            "tokens": row.tokens,
            "characters": row.characters,
            "unknown": row.unknown,
        }
