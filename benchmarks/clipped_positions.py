"""Clipping distance of Shaw's relative positions: does 2 suffice? On the language `grammar`.

    python benchmarks/clipped_positions.py [--seeds 2] [--out FILE.json]
    python benchmarks/clipped_positions.py --table

Shaw et al. 2018 find that BLEU hardly changes from k = 2 on (their table 3). Here a `gpt` (left
context only) and a `bert` (both sides, and no other information about order) are trained with k =
1, 2, 4, 8, 16 and without positions (k = 0 but for a constant). On the same held-out sentences
`gpt` is evaluated by its regret, the nats per sentence above the grammar's own entropy, and `bert`
by its pseudo-log-likelihood in nats per token, which has no floor here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from finishing import finished
from kept_records import RESULTS, Record, fill, options, read, spread

SYSTEMS = ("gpt", "bert")
REACHES = (0, 1, 2, 4, 8, 16)
SENTENCES, STEPS, SCORED = 30_000, 500, 1000


def settings(system: str, reach: int) -> dict[str, Any]:
    given: dict[str, Any] = {
        "width": 64,
        "layers": 2,
        "heads": 2,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "warmup_steps": 50,
        "tokens_per_batch": 1024,
        "positions": "shaw" if reach else "none",
    }
    if reach:
        given["reach"] = reach
    if system == "bert":
        given |= {"pairs": "none", "segments": 0, "masking": "dynamic"}
    return given


def trained(system: str, reach: int, seed: int) -> Record:
    """Train one and score held-out sentences."""
    import torch

    import lmlab
    from lmlab.data.languages import grammar

    torch.set_num_threads(1)
    corpus = grammar.corpus(sentences=SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        result = finished(
            lmlab.train(
                system,
                data=corpus,
                out=Path(folder) / "run",
                settings=settings(system, reach),
                steps=STEPS,
                seed=seed,
                quiet=True,
            )
        )
        texts = [example.text for example in corpus.split("test")][:SCORED]
        scores = lmlab.load(result.path).score(texts)
    total, kind = sum(score.total for score in scores), scores[0].kind
    found = {
        "kind": kind,
        "nats_per_token": -total / sum(score.tokens for score in scores),
        "seconds": result.seconds,
    }
    if kind == "exact":
        true = sum(grammar.truth().log_prob(text) for text in texts)
        found["nats_per_text_above_truth"] = (true - total) / len(texts)
    return found


def table(records: list[Record]) -> str:
    """By clipping distance; mean over seeds and half of their range."""
    lines = [
        "| k | `gpt`: regret, nats per sentence | `bert`: nats per token (pseudo) |",
        "|---|---|---|",
    ]
    for reach in REACHES:
        found = {
            system: [r for r in records if r["reach"] == reach and r["system"] == system]
            for system in SYSTEMS
        }
        regret = spread([r["nats_per_text_above_truth"] for r in found["gpt"]])
        pseudo = spread([r["nats_per_token"] for r in found["bert"]])
        lines.append(f"| {reach or 'no positions'} | {regret} | {pseudo} |")
    return "\n".join(lines)


def main() -> None:
    given = options(__doc__.splitlines()[0], RESULTS / "clipped_positions.json", 2).parse_args()
    if not given.table:
        asked = (
            {"system": system, "reach": reach, "seed": seed}
            for seed in range(given.seeds)
            for system in SYSTEMS
            for reach in REACHES
        )
        fill(given.out, asked, trained)
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
