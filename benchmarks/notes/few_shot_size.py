"""Does the gain from examples in the prompt grow with their number and with size (GPT-3, 002)?

    python benchmarks/notes/few_shot_size.py [--seeds 3]
    python benchmarks/notes/few_shot_size.py --figure docs/images/few-shot.svg

Each text is a task of its own: a shift of the alphabet of eight letters, drawn anew, then eight
examples "letter shifted-letter", of which an answer is replaced by any letter with probability 0.3.
A `gpt` must find the shift from the examples before. Measured: how often it gives the right answer
after so many examples (chance 1/8), by width of the model, and the same for the exact posterior
over shifts, which no model can exceed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

from lmlab.core.batch import Batch
from lmlab.plotting.figure import FigureSpec, line_style, render_figure, standalone_svg

LETTERS, SHOTS, NOISE = "abcdefgh", 8, 0.3
WIDTHS = (8, 16, 32, 64)
STEPS, TEXTS = 2000, 500
SETTINGS: Record = {
    "layers": 2,
    "heads": 2,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
}


def sample(generator: np.random.Generator) -> tuple[int, list[int], list[int]]:
    """A shift, the letters asked for, and the answers, some of them wrong."""
    size = len(LETTERS)
    shift = int(generator.integers(size))
    asked = generator.integers(size, size=SHOTS)
    wrong = generator.random(SHOTS) < NOISE
    answers = np.where(wrong, generator.integers(size, size=SHOTS), (asked + shift) % size)
    return shift, asked.tolist(), answers.tolist()


def as_text(asked: list[int], answers: list[int]) -> str:
    return " ".join(
        f"{LETTERS[a]} {LETTERS[b].upper()}" for a, b in zip(asked, answers, strict=True)
    )


def measure(width: int, seed: int) -> Record:
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        for split, count in (("train", 60_000), ("valid", 300), ("test", 300)):
            lines = [as_text(*sample(generator)[1:]) for _ in range(count)]
            (Path(name) / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        model = train_model("gpt", name, SETTINGS | {"width": width}, seed=seed, steps=STEPS)
    tests = [sample(np.random.default_rng([seed, index])) for index in range(TEXTS)]
    ours, best = zip(*(right_answers(model, *test) for test in tests), strict=True)
    return {
        "parameters": sum(p.numel() for p in model.system.parameters()),
        "right after": {str(k): float(np.mean([o[k] for o in ours])) for k in range(SHOTS)},
        "posterior": {str(k): float(np.mean([b[k] for b in best])) for k in range(SHOTS)},
    }


@torch.no_grad()
def right_answers(
    model: Any, shift: int, asked: list[int], answers: list[int]
) -> tuple[list[bool], list[float]]:
    """After each number of examples: is the model's answer right; how often the posterior's is."""
    vocabulary, system, size = model.system.vocabulary, model.system, len(LETTERS)
    ids = [vocabulary.start, *model.tokenizer.encode(as_text(asked, answers)), vocabulary.end]
    view = system.objective.view(Batch.collate([ids], pad=vocabulary.pad))
    log_probs = system.emission.log_probs(system.hidden(view).values[0])
    capitals = [model.tokenizer.encode(letter.upper())[0] for letter in LETTERS]
    ours, best, log_posterior = [], [], np.zeros(size)
    for k in range(SHOTS):
        guess = int(log_probs[2 * k + 1, capitals].argmax())
        ours.append(guess == (asked[k] + shift) % size)
        winners = np.flatnonzero(np.isclose(log_posterior, log_posterior.max()))
        best.append(float(shift in winners) / len(winners))
        implied = (answers[k] - asked[k]) % size
        hit = 1 - NOISE + NOISE / size
        log_posterior += np.where(np.arange(size) == implied, np.log(hit), np.log(NOISE / size))
    return ours, best


def plot(records: list[Record], path: Path) -> None:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for index, width in enumerate(WIDTHS):
            curves = [list(r["right after"].values()) for r in records if r["width"] == width]
            if curves:
                values = np.array(curves)
                axes.plot(values.mean(0), label=f"width {width}", **line_style(index))
                axes.fill_between(
                    range(SHOTS),
                    values.min(0),
                    values.max(0),
                    alpha=0.2,
                    color=line_style(index)["color"],
                )
        best = np.mean([list(r["posterior"].values()) for r in records], axis=0)
        axes.plot(best, color="grey", linestyle=":", label="exact posterior")
        axes.set_xlabel("examples in the prompt")
        axes.set_ylabel("right answers")
        axes.set_ylim(0, 1.02)
        axes.legend(frameon=False, fontsize=8)

    spec = FigureSpec(name="few-shot", title="", caption="", draw=draw, width=5.0, height=3.2)
    path.write_text(standalone_svg(render_figure(spec).svg), encoding="utf-8")


def main() -> None:
    options = parse_arguments(__doc__, "few-shot-size")
    torch.set_num_threads(1)
    settings = SETTINGS | {"steps": STEPS, "noise": NOISE, "texts": TEXTS}
    records = measure_missing(options, settings, [{"width": width} for width in WIDTHS], measure)
    if options.figure:
        plot(records, options.figure)
        return
    print_means(records, ("width",))


if __name__ == "__main__":
    main()
