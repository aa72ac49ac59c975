"""Is the Transformer weak because the sequences are short (003)? `gpt` against `lstm` by length.

    python benchmarks/notes/gpt_by_length.py --data DATA [--seeds 3]

The same letters (tiny Shakespeare, one stream cut into texts of L letters) and proteins of CATH
(cut to their first L letters), with the same number of training tokens for every L and both
systems. Reported is the held-out loss in nats per letter; if length is what the Transformer lacks,
its distance from the LSTM shrinks, or turns, with L.
"""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path

import torch
from claim_records import Record, held_out_loss, measure_missing, parse_arguments, print_means

from lmlab.data.corpus import open_corpus

LENGTHS = {"letters": (16, 64, 256), "proteins": (20, 50, 100)}
SYSTEMS: dict[str, Record] = {
    "gpt": {"layers": 2, "heads": 4, "length": 260, "attention_dropout": 0.1},
    "lstm": {"tied": True},
}
STEPS = 1500
SETTINGS: Record = {
    "width": 96,
    "dropout": 0.1,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 2048,
    "evaluate_every": 10**6,
}


def texts(data: str, corpus: str, length: int) -> dict[str, list[str]]:
    """Training and test texts of at most so many letters."""
    if corpus == "proteins":
        splits = open_corpus(f"cath-l100:{data}").splits
        return {part: [e.text[:length] for e in splits[part]] for part in ("train", "test")}
    stream = (Path(data) / "shakespeare" / "input.txt").read_text(encoding="utf-8")
    stream = stream.replace("\n", " ")
    end = int(len(stream) * 0.9)
    parts = {"train": stream[:end], "test": stream[end:]}
    return {
        part: [text[start : start + length] for start in range(0, len(text) - length, length)]
        for part, text in parts.items()
    }


def main() -> None:
    options = parse_arguments(__doc__, "gpt-by-length")
    torch.set_num_threads(1)

    def measure(corpus: str, length: int, system: str, seed: int) -> Record:
        with tempfile.TemporaryDirectory() as name:
            for part, lines in texts(options.data, corpus, length).items():
                (Path(name) / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            # A validation split is required of a folder; nothing is selected by it.
            first = islice((Path(name) / "test.txt").open(encoding="utf-8"), 200)
            (Path(name) / "valid.txt").write_text("".join(first), encoding="utf-8")
            settings = SETTINGS | SYSTEMS[system]
            loss, parameters = held_out_loss(
                system, name, settings, seed=seed, steps=STEPS, tokenizer="char"
            )
        return {"nats per token": loss, "parameters": parameters}

    configurations = [
        {"corpus": corpus, "length": length, "system": system}
        for corpus, lengths in LENGTHS.items()
        for length in lengths
        for system in SYSTEMS
    ]
    settings = SETTINGS | {"steps": STEPS, "systems": SYSTEMS}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("corpus", "length", "system"))


if __name__ == "__main__":
    main()
