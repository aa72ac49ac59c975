"""Lengths of queries and keys while a Transformer trains, with and without normalisation (001).

    python benchmarks/notes/query_key_lengths.py [--seeds 3]
    python benchmarks/notes/query_key_lengths.py --figure docs/images/query-key-lengths.svg

001 says that a model which can steer attention by the lengths of its vectors will do so. A `gpt` of
two layers is trained on `hops`, with scaled dot products and with normalised queries and keys.
Measured on held-out texts after each number of steps: the mean lengths of queries and keys; and the
total variation between the attention weights and those with every key of a head rescaled to the
head's mean length, that is how much of attention is decided by the lengths (0 if normalised).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means
from finishing import finished
from torch import Tensor

import lmlab
from lmlab.core.batch import Batch
from lmlab.data.languages import hops
from lmlab.layers.attention import MultiHeadAttention
from lmlab.plotting.figure import FigureSpec, line_style, render_figure, standalone_svg

STEPS = (1, 100, 300, 1000, 2000)
TEXTS = 100
SETTINGS: Record = {
    "width": 64,
    "layers": 2,
    "heads": 2,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 1e-3,
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
    "weight_decay": 0.01,
}


def measure(normalised: bool, seed: int) -> Record:
    """Train further and further, and measure after each number of steps."""
    corpus = hops.corpus(letters=6, hops=2, sentences=30_000, seed=seed)
    curve = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for steps in STEPS:
            settings = SETTINGS | {"cosine_attention": normalised}
            result = finished(
                lmlab.train(
                    "gpt",
                    data=corpus,
                    out=run,
                    settings=settings,
                    steps=steps,
                    seed=seed,
                    resume=steps > STEPS[0],
                    quiet=True,
                )
            )
            model = lmlab.load(run)
            texts = [example.text for example in corpus.splits["test"]][:TEXTS]
            curve[str(steps)] = {"loss": result.loss, **lengths(model, texts, normalised)}
    return {"after": curve}


@torch.no_grad()
def lengths(model: Any, texts: list[str], normalised: bool) -> dict[str, float]:
    """Mean lengths of queries and keys of all layers, and the share moved by equal lengths."""
    vocabulary, system = model.system.vocabulary, model.system
    projected: list[tuple[MultiHeadAttention, Tensor]] = []
    handles = [
        attention.qkv_projection.register_forward_hook(
            lambda _m, _i, output, attention=attention: projected.append((attention, output))
        )
        for attention in system.modules()
        if isinstance(attention, MultiHeadAttention)
    ]
    for text in texts:
        ids = [vocabulary.start, *model.tokenizer.encode(text), vocabulary.end]
        system.hidden(system.objective.view(Batch.collate([ids], pad=vocabulary.pad)))
    for handle in handles:
        handle.remove()
    means: dict[str, list[float]] = {"queries": [], "keys": [], "moved by equal lengths": []}
    for attention, output in projected:
        queries, keys, _ = attention._split(output, 3)
        means["queries"].append(float(queries.norm(dim=-1).mean()))
        means["keys"].append(float(keys.norm(dim=-1).mean()))
        equal = keys / keys.norm(dim=-1, keepdim=True) * keys.norm(dim=-1).mean(-1)[..., None, None]
        first, second = (weights(attention, queries, k) for k in (keys, equal))
        moved = 0.0 if normalised else float((first - second).abs().sum(-1).mean() / 2)
        means["moved by equal lengths"].append(moved)
    return {name: sum(values) / len(values) for name, values in means.items()}


def weights(attention: MultiHeadAttention, queries: Tensor, keys: Tensor) -> Tensor:
    """Causal attention weights (B, H, T, T)."""
    queries, keys = attention.scores.prepare(queries), attention.scores.prepare(keys)
    scores = queries @ keys.transpose(-1, -2) * attention.scores.scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1)


def plot(records: list[Record], path: Path) -> None:
    """Lengths, and the share of attention that they decide, by steps."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        for normalised in (False, True):
            curves = [r["after"] for r in records if r["normalised"] == normalised]
            for index, name in enumerate(("queries", "keys", "moved by equal lengths")):
                axes = panels[index // 2]
                style = line_style(index) | {"linestyle": "--" if normalised else "-"}
                label = f"{name}, {'normalised' if normalised else 'plain'}"
                for number, curve in enumerate(curves):
                    values = [point[name] for point in curve.values()]
                    steps = [int(step) for step in curve]
                    axes.plot(steps, values, label=None if number else label, **style)
        panels[0].set_title("mean length", fontsize=9)
        panels[1].set_title("attention moved if all keys were equally long", fontsize=9)
        for axes in panels:
            axes.set_xscale("log")
            axes.set_xticks(STEPS, labels=[f"{steps:,}" for steps in STEPS])
            axes.minorticks_off()
            axes.set_xlabel("training steps")
            axes.set_ylim(bottom=0)
        panels[0].legend(frameon=False, fontsize=8)

    spec = FigureSpec(name="lengths", title="", caption="", draw=draw, width=7.5, height=3.0)
    path.write_text(standalone_svg(render_figure(spec).svg), encoding="utf-8")


def main() -> None:
    options = parse_arguments(__doc__, "query-key-lengths")
    torch.set_num_threads(1)
    configurations = [{"normalised": normalised} for normalised in (False, True)]
    settings = SETTINGS | {"steps": list(STEPS), "texts": TEXTS}
    records = measure_missing(options, settings, configurations, measure)
    if options.figure:
        plot(records, options.figure)
        return
    print_means(records, ("normalised",))


if __name__ == "__main__":
    main()
