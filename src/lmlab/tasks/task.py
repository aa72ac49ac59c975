"""Downstream tasks: the contract of a task (its rows, fitting, loading) and encoded examples."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import IGNORE_LABEL
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.lines import ReadingReport
from lmlab.data.tokenizers import Tokenizer

if TYPE_CHECKING:
    from lmlab.tasks.finetune_job import FinetuneJob, FinetuneResult
    from lmlab.tasks.finetuned_model import FinetunedModel
    from lmlab.training.run_config import RunConfig
    from lmlab.training.run_folder import RunFolder, TrainedModel

Row = dict[str, Any]
Splits = dict[str, list[Row]]

ANSWER_FIELDS = ("label", "tags", "answer", "target")
"""The fields of a row that hold what is predicted."""
NO_ANSWER_POSITION = 0
"""The position that a window without the answer points at: <s>."""
FINETUNE_OPTIONS = frozenset({"frozen", "long", "judge"})
"""The options of a fine-tuning that apply to some tasks only."""


class AnswerTruncated(Exception):
    """The answer lies beyond the model's maximum length."""


@dataclass(frozen=True, kw_only=True)
class EncodedExample:
    """One example as token ids with labels."""

    tokens: list[int]
    """`<s> … </s>`, two texts as `<s> … </s> … </s>`."""
    labels: list[int]
    """One for the sequence, one for each token, or the two ends of a span."""
    spans: list[tuple[int, int]]
    """Characters [start, end) of the text of each token; (0, 0) for other tokens."""
    condition: list[int] | None = None
    given: list[int] = field(default_factory=list)
    """For generation: `<s> … </s>` of the source, the generator's input."""
    truncated: bool = False
    """Whether the text was truncated."""


