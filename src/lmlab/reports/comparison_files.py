"""A comparison as a file, in the form that the file's name asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lmlab.core.atomic_files import (
    telling_disk_errors,
    write_text,
)
from lmlab.core.errors import UserError
from lmlab.scoring.comparison_records import Comparison
from lmlab.scoring.comparison_tables import (
    as_json,
    latex,
    markdown,
)
from lmlab.training.run_folder import Model

Write = Callable[[Comparison, Sequence[Model]], None]


def writer_for(path: Path) -> Write:
    """What writes a comparison to this file; a name without a known ending is an error at once."""
    suffix = path.suffix.lower()
    if suffix not in _FORMS:
        raise UserError(
            f"expected a file that ends in {', '.join(_FORMS)}, and {path.name} came; the ending "
            "says in which form the comparison is written."
        )
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write.")

    def write(comparison: Comparison, models: Sequence[Model]) -> None:
        text = _FORMS[suffix](comparison, models)
        with telling_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)

    return write


def _html(comparison: Comparison, models: Sequence[Model]) -> str:
    # Imported late: a table needs no pictures, and so no matplotlib.
    from lmlab.reports.html_report import report
    from lmlab.reports.report_sections import chapter_of

    title = f"Language models on {comparison.corpus}"
    return report([chapter_of(comparison, models)], title=title)


_FORMS: dict[str, Callable[[Comparison, Sequence[Model]], str]] = {
    ".html": _html,
    ".md": lambda comparison, models: markdown(comparison),
    ".tex": lambda comparison, models: latex(comparison),
    ".json": lambda comparison, models: (
        json.dumps(as_json(comparison), ensure_ascii=False, indent=2) + "\n"
    ),
}
