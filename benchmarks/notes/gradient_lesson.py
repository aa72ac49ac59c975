"""Gradients vanish in the RNN and not in the LSTM (002): gradient against distance.

    python benchmarks/notes/gradient_lesson.py [--seeds 3]

Both cells learn recall with gaps of 0 to 40 dots mixed (`memory.py`). Measured on texts with a gap
of 60: the gradient of the last prediction with respect to the input vectors, by distance; the
factor by which one more step back multiplies it; and the probability of the right value. The runs
stay in RUNS (runs/gradient), so that `lmlab inspect` draws the figure:

    lmlab inspect RUNS/rnn-0 RUNS/lstm-0 --text "TEXT" --out pictures

with the TEXT that is printed (a value, 60 dots, and the question for it).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means
from finishing import finished
from memory import MIXED, SETTINGS, probability, texts, write_corpus

import lmlab
from lmlab.core.batch import Batch
from lmlab.inspection.gradient_flow import measure_gradient_by_distance

GAP, RATE, STEPS = 60, 0.003, (1, 6000)
RUNS = Path("runs/gradient")
SHOWN = (1, 3, 7, 20, 40, 62)
"""Distances in the record; the value stands 62 before the last token of the text, the value."""


def measure(system: str, seed: int) -> Record:
    corpus, run = RUNS / f"corpus-{seed}", RUNS / f"{system}-{seed}"
    corpus.mkdir(parents=True, exist_ok=True)
    write_corpus(corpus, list(range(MIXED + 1)), seed)
    result = {}
    for steps in STEPS:
        finished(
            lmlab.train(
                system,
                data=str(corpus),
                out=run,
                settings=SETTINGS | {"learning_rate": RATE},
                steps=steps,
                seed=seed,
                resume=steps > STEPS[0],
                quiet=True,
            )
        )
        model = lmlab.load(run)
        result[f"after {steps}"] = gradient(model, texts([GAP], 100, seed=7))
    return result


def gradient(model: Any, sentences: list[str]) -> Record:
    vocabulary = model.system.vocabulary
    # No end token: the last prediction is that of the value.
    rows = [[vocabulary.start, *model.tokenizer.encode(text)] for text in sentences]
    batch = Batch.collate(rows, pad=vocabulary.pad)
    flow = measure_gradient_by_distance(model.system, [batch], max_distance=GAP + 5)
    norms = dict(zip(flow.distances, flow.norms, strict=True))
    return {
        "factor": flow.factor,
        "norm at": {str(distance): norms[distance] for distance in SHOWN},
        "probability": probability(model, sentences),
    }


def main() -> None:
    options = parse_arguments(__doc__, "gradient-lesson")
    torch.set_num_threads(1)
    configurations = [{"system": system} for system in ("rnn", "lstm")]
    settings = SETTINGS | {"gap": GAP, "learning_rate": RATE, "steps": STEPS}
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("system",), digits=6)
    print(texts([GAP], 1, seed=7)[0])


if __name__ == "__main__":
    main()
