"""The kinds of fits that are killed and resumed, and what of their results must be the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLOCK = ("seconds", "tokens_per_second", "time", "minutes", "memory", "peak_memory", "wall")
"""Keys of records that differ from one run of the same training to the next."""
EXPERIMENTS = ("ablation.json", "sweep.json")
COMPARED = ("model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "manifest.json")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A command that trains or builds, and whether it goes on with --resume or is given again."""

    name: str
    arguments: tuple[str, ...]
    """{world} is the folder of data and runs, {out} where it writes."""
    resumes: bool = True
    appears_whole: bool = False
    """Whether the folder gets its name when it is finished, and is never written again."""
    short: bool = False
    """Whether it is part of the short suite."""


def _train(name: str, system: str, *options: str, short: bool = False) -> Fit:
    data = ("--data", "{world}/corpus.txt", "--size", "tiny", "--out", "{out}")
    return Fit(name=name, arguments=("train", system, *data, *options), short=short)


FITS: tuple[Fit, ...] = (
    _train(
        "gradient", "lstm", "--steps", "4",
        "--set", "checkpoint_steps=1", "--set", "evaluate_every=2", "--set", "log_every=1",
        short=True,
    ),
    _train(
        "gradient contiguous", "lstm", "--data", "ptb-contiguous:{world}/ptb", "--steps", "4",
        "--set", "checkpoint_steps=1", "--set", "evaluate_every=2",
    ),
    _train(
        "averaging", "gpt", "--steps", "4", "--set", "checkpoint_steps=2",
        "--set", "evaluate_every=1", "--set", "average=2",
    ),
    _train("counting", "ngram", short=True),
    _train("expectation-maximisation", "hmm", "--set", "fitting=em", "--epochs", "3"),
    _train("word vectors", "cbow", "--epochs", "2"),
    Fit(
        name="fine-tuning",
        arguments=(
            *("finetune", "{world}/bert", "--task", "classify", "--data", "{world}/rows.jsonl"),
            *("--out", "{out}", "--steps", "4", "--set", "checkpoint_steps=1"),
        ),
    ),
    Fit(
        name="questions over several hops",
        arguments=(
            *("finetune", "{world}/bert", "--task", "hops", "--out", "{out}"),
            *("--data", "{world}/hop-rows/rows.jsonl"),
            *("--steps", "2", "--set", "checkpoint_steps=1"),
        ),
    ),
    Fit(
        name="import",
        arguments=("import-hf", "{world}/hf-gpt", "--out", "{out}"),
        resumes=False,
        appears_whole=True,
    ),
    Fit(
        name="index",
        arguments=(
            *("index", "build", "{world}/documents.jsonl", "--encoder", "{world}/bert"),
            *("--kind", "hnsw", "--out", "{out}"),
        ),
        resumes=False,
        appears_whole=True,
    ),
    Fit(
        name="ablation",
        arguments=(
            *("ablate", "gru-minimal", "--data", "{world}/corpus.txt", "--out", "{out}"),
            *("--size", "tiny", "--seeds", "1", "--epochs", "1", "--switches", "0"),
        ),
        resumes=False,
    ),
    Fit(
        name="sweep", arguments=("sweep", "{world}/sweep.yaml", "--out", "{out}"), resumes=False
    ),
)  # fmt: skip


def results_of(out: Path) -> dict[str, str]:
    """What must not depend on whether a fit was killed: each file's hash, without clock times."""
    result = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = path.relative_to(out).as_posix()
        if (
            path.name in COMPARED
            or path.suffix in (".npy", ".faiss", ".gz")
            or path.name in EXPERIMENTS
        ):
            result[name] = hashlib.sha256(_timeless(path)).hexdigest()
    return {name: value for name, value in result.items() if "trainer/" not in name}


def _timeless(path: Path) -> bytes:
    """The file's bytes; of records of a training without what the clock decides."""
    if path.name == "metrics.jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return json.dumps([_without_clock(row) for row in rows if _is_result(row)]).encode()
    if path.name in EXPERIMENTS:
        record = {key: each for key, each in json.loads(path.read_text()).items() if key != "path"}
        return json.dumps(_without_clock(record)).encode()
    return path.read_bytes()


def _is_result(row: dict[str, Any]) -> bool:
    """Whether a line reports the training itself, and not of how it was started or resumed."""
    return "step" in row


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_clock(each)
            for key, each in value.items()
            if not any(word in key for word in CLOCK)
        }
    return [_without_clock(each) for each in value] if isinstance(value, list) else value
