"""ELMo's features against static word vectors: text classification and word senses.

    python benchmarks/elmo.py [--steps N] [--seeds 3] [--out FILE.json]

An `elmo` and a `skipgram` are trained on WordNet's glosses and examples. Then, with both frozen
(feature transfer):

- task: the part of speech that a gloss defines (`gloss-part-of-speech`, four classes), by a linear
  head on the mean of a text's standardised vectors, from few and from many rows. ELMo's head also
  learns its layer weights. Baselines are the word vectors of the same ELMo, and skip-gram's, as
  wide as ELMo's; skip-gram sees the text five times, ELMo about once, which takes far longer.
- words: examples of WordNet belong to a sense, so it is known whether a form is a noun or a verb in
  them. For each form with at least two examples as a noun and two as a verb, an example is
  classified by the nearer centroid (cosine) of the other examples with that form. Vectors without
  context are the same in all of them: ties, counted as half, which is chance. Nouns and verbs of a
  form have equal weight, and so do all forms. `held out` uses only examples that the language
  models were not trained on. The control is the same network before training.
- bear: WordNet has examples only of the verb, so its centroid is compared with two sentences, one
  of the verb and one of the noun.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from elmo_features import BATCH_SIZE, Standardised, WordVectors, in_batches
from finishing import finished
from torch import Tensor

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.system import System
from lmlab.data.wordnet import WordNet, load_wordnet
from lmlab.data.wordnet.glosses import split_by_hash, tokenize_gloss
from lmlab.models.elmo import ELMo
from lmlab.models.finetuned import add_task_head
from lmlab.tasks.classification import Classification
from lmlab.tasks.task import collate_examples
from lmlab.tasks.task_rows import read_splits
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.system_building import build_system

WIDTH, MIN_COUNT = 64, 8
ENDINGS = {"n": ("", "s", "es"), "v": ("", "s", "es", "d", "ed", "ing")}
"""Regular endings of a lemma; other forms are among WordNet's exceptions, or ignored."""
TASK, LEARNING_RATE = "gloss-part-of-speech", 1e-2
EPOCHS = {500: 40, 4000: 6}
"""Epochs by number of rows, so that both have about equally many steps."""


