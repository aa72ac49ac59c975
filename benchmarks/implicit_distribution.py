"""The implicit distribution of a masked model: five measurements with a figure.

    python benchmarks/implicit_distribution.py [--only PART] [--seeds 3] [--out FILE.json]
    python benchmarks/implicit_distribution.py --draw FILE.json --figure FILE.svg

- repulsion: a model trained on `surnames` takes one small gradient step on 我的姓是张
  alone. Per nat gained by log p(张), by how much do log p(李), log p(胡) and log p(王)
  change at that position, and log p of words that never occur there?
- attraction: cosines of the output embeddings of words that complete one sentence
  (张李), of words from two sentences that share a third word (张帝, through 王), and of
  unrelated words.
- templates: a BERT trained on `capitals` fills 甲甲的首都是乙乙 (A) and 甲甲甲的首都是乙乙 (B), all
  blanks masked. Total variation distance of its distribution at each blank from the
  true one, and between A's and B's distributions of 乙乙, for the model and the truth.
- layers: the input is masked up to l layers below the top of three, where candidate
  tokens are added. KL from the true joint distribution of four blanks, normalised over
  all 20,736 fillings. Hypothesis: 0 layers model unary terms only, one layer pairs.
- table: the cost of a training step, a score, the distribution at one position, and
  an (effective) sample, for BERT, GPT and EBM of the same size on `capitals`: median
  milliseconds of CPU time.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from finishing import finished
from late_candidates import SHAPE, SINGLE_TEXT, kl_by_candidate_layers
from torch import Tensor, nn

import lmlab
from lmlab.core.batch import Batch
from lmlab.data.countries import country_table
from lmlab.data.languages.capitals import truth as capitals_truth
from lmlab.data.languages.surnames import ENDINGS

TRAINING = {
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "warmup_steps": 50,
    "tokens_per_batch": 512,
}
SENTENCE, WORD = "我的姓是", "张"
STEP_SIZE = 1e-3
"""Learning rate of the step: small enough for first-order changes."""
BLANK = "<mask>"


def train_model(
    system: str, corpus: str, folder: Path, seed: int, steps: int, **settings: Any
) -> Any:
    out = folder / f"{system}-{corpus}-{seed}-{len(list(folder.iterdir()))}"
    finished(
        lmlab.train(
            system,
            data=corpus,
            out=out,
            settings={**TRAINING, **settings},
            steps=steps,
            seed=seed,
            quiet=True,
        )
    )
    return lmlab.load(out)


# A cell of 32 units needs the higher learning rate to fit sixteen sentences in these steps.
CELL = {"width": 32, "dropout": 0.0, "learning_rate": 2e-2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("lstm", {**CELL, "emission": "softmax"}),
    "mixture of softmaxes": ("lstm", {**CELL, "emission": "mixture-of-softmaxes"}),
    "bert": ("bert", {**SHAPE, **SINGLE_TEXT, "rate": 0.3}),
    "ebm": ("ebm", SHAPE),
}
STEPS = 1500


def last_word_log_probs(model: Any, sentence: str) -> Tensor:
    """(V,) log-probabilities of the next word after `sentence`."""
    system, tokenizer = model.system.eval(), model.tokenizer
    vocabulary = system.vocabulary
    ids = tokenizer.encode(sentence)
    with torch.no_grad():
        if hasattr(system, "fill"):
            row = [vocabulary.start, *ids, vocabulary.unknown, vocabulary.end]
            batch = Batch.collate([row], vocabulary.pad)
            masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
            masked[0, len(ids) + 1] = True
            return system.fill(batch, masked).log_probs[0]
        state = system.start(1)
        for token in ids:
            state = system.advance(state, torch.tensor([token]))
        return system.peek(state).log_probs[0]


def take_gradient_step(model: Any, text: str, *, copies: int = 64) -> Any:
    """Copy of the model after one small SGD step on copies of one text."""
    updated = copy.deepcopy(model)
    vocabulary = updated.system.vocabulary
    row = [vocabulary.start, *updated.tokenizer.encode(text), vocabulary.end]
    batch = Batch.collate([row] * copies, vocabulary.pad)
    updated.system.train()
    loss, _ = updated.system.loss(batch, generator=torch.Generator().manual_seed(0))
    updated.system.zero_grad()
    (loss.total / loss.count).backward()
    with torch.no_grad():
        for parameter in updated.system.parameters():
            if parameter.grad is not None:
                parameter -= STEP_SIZE * parameter.grad
    return updated


def repulsion(folder: Path, seeds: int) -> dict[str, Any]:
    right_words = [word for word in ENDINGS[SENTENCE] if word != WORD]
    wrong_words = sorted(
        {word for words in ENDINGS.values() for word in words} - {WORD, *right_words}
    )
    results: dict[str, list[dict[str, float]]] = {}
    for name, (system, settings) in MODELS.items():
        for seed in range(seeds):
            model = train_model(system, "surnames", folder, seed, STEPS, **settings)
            before = last_word_log_probs(model, SENTENCE)
            change = (
                last_word_log_probs(take_gradient_step(model, SENTENCE + WORD), SENTENCE) - before
            )
            [token] = model.tokenizer.encode(WORD)

            def mean(words: Iterable[str], values: Tensor, model: Any = model) -> float:
                ids = [model.tokenizer.encode(word)[0] for word in words]
                return float(values[ids].mean())

            gain = float(change[token])
            results.setdefault(name, []).append(
                {
                    "gained": gain,
                    "right_words_for_a_nat": mean(right_words, change) / gain,
                    "wrong_words_for_a_nat": mean(wrong_words, change) / gain,
                    "p_right": float(
                        before[[model.tokenizer.encode(w)[0] for w in right_words]].exp().mean()
                    ),
                    "p_wrong": float(
                        before[[model.tokenizer.encode(w)[0] for w in wrong_words]].exp().mean()
                    ),
                }
            )
        print("repulsion", name, results[name][-1], flush=True)
    return results


def attraction(folder: Path, seeds: int) -> dict[str, Any]:
    """Mean cosines of the centred output embeddings, by relation."""
    relations: dict[frozenset[str], str] = {}
    words = sorted({word for ending in ENDINGS.values() for word in ending})
    for one, other in itertools.combinations(words, 2):
        same_sentence = any(one in end and other in end for end in ENDINGS.values())
        neighbours = [
            {w for end in ENDINGS.values() if x in end for w in end} for x in (one, other)
        ]
        relation = (
            "one sentence"
            if same_sentence
            else "by a third word"
            if neighbours[0] & neighbours[1]
            else "none"
        )
        relations[frozenset((one, other))] = relation
    results: dict[str, list[dict[str, float]]] = {}
    for name in ("softmax", "bert"):
        system, settings = MODELS[name]
        for seed in range(seeds):
            model = train_model(system, "surnames", folder, seed, STEPS, **settings)
            table = model.system.backbone.embedding
            weight = table.weight if isinstance(table, nn.Embedding) else table.tokens.weight
            ids = {word: model.tokenizer.encode(word)[0] for word in words}
            vectors = weight.detach()[list(ids.values())]
            vectors = F.normalize(vectors - vectors.mean(0), dim=-1)
            row_of = {word: number for number, word in enumerate(words)}
            cosines: dict[str, list[float]] = {}
            for pair, relation in relations.items():
                one, other = sorted(pair)
                cosines.setdefault(relation, []).append(
                    float(vectors[row_of[one]] @ vectors[row_of[other]])
                )
            results.setdefault(name, []).append(
                {relation: statistics.mean(values) for relation, values in cosines.items()}
            )
        print("attraction", name, results[name][-1], flush=True)
    return results


def templates(folder: Path, seeds: int) -> dict[str, Any]:
    texts = {text: p for text, p in capitals_truth().probabilities.items() if "的首都是" in text}
    results: list[dict[str, float]] = []
    for seed in range(seeds):
        settings = {**SHAPE, **SINGLE_TEXT, "width": 64, "rate": 0.4}
        model = train_model("bert", "capitals", folder, seed, 2500, **settings)
        predicted: dict[str, list[Tensor]] = {}
        true: dict[str, list[Tensor]] = {}
        for name, length in (("A", 2), ("B", 3)):
            selected = {
                t: p
                for t, p in texts.items()
                if t.index("的首都是") == length and len(t) == length + 6
            }
            true[name] = _true_distributions(selected, length, model)
            predicted[name] = _model_distributions(length, model)

        def distance(one: Tensor, other: Tensor) -> float:
            return float((one - other).abs().sum() / 2)

        capital = (-2, -1)
        row = {
            f"{name} from the truth": statistics.mean(
                distance(predicted[name][i], true[name][i]) for i in range(len(predicted[name]))
            )
            for name in predicted
        }
        row["A from B, model"] = statistics.mean(
            distance(predicted["A"][i], predicted["B"][i]) for i in capital
        )
        row["A from B, truth"] = statistics.mean(
            distance(true["A"][i], true["B"][i]) for i in capital
        )
        row["model's A from the truth's B"] = statistics.mean(
            distance(predicted["A"][i], true["B"][i]) for i in capital
        )
        results.append(row)
        print("templates", row, flush=True)
    return {"seeds": results}


def _true_distributions(sentences: dict[str, float], length: int, model: Any) -> list[Tensor]:
    """True marginal distribution at each blank, given the template."""
    size, total = model.system.vocabulary.size, sum(sentences.values())
    blanks = [*range(length), length + 4, length + 5]
    distributions = [torch.zeros(size) for _ in blanks]
    for text, probability in sentences.items():
        ids = model.tokenizer.encode(text)
        for distribution, position in zip(distributions, blanks, strict=True):
            distribution[ids[position]] += probability / total
    return distributions


def _model_distributions(length: int, model: Any) -> list[Tensor]:
    vocabulary = model.system.vocabulary
    middle = model.tokenizer.encode("的首都是")
    unknown = [vocabulary.unknown]
    row = [vocabulary.start, *unknown * length, *middle, *unknown * 2, vocabulary.end]
    batch = Batch.collate([row], vocabulary.pad)
    masked = batch.tokens == vocabulary.unknown
    with torch.no_grad():
        return list(model.system.fill(batch, masked).log_probs.exp())


def measure_costs(folder: Path, seeds: int) -> dict[str, Any]:
    """Median milliseconds of CPU time, by model and operation."""
    results: dict[str, Any] = {}
    for name in ("bert", "gpt", "ebm"):
        settings = {**SHAPE, **(SINGLE_TEXT if name == "bert" else {})}
        model = train_model(name, "capitals", folder, 0, 800, **settings)
        texts = [f"{c.country_zh}的首都是{c.capital_zh}" for c in country_table()[:64]]
        vocabulary = model.system.vocabulary
        rows = [[vocabulary.start, *model.tokenizer.encode(t), vocabulary.end] for t in texts]
        batch = Batch.collate(rows, vocabulary.pad)
        generator = torch.Generator().manual_seed(0)

        def step(model: Any = model, batch: Batch = batch, generator: Any = generator) -> None:
            loss, _ = model.system.loss(batch, generator=generator)
            loss.total.backward()
            model.system.zero_grad()

        first_text = batch.select([0])
        masked = torch.zeros_like(first_text.tokens, dtype=torch.bool)
        masked[0, 1] = True
        row = {
            "step of 64 texts": median_milliseconds(step),
            "score of 64 texts": median_milliseconds(lambda m=model, t=texts: m.score(t)),
        }
        if name == "gpt":
            row["law of one place"] = median_milliseconds(
                lambda m=model: m.system.peek(m.system.start(1))
            )
            row["a sample"] = median_milliseconds(lambda m=model: m.sample(64, max_length=16)) / 64
        else:
            row["law of one place"] = median_milliseconds(
                lambda m=model, b=first_text, k=masked: m.system.fill(b, k)
            )
            start = time.process_time()
            chains = model.chains(
                16,
                method="metropolis",
                text=texts[0],
                steps=200,
                burn_in=50,
                energy="own" if name == "ebm" else "raw",
            )
            effective = max(1e-9, float(chains.diagnostics.effective_sample_size))
            row["a sample"] = (time.process_time() - start) * 1000 / effective
            row["r_hat"] = float(chains.diagnostics.r_hat)
        results[name] = {key: round(value, 3) for key, value in row.items()}
        print("table", name, results[name], flush=True)
    return results


def median_milliseconds(function: Callable[[], Any], repetitions: int = 7) -> float:
    function()
    durations = []
    for _ in range(repetitions):
        start = time.process_time()
        with torch.enable_grad():
            function()
        durations.append((time.process_time() - start) * 1000)
    return statistics.median(durations)


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "repulsion": repulsion,
    "attraction": attraction,
    "templates": templates,
    "layers": kl_by_candidate_layers,
    "table": measure_costs,
}


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot repulsion as bars, and KL by number of layers above the candidates' input."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9.5, 3.6))
    names = list(record["repulsion"])
    for number, key in enumerate(("right_words_for_a_nat", "wrong_words_for_a_nat")):
        means = [statistics.mean(row[key] for row in record["repulsion"][n]) for n in names]
        label = "equally right words" if number == 0 else "wrong words"
        axes[0].bar([i + 0.4 * number for i in range(len(names))], means, 0.38, label=label)
    axes[0].set(xticks=[i + 0.2 for i in range(len(names))], xticklabels=names)
    axes[0].tick_params(axis="x", labelsize=7)
    axes[0].set(ylabel="change of log p per nat gained")
    axes[0].legend(frameon=False, fontsize=8)
    kl = record["layers"]["kl"]
    for layers, values in kl.items():
        axes[1].plot([int(layers)] * len(values), values, "o", color="tab:blue", alpha=0.5)
    axes[1].plot([int(b) for b in kl], [statistics.mean(v) for v in kl.values()], color="tab:blue")
    axes[1].set(
        xlabel="layers above the candidates", ylabel="KL from the true joint distribution, nats"
    )
    axes[1].set(xticks=[int(b) for b in kl])
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="a record to plot instead of measuring")
    parser.add_argument("--figure", type=Path, default=Path("implicit-distribution.svg"))
    arguments = parser.parse_args()
    if arguments.draw:
        plot(json.loads(arguments.draw.read_text(encoding="utf-8")), arguments.figure)
        return
    record: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        record = json.loads(arguments.out.read_text(encoding="utf-8"))
    for name in arguments.only or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            record[name] = PARTS[name](Path(folder), arguments.seeds)
        record["command"] = f"python benchmarks/implicit_distribution.py --seeds {arguments.seeds}"
        if arguments.out:
            text = json.dumps(record, indent=1, ensure_ascii=False)
            arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
