"""PEGASUS fine-tuned with 10, 100 and 1,000 examples, against the same network not pre-trained.

    python benchmarks/pegasus_few.py --runs RUNS [--seeds 2] [--out FILE.json]
    python benchmarks/pegasus_few.py --table

Zhang et al. 2020 fine-tune on as many summaries. Here documents are generated, ten sentences about
three countries, and the summary names the country with the most of them and its capital
(benchmarks/country_documents.py). Gap sentences are selected by ROUGE as in the paper. All are
fine-tuned for the same number of steps; the network that was not pre-trained also for as many steps
as pre-training and fine-tuning together.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from country_documents import finetuned, pretrained
from kept_records import RESULTS, Record, fill, options, read, spread

EXAMPLES = (10, 100, 1000)
STEPS, FINETUNING = 1000, 200
TRIALS = [(before, examples, FINETUNING) for before in (True, False) for examples in EXAMPLES]
TRIALS += [(False, examples, STEPS + FINETUNING) for examples in EXAMPLES]
"""Whether pre-trained, with how many rows, and for how many steps of fine-tuning."""
TRAINING = {
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
}


def judged(runs: Path, pretraining: bool, examples: int, steps: int, seed: int) -> Record:
    kind = "pretrained" if pretraining else "fresh"
    base = runs / f"pegasus-{kind}-{seed}"
    pretrained("pegasus", base, TRAINING, steps=STEPS if pretraining else 1, seed=seed)
    out = runs / f"{base.name}-{examples}-{steps}"
    rate = {"learning_rate": 1e-3}
    return finetuned(base, out, rate, examples=examples, steps=steps, seed=seed)


def table(records: list[Record]) -> str:
    """The mean of the seeds and half of their range."""
    lines = ["| pre-trained | rows | steps | exact match | ROUGE-L |", "|---|---|---|---|---|"]
    for pretraining, examples, steps in TRIALS:
        chosen = {"pretraining": pretraining, "examples": examples, "steps": steps}
        found = [record for record in records if chosen.items() <= record.items()]
        cells = [spread([r[measure] for r in found]) for measure in ("exact_match", "rougeL")]
        told = "yes" if pretraining else "no"
        lines.append(f"| {told} | {examples:,} | {steps:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__.splitlines()[0], RESULTS / "pegasus_few.json", 2)
    parser.add_argument("--runs", type=Path, default=Path("runs/pegasus-few"))
    given = parser.parse_args()
    if not given.table:
        asked = (
            {"pretraining": pretraining, "examples": examples, "steps": steps, "seed": seed}
            for seed in range(given.seeds)
            for pretraining, examples, steps in TRIALS
        )
        fill(given.out, asked, partial(judged, given.runs))
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
