"""Translation by fine-tuned BART, T5 and MASS, with all training pairs and with few.

    python benchmarks/translation_pretrained.py --data DATA --runs RUNS --out FILE.json

Each is pre-trained with its own objective on both sides of multi30k's training text, as single
sentences, and then fine-tuned for `generate` with all pairs and with few; the baseline is the same
network without pre-training. BLEU on test_2016_flickr, beam of 5 by log p / length. Rows already in
FILE.json are not measured again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from finishing import finished

import lmlab
from lmlab.data.corpus import open_corpus
from lmlab.sampling.translation_evaluation import evaluate_translators

SYSTEMS = ("bart", "t5", "mass")
SHAPE = {"width": 128, "layers": 2, "heads": 4, "dropout": 0.1}
TRAINING = {
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup_steps": 200,
    "tokens_per_batch": 2048,
}
PAIRS = {"all": {"epochs": 2}, "5,000": {"examples": 5000, "epochs": 6}}
"""Training pairs and epochs of fine-tuning."""


def single_sentences(data: Path, folder: Path) -> Path:
    """Write both sides of the pairs as lines of one text, for training and validation."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = open_corpus(f"multi30k-de-en:{data}")
    for split in ("train", "validation"):
        lines = corpus.split(split).texts()
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def pretrain(name: str, text: Path, out: Path, epochs: int | None) -> Path:
    """Pre-train for `epochs` epochs on single sentences; for one step if None."""
    finished(
        lmlab.train(
            name,
            data=str(text),
            out=out,
            settings={**SHAPE, **TRAINING, "vocabulary_size": 8000},
            tokenizer="bpe",
            epochs=epochs,
            steps=None if epochs else 1,
            resume=(out / "config.json").exists(),
        )
    )
    return out


def finetune_and_evaluate(base: Path, data: Path, out: Path, **budget: Any) -> list[dict[str, Any]]:
    """Fine-tune a run for translation; its test BLEU and chrF."""
    pairs = f"multi30k-de-en:{data}"
    lmlab.finetune(
        base,
        task="generate",
        data=pairs,
        out=out,
        settings=TRAINING,
        resume=(out / "config.json").exists(),
        **budget,
    )
    model = lmlab.load(out).model
    evaluation = evaluate_translators({out.name: model}, open_corpus(pairs), method="beam", beam=5)
    return [score.as_dict() for score in evaluation.scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/translation-pretrained"))
    parser.add_argument("--only", choices=SYSTEMS, action="append")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of pre-training")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    record: dict[str, Any] = {"pre-training epochs": arguments.epochs, "rows": []}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text(encoding="utf-8"))
    done = {(row["system"], row["pre-trained"], row["pairs"]) for row in record["rows"]}
    text = single_sentences(arguments.data, arguments.runs / "single-sentences")
    for name in arguments.only or SYSTEMS:
        for is_pretrained in (True, False):
            kind = "pretrained" if is_pretrained else "fresh"
            base = arguments.runs / f"{name}-{kind}"
            for pairs, budget in PAIRS.items():
                if (name, is_pretrained, pairs) in done:
                    continue
                pretrain(name, text, base, arguments.epochs if is_pretrained else None)
                out = arguments.runs / f"{name}-{kind}-{pairs.replace(',', '')}"
                scores = finetune_and_evaluate(base, arguments.data, out, **budget)
                row = {"system": name, "pre-trained": is_pretrained, "pairs": pairs, "test": scores}
                record["rows"].append(row)
                print(name, kind, pairs, [(s["metric"], s["score"]) for s in scores], flush=True)
                arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
