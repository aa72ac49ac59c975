"""KnowBERT on WordNet: word sense disambiguation on held-out sentences, and the masked LM loss.

    python benchmarks/knowbert.py --runs FOLDER [--seeds 3] [--sources both,graph,glosses]
                                  [--scale tiny|laptop|small] [--split test] [--out FILE.json]

For each seed a `bert` is trained on `wordnet-senses`; then `knowbert` on top of it, with entity
vectors from WordNet's relations, its glosses, or both; and the same `bert` is trained for as many
more steps as KnowBERT's joint training has, so that the masked LM losses are comparable. On the
test sentences (those of --split):

- senses: linking accuracy of the annotated word of each sentence; over all words, over those with
  several candidates, and of these by whether another example of the synset was in training. A word
  unknown to the tokenizer counts as wrong, for the baselines too: the most frequent sense (the
  prior alone); the most frequent sense of the same form in the training sentences, ties broken by
  the prior; a random candidate. `untrained` is a KnowBERT after one step, the control for
  differences from the prior.
- masked: nats per masked token, with the same tokens masked for all models.

Runs are saved in FOLDER, so an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from finishing import finished

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import NO_ENTITY
from lmlab.data.corpus import open_corpus
from lmlab.data.readers import Example
from lmlab.models.knowbert import KnowBERT
from lmlab.models.masked_lm import BERT
from lmlab.training.run_folder import TrainedModel, load_run

SHARED = {"schedule": "cosine", "weight_decay": 0.01, "grad_clip": 1.0}
SCALES: dict[str, dict[str, Any]] = {
    "tiny": {
        "bert": {"width": 48, "layers": 2, "heads": 2, "length": 256, "pairs": "none"},
        "knowbert": {"entity_width": 48, "heads": 2, "linking_steps": 50, "linking_weight": 2.0},
        "training": {"tokens_per_batch": 2048, "vocabulary_size": 4000},
        "learning_rate": 1e-3,
        "bert_steps": 150,
        "knowbert_steps": 400,
    },
    "laptop": {
        "bert": {
            "width": 96,
            "layers": 2,
            "heads": 4,
            "length": 256,
            "pairs": "none",
            "pre_norm": True,
        },
        "learning_rate": 3e-3,
        "knowbert": {"entity_width": 96, "heads": 4, "linking_steps": 200, "linking_weight": 2.0},
        "training": {"tokens_per_batch": 2048, "vocabulary_size": 6000},
        "bert_steps": 600,
        "knowbert_steps": 700,
    },
    "small": {
        "bert": {"width": 128, "layers": 4, "heads": 4, "length": 256, "pairs": "none"},
        "knowbert": {"entity_width": 128, "heads": 4, "linking_steps": 500, "linking_weight": 2.0},
        "training": {"tokens_per_batch": 4096, "vocabulary_size": 8000},
        "learning_rate": 1e-3,
        "bert_steps": 3000,
        "knowbert_steps": 2500,
    },
}
SCORERS = ("model", "most frequent", "most frequent in training", "random")
ROWS = 64
"""Sentences per batch."""


def train_bert(runs: Path, seed: int, scale: dict[str, Any]) -> Path:
    """Train the base model, whose weights initialise the others."""
    out = runs / f"bert-{seed}"
    settings = SHARED | scale["training"] | scale["bert"]
    settings |= {"learning_rate": scale["learning_rate"], "masking": "dynamic"}
    settings |= {"warmup_steps": scale["bert_steps"] // 10}
    # Subwords, since half of the target words are too rare to be one token each.
    options = {"tokenizer": "wordpiece", "settings": settings}
    train("bert", out, steps=scale["bert_steps"], seed=seed, **options)
    return out


def train_longer(runs: Path, base: Path, seed: int, scale: dict[str, Any]) -> Path:
    """Train a copy of the base for as many more steps as KnowBERT's joint training has."""
    out = runs / f"bert-longer-{seed}"
    if not out.exists():
        shutil.copytree(base, out)
    joint = scale["knowbert_steps"] - scale["knowbert"]["linking_steps"]
    train("bert", out, steps=scale["bert_steps"] + joint, seed=seed)
    return out


def train_knowbert(
    runs: Path, base: Path, source: str, seed: int, scale: dict[str, Any], steps: int | None = None
) -> Path:
    """Train KnowBERT on the base, by default for the steps of the scale."""
    out = runs / f"knowbert-{source}-{seed}{'' if steps is None else f'-{steps}'}"
    settings = SHARED | scale["training"] | scale["knowbert"]
    settings |= {"entities": source, "learning_rate": scale["learning_rate"], "warmup_steps": 50}
    options = {"base": base, "knowledge": "wordnet-common"}
    count = scale["knowbert_steps"] if steps is None else steps
    train("knowbert", out, steps=count, settings=settings, seed=seed, **options)
    return out


def train(system: str, out: Path, **options: Any) -> None:
    """Train, resume, or skip a finished run."""
    exists = (out / "config.json").exists()
    if exists:
        for fixed in ("settings", "tokenizer", "base"):
            options.pop(fixed, None)
    finished(lmlab.train(system, data="wordnet-senses", out=out, resume=exists, **options))


