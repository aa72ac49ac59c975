"""Transformer-XL by memory length: loss and speed.

    python benchmarks/transformer_xl.py recall [--seeds 1] [--runs FOLDER] [--out FILE.json]
    python benchmarks/transformer_xl.py ptb --data FOLDER [--epochs N] [--runs FOLDER] [--out …]
    python benchmarks/transformer_xl.py speed [--data FOLDER] [--runs FOLDER] [--out …]
    python benchmarks/transformer_xl.py draw [--out FILE.json] [--figure FILE.svg]

- recall, ptb: loss on the test split by memory length at evaluation, of a `transformer-xl` trained
  with a memory and of one trained without. `recall` is the generated language as one stream, in
  segments of a text and a half. Also reported: the excess over the true entropy, and the
  surprisal of the queried value (0 with perfect memory, ln 4 by chance), which occurs 2 to 6
  positions before the queried key.
- speed: tokens scored per second with the memory, block by block, against a sliding window that is
  recomputed for each token and covers as many positions (and computes the output layer only at the
  last of them). The two alternate; ratio of medians; one thread, CPU time. For a small system with
  random weights and 10,000 words, and for a trained run if the folder has one, with the loss of
  both methods on the same tokens. The memory's receptive field is larger: layers × memory
  positions. Then the milliseconds per step, token by token, early and late in a long text.

Finished runs are reused and interrupted ones resume. A part that is measured again replaces its
record; the other parts are retained.
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
from measuring import measure_alternating, rate
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
"""Tokens per block with a memory, and positions per batch of windows (approximate)."""
WARMUP_MEMORIES = 8
"""Memory lengths processed before the scored tokens; at least the number of layers."""
STEP_COUNT = 512
"""Tokens in the step-by-step measurement; the memory is an eighth of it."""


# Loss by memory length ----------------------------------------------------------------------------


def corpus_of(name: str, data: str | None) -> Corpus:
    if name == "ptb":
        if data is None:
            raise SystemExit("ptb needs --data FOLDER, the folder that contains ptb/.")
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
    model, rows = lmlab.load(run), []
    texts = [example.text for example in corpus.split("test")]
    for memory in memories:
        model.system.backbone.eval_memory_length = memory
        scores = list(model.scorer().score(texts))
        total, count = -sum(s.total for s in scores), sum(s.tokens for s in scores)
        row: dict[str, float] = {"memory": memory, "nats_per_token": total / count}
        if corpus.truth is not None:
            # The last token of a text is its end, the one before it the queried value.
            values = [-score.per_token[-2].log_prob for score in scores]
            row["nats_of_the_value"] = statistics.fmean(values)
            row["nats_per_text_above_truth"] = total / len(texts) - corpus.truth.entropy
        print(f"  {run.name}: {row}", flush=True)
        rows.append(row)
    return rows


def measure_losses(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """The record so far, after each run."""
    corpus, records = corpus_of(name, options.data), []
    budget = {"sentences": SENTENCES, "steps": options.steps} if name == "recall" else {}
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
            yield budget | {"records": records}


# Speed --------------------------------------------------------------------------------------------


def score_with_memory(system: Any, tokens: Tensor, first: int, count: int) -> float:
    """The log-probability of `count` tokens from position `first`, in blocks with a memory."""
    backbone, total = system.backbone, 0.0
    context_start = max(0, first - 1 - WARMUP_MEMORIES * backbone.eval_memory_length)
    state = backbone(_view(tokens[None, context_start : first - 1])).state
    for block_start in range(first, first + count, BLOCK):
        end = min(block_start + BLOCK, first + count)
        batch = Batch.collate([tokens[block_start - 1 : end].tolist()], system.vocabulary.pad)
        result = system.log_prob(batch, state=state)
        total, state = total + float(result.totals.double().sum()), result.state
    return total


def score_with_window(system: Any, tokens: Tensor, first: int, count: int) -> float:
    """The same, with a window recomputed for each token."""
    context, total = system.backbone.eval_memory_length, 0.0
    rows = max(1, BLOCK // (context + 1))
    for positions in torch.arange(first, first + count).split(rows):
        windows = torch.stack([tokens[position - context - 1 : position] for position in positions])
        last = system.hidden(_view(windows)).values[:, -1]
        total += float(system.emission.log_prob(last, tokens[positions]).double().sum())
    return total


def _view(tokens: Tensor) -> View:
    lengths = torch.full((len(tokens),), tokens.shape[1])
    return View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())


def measure_rates(system: Any, tokens: Tensor, context: int, options: Any) -> dict[str, Any]:
    """Tokens per second of both methods, and their loss if the weights are trained."""
    system.eval()
    system.backbone.eval_memory_length = context
    first, window_tokens = context + 1, max(4, BLOCK // (context + 1))

    def score_blocks() -> Iterator[int]:
        state = None
        for number in itertools.cycle(range(len(tokens) // BLOCK)):
            block = tokens[number * BLOCK : (number + 1) * BLOCK].tolist()
            batch = Batch.collate([block], system.vocabulary.pad)
            state = system.log_prob(batch, state=state).state
            yield len(block) - 1

    def score_windows() -> int:
        score_with_window(system, tokens, first, window_tokens)
        return window_tokens

    blocks = score_blocks()
    rates: dict[str, Any] = {"context": context} | measure_alternating(
        lambda: rate(lambda: next(blocks), options.seconds, time.process_time),
        lambda: rate(score_windows, options.seconds, time.process_time),
        options.rounds,
    )
    rates["tokens_per_second"] = {"memory": rates.pop("ours"), "window": rates.pop("peer")}
    return rates


def both_losses(system: Any, tokens: Tensor, count: int) -> dict[str, float]:
    """Nats per token of the same tokens by both methods."""
    first = len(tokens) - count
    return {
        "memory": -score_with_memory(system, tokens, first, count) / count,
        "window": -score_with_window(system, tokens, first, count) / count,
    }


def measure_steps(system: Any) -> dict[str, Any]:
    """Median milliseconds per decoding step, for each quarter of a long text."""
    state, token, medians = system.start(1), torch.tensor([7]), []
    for _ in range(4):
        seconds = []
        for _ in range(STEP_COUNT // 4):
            start = time.process_time()
            system.peek(state)
            state = system.advance(state, token)
            seconds.append(time.process_time() - start)
        medians.append(1000 * statistics.median(seconds))
    memory_size = state.memory.positions.shape[1]
    return {
        "memory": system.backbone.eval_memory_length,
        "places": STEP_COUNT,
        "places_kept": memory_size,
        "milliseconds_by_quarter": medians,
    }


def systems_to_time(options: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """The small size with random weights, and existing trained runs, each with test tokens."""
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
    record: dict[str, Any] = {"records": [], "rounds": options.rounds, "block": BLOCK}
    with torch.no_grad():
        for name, system, tokens in systems_to_time(options):
            for context in CONTEXTS[name]:
                row = {"system": name} | measure_rates(system, tokens, context, options)
                if name != "random":
                    row["nats_per_token"] = both_losses(system, tokens, options.tokens)
                print(f"  {row}", flush=True)
                record["records"].append(row)
                yield record
            if name == "random":
                system.backbone.eval_memory_length = STEP_COUNT // 8
                record["steps"] = measure_steps(system)
                print(f"  {record['steps']}", flush=True)
                yield record


# Record and figure --------------------------------------------------------------------------------


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot loss by memory, one panel per corpus, and speed-up by context."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    parts = [name for name in ("recall", "ptb", "speed") if name in record]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(4.2 * len(parts), 3.6), squeeze=False)
    for axis, name in zip(axes[0], parts, strict=True):
        records = record[name]["records"]
        (plot_speed if name == "speed" else plot_losses)(axis, name, records)
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def plot_losses(axis: Any, name: str, records: list[dict[str, Any]]) -> None:
    metric = "nats_of_the_value" if name == "recall" else "nats_per_token"
    for trained in sorted({record["memory_in_training"] for record in records}, reverse=True):
        chosen = [r["losses"] for r in records if r["memory_in_training"] == trained]
        memories = [row["memory"] for row in chosen[0]]
        means = [
            statistics.fmean(row[metric] for row in rows) for rows in zip(*chosen, strict=True)
        ]
        axis.plot(memories, means, marker="o", label=f"trained with memory {trained}")
    axis.set(title=name, xlabel="memory at evaluation, positions", ylabel=metric.replace("_", " "))
    if name == "ptb":
        axis.set_xscale("symlog", base=2, linthresh=8)


def plot_speed(axis: Any, name: str, records: list[dict[str, Any]]) -> None:
    for system in dict.fromkeys(record["system"] for record in records):
        chosen = [record for record in records if record["system"] == system]
        contexts, ratios = ([r[key] for r in chosen] for key in ("context", "ratio"))
        axis.plot(contexts, ratios, marker="o", label=f"{system} weights")
    axis.set(title="speed", xlabel="context positions", ylabel="speed-up over a sliding window")
    axis.set(xscale="log", yscale="log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["recall", "ptb", "speed", "draw"])
    parser.add_argument("--data", help="folder that contains ptb/")
    parser.add_argument("--runs", type=Path, help="folder of the runs [default: temporary]")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of recall")
    parser.add_argument("--epochs", type=int, help="epochs of ptb [default: the recipe's]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="minimum seconds per measurement"
    )
    parser.add_argument(
        "--tokens", type=int, default=512, help="tokens scored to compare the loss of both methods"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--figure", type=Path, default=Path("transformer-xl.svg"))
    options = parser.parse_args()
    record = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    if options.part == "draw":
        plot(record, options.figure)
        return
    torch.set_num_threads(1 if options.part == "speed" else torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        options.runs = options.runs or Path(folder)
        speed = options.part == "speed"
        records = measure_speed(options) if speed else measure_losses(options.part, options)
        for part_record in records:
            record[options.part] = part_record
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
