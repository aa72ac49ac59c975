"""The implicit distribution of a masked model: five measurements with a figure.

    python benchmarks/implicit_law.py [--only PART] [--seeds 3] [--out FILE.json]
    python benchmarks/implicit_law.py --draw FILE.json --figure FILE.svg

- repulsion: a model trained on `surnames` takes one small gradient step on 我的姓是张
  alone. For each nat that log p(张) gains, by how much do log p(李), log p(胡), log p(王)
  change there, and by how much those of words that never occur there?
- attraction: cosines of the output embeddings of words that complete one sentence
  (张李), of words of two sentences which share a third word (张帝, by 王), and of words
  with no such relation.
- templates: a BERT trained on `capitals` fills 甲甲的首都是乙乙 (A) and 甲甲甲的首都是乙乙 (B), all
  blanks masked. How far is its distribution of each blank from the truth, and how far
  are A's and B's distributions of 乙乙 from each other, for the model and for the truth
  (in total variation)?
- layers: candidates enter l layers below the top of three, masks until then. KL from
  the true joint distribution of four blanks, normalised over all 20,736 fillings.
  Hypothesis: 0 layers hold only first-order terms, one layer holds pairs.
- table: the cost of a training step, a score, the distribution at one position, and
  an (effective) sample, for BERT, GPT and EBM of one shape on `capitals`, in
  milliseconds, median of several.
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
from late_candidates import ALONE, SHAPE, layers
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
SMALL = 1e-3
"""Learning rate of the step: small enough for first-order changes."""
BLANK = "<mask>"


def trained(system: str, corpus: str, folder: Path, seed: int, steps: int, **settings: Any) -> Any:
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
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("lstm", {**CELL, "emission": "softmax"}),
    "mixture of softmaxes": ("lstm", {**CELL, "emission": "mixture-of-softmaxes"}),
    "bert": ("bert", {**SHAPE, **ALONE, "rate": 0.3}),
    "ebm": ("ebm", SHAPE),
}
STEPS = 1500


def last_word(model: Any, sentence: str) -> Tensor:
    """(V,) log-probabilities of the last word of a sentence."""
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


def one_step(model: Any, text: str, *, copies: int = 64) -> Any:
    """The model after one small step of plain gradient descent on copies of one text."""
    moved = copy.deepcopy(model)
    vocabulary = moved.system.vocabulary
    row = [vocabulary.start, *moved.tokenizer.encode(text), vocabulary.end]
    batch = Batch.collate([row] * copies, vocabulary.pad)
    moved.system.train()
    loss, _ = moved.system.loss(batch, generator=torch.Generator().manual_seed(0))
    moved.system.zero_grad()
    (loss.total / loss.count).backward()
    with torch.no_grad():
        for parameter in moved.system.parameters():
            if parameter.grad is not None:
                parameter -= SMALL * parameter.grad
    return moved


def repulsion(folder: Path, seeds: int) -> dict[str, Any]:
    rights = [word for word in ENDINGS[SENTENCE] if word != WORD]
    wrong = sorted({word for words in ENDINGS.values() for word in words} - {WORD, *rights})
    found: dict[str, list[dict[str, float]]] = {}
    for name, (system, settings) in LEARNERS.items():
        for seed in range(seeds):
            model = trained(system, "surnames", folder, seed, STEPS, **settings)
            before = last_word(model, SENTENCE)
            change = last_word(one_step(model, SENTENCE + WORD), SENTENCE) - before
            [number] = model.tokenizer.encode(WORD)

            def mean(words: Iterable[str], values: Tensor, model: Any = model) -> float:
                ids = [model.tokenizer.encode(word)[0] for word in words]
                return float(values[ids].mean())

            gained = float(change[number])
            found.setdefault(name, []).append(
                {
                    "gained": gained,
                    "right_words_for_a_nat": mean(rights, change) / gained,
                    "wrong_words_for_a_nat": mean(wrong, change) / gained,
                    "p_right": float(
                        before[[model.tokenizer.encode(w)[0] for w in rights]].exp().mean()
                    ),
                    "p_wrong": float(
                        before[[model.tokenizer.encode(w)[0] for w in wrong]].exp().mean()
                    ),
                }
            )
        print("repulsion", name, found[name][-1], flush=True)
    return found


def attraction(folder: Path, seeds: int) -> dict[str, Any]:
    """Mean cosines of the centred output embeddings, by relation."""
    ties: dict[frozenset[str], str] = {}
    words = sorted({word for ending in ENDINGS.values() for word in ending})
    for one, other in itertools.combinations(words, 2):
        together = any(one in end and other in end for end in ENDINGS.values())
        near = [{w for end in ENDINGS.values() if x in end for w in end} for x in (one, other)]
        tie = "one sentence" if together else "by a third word" if near[0] & near[1] else "none"
        ties[frozenset((one, other))] = tie
    found: dict[str, list[dict[str, float]]] = {}
    for name in ("softmax", "bert"):
        system, settings = LEARNERS[name]
        for seed in range(seeds):
            model = trained(system, "surnames", folder, seed, STEPS, **settings)
            table = model.system.backbone.embedding
            weight = table.weight if isinstance(table, nn.Embedding) else table.tokens.weight
            ids = {word: model.tokenizer.encode(word)[0] for word in words}
            vectors = weight.detach()[list(ids.values())]
            vectors = F.normalize(vectors - vectors.mean(0), dim=-1)
            place = {word: number for number, word in enumerate(words)}
            sums: dict[str, list[float]] = {}
            for pair, tie in ties.items():
                one, other = sorted(pair)
                sums.setdefault(tie, []).append(float(vectors[place[one]] @ vectors[place[other]]))
            found.setdefault(name, []).append(
                {tie: statistics.mean(values) for tie, values in sums.items()}
            )
        print("attraction", name, found[name][-1], flush=True)
    return found


def templates(folder: Path, seeds: int) -> dict[str, Any]:
    texts = {text: p for text, p in capitals_truth().probabilities.items() if "的首都是" in text}
    found: list[dict[str, float]] = []
    for seed in range(seeds):
        settings = {**SHAPE, **ALONE, "width": 64, "rate": 0.4}
        model = trained("bert", "capitals", folder, seed, 2500, **settings)
        laws: dict[str, list[Tensor]] = {}
        truths: dict[str, list[Tensor]] = {}
        for name, length in (("A", 2), ("B", 3)):
            chosen = {
                t: p
                for t, p in texts.items()
                if t.index("的首都是") == length and len(t) == length + 6
            }
            truths[name] = _truth_by_place(chosen, length, model)
            laws[name] = _model_by_place(length, model)

        def distance(one: Tensor, other: Tensor) -> float:
            return float((one - other).abs().sum() / 2)

        capital = (-2, -1)
        row = {
            f"{name} from the truth": statistics.mean(
                distance(laws[name][i], truths[name][i]) for i in range(len(laws[name]))
            )
            for name in laws
        }
        row["A from B, model"] = statistics.mean(
            distance(laws["A"][i], laws["B"][i]) for i in capital
        )
        row["A from B, truth"] = statistics.mean(
            distance(truths["A"][i], truths["B"][i]) for i in capital
        )
        row["model's A from the truth's B"] = statistics.mean(
            distance(laws["A"][i], truths["B"][i]) for i in capital
        )
        found.append(row)
        print("templates", row, flush=True)
    return {"seeds": found}


def _truth_by_place(chosen: dict[str, float], length: int, model: Any) -> list[Tensor]:
    """The true distribution of each blank given the template."""
    size, total = model.system.vocabulary.size, sum(chosen.values())
    blanks = [*range(length), length + 4, length + 5]
    laws = [torch.zeros(size) for _ in blanks]
    for text, probability in chosen.items():
        ids = model.tokenizer.encode(text)
        for law, place in zip(laws, blanks, strict=True):
            law[ids[place]] += probability / total
    return laws


def _model_by_place(length: int, model: Any) -> list[Tensor]:
    vocabulary = model.system.vocabulary
    middle = model.tokenizer.encode("的首都是")
    unknown = [vocabulary.unknown]
    row = [vocabulary.start, *unknown * length, *middle, *unknown * 2, vocabulary.end]
    batch = Batch.collate([row], vocabulary.pad)
    masked = batch.tokens == vocabulary.unknown
    with torch.no_grad():
        return list(model.system.fill(batch, masked).log_probs.exp())


def table(folder: Path, seeds: int) -> dict[str, Any]:
    """Milliseconds of processor time, the median of several."""
    found: dict[str, Any] = {}
    for name in ("bert", "gpt", "ebm"):
        settings = {**SHAPE, **(ALONE if name == "bert" else {})}
        model = trained(name, "capitals", folder, 0, 800, **settings)
        texts = [f"{c.country_zh}的首都是{c.capital_zh}" for c in country_table()[:64]]
        vocabulary = model.system.vocabulary
        rows = [[vocabulary.start, *model.tokenizer.encode(t), vocabulary.end] for t in texts]
        batch = Batch.collate(rows, vocabulary.pad)
        generator = torch.Generator().manual_seed(0)

        def step(model: Any = model, batch: Batch = batch, generator: Any = generator) -> None:
            loss, _ = model.system.loss(batch, generator=generator)
            loss.total.backward()
            model.system.zero_grad()

        one = batch.select([0])
        masked = torch.zeros_like(one.tokens, dtype=torch.bool)
        masked[0, 1] = True
        row = {
            "step of 64 texts": took(step),
            "score of 64 texts": took(lambda m=model, t=texts: m.score(t)),
        }
        if name == "gpt":
            row["law of one place"] = took(lambda m=model: m.system.peek(m.system.start(1)))
            row["a sample"] = took(lambda m=model: m.sample(64, max_length=16)) / 64
        else:
            row["law of one place"] = took(lambda m=model, b=one, k=masked: m.system.fill(b, k))
            began = time.process_time()
            chains = model.chains(
                16,
                method="metropolis",
                text=texts[0],
                steps=200,
                burn_in=50,
                energy="own" if name == "ebm" else "raw",
            )
            effective = max(1e-9, float(chains.diagnostics.effective_sample_size))
            row["a sample"] = (time.process_time() - began) * 1000 / effective
            row["r_hat"] = float(chains.mixing.r_hat)
        found[name] = {what: round(value, 3) for what, value in row.items()}
        print("table", name, found[name], flush=True)
    return found


def took(what: Callable[[], Any], times: int = 7) -> float:
    what()
    measured = []
    for _ in range(times):
        began = time.process_time()
        with torch.enable_grad():
            what()
        measured.append((time.process_time() - began) * 1000)
    return statistics.median(measured)


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "repulsion": repulsion,
    "attraction": attraction,
    "templates": templates,
    "layers": layers,
    "table": table,
}


def draw(record: dict[str, Any], path: Path) -> None:
    """Plot repulsion as bars, and KL by the layers that candidates pass."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9.5, 3.6))
    names = list(record["repulsion"])
    for number, what in enumerate(("right_words_for_a_nat", "wrong_words_for_a_nat")):
        means = [statistics.mean(row[what] for row in record["repulsion"][n]) for n in names]
        label = "equally right words" if number == 0 else "wrong words"
        axes[0].bar([i + 0.4 * number for i in range(len(names))], means, 0.38, label=label)
    axes[0].set(xticks=[i + 0.2 for i in range(len(names))], xticklabels=names)
    axes[0].tick_params(axis="x", labelsize=7)
    axes[0].set(ylabel="change of log p per nat gained")
    axes[0].legend(frameon=False, fontsize=8)
    kl = record["layers"]["kl"]
    for below, values in kl.items():
        axes[1].plot([int(below)] * len(values), values, "o", color="tab:blue", alpha=0.5)
    axes[1].plot([int(b) for b in kl], [statistics.mean(v) for v in kl.values()], color="tab:blue")
    axes[1].set(xlabel="layers that the candidates pass", ylabel="KL from the true joint, nats")
    axes[1].set(xticks=[int(b) for b in kl])
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="a record to plot instead of measuring")
    parser.add_argument("--figure", type=Path, default=Path("implicit-law.svg"))
    arguments = parser.parse_args()
    if arguments.draw:
        draw(json.loads(arguments.draw.read_text(encoding="utf-8")), arguments.figure)
        return
    record: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        record = json.loads(arguments.out.read_text(encoding="utf-8"))
    for name in arguments.only or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            record[name] = PARTS[name](Path(folder), arguments.seeds)
        record["command"] = f"python benchmarks/implicit_law.py --seeds {arguments.seeds}"
        if arguments.out:
            text = json.dumps(record, indent=1, ensure_ascii=False)
            arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
