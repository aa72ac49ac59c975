"""From what a user writes (`--knowledge KNOWLEDGE`) to what is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lmlab.core.errors import unknown_name
from lmlab.knowledge.capitals import knowledge_of_capitals, knowledge_of_stated_capitals
from lmlab.knowledge.knowledge import Knowledge


def open_knowledge(spec: str | Path) -> Knowledge:
    """The knowledge that a specification names: a built-in one."""
    if str(spec) in BUILT_IN:
        return BUILT_IN[str(spec)]()
    raise unknown_name("knowledge", str(spec), BUILT_IN)


BUILT_IN: dict[str, Callable[[], Knowledge]] = {
    "capitals": knowledge_of_capitals,
    "capitals-told": knowledge_of_stated_capitals,
}
