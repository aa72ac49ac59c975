"""Expressiveness of emissions: rank of the log-probabilities, several equally likely words.

    python benchmarks/emissions_rank.py [--out FILE.json]
    python benchmarks/emissions_rank.py --draw FILE.json --figure FILE.svg

Only the emission is tested: each context has a trainable hidden vector of d numbers,
trained jointly with the emission, so that any loss is due to the emission.

Rank: 60 contexts with random distributions over 44 words, whose log-probabilities are
a matrix of rank 44 (Yang et al. 2018). Each emission is trained on them, and the rank
of its own matrix counted, by singular values above 1e-8 of the largest, in double
precision. A softmax with biases has at most d + 2: inner products, biases,
normalisers.

Several right words: the sixteen sentences of `surnames` (张李胡王 after 我的姓是), each
completed by four words with probability 1/4. Training uses 64 sampled sentences per
step. Reported by step: KL(truth || model) in nats, and the spread among the right
words: the mean over sentences of the highest minus the lowest probability, divided by
their mean: 0 if they are equal, as they should be. Also the mass on wrong words.
Widths are equal; parameter counts are reported too, and `softmax+` is a softmax
widened to the parameters of the mixture.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

EMISSIONS = ("softmax", "mixture-of-softmaxes", "hamming", "hamming-min", "rbf")
WIDTHS = (2, 4, 8)
STEPS = 2000
REPORTED_STEPS = (50, 100, 200, 400, 800, 1400, 2000)
CONTEXTS, WORDS, RANK_WIDTH, RANK_STEPS = 60, 44, 8, 600
MIXTURE_COMPONENTS = 3
LEARNING_RATE = 0.03
SPECIAL_TOKENS = 5


def emission_of(name: str, width: int, words: int) -> Any:
    from lmlab.core.vocabulary import Vocabulary
    from lmlab.zoo._emissions import build_emission

    parts = {"mixture-of-softmaxes": MIXTURE_COMPONENTS, "hamming": width, "hamming-min": width}
    if name.startswith("hamming") and width > 2:
        parts[name] = width // 2
    # Word ids follow the special tokens; <unk> and </s> are predictable but soon get no mass.
    vocabulary = Vocabulary(size=words + SPECIAL_TOKENS)
    options = {"tied": None, "states": 1, "dropout": 0.0, "parts": parts.get(name)}
    return build_emission(name, width, vocabulary, **options)


class FreeContextModel:
    """One trainable hidden vector per context, and an emission on top."""

    def __init__(self, name: str, width: int, contexts: int, words: int, seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self.hidden = nn.Parameter(torch.randn(contexts, width))
        self.emission = emission_of(name, width, words)
        self.parameters = [self.hidden, *self.emission.parameters()]

    def log_probs(self) -> Any:
        """(contexts, words), normalised over words and predictable special tokens."""
        return self.emission.log_probs(self.hidden)[:, SPECIAL_TOKENS:]

    def train(self, steps: int, weights: Any, callback: Any) -> None:
        """Adam on -Σ weights() log p, cosine schedule; calls `callback(step)` after each step."""
        import torch

        optimizer = torch.optim.Adam(self.parameters, lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            (-(weights() * self.log_probs()).sum()).backward()
            optimizer.step()
            schedule.step()
            callback(step)


def rank_of(name: str, seed: int) -> dict[str, Any]:
    """Rank of a trained emission's log-probability matrix, and its final KL."""
    import torch

    generator = torch.Generator().manual_seed(100 + seed)
    truth = torch.softmax(2 * torch.randn(CONTEXTS, WORDS, generator=generator), -1)
    model = FreeContextModel(name, RANK_WIDTH, CONTEXTS, WORDS, seed)
    model.train(RANK_STEPS, lambda: truth / CONTEXTS, lambda step: None)
    model.emission.double()
    model.hidden.data = model.hidden.data.double()
    with torch.no_grad():
        log_probs = model.log_probs()
        kl = (truth.double() * (truth.double().log() - log_probs)).sum(-1).mean()
        singular_values = torch.linalg.svdvals(log_probs)
    return {
        "emission": name,
        "seed": seed,
        "width": RANK_WIDTH,
        "rank": int((singular_values > 1e-8 * singular_values[0]).sum()),
        "kl": float(kl),
    }


def surnames_table() -> Any:
    """(sentences, words) the true probabilities of `surnames`."""
    import torch

    from lmlab.data.languages.surnames import ENDINGS

    words = sorted({word for right in ENDINGS.values() for word in right})
    table = torch.zeros(len(ENDINGS), len(words))
    for row, right in enumerate(ENDINGS.values()):
        for word in right:
            table[row, words.index(word)] = 1 / len(right)
    return table


