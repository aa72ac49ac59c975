"""Memory of recurrent cells by protocol, and the gradient of a linear recurrence (002's claims).

    python benchmarks/notes/memory.py [--seeds 3]
    python benchmarks/notes/memory.py --figure docs/images/memory.svg

- recall: a key with one of eight values, a gap of dots, the key again. Measured is the probability
  of the value by the number of steps in between; chance is 1/8. 002 says that an RNN remembers
  about 7 steps and an LSTM about 100. Two by two by two: trained with gaps of 0 to 40 mixed, or on
  each gap by itself; at 1,500 steps, and 6,000; two learning rates, both constant.
- gradient: the factor by which one more step back multiplies the gradient of an untrained linear
  recurrence, by its spectral radius. 002 says that the factor equals the radius.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claim_records import Record, measure_missing, parse_arguments, print_means
from finishing import finished

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.languages.recall import RecallTruth
from lmlab.inspection.gradient_flow import measure_gradient_by_distance
from lmlab.plotting.figure import FigureSpec, line_style, render_figure, standalone_svg

SYSTEMS = ("rnn", "lstm", "gru")
GAPS = (1, 3, 5, 8, 12, 20, 30, 40, 60, 96, 120)
"""Gaps at which a model that was trained with mixed gaps is tested."""
ALONE = (5, 20, 96)
"""Gaps to train on by themselves."""
MIXED = 40
"""The longest of the mixed gaps."""
RATES = (0.003, 0.001)
STEPS = (1500, 6000)
RADII = (0.7, 0.9, 1.0, 1.1, 1.3)
SETTINGS: Record = {"width": 64, "dropout": 0.0, "grad_clip": 1.0, "tokens_per_batch": 1024}


def texts(gaps: list[int], count: int, seed: int) -> list[str]:
    """Recall of one pair over a gap of dots, drawn from the gaps for each text."""
    truths = [
        RecallTruth(
            keys=2, values=8, min_pairs=1, max_pairs=1, min_distance=0, max_distance=None, gap=gap
        )
        for gap in gaps
    ]
    generator = np.random.default_rng(seed)
    return [truths[generator.integers(len(truths))].sample(generator) for _ in range(count)]


def write_corpus(folder: Path, gaps: list[int], seed: int) -> None:
    """4,000 training texts, 200 validation and 200 test texts."""
    for split, count in (("train", 4000), ("valid", 200), ("test", 200)):
        lines = texts(gaps, count, seed=1000 * len(split) + seed)
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def steps_back(gap: int) -> int:
    """From the value to the position that predicts it: the dots, "?" and the key."""
    return gap + 2


def recall(system: str, gaps: str, learning_rate: float, seed: int) -> Record:
    """Train on the gaps; probability of the value by steps back, after each number of steps."""
    trained = list(range(MIXED + 1)) if gaps == "mixed" else [int(gaps)]
    tested = GAPS if gaps == "mixed" else trained
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), Path(name) / "run"
        write_corpus(folder, trained, seed)
        results = {}
        for steps in STEPS:
            settings = SETTINGS | {"learning_rate": learning_rate}
            budget: dict[str, Any] = {"steps": steps, "seed": seed, "resume": steps > STEPS[0]}
            finished(
                lmlab.train(
                    system, data=str(folder), out=run, settings=settings, quiet=True, **budget
                )
            )
            model = lmlab.load(run)
            results[str(steps)] = {
                str(steps_back(gap)): probability(model, texts([gap], 200, seed=seed + 7))
                for gap in tested
            }
    return {"probability": results}


def probability(model: Any, sentences: list[str]) -> float:
    """Mean probability of the last word, the value; the end token comes after it."""
    scores = model.score(sentences)
    return float(np.mean([math.exp(score.per_token[-2].log_prob) for score in scores]))


def gradient_table() -> list[Record]:
    """Gradient factor of an untrained linear recurrence of 64 units over 40 random tokens."""
    module, rows = system_module("rnn"), []
    vocabulary = Vocabulary(size=50)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 50, (32, 42), generator=generator)
    tokens[:, 0] = 2
    batch = Batch.collate(tokens.tolist(), pad=vocabulary.pad)
    for radius in RADII:
        torch.manual_seed(0)
        config = module.Config(width=64, dropout=0.0, activation="linear", radius=radius)
        flow = measure_gradient_by_distance(module.build(config, vocabulary), [batch])
        rows.append({"radius": radius, "factor": flow.factor})
        print(f"radius {radius}: a step back multiplies the gradient by {flow.factor:.3f}")
    return rows


def plot(records: list[Record], path: Path) -> None:
    """Probability by steps back: a panel per learning rate and number of steps."""
    panels = [(rate, steps) for rate in RATES for steps in STEPS]

    def draw(figure: Any) -> None:
        grid = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, (rate, steps) in zip(grid.flat, panels, strict=True):
            for index, system in enumerate(SYSTEMS):
                of_system = [
                    r for r in records if r["system"] == system and r["learning_rate"] == rate
                ]
                draw_system(axes, of_system, str(steps), system, index)
            axes.axhline(1 / 8, color="grey", linewidth=0.6)
            axes.set_xscale("log")
            axes.set_xticks([7, 22, 42, 98], labels=["7", "22", "42", "98"])
            axes.minorticks_off()
            axes.set_title(f"{steps:,} steps, learning rate {rate}", fontsize=9)
        grid[1, 0].legend(frameon=False, fontsize=8)
        figure.supxlabel("steps between the value and its use")
        figure.supylabel("probability of the value")

    spec = FigureSpec(name="memory", title="", caption="", draw=draw, width=7.0, height=5.0)
    path.write_text(standalone_svg(render_figure(spec).svg), encoding="utf-8")


def draw_system(axes: Any, records: list[Record], steps: str, system: str, index: int) -> None:
    """A line for mixed gaps (mean and range of the seeds), a cross for each gap by itself."""
    curves = [r["probability"][steps] for r in records if r["gaps"] == "mixed"]
    if curves:
        distances = [int(distance) for distance in curves[0]]
        values = np.array([list(curve.values()) for curve in curves])
        axes.plot(distances, values.mean(0), label=f"{system}, gaps mixed", **line_style(index))
        axes.fill_between(
            distances, values.min(0), values.max(0), alpha=0.2, color=line_style(index)["color"]
        )
    for record in records:
        if record["gaps"] != "mixed":
            ((distance, value),) = record["probability"][steps].items()
            axes.plot([int(distance)], [value], marker="x", **line_style(index))


def main() -> None:
    options = parse_arguments(__doc__, "memory")
    torch.set_num_threads(1)
    settings = SETTINGS | {"steps": list(STEPS), "longest of the mixed gaps": MIXED}
    configurations = [
        {"system": system, "gaps": gaps, "learning_rate": rate}
        for gaps in ("mixed", *map(str, ALONE))
        for rate in RATES
        for system in SYSTEMS
    ]
    records = measure_missing(options, settings, configurations, recall)
    if options.figure:
        plot(records, options.figure)
        return
    print_means(records, ("system", "gaps", "learning_rate"))
    if not options.table:
        gradient = options.out.with_name("memory-gradient.json")
        gradient.write_text(json.dumps(gradient_table(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
