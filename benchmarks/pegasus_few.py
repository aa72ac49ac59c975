"""PEGASUS fine-tuned with 10, 100 and 1,000 examples, and the same network not pre-trained.

    python benchmarks/pegasus_few.py --runs RUNS [--seeds 2] [--out FILE.json]
    python benchmarks/pegasus_few.py --table

Zhang et al. 2020 fine-tune on as many summaries. Here documents are generated, ten sentences about
three countries, and the summary names the country with the most of them and its capital
(benchmarks/country_documents.py). Gap sentences are chosen by ROUGE as the paper does. All are
fine-tuned for the same number of steps.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from country_documents import finetuned, pretrained
from kept_records import RESULTS, Record, fill, options, read, spread

EXAMPLES = (10, 100, 1000)
STEPS, FINETUNING = 1000, 200
TRAINING = {
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
}


def judged(runs: Path, pretraining: bool, examples: int, seed: int) -> Record:
    kind = "pretrained" if pretraining else "fresh"
    base = runs / f"pegasus-{kind}-{seed}"
    pretrained("pegasus", base, TRAINING, steps=STEPS if pretraining else 1, seed=seed)
    out = runs / f"{base.name}-{examples}"
    rate = {"learning_rate": 1e-3}
    return finetuned(base, out, rate, examples=examples, steps=FINETUNING, seed=seed)


def table(records: list[Record]) -> str:
    """The mean of the seeds and half of their range."""
    lines = [
        "| rows | pre-trained: exact match | ROUGE-L | not pre-trained: exact match | ROUGE-L |",
        "|---|---|---|---|---|",
    ]
    for examples in EXAMPLES:
        cells = [
            spread([r[measure] for r in records if (r["pretraining"], r["examples"]) == chosen])
            for chosen in ((True, examples), (False, examples))
            for measure in ("exact_match", "rougeL")
        ]
        lines.append(f"| {examples:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__.splitlines()[0], RESULTS / "pegasus_few.json", 2)
    parser.add_argument("--runs", type=Path, default=Path("runs/pegasus-few"))
    given = parser.parse_args()
    if not given.table:
        asked = (
            {"pretraining": pretraining, "examples": examples, "seed": seed}
            for seed in range(given.seeds)
            for pretraining in (True, False)
            for examples in EXAMPLES
        )
        fill(given.out, asked, partial(judged, given.runs))
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
