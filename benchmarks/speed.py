"""Speed and memory of lmlab relative to a baseline; both sides alternate within one run.

    python benchmarks/speed.py --data DATA [--only train,cells,softmax,memory] [--out FILE]

- train: `lstm` training in tokens per second (padding not counted) against a plain PyTorch word
  LSTM with padded batches of 64 sentences and logits at every position, as in pytorch/examples.
  Same sizes, same optimiser, same threads, same allocator settings for both sides
  (`--default-allocator`: glibc's own, for both).
- cells: forward and backward time of the cells that loop over time steps, also with some of their
  switches off, divided by the fused cell's.
- softmax: time of the output layer with one buffer divided by that of the plain log-softmax.
- memory: peak resident memory of scoring 100,000 sentences divided by that of scoring 1,000.

Sections of an existing `--out` file that are not run again are retained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import measure_alternating, rate, ratio
from torch import nn

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.data.batches import LengthBatches
from lmlab.data.corpus import open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.data.tokenizers import Tokenizer, tokenizer_for
from lmlab.layers import recurrent_cells
from lmlab.layers.softmax_log_prob import linear_log_prob, linear_log_prob_clear
from lmlab.layers.switch_cells import MGRUCell, MinimalGRUCell
from lmlab.training.config import TrainingConfig
from lmlab.training.loop import clip_gradients
from lmlab.training.optimizers import build_optimizer

WIDTH = 128


class PlainLSTM(nn.Module):
    """A plain word LSTM: embedding, LSTM, decoder, logits at every position."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.decoder = nn.Linear(WIDTH, vocabulary_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(tokens))[0])


def plain_batches(dataset: TokenDataset, seed: int) -> Iterator[torch.Tensor]:
    """Batches of 64 sentences in random order, padded to the longest one."""
    order = np.random.default_rng(seed).permutation(len(dataset))
    for first in range(0, len(order) - 63, 64):
        rows = [torch.from_numpy(dataset[i].astype(np.int64)) for i in order[first : first + 64]]
        yield nn.utils.rnn.pad_sequence(rows, batch_first=True)


