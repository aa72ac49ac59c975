"""Model comparison written as HTML, Markdown, LaTeX or JSON, by the file name's extension."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lmlab.core.atomic_files import telling_disk_errors, write_text
from lmlab.core.errors import UserError
from lmlab.scoring.comparison_records import Comparison
from lmlab.scoring.comparison_tables import comparison_json, latex, markdown
from lmlab.training.run_folder import TrainedModel

WriteComparison = Callable[[Comparison, Sequence[TrainedModel]], None]


def comparison_writer(path: Path) -> WriteComparison:
    """The function that writes a comparison to this file; rejects unknown extensions."""
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise UserError(
            f"the report file must end in {', '.join(_FORMATS)}, got {path.name}; the suffix "
            "selects the format."
        )
    checked_file(path)

    def write(comparison: Comparison, models: Sequence[TrainedModel]) -> None:
        write_with_folder(path, _FORMATS[suffix](comparison, models))

    return write


def checked_file(path: Path) -> Path:
    """The path of a file to write; a UserError if it is a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write.")
    return path


def write_with_folder(path: Path, text: str) -> None:
    """Write a file atomically, and make its folder."""
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _html(comparison: Comparison, models: Sequence[TrainedModel]) -> str:
    # Imported lazily: a table needs no figures, and so no matplotlib.
    from lmlab.reports.html_report import render_report
    from lmlab.reports.report_sections import make_report_section

    title = f"Language models on {comparison.corpus}"
    return render_report([make_report_section(comparison, models)], title=title)


_FORMATS: dict[str, Callable[[Comparison, Sequence[TrainedModel]], str]] = {
    ".html": _html,
    ".md": lambda comparison, models: markdown(comparison),
    ".tex": lambda comparison, models: latex(comparison),
    ".json": lambda comparison, models: (
        json.dumps(comparison_json(comparison), ensure_ascii=False, indent=2) + "\n"
    ),
}
