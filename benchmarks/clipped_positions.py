"""Clipping distance of Shaw's relative positions: does 2 suffice? On the language `grammar`.

    python benchmarks/clipped_positions.py [--seeds 2] [--out FILE.json]
    python benchmarks/clipped_positions.py --table

Shaw et al. 2018 find that BLEU hardly changes from k = 2 on (their table 3). Here a `gpt` (left
context only) and a `bert` (both sides, and no other information about order) are trained with k =
1, 2, 4, 8, 16 and without positions (k = 0 up to a constant). On the same held-out sentences
`gpt` is evaluated by its regret, the nats per sentence above the grammar's own entropy, and `bert`
by its pseudo-log-likelihood in nats per token, which has no floor here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from finishing import finished
from record_file import RESULTS, Record, add_missing, make_parser, mean_and_half_range, read_records

SYSTEMS = ("gpt", "bert")
CLIP_DISTANCES = (0, 1, 2, 4, 8, 16)
SENTENCES, STEPS, SCORED = 30_000, 500, 1000


def settings(system: str, clip_distance: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "width": 64,
        "layers": 2,
        "heads": 2,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "warmup_steps": 50,
        "tokens_per_batch": 1024,
        "positions": "shaw" if clip_distance else "none",
    }
    if clip_distance:
        config["clip_distance"] = clip_distance
    if system == "bert":
        config |= {"pairs": "none", "segments": 0, "masking": "dynamic"}
    return config


def train_and_score(system: str, reach: int, seed: int) -> Record:
    """Train one model and score the held-out sentences."""
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
    record = {
        "kind": kind,
        "nats_per_token": -total / sum(score.tokens for score in scores),
        "seconds": result.seconds,
    }
    if kind == "exact":
        true_total = sum(grammar.truth().log_prob(text) for text in texts)
        record["nats_per_text_above_truth"] = (true_total - total) / len(texts)
    return record


def table(records: list[Record]) -> str:
    """By clipping distance; mean over seeds and half of their range."""
    lines = [
        "| k | `gpt`: regret, nats per sentence | `bert`: nats per token (pseudo) |",
        "|---|---|---|",
    ]
    for clip_distance in CLIP_DISTANCES:
        by_system = {
            system: [r for r in records if r["reach"] == clip_distance and r["system"] == system]
            for system in SYSTEMS
        }
        regret = mean_and_half_range([r["nats_per_text_above_truth"] for r in by_system["gpt"]])
        pseudo = mean_and_half_range([r["nats_per_token"] for r in by_system["bert"]])
        lines.append(f"| {clip_distance or 'no positions'} | {regret} | {pseudo} |")
    return "\n".join(lines)


def main() -> None:
    arguments = make_parser(
        __doc__.splitlines()[0], RESULTS / "clipped_positions.json", 2
    ).parse_args()
    if not arguments.table:
        planned = (
            {"system": system, "reach": reach, "seed": seed}
            for seed in range(arguments.seeds)
            for system in SYSTEMS
            for reach in CLIP_DISTANCES
        )
        add_missing(arguments.out, planned, train_and_score)
    print(table(read_records(arguments.out)))


if __name__ == "__main__":
    main()
