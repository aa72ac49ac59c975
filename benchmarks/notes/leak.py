"""The leak of the notes' sphere (003): inputs divided by their deviation over time, or causally.

    python benchmarks/notes/leak.py --data DATA [--only TEXT] [--epochs 30] [--runs runs/leak]
    python benchmarks/notes/leak.py --table [--write docs/notes.md]
    python benchmarks/notes/leak.py --figure docs/images/causality-leak.svg

Trains the rows below one after the other in this process, by the optimiser of the notes' public
code (github.com/shouldsee/catsmile, August 2022): RMSprop, eps 0.01, batches of 280 sentences,
gradients zeroed once an epoch. After each epoch a checkpoint goes to RUNS and the figures to
benchmarks/results/notes/leak/; a stopped row resumes there with the same result, and a finished one
is only continued if --epochs is larger. Figures are held-out nats per token, averaged in two ways:
the mean over sentences of their means, as in the notes, and weighted by tokens, as elsewhere here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from notes_lm import CellName, NotesLM, Scaling
from row_tables import replace_between
from torch import Tensor

import lmlab
from lmlab.data.corpus import open_corpus
from lmlab.data.tokenizers import tokenizer_for
from lmlab.diagnosis.examination_figures import causality_figure
from lmlab.plotting.figure import render_figure, write_figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiment import RESULTS, Experiment, GrowingExperiment

FOLDER = "notes/leak"
RECORDS = RESULTS / FOLDER
EPOCHS = 30
SENTENCES, EPSILON = 280, 0.01
"""Sentences of a batch, and RMSprop's eps."""
CELL_NAMES = {"lstm": "LSTM", "rnn": "RNN", "gru-minimal": "minimal GRU", "mgru": "MGRU (4, 6)"}
INPUT_NAMES = {"time": "over time (leaks)", "channels": "causal", "none": "as they are"}

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training: the notes' model, and what its inputs are divided by."""

    protocol: str
    label: str
    """Name in the notes."""
    cell: CellName
    scaling: Scaling
    rate: float = 1e-3
    states: int = 400
    seed: int = 0
    notes_20: float | None = None
    notes_30: float | None = None

    @property
    def name(self) -> str:
        emission = f"{self.states}-states" if self.states else "softmax"
        return (
            f"{self.protocol}.{self.cell}.{emission}.{self.scaling}.rate-{self.rate:g}"
            f".seed{self.seed}"
        )


def both(**settings: Any) -> tuple[Row, Row]:
    """A row of the notes, and the causal one beside it."""
    causal = {name: value for name, value in settings.items() if not name.startswith("notes")}
    return Row(scaling="time", **settings), Row(scaling="channels", **causal)


ROWS = (
    *both(protocol="cath-l20", label="DLM26", cell="lstm", notes_20=1.817, notes_30=1.774),
    *both(protocol="multi30k-l20", label="DLM26", cell="lstm"),
    *both(protocol="multi30k-l20", label="DLM23", cell="lstm", states=0, notes_20=2.963),
    *both(
        protocol="multi30k-l20",
        label="DLM46",
        cell="gru-minimal",
        notes_20=3.8209,
        notes_30=3.72316,
    ),
    *both(protocol="cath-l20", label="DLM46", cell="gru-minimal", notes_20=1.855, notes_30=1.801),
    *both(
        protocol="multi30k-l20",
        label="DLM46",
        cell="gru-minimal",
        rate=1e-4,
        notes_20=3.8209,
        notes_30=3.72316,
    ),
    *both(
        protocol="cath-l20", label="DLM26", cell="lstm", rate=1e-4, notes_20=1.817, notes_30=1.774
    ),
    *both(protocol="multi30k-l20", label="DLM26", cell="lstm", rate=1e-4),
    *both(protocol="cath-l20", label="DLM47", cell="mgru", notes_20=1.998, notes_30=1.943),
    *both(protocol="cath-l20", label="DLM29", cell="rnn", notes_20=2.419, notes_30=2.508),
)
"""In the order in which they are run. The notes don't say after how many epochs 2.963 was read."""


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """Token ids padded to one length for the whole corpus, as in the notes."""

    ids: Tensor
    """(N, T)"""
    counted: Tensor
    """(N, T - 1) bool: the tokens that are predicted, without <s> and padding."""

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Tensor) -> Sentences:
        return Sentences(ids=self.ids[rows], counted=self.counted[rows])


