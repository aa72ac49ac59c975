"""Tags of runs: words in RUN/tags.json, beside what the manifest lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmlab.core.atomic_files import telling_disk_errors, write_json
from lmlab.core.errors import CONTROL_CHARACTERS, UserError
from lmlab.core.locks import lock_folder
from lmlab.core.untrusted_input import read_json_object

TAGS = "tags.json"
MAX_LENGTH = 100
WAIT_SECONDS = 10.0


def read_tags(folder: Path) -> tuple[str, ...]:
    """The tags of a run, in the order of the alphabet."""
    try:
        tags = read_json_object(folder / TAGS).get("tags")
    except (OSError, ValueError, UserError):
        return ()
    words = tags if isinstance(tags, list) else []
    return tuple(sorted({word for word in words if isinstance(word, str)}))


def change_tags(folder: Path, add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """Add and remove tags of a run, which may be running; returns those it has then."""
    for tag in (*add, *remove):
        check_tag(tag)
    if both := set(add) & set(remove):
        raise UserError(f"the tag {min(both)!r} can't be both added and removed; give it once.")
    with telling_disk_errors(folder / TAGS):
        lock = lock_folder(folder, adjacent=True, wait=WAIT_SECONDS)
    with lock:
        before = set(read_tags(folder))
        after = tuple(sorted((before | set(add)) - set(remove)))
        if set(after) != before:
            write_json(folder / TAGS, {"tags": list(after)})
    return after


def check_tag(tag: str) -> None:
    """A UserError unless a tag is one word."""
    if not tag or len(tag) > MAX_LENGTH or tag.split() != [tag] or CONTROL_CHARACTERS.search(tag):
        raise UserError(
            f"a tag must be one word of at most {MAX_LENGTH} characters, got {tag[:120]!r}."
        )
