"""Whether each system of the yardstick trains on bytes: two steps, a score, minimal pairs."""

from __future__ import annotations

import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from yardstick_corpora import PreparedCorpus, write_files
from yardstick_rows import settings_on
from yardstick_systems import TOKENIZER, measured_systems, systems_left_out
from yardstick_training import fit, score

from lmlab.core.card import Card
from lmlab.core.registry import find_system

SUBJECTS = ("a boy", "two old dogs", "the woman in red", "a café", "three men", "nobody")
VERBS = ("sleeps", "runs along the river", "looks at a map of Zürich", "plays", "waits outside")
STEPS = 2


def tiny_corpus(folder: Path) -> PreparedCorpus:
    """Thirty sentences, with one as long as the yardstick's longest and one of two-byte letters."""
    lines = [f"{subject} {verb} ." for subject in SUBJECTS for verb in VERBS]
    lines += ["é" * 60, "long " * 24]
    pair = {"sentence_good": "a boy sleeps .", "sentence_bad": "a sleeps boy .", "phenomenon": "x"}
    splits = {"train": lines, "validation": lines[:4], "test": lines[4:7]}
    return write_files("tiny", folder / "corpus", splits, [pair])


def check(only: str, size: str) -> int:
    """Print the outcome of each system; how many fail."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        corpus = tiny_corpus(Path(folder))
        for card in measured_systems():
            if only not in card.name:
                continue
            try:
                outcome = check_system(card, corpus, Path(folder), size)
            except Exception:  # whatever is wrong with a system, the others are checked
                failures, outcome = failures + 1, f"FAILED\n{traceback.format_exc()}"
            print(f"{card.name}: {outcome}", flush=True)
    for name, reason in systems_left_out().items():
        if only in name:
            print(f"{name}: left out: {reason}")
    return failures


def check_system(card: Card, corpus: PreparedCorpus, folder: Path, size: str) -> str:
    """Train for two steps (EM for one iteration), and score; what came out."""
    started = time.process_time()
    run = train_briefly(card, corpus, folder, size)
    pairs = str(corpus.folder / "pairs.jsonl")
    scored = score(run=str(run), texts=corpus.texts("test"), pairs=pairs)
    if "failed" in scored:
        raise RuntimeError(scored["failed"])
    bits = scored["bits_per_byte"]
    shown = "no bits per byte" if bits is None else f"{bits:.2f} bits per byte"
    return f"{scored['kind']}, {shown}, {time.process_time() - started:.1f} s"


def train_briefly(card: Card, corpus: PreparedCorpus, folder: Path, size: str) -> Path:
    """A run of a few steps, on such a run of its base where it needs one."""
    run = folder / f"{card.name}-{size}"
    if run.exists():
        return run
    base = train_briefly(find_system(card.base), corpus, folder, size) if card.base else None
    budget: dict[str, Any] = {"counting": {}, "em": {"epochs": 1}}.get(
        card.fitting, {"steps": STEPS}
    )
    result = fit(
        system=card.name,
        data=str(corpus.folder),
        out=str(run),
        settings=settings_on(card, corpus, size),
        budget=budget,
        validation_bytes=corpus.bytes["validation"],
        train_bytes=corpus.bytes["train"],
        size=size,
        tokenizer=TOKENIZER,
        base=None if base is None else str(base),
        seed=0,
    )
    if "failed" in result:
        raise RuntimeError(result["failed"])
    return run
