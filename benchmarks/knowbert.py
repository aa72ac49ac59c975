"""KnowBERT on WordNet: word sense disambiguation on held-out sentences, and the masked LM loss.

    python benchmarks/knowbert.py --runs FOLDER [--seeds 3] [--sources both,graph,glosses]
                                  [--scale tiny|laptop|small] [--split test] [--out FILE.json]

For each seed a `bert` is trained on `wordnet-senses`; then `knowbert` on top of it, with entity
vectors from WordNet's relations, its glosses, or both; and the same `bert` is trained for as many
more steps as KnowBERT's joint training has, so that the masked LM losses are comparable. On the
test sentences (those of --split):

- senses: how often the word that a sentence is an example of is linked to its synset; over all,
  over those with several candidates, and of these by whether another example of the synset was in
  training. A word unknown to the tokenizer counts as wrong, for the baselines too: the most
  frequent sense (the prior alone); the sense that the same form has most often in the training
  sentences, ties broken by the most frequent; a random candidate. `untrained` is a KnowBERT after
  one step, the control for any difference to the prior.
- masked: nats per masked token, with the same tokens masked for all models.

Runs are kept in FOLDER: an interrupted benchmark resumes.
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
WHO = ("model", "most frequent", "most frequent in training", "random")
ROWS = 64
"""Sentences per batch."""


def train_bert(runs: Path, seed: int, scale: dict[str, Any]) -> Path:
    """The base model, whose weights initialise the others."""
    out = runs / f"bert-{seed}"
    settings = SHARED | scale["training"] | scale["bert"]
    settings |= {"learning_rate": scale["learning_rate"], "masking": "dynamic"}
    settings |= {"warmup_steps": scale["bert_steps"] // 10}
    # Subwords, since half of the target words are too rare to be one token each.
    given = {"tokenizer": "wordpiece", "settings": settings}
    train("bert", out, steps=scale["bert_steps"], seed=seed, **given)
    return out


def train_longer(runs: Path, base: Path, seed: int, scale: dict[str, Any]) -> Path:
    """The base trained for as many more steps as KnowBERT's joint training has."""
    out = runs / f"bert-longer-{seed}"
    if not out.exists():
        shutil.copytree(base, out)
    joint = scale["knowbert_steps"] - scale["knowbert"]["linking_steps"]
    train("bert", out, steps=scale["bert_steps"] + joint, seed=seed)
    return out


def train_knowbert(
    runs: Path, base: Path, source: str, seed: int, scale: dict[str, Any], steps: int | None = None
) -> Path:
    """KnowBERT on the base, for `steps` steps or those of the scale."""
    out = runs / f"knowbert-{source}-{seed}{'' if steps is None else f'-{steps}'}"
    settings = SHARED | scale["training"] | scale["knowbert"]
    settings |= {"entities": source, "learning_rate": scale["learning_rate"], "warmup_steps": 50}
    given = {"base": base, "knowledge": "wordnet-common"}
    count = scale["knowbert_steps"] if steps is None else steps
    train("knowbert", out, steps=count, settings=settings, seed=seed, **given)
    return out


def train(system: str, out: Path, **words: Any) -> None:
    """Train, resume, or skip a finished run."""
    before = (out / "config.json").exists()
    if before:
        for settled in ("settings", "tokenizer", "base"):
            words.pop(settled, None)
    finished(lmlab.train(system, data="wordnet-senses", out=out, resume=before, **words))


def batches(model: TrainedModel, examples: list[Example]) -> Iterator[tuple[list[Example], Batch]]:
    vocabulary = model.system.vocabulary
    assert vocabulary.end is not None
    for first in range(0, len(examples), ROWS):
        some = examples[first : first + ROWS]
        rows = [
            [vocabulary.bos, *model.tokenizer.encode(each.text), vocabulary.end] for each in some
        ]
        yield some, Batch.collate(rows, pad=vocabulary.pad)


def told_places(model: TrainedModel, example: Example) -> dict[tuple[int, int], str]:
    """The synset of each mention of a text, by the positions of its first and last token."""
    _, offsets = model.tokenizer.encode_with_offsets(example.text)
    found = {}
    for mention in example.mentions:
        inside = [
            place
            for place, (low, high) in enumerate(offsets, 1)
            if low < mention.end and mention.start < high
        ]
        found[inside[0], inside[-1]] = mention.entity
    return found