def train_head(
    base: System, model: TrainedModel, rows: dict[str, list[Any]], seed: int
) -> dict[str, Any]:
    """Train a head on frozen features; accuracy on the test rows."""
    torch.manual_seed(seed)
    task = Classification(Classification.collect_labels(rows["test"]))
    encoded = {
        name: [task.encode(row, model.tokenizer, base.vocabulary, 10**6) for row in split]
        for name, split in rows.items()
    }
    features = Standardised(base, encoded["train"])
    system = add_task_head(features, task, frozen=True)
    trainable = [p for p in system.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    epochs = EPOCHS[len(encoded["train"])]
    steps = epochs * -(-len(encoded["train"]) // BATCH_SIZE)
    step = 0
    for _ in range(epochs):
        shuffled = torch.randperm(len(encoded["train"]), generator=order).tolist()
        for examples in in_batches([encoded["train"][i] for i in shuffled]):
            system.train()
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
            loss, _ = system.loss(collate_examples(examples, base.vocabulary.pad))
            optimizer.zero_grad()
            loss.mean.backward()
            optimizer.step()
            step += 1
    system.eval()
    correct = 0
    for examples in in_batches(encoded["test"]):
        predictions = system.answers(collate_examples(examples, base.vocabulary.pad), examples, [])
        correct += sum(
            a == task.labels[e.labels[0]] for a, e in zip(predictions, examples, strict=True)
        )
    record: dict[str, Any] = {"accuracy": correct / len(encoded["test"])}
    if isinstance(base, ELMo):
        record["shares"] = torch.softmax(base.mix.get_parameter("weights"), 0).tolist()
        record["scale"] = base.mix.get_parameter("scale").item()
        for parameter in base.task_parameters():  # reset for the next head
            parameter.data.fill_(1.0 if parameter.ndim == 0 else 0.0)
    return record


@dataclass(frozen=True)
class Use:
    """A form at a position of an example, with known part of speech."""

    form: str
    part_of_speech: str
    text: tuple[str, ...]
    position: int
    held_out: bool


def collect_uses(wordnet: WordNet) -> dict[str, list[Use]]:
    """Uses of forms with at least two examples as a noun and two as a verb."""
    by_form: dict[str, list[Use]] = defaultdict(list)
    for name in wordnet:
        if name[-1] not in ENDINGS:
            continue
        synset = wordnet[name]
        for example in synset.examples:
            text = tuple(tokenize_gloss(example).split())
            for form, position in forms_in(text, synset.lemmas, name[-1], wordnet):
                by_form[form].append(
                    Use(form, name[-1], text, position, split_by_hash(name) != "train")
                )
    return {
        form: form_uses for form, form_uses in sorted(by_form.items()) if _has_both_parts(form_uses)
    }


def _has_both_parts(form_uses: list[Use]) -> bool:
    return all(sum(use.part_of_speech == part for use in form_uses) >= 2 for part in ENDINGS)


def forms_in(
    text: tuple[str, ...], lemmas: tuple[str, ...], part: str, wordnet: WordNet
) -> Iterator[tuple[str, int]]:
    """Form and position of each of a synset's words in one of its examples, if unique."""
    for lemma in {lemma.lower() for lemma in lemmas}:
        regular = {lemma + ending for ending in ENDINGS[part]}
        if lemma.endswith("e"):
            regular |= {lemma[:-1] + "ing"}
        positions = [
            position
            for position, word in enumerate(text)
            if word in regular or lemma in wordnet.exceptions[part].get(word, ())
        ]
        if len(positions) == 1:
            yield text[positions[0]], positions[0]


@torch.no_grad()
def vectors_of(form_uses: list[Use], model: TrainedModel) -> dict[str, Tensor]:
    """(uses, W) of several kinds of features, by name."""
    system, tokenizer = model.system, model.tokenizer
    assert isinstance(system, ELMo)
    vocabulary = system.vocabulary
    rows = [[vocabulary.bos, *_ids(use, tokenizer), vocabulary.end] for use in form_uses]
    batch = Batch.collate([[int(i or 0) for i in row] for row in rows], vocabulary.pad)
    layers = system.encode_layers(batch)
    positions = torch.tensor([use.position + 1 for use in form_uses])
    at_position = [layer[torch.arange(len(form_uses)), positions] for layer in layers]
    features = {f"layer {number}": layer for number, layer in enumerate(at_position)}
    layer_mean: Any = sum(at_position) / len(at_position)
    features["elmo, layers alike"] = torch.cat([at_position[0][:, :WIDTH], layer_mean], 1)
    features["last layer, forward"] = at_position[-1][:, :WIDTH]
    features["last layer, backward"] = at_position[-1][:, WIDTH:]
    return features


def _ids(use: Use, tokenizer: Any) -> list[int]:
    ids = tokenizer.encode(" ".join(use.text))
    assert len(ids) == len(use.text), "every word must be one token"
    return list(ids)


def noun_verb_accuracy(form_uses: list[Use], vectors: Tensor, *, held_out: bool) -> float | None:
    """Balanced accuracy of nouns and verbs; None without examples."""
    unit = F.normalize(vectors.double(), dim=1)
    is_verb = torch.tensor([use.part_of_speech == "v" for use in form_uses])
    correct: dict[bool, list[float]] = {True: [], False: []}
    for row, use in enumerate(form_uses):
        if held_out and not use.held_out:
            continue
        others = torch.arange(len(form_uses)) != row
        similarities = [
            float(F.cosine_similarity(unit[row], unit[others & (is_verb == part)].mean(0), dim=0))
            for part in (False, True)
        ]
        true_class, other_class = (
            similarities[int(is_verb[row])],
            similarities[1 - int(is_verb[row])],
        )
        tie = abs(true_class - other_class) < 1e-9
        correct[bool(is_verb[row])].append(0.5 if tie else float(true_class > other_class))
    means = [statistics.mean(values) for values in correct.values() if values]
    return statistics.mean(means) if len(means) == 2 or (held_out and means) else None


def measure_words(model: TrainedModel) -> dict[str, Any]:
    known_forms = {
        form: form_uses
        for form, form_uses in collect_uses(load_wordnet()).items()
        if _known(form, model)
    }
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"all": [], "held out": []})
    for form_uses in known_forms.values():
        for name, vectors in vectors_of(form_uses, model).items():
            for subset in ("all", "held out"):
                accuracy = noun_verb_accuracy(form_uses, vectors, held_out=subset == "held out")
                if accuracy is not None:
                    scores[name][subset].append(accuracy)
    generator = torch.Generator().manual_seed(0)
    return {
        "forms": len(known_forms),
        "examples": sum(map(len, known_forms.values())),
        "accuracy": {
            name: {subset: interval(values, generator) for subset, values in by_subset.items()}
            for name, by_subset in scores.items()
        },
    }