def read_protocol(protocol: str, data: Path) -> tuple[dict[str, Sentences], int]:
    """The splits of a protocol, and the size of its vocabulary."""
    corpus = open_corpus(f"{protocol}:{data}")
    tokenizer = tokenizer_for(corpus)
    vocabulary, length = tokenizer.vocabulary, corpus.layout.cut
    assert length is not None and vocabulary.start is not None
    splits = {}
    for name, split in corpus.splits.items():
        rows = []
        for example in split:
            ids = [vocabulary.start, *tokenizer.encode(example.text)]
            if corpus.layout.end and vocabulary.end is not None:
                ids.append(vocabulary.end)
            rows.append(ids[:length])
        padded = torch.full((len(rows), length), vocabulary.pad)
        for index, ids in enumerate(rows):
            padded[index, : len(ids)] = torch.tensor(ids)
        lengths = torch.tensor([len(ids) for ids in rows])
        counted = torch.arange(1, length) < lengths[:, None]
        splits[name] = Sentences(ids=padded, counted=counted)
    return splits, vocabulary.size


def losses(model: NotesLM, batch: Sentences) -> tuple[Tensor, Tensor]:
    """(B,) nats of each sentence, and (B,) its predicted tokens."""
    log_probs = model.target_log_probs(batch.ids[:, :-1], batch.ids[:, 1:], batch.counted)
    dense = torch.zeros(batch.counted.shape).masked_scatter(batch.counted, -log_probs)
    return dense.sum(1), batch.counted.sum(1)


@torch.no_grad()
def held_out_losses(model: NotesLM, sentences: Sentences) -> Record:
    """Nats per token, as the mean of sentence means and weighted by tokens."""
    totals, counts = zip(
        *(losses(model, sentences.select(rows)) for rows in _batches(len(sentences), None)),
        strict=True,
    )
    nats, tokens = torch.cat(totals).double(), torch.cat(counts).double()
    return {
        "by sentence": float((nats / tokens).mean()),
        "by token": float(nats.sum() / tokens.sum()),
    }


def train_epoch(
    model: NotesLM, optimizer: torch.optim.Optimizer, data: Sentences, seed: int
) -> float:
    """One pass; gradients add up over all of it, as in the notes. Returns the mean loss."""
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    total, batches = 0.0, 0
    for rows in _batches(len(data), generator):
        nats, tokens = losses(model, data.select(rows))
        loss = (nats / tokens).mean()
        loss.backward()
        optimizer.step()
        total, batches = total + loss.item(), batches + 1
    return total / batches


def _batches(count: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    return order.split(SENTENCES)


def run_row(
    row: Row, splits: dict[str, Sentences], size: int, *, epochs: int, runs: Path, records: Path
) -> Record:
    """Train a row up to so many epochs from its last checkpoint; its record is written each time.

    `epochs` in the record holds the figures after each epoch, the first before any.
    """
    torch.manual_seed(row.seed)
    model = NotesLM(size, cell=row.cell, scaling=row.scaling, states=row.states)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=row.rate, eps=EPSILON)
    checkpoint = runs / f"{row.name}.pt"
    record: Record = {
        **asdict(row),
        "command": f"python benchmarks/notes/leak.py --data DATA --only {row.name}",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "epochs": [{"epoch": 0, **held_out_losses(model, splits["test"])}],
    }
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        record["epochs"] = json.loads(saved["epochs"])
    while (epoch := len(record["epochs"])) <= epochs:
        began = time.perf_counter()
        training = train_epoch(model, optimizer, splits["train"], 1000 * row.seed + epoch)
        line = {"epoch": epoch, "training": training, **held_out_losses(model, splits["test"])}
        record["epochs"].append({**line, "seconds": round(time.perf_counter() - began, 1)})
        _save(checkpoint, model, optimizer, record)
        _write(records / f"{row.name}.json", record)
        print(row.name, json.dumps(record["epochs"][-1]), flush=True)
    return record