class Task(ABC):
    """A downstream task; an instance has the labels of its training rows. Rows are JSON objects."""

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, str]]
    """The required fields of a row, and what each means."""
    lists: ClassVar[tuple[str, ...]] = ()
    """The fields that are lists of strings."""
    rows_like: ClassVar[str] = ""
    """Another task with rows of the same form, whose built-in sets it takes too."""
    text_field: ClassVar[str | None] = None
    """The field of a row that is given as one bare text; None if a row has several."""
    settings_type: ClassVar[type[Any]]
    """The dataclass of the task's own settings."""
    options: ClassVar[frozenset[str]] = FINETUNE_OPTIONS
    """The options of a fine-tuning that apply."""
    has_head: ClassVar[bool] = True
    """Whether a head replaces the output layer, so that the run is no longer a language model."""
    reads_pairs: ClassVar[bool] = False
    """Whether its rows are pairs of a source and a target, as in a parallel corpus."""
    can_prompt: ClassVar[bool] = False
    """Whether few-shot prompting applies: an answer is one text."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels = tuple(labels)

    @classmethod
    def input_fields(cls) -> list[str]:
        """The fields of a row that are not predicted."""
        return [name for name in cls.fields if name not in ANSWER_FIELDS]

    @classmethod
    def check_options(cls, **options: Any) -> None:
        """A UserError for an option of a fine-tuning that does not apply to this task."""
        for name, value in options.items():
            if value and name not in cls.options:
                raise UserError(f"--{name} does not apply to the task {cls.name}; remove it.")

    @classmethod
    def check_row(cls, row: Any) -> Row:
        """The row, or a UserError that names what is missing."""
        check_fields(cls.name, cls.fields, row)
        for name in (*cls.fields, "question", "prefix"):
            if name in row and name not in cls.lists:
                _check_field(name, row[name])
        return dict(row)

    @classmethod
    def row_from_text(cls, text: str) -> Row:
        """A row of one bare text."""
        assert cls.text_field is not None
        return {cls.text_field: text}

    @classmethod
    def text(cls, row: Mapping[str, Any]) -> str:
        """The text that may be long."""
        return str(row["text"])

    @classmethod
    @abstractmethod
    def read_rows(
        cls, data: str | Path, *, seed: int, errors: str, report: ReadingReport
    ) -> Splits:
        """Rows by split of a built-in set, a folder or a file, split by the seed."""

    @classmethod
    @abstractmethod
    def from_rows(cls, rows: Sequence[Row], model: TrainedModel) -> Self:
        """The task with the labels of its training rows, for a pretrained model."""

    @abstractmethod
    def fit(self, model: TrainedModel, splits: Splits, job: FinetuneJob) -> FinetuneResult:
        """Fine-tune a pretrained model on the rows, evaluate it, and write the run."""

    @classmethod
    @abstractmethod
    def load(cls, run: RunFolder, config: RunConfig) -> FinetunedModel:
        """The fine-tuned model of a run whose config.json is given."""

    def label_index(self, label: str) -> int:
        """The index of a label; a UserError if the training rows lack it."""
        if label not in self.labels:
            raise UserError(
                f"the label {label!r} does not occur in the training rows, which have "
                f"{', '.join(self.labels[:8])}."
            )
        return self.labels.index(label)


def check_fields(task: str, fields: Iterable[str], row: Any) -> None:
    """A UserError if a row is no object, or lacks a field."""
    if not isinstance(row, dict):
        raise UserError(f"a row of {task} is an object with {', '.join(fields)}.")
    if missing := [name for name in fields if name not in row]:
        raise UserError(f"a row of {task} needs {', '.join(fields)}, and {missing[0]} is missing.")


def _check_field(name: str, value: Any) -> None:
    """A text must be one; a label may be a number too."""
    if not isinstance(value, (str, int) if name == "label" else str):
        raise UserError(f"{name} must be a text, got {json.dumps(value)[:60]}.")


def special_tokens_of(vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """The special tokens before the first token and after the last."""
    end = [] if vocabulary.end is None else [vocabulary.end]
    return [vocabulary.bos], end


def encode_texts(
    texts: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
) -> EncodedExample:
    """`<s> first </s> second </s>`, without labels; spans are those of the last text.

    If they are too long, the longest text is truncated at its end.
    """
    start, end = special_tokens_of(vocabulary)
    encoded = [tokenizer.encode_with_offsets(text) for text in texts]
    ids, spans = [list(i) for i, _ in encoded], [list(s) for _, s in encoded]
    max_tokens = max_length - len(start) - len(end) * len(texts)
    if max_tokens < len(texts):
        raise UserError(
            f"the maximum length of {max_length} tokens is too short for {len(texts)} texts; "
            "use a model with a longer window."
        )
    truncated = sum(map(len, ids)) > max_tokens
    while (excess := sum(map(len, ids)) - max_tokens) > 0:
        longest_text = max(range(len(ids)), key=lambda i: len(ids[i]))
        others = sorted(map(len, ids))
        # Down to the second longest at once, then one by one from all of that length.
        step = min(excess, max(1, others[-1] - (others[-2] if len(others) > 1 else 0)))
        del ids[longest_text][-step:], spans[longest_text][-step:]
    tokens, offsets = list(start), [(0, 0)] * len(start)
    for number, (part, span) in enumerate(zip(ids, spans, strict=True)):
        tokens += [*part, *end]
        inside = span if number == len(ids) - 1 else [(0, 0)] * len(part)
        offsets += [*inside, *[(0, 0)] * len(end)]
    return EncodedExample(tokens=tokens, labels=[], spans=offsets, truncated=truncated)


def collate_examples(
    encoded: Sequence[EncodedExample], pad: int, rows: Sequence[int] | None = None
) -> Batch:
    """A padded batch of examples with their labels."""
    condition = None
    if all(example.condition is not None for example in encoded):
        condition = Batch.collate([example.condition or [] for example in encoded], pad)
    tokens = [example.tokens for example in encoded]
    width = max((len(example.labels) for example in encoded), default=0)
    labels = torch.full((len(encoded), width), IGNORE_LABEL)
    for row, example in enumerate(encoded):
        labels[row, : len(example.labels)] = torch.tensor(example.labels, dtype=torch.long)
    return replace(Batch.collate(tokens, pad, rows=rows, condition=condition), labels=labels)
