"""From what a user writes (`--knowledge KNOWLEDGE`) to what is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.data.lines import ReadingReport, check_errors
from lmlab.knowledge.capital_facts import (
    knowledge_of_capitals,
    knowledge_of_stated_capitals,
)
from lmlab.knowledge.knowledge_base import Knowledge
from lmlab.knowledge.knowledge_files import read_folder
from lmlab.knowledge.wordnet_knowledge import (
    all_synsets,
    common_synsets,
    letters,
)


def open_knowledge(
    spec: str | Path, *, errors: str = "strict", report: ReadingReport | None = None
) -> Knowledge:
    """The knowledge that a specification names.

    A built-in one, or a folder of tables: see `knowledge.files` for these, and for what `errors`
    and `report` mean.
    """
    if str(spec) in BUILT_IN:
        return BUILT_IN[str(spec)]()
    folder = Path(spec).expanduser()
    if folder.is_dir():
        return read_folder(folder, errors=check_errors(errors), report=report)
    if folder.exists():
        raise UserError(
            f"{spec} is a file, and knowledge is a folder with entities.tsv, aliases.tsv and "
            "facts.tsv; give the folder."
        )
    raise unknown_name_or_path("knowledge or folder", str(spec), BUILT_IN)


BUILT_IN: dict[str, Callable[[], Knowledge]] = {
    "capitals": knowledge_of_capitals,
    "capitals-told": knowledge_of_stated_capitals,
    "wordnet": all_synsets,
    "wordnet-common": common_synsets,
    "wordnet-letters": letters,
}