def _save(path: Path, model: NotesLM, optimizer: torch.optim.Optimizer, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epochs": json.dumps(record["epochs"]),
    }
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_record(row: Row) -> Record | None:
    """The record of a row; None if it was not begun."""
    path = RECORDS / f"{row.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def markdown() -> str:
    """The rows with the notes' figures; those that were not begun are marked."""
    lines = [
        "| corpus | the notes' row | cell | inputs divided | rate | the notes, E20 | E30 "
        "| E20, by sentence | by token | last epoch, by sentence | by token | training |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        emission = "" if row.states else ", softmax"
        start = (
            f"| {row.protocol} | {row.label} | {CELL_NAMES[row.cell]}{emission} "
            f"| {INPUT_NAMES[row.scaling]} | {row.rate:g} | {_figure(row.notes_20)} "
            f"| {_figure(row.notes_30)} |"
        )
        record = read_record(row)
        if record is None:
            lines.append(f"{start} not run | | | | |")
            continue
        epochs = record["epochs"]
        at_20 = epochs[20] if len(epochs) > 20 else {}
        last = epochs[-1]
        lines.append(
            f"{start} {_figure(at_20.get('by sentence'))} | {_figure(at_20.get('by token'))} "
            f"| {_figure(last['by sentence'])} at {last['epoch']} | {_figure(last['by token'])} "
            f"| {_figure(last['training'])} |"
        )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def write_into(page: Path) -> None:
    """Replace the table between the two markers in a page."""
    replace_between(page, "<!-- leak -->", "<!-- end of leak -->", markdown())


def experiments() -> list[Experiment]:
    """All rows, for the queue."""
    return [
        GrowingExperiment(
            name=f"leak.{row.name}",
            group="leak",
            command=(
                "benchmarks/notes/leak.py",
                *("--data", "{data}", "--runs", "{runs}/leak"),
                *("--records", f"{{records}}/{FOLDER}"),
                *("--epochs", str(EPOCHS), "--only", row.name),
            ),
            minutes=estimated_minutes(row),
            record=f"{FOLDER}/{row.name}.json",
            epochs=EPOCHS,
        )
        for row in ROWS
    ]


def estimated_minutes(row: Row) -> float:
    """By the recorded seconds of an epoch on the same text with the same kind of output."""
    seconds = [
        line["seconds"]
        for other in ROWS
        if (other.protocol, other.states) == (row.protocol, row.states)
        and (record := read_record(other))
        for line in record["epochs"][1:]
    ]
    return EPOCHS * statistics.median(seconds) / 60 if seconds else 20.0


def draw_causality(path: Path) -> None:
    """Figure of what the predictions of the untrained leaking model depend on."""
    letters = " abcdefghijklmnopqrstuvwxyz."
    tokenizer = SimpleNamespace(
        vocab_size=len(letters),
        encode=lambda text: [letters.index(letter) for letter in text],
        decode=lambda ids: "".join(letters[id] for id in ids),
    )
    torch.manual_seed(0)
    module = NotesLM(len(letters), cell="lstm", scaling="time", states=20, width=32)
    model = lmlab.wrap(module, tokenizer, end=".", allow_leaks=True)
    report = lmlab.doctor(model, text="the cat sat").causality
    assert report is not None
    write_figure(path, render_figure(causality_figure(report)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--runs", type=Path, default=Path("runs/leak"), help="checkpoints")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of the records")
    parser.add_argument("--table", action="store_true", help="print the table and train nothing")
    parser.add_argument("--write", type=Path, help="put the table into this page, train nothing")
    parser.add_argument("--figure", type=Path, help="draw the causality report, train nothing")
    options = parser.parse_args()
    if options.figure:
        draw_causality(options.figure)
    if options.write:
        write_into(options.write)
    if options.table:
        print(markdown())
    if options.table or options.write or options.figure:
        return
    if options.data is None:
        parser.error("the data folder is missing; give --data or set LMLAB_DATA")
    torch.set_num_threads(1)
    for row in (row for row in ROWS if options.only in row.name):
        splits, size = read_protocol(row.protocol, Path(options.data))
        run_row(
            row, splits, size, epochs=options.epochs, runs=options.runs, records=options.records
        )


if __name__ == "__main__":
    main()