def plain_stepper(dataset: TokenDataset, tokenizer: Tokenizer) -> Callable[[], int]:
    """A function that trains on the next batch and returns the number of predicted tokens."""
    torch.manual_seed(0)
    model = PlainLSTM(tokenizer.vocabulary.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    batches = (batch for seed in range(1000) for batch in plain_batches(dataset, seed))

    def step() -> int:
        tokens = next(batches)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        targets = tokens[:, 1:].reshape(-1)
        loss = criterion(logits.reshape(len(targets), -1), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return int((targets != 0).sum())

    return step


def lmlab_stepper(dataset: TokenDataset, tokenizer: Tokenizer) -> Callable[[], int]:
    """The same for `lstm`, with lmlab's batches, loss and optimiser."""
    torch.manual_seed(0)
    module = system_module("lstm")
    system = module.build(module.Config(width=WIDTH, dropout=0.0), tokenizer.vocabulary)
    config = TrainingConfig(learning_rate=2e-3)
    optimizer = build_optimizer(system, config)
    parameters = list(system.parameters())
    source = LengthBatches(dataset, tokens_per_batch=1024, seed=0)
    batches: Iterator[Batch] = (b for epoch in range(1000) for b in source.epoch(epoch))

    def step() -> int:
        batch = next(batches)
        loss, _ = system.loss(batch)
        loss.total.backward()
        clip_gradients(parameters, 1 / loss.count.item(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return batch.count

    return step


def compare_training(data: Path, rounds: int) -> dict[str, object]:
    results = {}
    for protocol in ("multi30k", "ptb-sentence"):
        corpus = open_corpus(f"{protocol}:{data}")
        tokenizer = tokenizer_for(corpus)
        dataset = TokenDataset.build(corpus.splits["train"], tokenizer, corpus.layout)
        ours, plain = lmlab_stepper(dataset, tokenizer), plain_stepper(dataset, tokenizer)
        for step in (ours, plain):
            rate(step, 2.0)
        results[protocol] = measure_alternating(partial(rate, ours), partial(rate, plain), rounds)
    return results


def compare_cells(rounds: int) -> dict[str, object]:
    """Milliseconds of forward and backward at width 128, batch 64, length 20."""
    inputs = torch.randn(64, 20, WIDTH)
    pairs: dict[
        str,
        tuple[
            Callable[[int, int], recurrent_cells.RecurrentCell], type[recurrent_cells.RecurrentCell]
        ],
    ] = {
        "PeepholeLSTMCell": (recurrent_cells.PeepholeLSTMCell, recurrent_cells.LSTMCell),
        "CoupledLSTMCell": (recurrent_cells.CoupledLSTMCell, recurrent_cells.LSTMCell),
        "NotesGRUCell": (recurrent_cells.InputResetGRUCell, recurrent_cells.GRUCell),
        "MinimalGRUCell": (MinimalGRUCell, recurrent_cells.GRUCell),
        "MinimalGRUCell off 4": (partial(MinimalGRUCell, off=(4,)), recurrent_cells.GRUCell),
        "MGRUCell": (MGRUCell, recurrent_cells.GRUCell),
        "MGRUCell off 4,6": (partial(MGRUCell, off=(4, 6)), recurrent_cells.GRUCell),
        "MGRUCell off 4,6,10": (partial(MGRUCell, off=(4, 6, 10)), recurrent_cells.GRUCell),
        "MGRUCell off 4,6,11": (partial(MGRUCell, off=(4, 6, 11)), recurrent_cells.GRUCell),
    }

    def milliseconds(cell: recurrent_cells.RecurrentCell) -> float:
        start = time.perf_counter()
        for _ in range(4):
            outputs, _ = cell.run(inputs, cell.start(64, inputs))
            outputs.sum().backward()
        return (time.perf_counter() - start) * 250

    results = {}
    for name, (looped, fused) in pairs.items():
        ours, peer = looped(WIDTH, WIDTH), fused(WIDTH, WIDTH)
        milliseconds(ours), milliseconds(peer)
        times = [(milliseconds(ours), milliseconds(peer)) for _ in range(3 * rounds)]
        results[name] = ratio([a for a, _ in times], [b for _, b in times])
    return results


def compare_softmax(rounds: int) -> dict[str, object]:
    """Milliseconds of the output layer, forward and backward, for 1,200 tokens of 10,000 words."""
    torch.manual_seed(0)
    parts = [torch.randn(shape, requires_grad=True) for shape in ((1200, WIDTH), (10_000, WIDTH))]
    bias, targets = torch.zeros(10_000, requires_grad=True), torch.randint(0, 10_000, (1200,))

    def milliseconds(function: Callable[..., torch.Tensor]) -> float:
        start = time.perf_counter()
        function(*parts, bias, targets).sum().backward()
        return (time.perf_counter() - start) * 1000

    times = [
        (milliseconds(linear_log_prob), milliseconds(linear_log_prob_clear))
        for _ in range(3 * rounds)
    ]
    return {"fast over clear": ratio([a for a, _ in times[1:]], [b for _, b in times[1:]])}


SCORE_FILE = """
import resource, sys
import lmlab
model = lmlab.load(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines:
    tokens = sum(score.tokens for score in model.score_stream(line.strip() for line in lines))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, tokens)
"""


def compare_memory(data: Path) -> dict[str, object]:
    """Peak megabytes of a process that scores a file, for two file sizes."""
    lines = (data / "multi30k" / "train.en").read_text(encoding="utf-8").splitlines()
    megabytes = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "lmlab", "train", "lstm", "--out", str(run)]
        corpus = ["--data", f"multi30k:{data}", "--steps", "5"]
        subprocess.run([*command, *corpus], check=True, capture_output=True)
        for count in (1_000, 100_000):
            file = Path(folder) / f"{count}.txt"
            text = (lines[i % len(lines)] for i in range(count))
            file.write_text("\n".join(text) + "\n", encoding="utf-8")
            process = subprocess.run(
                [sys.executable, "-c", SCORE_FILE, str(run), str(file)],
                check=True,
                capture_output=True,
                text=True,
            )
            megabytes[count] = float(process.stdout.split()[0])
    return {
        "sentences_1000": megabytes[1_000],
        "sentences_100000": megabytes[100_000],
        "ratio": megabytes[100_000] / megabytes[1_000],
    }


def show(title: str, results: dict[str, object]) -> None:
    print(f"\n{title}")
    for name, values in results.items():
        print(f"  {name:20}", end="")
        if isinstance(values, dict):
            print("  ".join(f"{key} {value:.4g}" for key, value in values.items()))
        else:
            print(f"{values:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--only", default="train,cells,softmax,memory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--default-allocator", action="store_true", help="use glibc's default allocator settings"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    allocator = "glibc's default" if options.default_allocator else "lmlab's, for both sides"
    if not options.default_allocator:
        retain_freed_memory()
    sections = options.only.split(",")
    if options.data is None and set(sections) & {"train", "memory"}:
        parser.error("train and memory need --data FOLDER, or LMLAB_DATA in the environment")
    if options.out and options.out.exists():
        existing = json.loads(options.out.read_text(encoding="utf-8"))
        if existing["threads"] != options.threads:
            parser.error(f"{options.out} was measured with --threads {existing['threads']}")
    else:
        existing = {}
    report: dict[str, object] = {"threads": options.threads, "allocator": allocator}
    if "train" in sections:
        report["train"] = compare_training(Path(options.data), options.rounds)
        show("lstm training, tokens per second, lmlab over plain PyTorch", report["train"])
    if "cells" in sections:
        report["cells"] = compare_cells(options.rounds)
        show("looped cells, milliseconds, over the fused cell", report["cells"])
    if "softmax" in sections:
        report["softmax"] = compare_softmax(options.rounds)
        show("output layer, milliseconds, one buffer over plain log-softmax", report["softmax"])
    if "memory" in sections:
        report["memory"] = compare_memory(Path(options.data))
        show("scoring, peak megabytes", report["memory"])
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps({**existing, **report}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
