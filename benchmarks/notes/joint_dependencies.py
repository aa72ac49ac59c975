"""Potts and pairwise Gaussian beside chain and tree, for filling several blanks jointly (000).

    python benchmarks/notes/joint_dependencies.py [--seeds 3]

Eight sentences such as 中国的首都是北京, equally likely, two letters for each country and capital;
all four letters are masked. Potts and Gaussian have to enumerate all fillings, hence the eight (the
language `capitals` of `span_joint.py` has too many letters). Measured in nats: the KL of the true
joint from the model's own joint, from the product of its single distributions (at best 4.72, as
some letters are shared) and from the chain rule (one blank after the other, a pass each).
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

sys.path.insert(0, str(Path(__file__).parents[1]))

from span_joint import ENCODER, RELATION_TEXT, log_probs

from lmlab.data.countries import country_table

COUNTRIES, STEPS = 8, 800
DEPENDENCIES: dict[str, Record] = {
    "independent": {"states": 1, "rank": 4},
    "chain": {"states": 64, "rank": 16},
    "tree": {"states": 64, "rank": 16, "dependencies": "tree"},
    "potts": {"rank": 16, "dependencies": "potts"},
    "gaussian": {"rank": 16, "dependencies": "gaussian"},
}


def sentences() -> list[str]:
    pairs = [(c.country_zh, c.capital_zh) for c in country_table()]
    chosen = [pair for pair in pairs if len(pair[0]) == len(pair[1]) == 2][:COUNTRIES]
    return [f"{country}{RELATION_TEXT}{capital}" for country, capital in chosen]


def measure(dependencies: str, seed: int) -> Record:
    texts = sentences()
    with tempfile.TemporaryDirectory() as name:
        for split, repeats in (("train", 200), ("valid", 2), ("test", 2)):
            lines = "\n".join(texts * repeats)
            (Path(name) / f"{split}.txt").write_text(lines + "\n", encoding="utf-8")
        settings = ENCODER | DEPENDENCIES[dependencies]
        model = train_model("span-joint", name, settings, seed=seed, steps=STEPS, tokenizer="char")
    by_method = log_probs(model, texts, (2, 2))
    return {f"KL, {m}": -math.log(COUNTRIES) - float(q.mean()) for m, q in by_method.items()}


def main() -> None:
    options = parse_arguments(__doc__, "joint-dependencies")
    torch.set_num_threads(1)
    configurations = [{"dependencies": name} for name in DEPENDENCIES]
    settings = ENCODER | {"steps": STEPS, "models": DEPENDENCIES, "sentences": sentences()}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("dependencies",))


if __name__ == "__main__":
    main()
