"""Sparse attention: time and memory of a training step against the length of the text.

    python benchmarks/sparse_attention.py [--lengths 512,1024,…] [--out FILE.json]
    python benchmarks/sparse_attention.py --draw [--out FILE.json] [--figure FILE.svg]

A GPT of 2 layers of width 128 with 4 heads, one text, its hidden states forward and backward, with
rotary positions or T5's buckets (a bias for every pair of positions, which dense attention holds in
memory). Each row is measured in a process of its own with one thread: the median of three passes in
CPU seconds, and the peak of memory above that before the first pass. `strided` has strides of √T.
The bytes of the KV cache after T tokens are recorded too. Exponents are slopes of log time and log
memory against log T over the three longest texts. Existing rows are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from record_file import RESULTS, Record, add_missing, read_records

OUT = RESULTS / "sparse_attention.json"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
KINDS = {
    "dense": ("dense", "rotary"),
    "dense, buckets": ("dense", "buckets"),
    "window:64": ("window:64", "rotary"),
    "window:64+global:4": ("window:64+global:4", "rotary"),
    "window:64, buckets": ("window:64", "buckets"),
    "strided:√T": ("strided", "rotary"),
}
LONGEST = {"dense, buckets": 4096}
"""Lengths up to which a kind is measured: beyond, its biases take gigabytes."""
VOCABULARY_SIZE = 100


def measure(kind: str, length: int) -> Record:
    """Time and memory of one kind at one length, in this process."""
    import torch

    from lmlab.core.batch import Batch
    from lmlab.core.vocabulary import Vocabulary
    from lmlab.zoo import gpt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    attention, positions = KINDS[kind]
    if attention == "strided":
        attention = f"strided:{math.isqrt(length)}"
    system = gpt.build(
        gpt.Config(
            width=128,
            layers=2,
            heads=4,
            length=length,
            dropout=0.0,
            attention_dropout=0.0,
            attention=attention,
            positions=positions,
            max_distance=length if positions == "buckets" else 128,
        ),
        Vocabulary(size=VOCABULARY_SIZE),
    )
    text = torch.randint(5, VOCABULARY_SIZE, (1, length + 1))
    batch = Batch.collate(text.tolist(), pad=0)
    view = system.objective.view(batch)

    def step() -> float:
        began = time.process_time()
        system.backbone(view).values.square().mean().backward()
        return time.process_time() - began

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = statistics.median(step() for _ in range(3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.no_grad():
        state = system.backbone(view, system.backbone.initial_state(1)).state
    return {
        "seconds": seconds,
        "mebibytes": (peak - before) / 1024,
        "cache_kibibytes": sum(cache_bytes(layer.mixer) for layer in state.layers) / 1024,
    }


def cache_bytes(state: Any) -> int:
    """Bytes of the keys and values that a layer's KV cache holds."""
    cache = getattr(state, "cache", state)
    return cache.keys.nbytes + cache.values.nbytes


def measure_alone(kind: str, length: int) -> Record:
    """The same in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", kind, str(length)]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    result: Record = json.loads(process.stdout.splitlines()[-1])
    return result


def exponent(records: list[Record], kind: str, quantity: str) -> float:
    """Slope of log quantity against log length over the three longest texts."""
    points = sorted((r["length"], r[quantity]) for r in records if r["kind"] == kind)[-3:]
    lengths, amounts = np.log(np.array(points)).T
    return float(np.polyfit(lengths, amounts, 1)[0])


def print_table(records: list[Record]) -> None:
    lengths = sorted({record["length"] for record in records})
    for quantity in ("seconds", "mebibytes", "cache_kibibytes"):
        print(f"\n| {quantity} |", *(f"{length:,} |" for length in lengths), "exponent |")
        print("|---|", *("---|" for _ in lengths), "---|")
        for kind in KINDS:
            amounts = {r["length"]: r[quantity] for r in records if r["kind"] == kind}
            cells = (f"{amounts[n]:.3g} |" if n in amounts else " |" for n in lengths)
            print(f"| {kind} |", *cells, f"{exponent(records, kind, quantity):.2f} |")


def plot(records: list[Record], path: Path) -> None:
    """Time and memory against length, one line per kind, with the exponents."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    panels = {"seconds": "CPU seconds per pass", "mebibytes": "peak memory, MiB"}
    figure, axes = plt.subplots(1, len(panels), figsize=(10, 4), layout="constrained")
    for ax, (quantity, label) in zip(axes, panels.items(), strict=True):
        for kind in KINDS:
            points = sorted((r["length"], r[quantity]) for r in records if r["kind"] == kind)
            name = f"{kind}: T^{exponent(records, kind, quantity):.2f}"
            style = "--" if "buckets" in kind else "-"
            ax.loglog(*zip(*points, strict=True), style, marker="o", markersize=4, label=name)
        ax.set_xlabel("tokens in the text (T)")
        ax.set_ylabel(label)
        ax.legend(frameon=False, fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--out", default=str(OUT))
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--figure", default="docs/images/sparse-attention.svg")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "LENGTH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, length = arguments.measure
        print(json.dumps(measure(kind, int(length))))
        return
    out = Path(arguments.out)
    if arguments.draw:
        plot(read_records(out), Path(arguments.figure))
        return
    configurations = [
        {"kind": kind, "length": length}
        for length in map(int, arguments.lengths.split(","))
        for kind in KINDS
        if length <= LONGEST.get(kind, length)
    ]
    print_table(add_missing(out, configurations, measure_alone))


if __name__ == "__main__":
    main()
