"""The n-gram of order 5 against KenLM: fitting time, scoring speed, perplexity.

    python benchmarks/ngram.py --data DATA [--rounds 7] [--out FILE] [--programs FOLDER]

KenLM's `lmplz`, `build_binary` and `query` are built from its source package on PyPI (by pip, cmake
and Boost) and cached in the folder `--programs`. The two alternate, each on one thread and with the
same allocator settings. Reported are medians, the ratio of medians, and the lowest and highest
ratio of a round.

- fit: `lmplz` from a text file to an ARPA file that is discarded (it can't stop earlier); ours from
  the same file to tables in memory, and from token ids.
- score: `query` on a binary model, from text, minus its loading time; ours from batches of context
  ids, as a system calls its emission, and from text.
- perplexity: on PTB's test and multi30k's validation split, with unknown words and without.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lmlab.core.allocator import MMAP_THRESHOLD, TOP_PAD, retain_freed_memory
from lmlab.core.cache_folder import default_cache
from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.emissions.ngram_table import NgramTable

ORDER = 5
KENLM = "kenlm==0.3.0"
PROGRAMS = ("lmplz", "build_binary", "query")
ROWS = 2**14
"""Contexts per batch."""
REPEATS = 12
"""Repetitions of the test text per round: about a million tokens."""
UNKNOWN, START, END, NO_TOKEN = 1, 2, 3, -1
PEER_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TOP_PAD_": str(TOP_PAD),
}


def build_kenlm(folder: Path) -> Path:
    """KenLM's programs in a folder, built if missing."""
    if all((folder / name).exists() for name in PROGRAMS):
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        source, build = Path(scratch, "source"), Path(scratch, "build")
        source.mkdir()
        # Only kenlm itself from source: its build tools may come as wheels.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _run(*pip, "--no-binary", "kenlm", "--dest", scratch, KENLM)
        archive = next(Path(scratch).glob("kenlm-*.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(source, filter="data")
        root = next(source.iterdir())
        _run("cmake", "-S", str(root), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release")
        _run("cmake", "--build", str(build), "--parallel", "2", "--target", *PROGRAMS)
        folder.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            shutil.copy2(build / "bin" / name, folder / name)
    return folder


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", None) or str(error)
        raise SystemExit(
            f"{message[-2000:]}\nKenLM's programs could not be built: `{' '.join(command)}` "
            "failed. They need pip, a C++ compiler, cmake and Boost; on Debian `apt-get install "
            "g++ cmake libboost-program-options-dev libboost-system-dev libboost-thread-dev "
            "libboost-test-dev zlib1g-dev libbz2-dev liblzma-dev`."
        ) from None


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Training and test file for both sides, one sentence per line."""

    train: Path
    test: Path

    @classmethod
    def prepare(cls, train: Path, test: Path, scratch: Path) -> Texts:
        """Copy the files with <unk> renamed, since `lmplz` refuses that word, which PTB has."""
        for source, name in ((train, "train"), (test, "test")):
            text = source.read_text(encoding="utf-8").replace("<unk>", "UNK")
            (scratch / name).write_text(text, encoding="utf-8")
        return cls(train=scratch / "train", test=scratch / "test")


class Kenlm:
    """KenLM: its programs, and the model built by them."""

    def __init__(self, programs: Path, texts: Texts, scratch: Path) -> None:
        self.programs, self.texts = programs, texts
        self.model = scratch / "model.bin"
        self._lmplz(scratch / "model.arpa")
        self._program("build_binary", str(scratch / "model.arpa"), str(self.model))
        self.long_test = scratch / "long-test"
        self.long_test.write_bytes(texts.test.read_bytes() * REPEATS)

    def _program(self, name: str, *arguments: str, text: Path | None = None) -> str:
        with open(text or os.devnull, "rb") as stdin:
            completed = subprocess.run(
                [str(self.programs / name), *arguments],
                stdin=stdin,
                capture_output=True,
                check=True,
                env={**os.environ, **PEER_SETTINGS},
            )
        return completed.stdout.decode()

    def _lmplz(self, arpa: Path | str) -> None:
        files = ("--text", str(self.texts.train), "--arpa", str(arpa))
        self._program("lmplz", "-o", str(ORDER), "-S", "2G", *files)

    def fit(self) -> None:
        self._lmplz(os.devnull)

    def load(self) -> None:
        self._program("query", "-v", "summary", str(self.model))

    def score(self) -> int:
        """Score the repeated test text and return the number of tokens."""
        output = self._program("query", "-v", "summary", str(self.model), text=self.long_test)
        return int(re.search(r"Tokens:\s+(\d+)", output)[1])  # type: ignore[index]

    def perplexities(self) -> tuple[float, float]:
        output = self._program("query", "-v", "summary", str(self.model), text=self.texts.test)
        with_unknown, without = re.findall(r"OOVs:\s+([\d.]+)\n(?!Tokens)", output)[:2]
        return float(with_unknown), float(without)


class Ours:
    """lmlab's n-gram table for the same operations."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.train = self._encode_train()
        self.table = self.fit_ids()
        self.contexts, self.targets = self._contexts(texts.test)
        self.repeated_test = (self.contexts.repeat(REPEATS, 1), self.targets.repeat(REPEATS))

    def _encode_train(self) -> tuple[np.ndarray, np.ndarray]:
        self.ids = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
        add_word, sequences, offsets = self.ids.setdefault, [], [0]
        with self.texts.train.open(encoding="utf-8") as lines:
            for line in lines:
                sequences.append(START)
                sequences.extend([add_word(word, len(self.ids)) for word in line.split()])
                sequences.append(END)
                offsets.append(len(sequences))
        return np.array(sequences), np.array(offsets)

    def fit_ids(self) -> NgramTable:
        table = NgramTable(ORDER, Vocabulary(size=len(self.ids)))
        table.fit(*self.train)
        _ = table.model  # builds the index, which is part of fitting
        return table

    def fit_text(self) -> None:
        self.train = self._encode_train()
        self.fit_ids()

    def _contexts(self, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
        """Contexts (N, 4) and targets (N,) of all sentences of a file."""
        padding = [NO_TOKEN] * (ORDER - 2) + [START]
        get_id, stream = self.ids.get, []
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                stream += padding
                stream.extend([get_id(word, UNKNOWN) for word in line.split()])
                stream.append(END)
        tokens = torch.tensor([NO_TOKEN, *stream])
        windows = tokens.unfold(0, ORDER, 1)
        is_target = (windows[:, -1] != NO_TOKEN) & (windows[:, -1] != START)
        windows = windows[is_target]
        return windows[:, :-1].contiguous(), windows[:, -1].contiguous()

    def score_ids(self) -> int:
        contexts, targets = self.repeated_test
        for first in range(0, len(targets), ROWS):
            rows = slice(first, first + ROWS)
            self.table.log_prob(contexts[rows], targets[rows])
        return len(targets)

    def score_text(self) -> int:
        tokens = 0
        for _ in range(REPEATS):
            contexts, targets = self._contexts(self.texts.test)
            for first in range(0, len(targets), ROWS):
                rows = slice(first, first + ROWS)
                self.table.log_prob(contexts[rows], targets[rows])
            tokens += len(targets)
        return tokens

    def perplexities(self) -> tuple[float, float]:
        log_probs = self.table.log_prob(self.contexts, self.targets)
        known = log_probs[self.targets != UNKNOWN]
        return math.exp(-log_probs.mean().item()), math.exp(-known.mean().item())


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratio(ours: list[float], peer: list[float]) -> dict[str, float]:
    """Medians of both sides, their ratio, and the lowest and highest ratio of a round."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return {
        "ours": statistics.median(ours),
        "kenlm": statistics.median(peer),
        "ratio": statistics.median(ours) / statistics.median(peer),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def compare_speed(ours: Ours, kenlm: Kenlm, rounds: int) -> dict[str, dict[str, float]]:
    """Fitting time in seconds and scoring speed in tokens per second of both sides."""
    measurements: dict[str, list[float]] = {}

    def record(name: str, value: float) -> None:
        measurements.setdefault(name, []).append(value)

    for _ in range(rounds):
        record("fit from text", seconds(ours.fit_text))
        record("lmplz", seconds(kenlm.fit))
        record("fit from ids", seconds(ours.fit_ids))
        loading_seconds = seconds(kenlm.load)
        tokens = len(ours.targets) * REPEATS
        record("query", tokens / (seconds(kenlm.score) - loading_seconds))
        record("score from ids", tokens / seconds(ours.score_ids))
        record("score from text", tokens / seconds(ours.score_text))
    return {
        "fit from text, s": ratio(measurements["fit from text"], measurements["lmplz"]),
        "fit from ids, s": ratio(measurements["fit from ids"], measurements["lmplz"]),
        "score from text, tokens/s": ratio(measurements["score from text"], measurements["query"]),
        "score from ids, tokens/s": ratio(measurements["score from ids"], measurements["query"]),
    }


def compare_perplexity(ours: Ours, kenlm: Kenlm) -> dict[str, dict[str, float]]:
    return {
        f"perplexity {label}": {
            "ours": our_perplexity,
            "kenlm": peer_perplexity,
            "ratio": our_perplexity / peer_perplexity,
        }
        for label, our_perplexity, peer_perplexity in zip(
            ("with unknown words", "without"),
            ours.perplexities(),
            kenlm.perplexities(),
            strict=True,
        )
    }


def show(title: str, results: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{'':28}{'ours':>14}{'KenLM':>14}{'ratio':>10}   spread")
    for name, row in results.items():
        digits = 0 if row["kenlm"] > 1e4 else 4
        spread = f"{row['lowest']:.2f} to {row['highest']:.2f}" if "lowest" in row else ""
        print(
            f"{name:28}{row['ours']:14,.{digits}f}{row['kenlm']:14,.{digits}f}"
            f"{row['ratio']:10.{2 if spread else 6}f}   {spread}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--programs", type=Path, default=default_cache() / "kenlm-0.3.0")
    options = parser.parse_args()
    programs = build_kenlm(options.programs)
    if options.data is None:
        raise SystemExit(f"KenLM's programs are in {programs}; give --data to compare with them.")
    torch.set_num_threads(1)
    retain_freed_memory()
    data = Path(options.data)
    corpora = {
        "ptb, test": (data / "ptb" / "train.txt", data / "ptb" / "test.txt"),
        "multi30k, val": (data / "multi30k" / "train.en", data / "multi30k" / "val.en"),
    }
    report: dict[str, dict[str, dict[str, float]]] = {}
    for title, (train, test) in corpora.items():
        with tempfile.TemporaryDirectory() as scratch:
            texts = Texts.prepare(train, test, Path(scratch))
            ours, kenlm = Ours(texts), Kenlm(programs, texts, Path(scratch))
            report[title] = compare_perplexity(ours, kenlm)
            report[title] |= compare_speed(ours, kenlm, options.rounds)
            show(title, report[title])
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