def batches(model: TrainedModel, examples: list[Example]) -> Iterator[tuple[list[Example], Batch]]:
    vocabulary = model.system.vocabulary
    assert vocabulary.end is not None
    for first in range(0, len(examples), ROWS):
        part = examples[first : first + ROWS]
        rows = [
            [vocabulary.bos, *model.tokenizer.encode(example.text), vocabulary.end]
            for example in part
        ]
        yield part, Batch.collate(rows, pad=vocabulary.pad)


def annotated_spans(model: TrainedModel, example: Example) -> dict[tuple[int, int], str]:
    """Gold synset of every mention, by the positions of its first and last token."""
    _, offsets = model.tokenizer.encode_with_offsets(example.text)
    spans = {}
    for mention in example.mentions:
        positions = [
            position
            for position, (low, high) in enumerate(offsets, 1)
            if low < mention.end and mention.start < high
        ]
        spans[positions[0], positions[-1]] = mention.entity
    return spans


def mention_characters(example: Example, synset: str) -> tuple[int, int]:
    """Character span of the mention of a synset."""
    return next((m.start, m.end) for m in example.mentions if m.entity == synset)


@torch.no_grad()
def sense_accuracy(
    model: TrainedModel, examples: list[Example], trained: list[Example]
) -> dict[str, Any]:
    """Word sense disambiguation accuracy of the model and the baselines, by mention group."""
    system = model.system
    assert isinstance(system, KnowBERT)
    numbers = system.knowledge.numbers
    annotations = [
        (text.text[m.start : m.end], m.entity) for text in trained for m in text.mentions
    ]
    sense_counts = Counter((words, numbers[entity]) for words, entity in annotations)
    seen = {entity for _, entity in annotations}
    outcomes: dict[str, list[tuple[float, ...]]] = {}
    for part, batch in batches(model, examples):
        no_mask = torch.zeros_like(batch.tokens, dtype=torch.bool)
        spans = system.objective.find(batch, no_mask)
        linked = {(link.row, link.first, link.last): link.entity for link in system.link(batch)}
        span_keys = zip(spans.rows.tolist(), spans.first.tolist(), spans.last.tolist(), strict=True)
        candidates = dict(zip(span_keys, spans.candidates.tolist(), strict=True))
        for row, example in enumerate(part):
            for (first, last), synset in annotated_spans(model, example).items():
                gold = numbers[synset]
                words = example.text[slice(*mention_characters(example, synset))]
                choices = [c for c in candidates.get((row, first, last), []) if c != NO_ENTITY]
                result = (
                    float(linked.get((row, first, last)) == gold),
                    float(choices[:1] == [gold]),
                    float(
                        max(choices, key=lambda c: sense_counts[words, c], default=NO_ENTITY)
                        == gold
                    ),
                    (gold in choices) / max(1, len(choices)),
                )
                names = ["all"]
                if len(choices) > 1:
                    known = "sense in training" if synset in seen else "sense not in training"
                    names += ["ambiguous", known]
                for name in names:
                    outcomes.setdefault(name, []).append(result)
    return {
        name: {
            "mentions": len(values),
            **{
                scorer: statistics.mean(outcome[column] for outcome in values)
                for column, scorer in enumerate(SCORERS)
            },
        }
        for name, values in outcomes.items()
    }


@torch.no_grad()
def masked_losses(models: dict[str, TrainedModel], examples: list[Example]) -> dict[str, float]:
    """Masked LM loss in nats per token, with the same tokens masked for all models."""
    masking_system = next(m.system for m in models.values() if isinstance(m.system, KnowBERT))
    first_model = next(iter(models.values()))
    totals, count = dict.fromkeys(models, 0.0), 0
    generator = torch.Generator().manual_seed(0)
    for _, batch in batches(first_model, examples):
        view = masking_system.objective.view(batch, generator=generator)
        for name, model in models.items():
            system = model.system
            assert isinstance(system, BERT)
            system_view = view if isinstance(system, KnowBERT) else replace(view, spans=None)
            log_probs = system.target_log_probs(system_view).log_probs
            totals[name] -= float(log_probs.sum())
        count += log_probs.numel()
    return {name: total / count for name, total in totals.items()}


def measure(
    runs: Path, seed: int, sources: list[str], scale: dict[str, Any], split: str
) -> dict[str, Any]:
    start = time.perf_counter()
    base = train_bert(runs, seed, scale)
    paths = {source: train_knowbert(runs, base, source, seed, scale) for source in sources}
    longer = train_longer(runs, base, seed, scale)
    corpus = open_corpus("wordnet-senses")
    test = list(corpus.splits[split])
    trained = list(corpus.splits["train"])
    models = {source: load_run(path) for source, path in paths.items()}
    untrained = {"untrained": load_run(train_knowbert(runs, base, "both", seed, scale, steps=1))}
    accuracies = {
        name: sense_accuracy(model, test, trained)
        for name, model in {**models, **untrained}.items()
    }
    compared_models = {"bert": load_run(base), "bert trained on": load_run(longer), **models}
    return {
        "seed": seed,
        "senses": accuracies,
        "masked": masked_losses(compared_models, test),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sources", default="both,graph,glosses")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    scale = SCALES[arguments.scale]
    record: dict[str, Any] = {"scale": arguments.scale, "settings": scale, "seeds": []}
    sources, runs = arguments.sources.split(","), arguments.runs / arguments.scale
    for seed in range(arguments.seeds):
        record["seeds"].append(measure(runs, seed, sources, scale, arguments.split))
        text = json.dumps(record, indent=1)
        print(text)
        if arguments.out:
            arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
