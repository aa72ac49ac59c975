"""Loading of knowledge bases from a specification (`--knowledge KNOWLEDGE`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.data.lines import ReadingReport, check_errors
from lmlab.knowledge.capital_facts import (
    capitals_knowledge,
    stated_capitals_knowledge,
)
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.knowledge_files import read_knowledge_folder
from lmlab.knowledge.wordnet_knowledge import (
    all_synsets,
    common_synsets,
    letter_synsets,
)


def load_knowledge(
    spec: str | Path, *, errors: str = "strict", report: ReadingReport | None = None
) -> KnowledgeBase:
    """Load the knowledge base that a specification names.

    A built-in one, or a folder of tables: see `knowledge_files` for its format, and for `errors`
    and `report`.
    """
    if str(spec) in BUILTIN_KNOWLEDGE:
        return BUILTIN_KNOWLEDGE[str(spec)]()
    folder = Path(spec).expanduser()
    if folder.is_dir():
        return read_knowledge_folder(folder, errors=check_errors(errors), report=report)
    if folder.exists():
        raise UserError(
            "knowledge must be a folder with entities.tsv, aliases.tsv and facts.tsv, got the "
            f"file {spec}; give the folder."
        )
    raise unknown_name_or_path("knowledge or folder", str(spec), BUILTIN_KNOWLEDGE)


BUILTIN_KNOWLEDGE: dict[str, Callable[[], KnowledgeBase]] = {
    "capitals": capitals_knowledge,
    "capitals-told": stated_capitals_knowledge,
    "wordnet": all_synsets,
    "wordnet-common": common_synsets,
    "wordnet-letters": letter_synsets,
}