def measure_bear(model: TrainedModel) -> dict[str, Any]:
    """Cosines of the last layer at two uses of `bear` to the centroid of WordNet's verbs."""
    wordnet, verbs = load_wordnet(), []
    for synset in wordnet.find("bear", "v"):
        for example in synset.examples:
            text = tuple(tokenize_gloss(example).split())
            verbs += [Use("bear", "v", text, p, False) for p, w in enumerate(text) if w == "bear"]
    queries = [
        Use("bear", "v", tuple("i can't bear this".split()), 2, True),
        Use("bear", "n", tuple("this is a bear".split()), 3, True),
    ]
    vectors = vectors_of([*verbs, *queries], model)["layer 2"]
    centroid = F.normalize(vectors[: len(verbs)], dim=1).mean(0)
    similarities = F.cosine_similarity(vectors, centroid[None], dim=1)
    return {
        "verb examples": len(verbs),
        "i can't bear this": float(similarities[-2]),
        "this is a bear": float(similarities[-1]),
    }


def _known(form: str, model: TrainedModel) -> bool:
    """Whether the tokenizer knows a form; unknown ones share a vector."""
    return model.tokenizer.encode(form) != [model.system.vocabulary.unknown]


def interval(accuracies: list[float], generator: torch.Generator) -> dict[str, float]:
    """The mean over forms, and its 95 % interval over 2,000 bootstrap resamples of the forms."""
    values = torch.tensor(accuracies, dtype=torch.float64)
    resampled = values[torch.randint(len(values), (2000, len(values)), generator=generator)].mean(1)
    low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return {"forms": len(accuracies), "mean": float(values.mean()), "low": low, "high": high}


def train_both(steps: int) -> tuple[TrainedModel, TrainedModel, dict[str, Any]]:
    """Train ELMo and skip-gram on the same text; return them with a training report."""
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        skipgram_settings = {"width": 3 * WIDTH, "min_count": MIN_COUNT}
        out = Path(folder)
        finished(
            lmlab.train(
                "skipgram",
                data="wordnet",
                out=out / "words",
                recipe="default",
                settings=skipgram_settings,
                quiet=True,
            )
        )
        report["skipgram"] = {"width": 3 * WIDTH, "cpu_seconds": time.process_time() - start}
        print(report, flush=True)
        start = time.process_time()
        settings = {
            "width": WIDTH,
            "dropout": 0.1,
            "learning_rate": 5e-3,
            "schedule": "cosine",
            "warmup_steps": 50,
            "tokens_per_batch": 1000,
            "min_count": MIN_COUNT,
            "evaluate_every": steps,
        }
        result = finished(
            lmlab.train(
                "elmo", data="wordnet", out=out / "elmo", settings=settings, steps=steps, quiet=True
            )
        )
        report["elmo"] = {"held_out": result.loss, "cpu_seconds": time.process_time() - start}
        print(report["elmo"], flush=True)
        return load_run(out / "elmo"), load_run(out / "words"), report


def measure(steps: int, seeds: int) -> dict[str, Any]:
    report: dict[str, Any] = {"steps": steps, "width": WIDTH, "min_count": MIN_COUNT}
    model, skipgram, training_report = train_both(steps)
    report |= training_report
    vocabulary = model.system.vocabulary
    report["words"] = measure_words(model)
    report["bear"] = measure_bear(model)
    untrained = replace(model, system=build_system("elmo", {"width": WIDTH}, vocabulary, seed=0))
    untrained.system.eval()
    report["words, untrained"] = measure_words(untrained)
    for name in ("words", "words, untrained", "bear"):
        print(json.dumps(report[name]), flush=True)
    elmo, skipgram_system = model.system, skipgram.system
    assert isinstance(elmo, ELMo)
    bases = {
        "elmo": (elmo, model),
        "its word vectors": (WordVectors(elmo, elmo.backbone.embedding.weight), model),
        "skipgram": (WordVectors(skipgram_system, skipgram_system.vectors()), skipgram),
    }
    splits = read_splits(TASK, Classification)
    report["task"] = []
    for count in EPOCHS:
        rows = {"train": splits["train"][:count], "test": splits["test"]}
        for name, (base, base_model) in bases.items():
            for seed in range(seeds):
                record = train_head(base, base_model, rows, seed)
                record = {"features": name, "rows": count, "seed": seed, **record}
                report["task"].append(record)
                print(json.dumps(record), flush=True)
    report["means"] = means(report["task"])
    return report


def means(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy of each kind of features: mean and standard deviation over seeds."""
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for record in records:
        groups[record["features"], record["rows"]].append(record["accuracy"])
    return [
        {
            "features": features,
            "rows": rows,
            "mean": statistics.mean(accuracies),
            "spread": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        }
        for (features, rows), accuracies in groups.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    report = measure(options.steps, options.seeds)
    report["seconds"] = time.perf_counter() - start
    report["command"] = f"python benchmarks/elmo.py --steps {options.steps} --seeds {options.seeds}"
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
