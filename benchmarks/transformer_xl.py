"""Transformer-XL by memory length: loss and speed.

    python benchmarks/transformer_xl.py recall [--seeds 1] [--runs FOLDER] [--out FILE.json]
    python benchmarks/transformer_xl.py ptb --data FOLDER [--epochs N] [--runs FOLDER] [--out …]
    python benchmarks/transformer_xl.py speed [--data FOLDER] [--runs FOLDER] [--out …]
    python benchmarks/transformer_xl.py draw [--out FILE.json] [--figure FILE.svg]

- recall, ptb: loss on the test split by memory length at evaluation, of a `transformer-xl` trained
  with a memory and of one trained without. `recall` is the generated language as one stream, in
  segments of a text and a half. Besides its loss: the regret above the true entropy, and the
  surprisal of the queried value (0 with perfect memory, ln 4 by chance), which occurs 2 to 6
  positions before the query's key.
- speed: tokens scored per second with the memory, block by block, against a sliding window that is
  recomputed for each token and covers as many positions (and computes the output layer only at the
  last of them). The two alternate; ratio of medians; one thread, CPU time. For a small system with
  random weights and 10,000 words; and, if a trained run is in the folder, for that one, with the
  loss of both methods on the same tokens. The memory's receptive field is larger: layers × memory
  positions. Then the milliseconds per step, token by token, early and late in a long text.

Existing runs are not trained again, and interrupted ones resume. Each part of the record is
replaced when it is measured again, the others stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from finishing import finished
from measuring import rate, taking_turns
from torch import Tensor

import lmlab
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus, Layout, open_corpus
from lmlab.data.languages import recall
from lmlab.zoo import transformer_xl

OUT = Path(__file__).parent / "results" / "transformer_xl.json"
SENTENCES, STEPS = 60_000, 5000
MEMORIES = {
    "recall": (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48),
    "ptb": (0, 8, 16, 32, 64, 128, 256, 512),
}
CONTEXTS = {"random": (64, 256, 1024), "recall": (16, 32), "ptb": (32, 128, 512)}
WORDS = 10_000
BLOCK = 1024
"""Tokens per block with a memory, and about as many window positions."""
WARM = 8
"""Memories processed before the scored tokens: at least as many as layers."""
STEPPED = 512
"""Tokens stepped through, with a memory of an eighth of them."""


# Loss against memory ------------------------------------------------------------------------------


def corpus_of(name: str, data: str | None) -> Corpus:
    if name == "ptb":
        if data is None:
            raise SystemExit("ptb needs --data FOLDER, the one that holds ptb/.")
        return open_corpus(f"ptb-contiguous:{data}")
    return replace(recall.corpus(sentences=SENTENCES), layout=Layout(kind="contiguous"))


def train(name: str, corpus: Corpus, memory: bool, seed: int, options: Any) -> Path:
    """The folder of a finished training run; existing ones are reused."""
    out = options.runs / f"{name}-{'with' if memory else 'without'}-memory-seed{seed}"
    settings: dict[str, Any] = {} if memory else {"memory": 0}
    budget: dict[str, Any] = {"epochs": options.epochs} if options.epochs else {}
    if name == "recall":
        budget = {"steps": options.steps}
    result = finished(
        lmlab.train(
            "transformer-xl",
            data=corpus,
            out=out,
            recipe=name,
            settings=settings,
            seed=seed,
            resume=(out / "config.json").exists(),
            quiet=True,
            **budget,
        )
    )
    return Path(result.path)


def losses(run: Path, corpus: Corpus, memories: tuple[int, ...]) -> list[dict[str, float]]:
    """Loss on the test split by memory length, in nats."""
    model, found = lmlab.load(run), []
    texts = [example.text for example in corpus.split("test")]
    for memory in memories:
        model.system.backbone.eval_memory_length = memory
        scores = list(model.scorer().score(texts))
        total, count = -sum(s.total for s in scores), sum(s.tokens for s in scores)
        one: dict[str, float] = {"memory": memory, "nats_per_token": total / count}
        if corpus.truth is not None:
            # The last token of a text is its end, the one before it the queried value.
            values = [-score.per_token[-2].log_prob for score in scores]
            one["nats_of_the_value"] = statistics.fmean(values)
            one["nats_per_text_above_truth"] = total / len(texts) - corpus.truth.entropy
        print(f"  {run.name}: {one}", flush=True)
        found.append(one)
    return found


def measure_losses(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """The record so far, after each run."""
    corpus, records = corpus_of(name, options.data), []
    told = {"sentences": SENTENCES, "steps": options.steps} if name == "recall" else {}
    for seed in range(options.seeds):
        for memory in (True, False):
            run = train(name, corpus, memory, seed, options)
            model = lmlab.load(run).model
            trained = {"seed": seed, "memory_in_training": model.system.backbone.memory}
            records.append(
                trained
                | {
                    "segment": model.system.backbone.segment,
                    "parameters": model.system.parameter_count,
                    "losses": losses(run, corpus, MEMORIES[name]),
                }
            )
            yield told | {"records": records}


# Speed --------------------------------------------------------------------------------------------


def by_memory(system: Any, tokens: Tensor, first: int, count: int) -> float:
    """The log-probability of `count` tokens from position `first`, in blocks with a memory."""
    backbone, total = system.backbone, 0.0
    warm = max(0, first - 1 - WARM * backbone.eval_memory_length)
    state = backbone(_view(tokens[None, warm : first - 1])).state
    for begin in range(first, first + count, BLOCK):
        end = min(begin + BLOCK, first + count)
        batch = Batch.collate([tokens[begin - 1 : end].tolist()], system.vocabulary.pad)
        found = system.log_prob(batch, state=state)
        total, state = total + float(found.totals.double().sum()), found.state
    return total


def by_window(system: Any, tokens: Tensor, first: int, count: int) -> float:
    """The same, with a recomputed window for each token."""
    context, total = system.backbone.eval_memory_length, 0.0
    rows = max(1, BLOCK // (context + 1))
    for places in torch.arange(first, first + count).split(rows):
        windows = torch.stack([tokens[place - context - 1 : place] for place in places])
        last = system.hidden(_view(windows)).values[:, -1]
        total += float(system.emission.log_prob(last, tokens[places]).double().sum())
    return total


def _view(tokens: Tensor) -> View:
    lengths = torch.full((len(tokens),), tokens.shape[1])
    return View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())


def measure_rates(system: Any, tokens: Tensor, context: int, options: Any) -> dict[str, Any]:
    """Tokens per second of both methods, and their loss if the weights are trained."""
    system.eval()
    system.backbone.eval_memory_length = context
    first, few = context + 1, max(4, BLOCK // (context + 1))

    def carried() -> Iterator[int]:
        state = None
        for number in itertools.cycle(range(len(tokens) // BLOCK)):
            block = tokens[number * BLOCK : (number + 1) * BLOCK].tolist()
            batch = Batch.collate([block], system.vocabulary.pad)
            state = system.log_prob(batch, state=state).state
            yield len(block) - 1

    def slid() -> int:
        by_window(system, tokens, first, few)
        return few

    blocks = carried()
    found: dict[str, Any] = {"context": context} | taking_turns(
        lambda: rate(lambda: next(blocks), options.seconds, time.process_time),
        lambda: rate(slid, options.seconds, time.process_time),
        options.rounds,
    )
    found["tokens_per_second"] = {"memory": found.pop("ours"), "window": found.pop("peer")}
    return found


def both_losses(system: Any, tokens: Tensor, count: int) -> dict[str, float]:
    """Nats per token of the same segment by both methods."""
    first = len(tokens) - count
    return {
        "memory": -by_memory(system, tokens, first, count) / count,
        "window": -by_window(system, tokens, first, count) / count,
    }


def measure_steps(system: Any) -> dict[str, Any]:
    """Milliseconds per step, token by token, in the quarters of a long text."""
    state, token, found = system.start(1), torch.tensor([7]), []
    for _ in range(4):
        seconds = []
        for _ in range(STEPPED // 4):
            began = time.process_time()
            system.peek(state)
            state = system.advance(state, token)
            seconds.append(time.process_time() - began)
        found.append(1000 * statistics.median(seconds))
    kept = state.memory.positions.shape[1]
    return {
        "memory": system.backbone.eval_memory_length,
        "places": STEPPED,
        "places_kept": kept,
        "milliseconds_by_quarter": found,
    }


def systems_to_time(options: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """Random weights of the small size, and existing trained runs, with their texts."""
    torch.manual_seed(0)
    small = transformer_xl.build(transformer_xl.SIZES["small"], Vocabulary(size=WORDS))
    yield "random", small, torch.randint(5, WORDS, (16 * BLOCK,))
    for name in ("recall", "ptb"):
        run = options.runs / f"{name}-with-memory-seed0"
        if not (run / "model.safetensors").exists() or (name == "ptb" and not options.data):
            continue
        model, ids = lmlab.load(run), []
        for example in corpus_of(name, options.data).split("test"):
            ids += [*model.tokenizer.encode(example.text), model.system.vocabulary.end]
        yield name, model.system, torch.tensor(ids)


def measure_speed(options: Any) -> Iterator[dict[str, Any]]:
    """The record so far, after each context."""
    found: dict[str, Any] = {"records": [], "rounds": options.rounds, "block": BLOCK}
    with torch.no_grad():
        for name, system, tokens in systems_to_time(options):
            for context in CONTEXTS[name]:
                one = {"system": name} | measure_rates(system, tokens, context, options)
                if name != "random":
                    one["nats_per_token"] = both_losses(system, tokens, options.tokens)
                print(f"  {one}", flush=True)
                found["records"].append(one)
                yield found
            if name == "random":
                system.backbone.eval_memory_length = STEPPED // 8
                found["steps"] = measure_steps(system)
                print(f"  {found['steps']}", flush=True)
                yield found


# Record and figure --------------------------------------------------------------------------------


def draw(found: dict[str, Any], path: Path) -> None:
    """Plot loss by memory, one panel per corpus, and speed-up by context."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    parts = [name for name in ("recall", "ptb", "speed") if name in found]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(4.2 * len(parts), 3.6), squeeze=False)
    for axis, name in zip(axes[0], parts, strict=True):
        records = found[name]["records"]
        (draw_speed if name == "speed" else draw_losses)(axis, name, records)
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def draw_losses(axis: Any, name: str, records: list[dict[str, Any]]) -> None:
    figure = "nats_of_the_value" if name == "recall" else "nats_per_token"
    for trained in sorted({record["memory_in_training"] for record in records}, reverse=True):
        chosen = [r["losses"] for r in records if r["memory_in_training"] == trained]
        memories = [one["memory"] for one in chosen[0]]
        means = [statistics.fmean(one[figure] for one in at) for at in zip(*chosen, strict=True)]
        axis.plot(memories, means, marker="o", label=f"trained with memory {trained}")
    axis.set(title=name, xlabel="memory at evaluation, positions", ylabel=figure.replace("_", " "))
    if name == "ptb":
        axis.set_xscale("symlog", base=2, linthresh=8)