def right_words(name: str, width: int, seed: int) -> dict[str, Any]:
    """KL, spread and wrong mass against steps, for one emission at one width."""
    import torch

    truth = surnames_table()
    model = FreeContextModel(name.removesuffix("+"), width, *truth.shape, seed)
    generator = torch.Generator().manual_seed(200 + seed)
    curve: list[dict[str, float]] = []

    def sample_batch() -> torch.Tensor:
        flat = (truth / len(truth)).flatten()
        sampled = torch.multinomial(flat, 64, replacement=True, generator=generator)
        return torch.bincount(sampled, minlength=flat.numel()).view_as(truth) / 64

    def record_point(step: int) -> None:
        if step in REPORTED_STEPS:
            with torch.no_grad():
                curve.append({"step": step, **evaluate(model.log_probs(), truth)})

    start = time.process_time()
    model.train(STEPS, sample_batch, record_point)
    return {
        "emission": name,
        "width": width,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters),
        "cpu_seconds": round(time.process_time() - start, 2),
        "curve": curve,
    }


def evaluate(log_probs: Any, truth: Any) -> dict[str, float]:
    """Against the true table: KL, spread among right words, mass on wrong ones."""
    right = truth > 0
    kl = (truth * (truth.clamp(min=1e-9).log() - log_probs)).sum(-1).mean()
    right_probs = log_probs.exp()[right].view(len(truth), -1)
    spread = (right_probs.amax(-1) - right_probs.amin(-1)) / right_probs.mean(-1)
    return {
        "kl": float(kl),
        "spread": float(spread.mean()),
        "wrong": float(1 - right_probs.sum(-1).mean()),
    }


def matched_width(width: int) -> int:
    """The width at which a softmax has about the parameters of the mixture at `width`."""
    rows, words = surnames_table().shape
    mixture = FreeContextModel("mixture-of-softmaxes", width, rows, words, 0)
    target = sum(parameter.numel() for parameter in mixture.parameters)
    return round((target - words - SPECIAL_TOKENS) / (rows + words + SPECIAL_TOKENS))


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot KL and spread by step, one column per width."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(run["emission"] for run in record["right_words"]))
    figure, axes = pyplot.subplots(2, len(WIDTHS), figsize=(10, 5.5), sharex=True, sharey="row")
    for column, width in enumerate(WIDTHS):
        for name in names:
            runs = [
                run["curve"]
                for run in record["right_words"]
                if run["emission"] == name and run["asked_width"] == width
            ]
            steps = [point["step"] for point in runs[0]]
            for row, metric in enumerate(("kl", "spread")):
                means = [
                    statistics.mean(run[point_index][metric] for run in runs)
                    for point_index in range(len(steps))
                ]
                axes[row, column].plot(steps, means, marker=".", label=name)
                axes[row, column].set(xscale="log")
        axes[0, column].set(title=f"width {width}", yscale="log")
        axes[1, column].set(xlabel="steps")
    axes[0, 0].set(ylabel="KL from the truth, nats")
    axes[1, 0].set(ylabel="spread among right words")
    axes[0, -1].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="record to plot instead of training")
    parser.add_argument("--figure", type=Path, default=Path("emissions-rank.svg"))
    options = parser.parse_args()
    if options.draw:
        plot(json.loads(options.draw.read_text(encoding="utf-8")), options.figure)
        return
    import torch

    torch.set_num_threads(1)
    start = time.process_time()
    ranks = [rank_of(name, seed) for name in EMISSIONS for seed in range(options.seeds)]
    for rank in ranks:
        print(json.dumps(rank), flush=True)
    curves = []
    for width in WIDTHS:
        for name, actual_width in [
            *((name, width) for name in EMISSIONS),
            ("softmax+", matched_width(width)),
        ]:
            for seed in range(options.seeds):
                curves.append(right_words(name, actual_width, seed) | {"asked_width": width})
                last = curves[-1]["curve"][-1]
                summary = " ".join(f"{key} {value:.3f}" for key, value in last.items())
                print(
                    f"{name} {actual_width} seed {seed} ({curves[-1]['parameters']}): {summary}",
                    flush=True,
                )
    if options.out:
        record = {
            "command": f"python benchmarks/emissions_rank.py --seeds {options.seeds}",
            "cpu_seconds": round(time.process_time() - start, 1),
            "softmaxes": MIXTURE_COMPONENTS,
            "learning_rate": LEARNING_RATE,
            "entropy_of_right_words": math.log(4),
            "ranks": ranks,
            "right_words": curves,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
