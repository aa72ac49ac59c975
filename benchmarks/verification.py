"""Cost of verification: seconds to load a run with and without checking its hashes.

    python benchmarks/verification.py [--out FILE.json]

Runs of GPT with random weights, of about 0.1, 10 and 100 MB, in a temporary folder; files are in
the page cache, so that the difference is the hashing. Medians of alternating loads, one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from lmlab.core.manifest import verification
from lmlab.data.corpus import Layout
from lmlab.data.tokenizer_training import word_level_tokenizer
from lmlab.data.tokenizers import Tokenizer
from lmlab.training.config import TrainingConfig
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, load_run
from lmlab.training.run_records import unknown_corpus
from lmlab.training.system_building import build_system

SHAPES = {"small": (32, 2), "medium": (256, 3), "large": (720, 4)}
"""Width and layers."""
ROUNDS = 9


def write_run(folder: Path, width: int, layers: int) -> None:
    """Write a run of an untrained GPT."""
    spellings = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", *(f"word{n}" for n in range(95)))
    tokenizer = Tokenizer(word_level_tokenizer({word: n for n, word in enumerate(spellings)}))
    settings = {"width": width, "layers": layers, "heads": 4}
    config = RunConfig(
        system="gpt",
        size="small",
        system_config=settings,
        vocabulary=tokenizer.vocabulary,
        tokenizer=tokenizer.kind,
        layout=Layout(),
        corpus=unknown_corpus("none"),
        training=TrainingConfig(),
    )
    system = build_system("gpt", settings, tokenizer.vocabulary, seed=0)
    RunFolder(folder).write_description(config, tokenizer, weights=system)


def seconds(folder: Path, *, verify: bool) -> float:
    """Seconds of one load."""
    with verification(verify):
        start = time.perf_counter()
        load_run(folder)
        return time.perf_counter() - start


def measure(folder: Path, width: int, layers: int) -> dict[str, Any]:
    """Median load times of a run of this shape."""
    write_run(folder, width, layers)
    seconds(folder, verify=True)  # the page cache is warm from here on
    pairs = [(seconds(folder, verify=True), seconds(folder, verify=False)) for _ in range(ROUNDS)]
    size = (folder / "model.safetensors").stat().st_size
    verified, unverified = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "megabytes": round(size / 1e6, 2),
        "verified_seconds": round(verified, 4),
        "unverified_seconds": round(unverified, 4),
        "verification_seconds": round(statistics.median(a - b for a, b in pairs), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        results = {name: measure(Path(scratch) / name, *shape) for name, shape in SHAPES.items()}
    text = json.dumps(results, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