def draw_speed(axis: Any, name: str, records: list[dict[str, Any]]) -> None:
    for system in dict.fromkeys(record["system"] for record in records):
        chosen = [record for record in records if record["system"] == system]
        contexts, ratios = ([r[what] for r in chosen] for what in ("context", "ratio"))
        axis.plot(contexts, ratios, marker="o", label=f"{system} weights")
    axis.set(title="speed", xlabel="context positions", ylabel="speed-up over a sliding window")
    axis.set(xscale="log", yscale="log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["recall", "ptb", "speed", "draw"])
    parser.add_argument("--data", help="the folder that holds ptb/")
    parser.add_argument("--runs", type=Path, help="folder of the runs [default: temporary]")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="of recall")
    parser.add_argument("--epochs", type=int, help="epochs of ptb [default: the recipe's]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="minimum seconds per turn")
    parser.add_argument(
        "--tokens", type=int, default=512, help="tokens for the loss of both methods"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--figure", type=Path, default=Path("transformer-xl.svg"))
    options = parser.parse_args()
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    if options.part == "draw":
        draw(found, options.figure)
        return
    torch.set_num_threads(1 if options.part == "speed" else torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        options.runs = options.runs or Path(folder)
        speed = options.part == "speed"
        for measured in measure_speed(options) if speed else measure_losses(options.part, options):
            found[options.part] = measured
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
