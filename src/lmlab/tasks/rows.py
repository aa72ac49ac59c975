"""Rows of a task: JSON lines out of a file or a folder of splits, or a built-in set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmlab.core.errors import UserError, nearest
from lmlab.data.corpus import open_corpus
from lmlab.data.protocols import PROTOCOLS
from lmlab.tasks.builtin import BUILTIN, builtin_rows
from lmlab.tasks.generate import Generate
from lmlab.tasks.long_babi import BABI_LONG, long_babi
from lmlab.tasks.relevance import check_relevant
from lmlab.tasks.task import Task

Row = dict[str, Any]
Splits = dict[str, list[Row]]

FILES = {"train": ("train",), "validation": ("valid", "validation", "dev"), "test": ("test",)}
"""How the files of a folder begin."""
HELD_OUT = 0.1
"""Share of a single file that becomes the validation split, and of that which becomes the test."""


def read_splits(data: str | Path, task: type[Task], *, seed: int = 0) -> Splits:
    """Rows by split: of a built-in set, of a folder with a file for each split, or of one file.

    One file is divided 80/10/10 by the seed. `babi-long:FOLDER/qa2` is bAbI's second task among
    distracting sentences, made of the files of that folder. Where a text is written for another,
    a corpus of pairs will do too: `multi30k-de-en:FOLDER`, `parallel:de-en:FOLDER`, `pairs.tsv`.
    """
    if str(data).startswith(BABI_LONG):
        splits = long_babi(str(data).removeprefix(BABI_LONG), task)
    elif str(data) in BUILTIN:
        made_for, splits = builtin_rows(str(data))
        if made_for != task.name:
            raise UserError(f"{data} is made for the task {made_for}, not for {task.name}.")
    elif task is Generate and is_corpus(str(data)):
        splits = _pairs(str(data), seed)
    elif (path := Path(data)).is_dir():
        splits = _read_folder(path, task)
    elif path.exists():
        splits = divided(list(read_rows(path, task)), seed)
    else:
        close = nearest(str(data), BUILTIN)
        hint = f"did you mean {' or '.join(close)}?" if close else f"built in: {', '.join(BUILTIN)}"
        raise UserError(f"there are no rows at {data}; {hint}.".replace("?.", "?"))
    if not splits.get("train"):
        raise UserError(f"{data} has no rows to train on.")
    return splits


def is_corpus(data: str) -> bool:
    """Whether it is written as a corpus and not as rows are."""
    head, colon, _ = data.partition(":")
    return data.endswith(".tsv") or head in PROTOCOLS or bool(colon and head == "parallel")


def _pairs(data: str, seed: int) -> Splits:
    """The pairs of a corpus as rows of `generate`."""
    corpus = open_corpus(data, seed=seed)
    if corpus.layout.kind != "pairs":
        raise UserError(f"{data} has no pairs of texts; give a parallel corpus, or rows.")
    return {
        name: [{"source": each.condition or "", "target": each.text} for each in split]
        for name, split in corpus.splits.items()
    }


def read_rows(path: Path, task: type[Task]) -> Iterator[Row]:
    """The rows of a file of JSON lines, each checked."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = task.check_row(json.loads(line))
            if "relevant" in row:
                check_relevant(row, task.text(row))
            yield row
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not a JSON object ({error.msg}).") from error
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def divided(rows: list[Row], seed: int) -> Splits:
    """One list as three splits, by a random order of its own."""
    order = np.random.default_rng(seed).permutation(len(rows))
    held = int(len(rows) * HELD_OUT)
    if held == 0:
        raise UserError(
            f"{len(rows)} rows are too few to hold any out; give at least 10, or a folder with "
            "train, valid and test files."
        )
    shuffled = [rows[place] for place in order]
    return {
        "train": shuffled[2 * held :],
        "validation": shuffled[:held],
        "test": shuffled[held : 2 * held],
    }


def _read_folder(folder: Path, task: type[Task]) -> Splits:
    splits: Splits = {}
    for split, beginnings in FILES.items():
        for path in sorted(folder.glob("*.jsonl")):
            if path.name.startswith(beginnings):
                splits[split] = list(read_rows(path, task))
                break
    if "train" not in splits:
        raise UserError(f"{folder} has no train*.jsonl.")
    return splits
