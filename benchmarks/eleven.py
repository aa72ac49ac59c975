"""Four masked-LM scorers on eleven Chinese sentences, by a BERT trained on `capitals`.

    python benchmarks/eleven.py [--epochs 12] [--seeds 3] [--out benchmarks/results/eleven.json]
    python benchmarks/eleven.py --notes     # the same for bert-base-chinese, and both compared
    python benchmarks/eleven.py --draw benchmarks/results/eleven.json [--figure FILE.svg]

The scorers are those of `lmlab score --method`: simple (nothing masked), raw (each token masked,
logit), norm (each token masked, log-softmax), raw-k-mask (the four blanks masked together), each a
mean over all tokens; with the model's own head, and with none (hidden states times embeddings).
Reported is the share of (true, false) sentence pairs that a scorer ranks correctly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from finishing import finished

import lmlab

TRUE = ("中国的首都是北京", "法国的首都是巴黎", "日本的首都是东京", "韩国的首都是首尔")
FALSE = {
    "中国的首都是北京": ("中国的首都是上海", "中国的首都是巴黎"),
    "法国的首都是巴黎": ("法本的首都是巴京",),
    "日本的首都是东京": ("日本的首都是大阪", "日本的首都是上海", "法本的首都是巴京"),
    "韩国的首都是首尔": ("韩国的首都是上海", "上海的首都是上海"),
}
SENTENCES = (
    "中国的首都是北京",
    "中国的首都是上海",
    "中国的首都是巴黎",
    "法国的首都是巴黎",
    "日本的首都是东京",
    "日本的首都是大阪",
    "日本的首都是上海",
    "韩国的首都是上海",
    "韩国的首都是首尔",
    "上海的首都是上海",
    "法本的首都是巴京",
)
"""All sentences, in the order of the published scores."""
RECORD = Path(__file__).parent / "results" / "eleven.json"
BLANKS = (1, 2, 7, 8)
SCORERS = ("simple", "raw", "norm", "raw-k-mask")
PUBLISHED_SCORES = {
    "simple": (0.352, -0.345, 0.066, 0.156, 0.009, -0.031, -0.327, 0.313, 0.573, -0.606, -0.160),
    "raw": (0.145, -0.304, -0.353, 0.215, 0.279, 0.331, -0.133, -0.205, 0.878, -0.659, -0.196),
    "norm": (0.181, -0.289, -0.443, 0.087, 0.178, 0.316, -0.035, -0.142, 0.846, -0.594, -0.105),
    "4mask": (0.025, -0.032, -0.068, 0.051, -0.001, -0.194, -0.038, 0.060, 0.097, -0.043, 0.144),
}
"""Scores of the sentences by bert-base-chinese without its head."""
SETTINGS = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pairs": "none",
    "segments": 0,
    "masking": "dynamic",
    "rate": 0.3,
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "warmup_steps": 50,
    "tokens_per_batch": 1024,
}


def run_one(seed: int, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = finished(
            lmlab.train(
                "bert",
                data="capitals",
                out=Path(folder) / "run",
                settings=SETTINGS,
                epochs=epochs,
                seed=seed,
                quiet=True,
            )
        )
        model = lmlab.load(result.path)
        scores = {
            f"{method}, head {head}": score_sentences(model, method, head)
            for head in ("own", "none")
            for method in SCORERS
        }
    return {
        "seed": seed,
        "seconds": result.seconds,
        "scores": scores,
        "in order": {
            name: ranking_accuracy(sentence_scores) for name, sentence_scores in scores.items()
        },
    }


def score_sentences(model: Any, method: str, head: str) -> dict[str, float]:
    masked = {"positions": BLANKS} if "k-mask" in method else {}
    scores = model.score(SENTENCES, method=method, head=head, mean=True, **masked)
    return {score.text: score.total for score in scores}


def ranking_accuracy(scores: dict[str, float]) -> float:
    """The share of (true, false) pairs in which the true one has the higher score."""
    pairs = [(true, false) for true, others in FALSE.items() for false in others]
    return sum(scores[true] > scores[false] for true, false in pairs) / len(pairs)


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot the scores of the first seed, each scorer scaled from its lowest to its highest."""
    import numpy as np
    from matplotlib.figure import Figure

    from lmlab.plotting.charts import HeatMap, HeatMapAxis, draw_heat_maps, heat_maps_size
    from lmlab.plotting.figure import FigureSpec, render_figure, standalone_svg

    scores = record["records"][0]["scores"]
    ours = {name: [scores[name][text] for text in SENTENCES] for name in scores}
    published = {f"{name}, no head": list(values) for name, values in PUBLISHED_SCORES.items()}
    labels = tuple(f"{'✓' if text in TRUE else '✗'} {text}" for text in SENTENCES)

    def heat_map(columns: dict[str, list[float]], name: str) -> HeatMap:
        return HeatMap(
            values=np.array([scaled(column) for column in columns.values()]).T,
            rows=HeatMapAxis(name="", labels=labels),
            columns=HeatMapAxis(name=name, labels=tuple(columns), max_label_length=24),
        )

    heat_maps = [heat_map(ours, "a BERT of ours"), heat_map(published, "the notes' scores")]

    def draw_figure(figure: Figure) -> None:
        draw_heat_maps(figure, heat_maps, title="Eleven sentences, each scorer scaled from 0 to 1")

    width, height = heat_maps_size(heat_maps)
    spec = FigureSpec(
        name="eleven", title="", caption="", draw=draw_figure, width=width, height=height
    )
    path.write_text(standalone_svg(render_figure(spec).svg), encoding="utf-8")


def rank_correlations(record: dict[str, Any]) -> dict[str, list[float]]:
    """Spearman's correlation over the eleven of our scores and the published ones, by seed."""
    from lmlab.scoring.word_vectors import spearman

    published = dict(zip(SCORERS, PUBLISHED_SCORES.values(), strict=True))
    return {
        name: [
            spearman(list(published[name.split(",")[0]]), [r["scores"][name][t] for t in SENTENCES])
            for r in record["records"]
        ]
        for name in record["records"][0]["scores"]
    }


def scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / ((high - low) or 1.0) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--notes", action="store_true", help="evaluate the published scores of bert-base-chinese"
    )
    parser.add_argument("--draw", type=Path, help="record to plot instead of training")
    parser.add_argument("--figure", type=Path, default=Path("docs/images/eleven.svg"))
    options = parser.parse_args()
    if options.notes:
        for name, scores in PUBLISHED_SCORES.items():
            accuracy = ranking_accuracy(dict(zip(SENTENCES, scores, strict=True)))
            print(f"{name}: {8 * accuracy:.0f} of 8")
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        for name, values in rank_correlations(record).items():
            print(f"{name}: rank correlation {', '.join(f'{value:.2f}' for value in values)}")
        return
    if options.draw:
        plot(json.loads(options.draw.read_text(encoding="utf-8")), options.figure)
        return
    torch.set_num_threads(1)
    records = [run_one(seed, options.epochs) for seed in range(options.seeds)]
    names = records[0]["in order"]
    report = {
        "command": f"python benchmarks/eleven.py --epochs {options.epochs} --seeds {options.seeds}",
        "settings": SETTINGS,
        "records": records,
        "in order": {
            name: statistics.mean(record["in order"][name] for record in records) for name in names
        },
    }
    print(json.dumps(report["in order"], indent=1))
    if options.out:
        text = json.dumps(report, indent=1, ensure_ascii=False)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
