"""Potts and pairwise Gaussian beside chain and tree, for filling several blanks jointly (000).

    python benchmarks/notes/joint_dependencies.py [--seeds 3]

The models and the measure of `span_joint.py` (KL from the true joint of country and capital on
`capitals`, in nats), with the two fully connected dependencies of `span-joint` beside chain, tree
and independence: Potts, trained by pseudo-likelihood, and a Gaussian over token vectors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means

sys.path.insert(0, str(Path(__file__).parents[1]))

import span_joint

STEPS = 2000
DEPENDENCIES: dict[str, Record] = {
    "independent": {"states": 1, "rank": 4},
    "chain": {"states": 64, "rank": 16},
    "tree": {"states": 64, "rank": 16, "dependencies": "tree"},
    "potts": {"rank": 16, "dependencies": "potts"},
    "gaussian": {"rank": 16, "dependencies": "gaussian"},
}


def measure(dependencies: str, seed: int) -> Record:
    model, _ = span_joint.train(dependencies, STEPS, seed)
    result = span_joint.measure(model)
    return {name: result[name] for name in ("kl_two_and_two", "log_ratio_of_notes")}


def main() -> None:
    options = parse_arguments(__doc__, "joint-dependencies")
    torch.set_num_threads(1)
    span_joint.MODELS |= {name: ("span-joint", s) for name, s in DEPENDENCIES.items()}
    configurations = [{"dependencies": name} for name in DEPENDENCIES]
    settings = span_joint.ENCODER | {"steps": STEPS, "models": DEPENDENCIES}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("dependencies",))


if __name__ == "__main__":
    main()
