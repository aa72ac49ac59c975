"""Multi-hop question rows: format, checks, reading from files, and kinds of question (CogQA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.core.untrusted_input import parse_json
from lmlab.data.lines import ReadingReport, held_lines
from lmlab.data.name_matching import find_entity_name
from lmlab.data.wordnet.multihop_questions import multihop_questions
from lmlab.models.cogqa import QuestionKind
from lmlab.tasks.task import Row, Splits, check_fields
from lmlab.tasks.task_rows import read_splits

Edge = tuple[str, str]

TASK_NAME = "hops"
FIELDS: Mapping[str, str] = {
    "question": "the question",
    "start": "the entities that the question names, a list",
    "answer": "an entity, yes or no",
    "path": "the hops [from, to] to the answer, a list",
}
"""The required fields of a row."""
BUILTIN_MULTIHOP_SETS: Mapping[str, Callable[[], Splits]] = {"wordnet-hops": multihop_questions}
"""Built-in sets of questions."""
PARAGRAPHS_FILE_NAME = "paragraphs.jsonl"
"""The file next to rows with the paragraphs of all of them, {"entity": …, "text": …} per line."""
YES_NO_VERBS = frozenset("is are was were do does did has have had can could".split())
"""Verbs that begin yes/no questions."""


def question_kind(question: str, start: Sequence[str]) -> QuestionKind:
    """The kind of a question by its words, as in CogQA.

    Two entities and a verb first: yes or no; two entities and an "or": one of them (alternative);
    any other is special, answered by a span of a paragraph.
    """
    words = question.lower().split()
    if len(start) >= 2 and words[:1] and words[0] in YES_NO_VERBS:
        return "yes-no"
    if len(start) >= 2 and "or" in words:
        return "alternative"
    return "special"


@dataclass(frozen=True, kw_only=True)
class MultihopQuestion:
    """A question, its start entities, and the available paragraphs."""

    text: str
    start: tuple[str, ...]
    """The entities that the question names."""
    paragraphs: Mapping[str, str]

    @property
    def kind(self) -> QuestionKind:
        return question_kind(self.text, self.start)


@dataclass(frozen=True, kw_only=True)
class MultihopRow(MultihopQuestion):
    """A question with its answer and gold path."""

    answer: str
    path: tuple[Edge, ...]
    """Edges from an entity to one that its paragraph names, up to the answer."""
    hops: tuple[Edge, ...] = ()
    """Further useful hops that do not lead to the answer."""
    irrelevant: tuple[Edge, ...] = ()
    """Entities named in paragraphs that should not be followed."""
    sort: str = ""
    """The row's own category ("two-hop"), for tables; by default its kind."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> MultihopRow:
        """A checked row."""
        start = tuple(row["start"])
        return cls(
            text=str(row["question"]),
            start=start,
            paragraphs=row["paragraphs"],
            answer=str(row["answer"]),
            path=_edges(row["path"]),
            hops=_edges(row.get("hops", ())),
            irrelevant=_edges(row.get("irrelevant", ())),
            sort=str(row.get("kind") or question_kind(str(row["question"]), start)),
        )


def _edges(pairs: Sequence[Sequence[str]]) -> tuple[Edge, ...]:
    return tuple((str(a), str(b)) for a, b in pairs)


class MultihopRowChecker:
    """The format of multi-hop rows (`RowFormat`); `shared` are the paragraphs of all rows."""

    name = TASK_NAME
    fields = FIELDS
    reads_pairs: ClassVar[bool] = False
    rows_like: ClassVar[str] = ""

    def __init__(self, shared: Mapping[str, str] | None = None) -> None:
        self.shared = shared or {}

    def check_row(self, row: Any) -> Row:
        """The row with its paragraphs, or a UserError that says what is wrong with it."""
        check_fields(TASK_NAME, FIELDS, row)
        _check_shapes(row)
        texts = row.get("paragraphs", {})
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise UserError("paragraphs must be an object of texts by entity.")
        checked = {**row, "paragraphs": {**self.shared, **texts} if texts else self.shared}
        _check_path(MultihopRow.from_row(checked))
        return checked

    def text(self, row: Mapping[str, Any]) -> str:
        return str(row["question"])


def _check_shapes(row: Mapping[str, Any]) -> None:
    for name in ("question", "answer"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise UserError(f"{name} must be a text, got {row[name]!r}.")
    start = row["start"]
    if not isinstance(start, list) or not start or not all(isinstance(e, str) for e in start):
        raise UserError(f"start must be a list of at least one entity, got {start!r}.")
    for name in ("path", "hops", "irrelevant"):
        for edge in row.get(name, []):
            is_pair = isinstance(edge, list) and len(edge) == 2
            if not is_pair or not all(isinstance(entity, str) for entity in edge):
                raise UserError(f"{name} must be a list of [from, to], got {edge!r}.")


def _check_path(row: MultihopRow) -> None:
    """Check that a paragraph supports every edge, and that the path leads to the answer."""
    for a, b in (*row.path, *row.hops, *row.irrelevant):
        if find_entity_name(row.paragraphs.get(a, ""), b) is None:
            raise UserError(f"the paragraph of {a!r} does not name {b!r}, to which a hop leads.")
    reachable = {*row.start, *(b for _, b in (*row.path, *row.hops))}
    if unreachable := [a for a, _ in row.path if a not in reachable]:
        raise UserError(f"no hop of the path leads to {unreachable[0]!r}.")
    if row.kind == "yes-no" and row.answer not in ("yes", "no"):
        raise UserError(f"the answer to this question must be yes or no, got {row.answer!r}.")
    if row.kind == "alternative" and row.answer not in row.start[:2]:
        raise UserError(
            f"the answer must be one of {' and '.join(row.start[:2])}, got {row.answer!r}."
        )
    if row.kind == "special" and row.answer not in {b for _, b in row.path}:
        raise UserError(f"no hop of the path leads to the answer {row.answer!r}.")


def read_multihop_rows(
    data: str | Path, *, seed: int = 0, errors: str = "strict", report: ReadingReport | None = None
) -> Splits:
    """Rows by split: of a built-in set, of a folder with files for each split, or of one file.

    A file `paragraphs.jsonl` next to them holds paragraphs for all rows.
    """
    if str(data) in BUILTIN_MULTIHOP_SETS:
        return BUILTIN_MULTIHOP_SETS[str(data)]()
    path = Path(data)
    if not path.exists():
        raise unknown_name_or_path("set of rows, file or folder", str(data), BUILTIN_MULTIHOP_SETS)
    paragraphs_path = (path if path.is_dir() else path.parent) / PARAGRAPHS_FILE_NAME
    shared = read_paragraphs(paragraphs_path) if paragraphs_path.exists() else {}
    return read_splits(data, MultihopRowChecker(shared), seed=seed, errors=errors, report=report)


def read_paragraphs(path: Path) -> dict[str, str]:
    """Texts by entity, from lines {"entity": …, "text": …}."""
    paragraphs: dict[str, str] = {}
    for number, line in held_lines(path, ReadingReport()):
        if not line:
            continue
        try:
            row = parse_json(line)
            paragraphs[str(row["entity"])] = str(row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'{path}, line {number}: expected {{"entity": …, "text": …}}, got {line[:60]!r}.'
            ) from error
    return paragraphs