def mentioned(example: Example, synset: str) -> tuple[int, int]:
    """The characters of the mention of a synset."""
    return next((m.start, m.end) for m in example.mentions if m.entity == synset)


@torch.no_grad()
def senses(model: TrainedModel, examples: list[Example], trained: list[Example]) -> dict[str, Any]:
    """Accuracy of the annotated senses, by the model and by the baselines."""
    system = model.system
    assert isinstance(system, KnowBERT)
    numbers = system.knowledge.numbers
    told = [(each.text[m.start : m.end], m.entity) for each in trained for m in each.mentions]
    met = Counter((words, numbers[entity]) for words, entity in told)
    seen = {entity for _, entity in told}
    tallies: dict[str, list[tuple[float, ...]]] = {}
    for some, batch in batches(model, examples):
        nothing = torch.zeros_like(batch.tokens, dtype=torch.bool)
        spans = system.objective.find(batch, nothing)
        linked = {(each.row, each.first, each.last): each.entity for each in system.link(batch)}
        places = zip(spans.rows.tolist(), spans.first.tolist(), spans.last.tolist(), strict=True)
        candidates = dict(zip(places, spans.candidates.tolist(), strict=True))
        for row, example in enumerate(some):
            for (first, last), synset in told_places(model, example).items():
                gold, words = numbers[synset], example.text[slice(*mentioned(example, synset))]
                among = [c for c in candidates.get((row, first, last), []) if c != NO_ENTITY]
                result = (
                    float(linked.get((row, first, last)) == gold),
                    float(among[:1] == [gold]),
                    float(max(among, key=lambda c: met[words, c], default=NO_ENTITY) == gold),
                    (gold in among) / max(1, len(among)),
                )
                names = ["all"]
                if len(among) > 1:
                    known = "sense in training" if synset in seen else "sense not in training"
                    names += ["ambiguous", known]
                for name in names:
                    tallies.setdefault(name, []).append(result)
    return {
        name: {
            "mentions": len(found),
            **{
                who: statistics.mean(each[place] for each in found) for place, who in enumerate(WHO)
            },
        }
        for name, found in tallies.items()
    }


@torch.no_grad()
def masked_losses(models: dict[str, TrainedModel], examples: list[Example]) -> dict[str, float]:
    """Nats per masked token of the test sentences, the same for all."""
    drawer = next(m.system for m in models.values() if isinstance(m.system, KnowBERT))
    some = next(iter(models.values()))
    totals, count = dict.fromkeys(models, 0.0), 0
    generator = torch.Generator().manual_seed(0)
    for _, batch in batches(some, examples):
        view = drawer.objective.view(batch, generator=generator)
        for name, model in models.items():
            system = model.system
            assert isinstance(system, BERT)
            shown = view if isinstance(system, KnowBERT) else replace(view, spans=None)
            found = system.target_log_probs(shown).log_probs
            totals[name] -= float(found.sum())
        count += found.numel()
    return {name: total / count for name, total in totals.items()}


def measure(
    runs: Path, seed: int, sources: list[str], scale: dict[str, Any], split: str
) -> dict[str, Any]:
    began = time.perf_counter()
    base = train_bert(runs, seed, scale)
    paths = {source: train_knowbert(runs, base, source, seed, scale) for source in sources}
    longer = train_longer(runs, base, seed, scale)
    corpus = open_corpus("wordnet-senses")
    test = list(corpus.splits[split])
    trained = list(corpus.splits["train"])
    models = {source: load_run(path) for source, path in paths.items()}
    untrained = {"untrained": load_run(train_knowbert(runs, base, "both", seed, scale, steps=1))}
    found = {name: senses(model, test, trained) for name, model in {**models, **untrained}.items()}
    compared = {"bert": load_run(base), "bert trained on": load_run(longer), **models}
    return {
        "seed": seed,
        "senses": found,
        "masked": masked_losses(compared, test),
        "seconds": time.perf_counter() - began,
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
