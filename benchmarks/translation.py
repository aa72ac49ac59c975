"""RNN and Transformer translators on multi30k, German to English: BLEU by length and beam.

    python benchmarks/translation.py --data DATA --runs RUNS --out FILE.json [--only NAME]
    python benchmarks/translation.py --draw FILE.json --figures FOLDER

Each system is trained by its recipe, `lmlab train SYSTEM --recipe multi30k --tokenizer bpe`, and
evaluated on test_2016_flickr by sacreBLEU (tokenize=none: the text is tokenised and lower-cased)
with a beam of 5, ranked by log p / length. Also measured:

- length: BLEU by sentence length, since a fixed-size vector is a bottleneck for long sentences;
- shortcuts: whether the beam search of `lmlab translate`, which stops early and prunes, returns
  the same translations as a search without either, and the ratio of their times;
- beams: BLEU, log-probability and length of the results of several beam widths, ranked by log p /
  length and by log p alone: the wider the beam, the more probable and shorter the result.

Interrupted training resumes, and existing measurements are not repeated. --draw plots the figures
in docs/images.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from finishing import finished

import lmlab
from lmlab.data.corpus import open_corpus
from lmlab.sampling.translation import make_translator
from lmlab.sampling.translation_evaluation import evaluate_translators
from lmlab.scoring.translation_metrics import make_metric

SYSTEMS = ("seq2seq", "seq2seq-attention", "transformer")
BEAM = 5
BEAMS = (1, 2, 5, 10, 20, 50)
EXACT_SEARCH: dict[str, Any] = {"ahead": 10_000, "within": math.inf}
"""Beam search without early stopping and pruning."""
PENALTIES = (1.0, 0.0)
"""Length penalties."""
SENTENCES = 200
"""Number of test sentences for the comparison of beam widths."""
LENGTHS = ((1, 8), (9, 10), (11, 12), (13, 15), (16, 19), (20, 60))
"""Length bins in words of the German sentence."""


def train(name: str, data: Path, runs: Path, seed: int) -> tuple[Path, dict[str, Any]]:
    """Train or resume a run; its folder and a description for the record."""
    out = runs / f"{name}-seed{seed}"
    start = time.perf_counter()
    result = finished(
        lmlab.train(
            name,
            data=f"multi30k-de-en:{data}",
            out=out,
            recipe="multi30k",
            tokenizer="bpe",
            seed=seed,
            resume=(out / "config.json").exists(),
        )
    )
    description = {
        "command": f"lmlab train {name} --data multi30k-de-en:DATA --recipe multi30k "
        f"--tokenizer bpe --seed {seed}",
        "parameters": result.parameters,
        "epochs": result.epochs,
        "minutes": round(max(result.seconds, time.perf_counter() - start) / 60, 1),
    }
    return out, description


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    return round(
        float(make_metric("bleu").corpus_score(list(translations), [list(references)]).score), 2
    )


def by_length(
    translations: Sequence[str], sources: Sequence[str], references: Sequence[str]
) -> list[dict[str, float]]:
    """BLEU of the sentences of each length."""
    rows = []
    for low, high in LENGTHS:
        indices = [i for i, text in enumerate(sources) if low <= len(text.split()) <= high]
        score = bleu([translations[i] for i in indices], [references[i] for i in indices])
        rows.append({"from": low, "to": high, "sentences": len(indices), "bleu": score})
    return rows


def by_beam(model: Any, sources: Sequence[str], references: Sequence[str]) -> list[dict[str, Any]]:
    """Metrics of several beam widths on the same sentences, without early stopping and pruning."""
    rows = []
    for penalty, width in product(PENALTIES, BEAMS):
        translator = make_translator(
            model.system,
            model.tokenizer,
            model.model.effective_source_tokenizer,
            method="beam",
            beam=width,
            length_penalty=penalty,
            **EXACT_SEARCH,
        )
        start = time.perf_counter()
        translations = list(translator.translate([list(sources)]))
        best = [translation.candidates[0] for translation in translations]
        rows.append(
            {
                "beam": width,
                "length_penalty": penalty,
                "bleu": bleu([t.text for t in translations], references),
                "log_prob": round(sum(candidate.log_prob for candidate in best) / len(best), 4),
                "tokens": round(sum(candidate.tokens for candidate in best) / len(best), 3),
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
        print(f"  beam {width}: {rows[-1]}", flush=True)
    return rows


def compare_shortcuts(model: Any, sources: Sequence[str]) -> dict[str, float]:
    """Sentences for which beam search with early stopping and pruning returns the same as without,
    and the ratio of their times."""
    texts, seconds = [], []
    for options in (EXACT_SEARCH, {}):
        translator = make_translator(
            model.system,
            model.tokenizer,
            model.model.effective_source_tokenizer,
            beam=BEAM,
            **options,
        )
        start = time.process_time()
        texts.append([translation.text for translation in translator.translate([list(sources)])])
        seconds.append(time.process_time() - start)
    same = sum(a == b for a, b in zip(*texts, strict=True))
    return {"sentences": len(sources), "same": same, "time": round(seconds[1] / seconds[0], 3)}


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    run, description = train(name, arguments.data, arguments.runs, arguments.seed)
    corpus = open_corpus(f"multi30k-de-en:{arguments.data}")
    examples = list(corpus.split("test"))
    sources = [example.condition or "" for example in examples]
    references = [example.text for example in examples]
    model = lmlab.load(run)
    evaluation = evaluate_translators({name: model.model}, corpus, method="beam", beam=BEAM)
    subset = slice(SENTENCES)
    return {
        **description,
        "test": [score.as_dict() for score in evaluation.scores],
        "length": by_length(evaluation.translations[name], sources, references),
        "beams": by_beam(model, sources[subset], references[subset]),
        "beams_sentences": len(sources[subset]),
        "shortcuts": compare_shortcuts(model, sources),
    }


def plot(record: dict[str, Any], folder: Path) -> None:
    """Plot BLEU by sentence length and by beam width."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in SYSTEMS if name in record["systems"]]
    figure, axis = pyplot.subplots(figsize=(6.5, 3.8))
    for name in names:
        rows = record["systems"][name]["length"]
        labels = [f"{row['from']}-{row['to']}" for row in rows]
        axis.plot(labels, [row["bleu"] for row in rows], marker="o", label=name)
    axis.set(xlabel="words of the German sentence", ylabel="BLEU", ylim=(0, None))
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(folder / "translation-length.svg")

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 3.6))
    for axis, metric in zip(axes, ("bleu", "log_prob"), strict=True):
        for (number, name), penalty in product(enumerate(names), PENALTIES):
            rows = [
                row for row in record["systems"][name]["beams"] if row["length_penalty"] == penalty
            ]
            axis.plot(
                [row["beam"] for row in rows],
                [row[metric] for row in rows],
                marker="o",
                color=f"C{number}",
                linestyle="-" if penalty else "--",
                label=f"{name}, by {'log p / length' if penalty else 'log p'}",
            )
        axis.set(xscale="log", xlabel="beam width")
    axes[0].set(ylabel="BLEU")
    axes[1].set(ylabel="log-probability of a translation, nats")
    for axis in axes:
        axis.set_xticks(BEAMS, [str(width) for width in BEAMS])
        axis.minorticks_off()
    axes[1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1))
    figure.tight_layout()
    figure.savefig(folder / "translation-beams.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the research corpora")
    parser.add_argument("--runs", type=Path, default=Path("runs/translation"))
    parser.add_argument("--only", choices=SYSTEMS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="plot this record instead of training")
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    if arguments.draw:
        plot(json.loads(arguments.draw.read_text(encoding="utf-8")), arguments.figures)
        return
    if arguments.data is None or arguments.out is None:
        parser.error("--data and --out are required without --draw")
    record: dict[str, Any] = {"seed": arguments.seed, "systems": {}}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text(encoding="utf-8"))
    for name in arguments.only or SYSTEMS:
        if name not in record["systems"]:
            record["systems"][name] = measure(name, arguments)
            text = json.dumps(record, indent=1, ensure_ascii=False)
            arguments.out.write_text(text + "\n", encoding="utf-8")
        for score in record["systems"][name]["test"]:
            print(
                f"{name}: {score['metric']} {score['score']:.2f} ({score['signature']})", flush=True
            )


if __name__ == "__main__":
    main()
