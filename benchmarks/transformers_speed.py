"""Speed of Transformers relative to a baseline; both sides alternate within one run.

    python benchmarks/transformers_speed.py [--only gpt,bert,peak,cache,beam] [--out FILE]

- gpt: training in tokens per second (4 layers, 256 wide, 4 heads, 128 tokens, 8,000 words) against
  plain PyTorch in the style of nanoGPT, and against transformers' GPT-2 of the same size; both
  eager. `--compile` also measures lmlab compiled against lmlab eager.
- bert: the same for `bert` against transformers' BertForMaskedLM; lmlab computes logits at masked
  positions only, transformers at every position (its default).
- peak: model FLOPs utilisation of `gpt` training: 6 · parameters · tokens per second divided by the
  measured peak throughput of a float32 matrix product.
- cache: milliseconds per token of sampling with a KV cache at positions 16 and 480, and how much of
  the growth is due to attention itself (the same attention over as many keys, and nothing else).
- beam: tokens per second of a beam of 5 against transformers' `generate`.

In gpt and bert each side trains in its own process: lmlab with the allocator settings of
`lmlab train` (`core/allocator.py`), a peer once with the default ones and once with those.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from measuring import SubprocessMeasurement, measure_alternating, rate, ratio
from torch import nn

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.training.config import TrainingConfig
from lmlab.training.loop import clip_gradients
from lmlab.training.optimizers import build_optimizer

LAYERS, WIDTH, HEADS, LENGTH, WORDS, ROWS = 4, 256, 4, 128, 8000, 16
RATE = 1e-3
VOCABULARY = Vocabulary(size=WORDS)


class PlainBlock(nn.Module):
    """A Transformer block in nanoGPT's style."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, time_, _ = x.shape
        parts = self.attention(self.attention_norm(x)).split(WIDTH, dim=2)
        q, k, v = (p.view(rows, time_, HEADS, WIDTH // HEADS).transpose(1, 2) for p in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).contiguous().view(rows, time_, WIDTH))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class PlainGPT(nn.Module):
    """A plain GPT: logits and cross entropy at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, WORDS), targets.reshape(-1))


def sample_tokens() -> torch.Tensor:
    """(rows, 129) uniformly sampled tokens; speed does not depend on them."""
    return torch.randint(5, WORDS, (ROWS, LENGTH + 1))


def plain_stepper(model: nn.Module, compute_loss: Callable[[], torch.Tensor]) -> Callable[[], int]:
    """A plain training step: mean loss, clipping, torch's AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def step() -> int:
        optimizer.zero_grad(set_to_none=True)
        compute_loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return ROWS * LENGTH

    return step


def plain_gpt() -> Callable[[], int]:
    model = PlainGPT()

    def compute_loss() -> torch.Tensor:
        tokens = sample_tokens()
        return model(tokens[:, :-1], tokens[:, 1:])

    return plain_stepper(model, compute_loss)


def hf_gpt() -> Callable[[], int]:
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = transformers.GPT2LMHeadModel(config).train()

    def compute_loss() -> torch.Tensor:
        tokens = sample_tokens()[:, :-1].contiguous()
        return model(tokens, labels=tokens).loss

    return plain_stepper(model, compute_loss)


def hf_bert() -> Callable[[], int]:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForMaskedLM(config).train()

    def compute_loss() -> torch.Tensor:
        tokens = sample_tokens()[:, :-1].contiguous()
        masked = torch.rand(tokens.shape) < 0.15
        labels = tokens.masked_fill(~masked, -100)
        return model(tokens.masked_fill(masked, 4), labels=labels).loss

    return plain_stepper(model, compute_loss)


def build_lmlab(name: str, **settings: object) -> System:
    module = system_module(name)
    config = module.Config(
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        length=LENGTH,
        dropout=0.0,
        attention_dropout=0.0,
        **settings,
    )
    system: System = module.build(config, VOCABULARY)
    return system


def lmlab_stepper(system: System, *, context: int) -> Callable[[], int]:
    """lmlab's own loss, clipping and optimiser; `context` tokens per row are input only."""
    optimizer = build_optimizer(system, TrainingConfig(learning_rate=RATE))
    parameters = list(system.parameters())
    lengths = torch.full((ROWS,), LENGTH + context)
    generator = torch.Generator().manual_seed(0)

    def step() -> int:
        tokens = sample_tokens()[:, : LENGTH + context]
        batch = Batch(tokens=tokens, lengths=lengths, rows=torch.arange(ROWS))
        loss, _ = system(batch, generator=generator)
        loss.total.backward()
        clip_gradients(parameters, 1 / loss.count.item(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ROWS * LENGTH

    return step


def lmlab_gpt(compiled: bool = False) -> Callable[[], int]:
    system = build_lmlab("gpt")
    if compiled:
        system.compile(dynamic=True)
    return lmlab_stepper(system, context=1)


def lmlab_bert() -> Callable[[], int]:
    # Without pairs of segments, which BertForMaskedLM does not train either.
    return lmlab_stepper(build_lmlab("bert", pairs="none", masking="dynamic"), context=0)


def training_rate(
    make: Callable[..., Callable[[], int]], our_allocator: bool, *arguments: Any
) -> Any:
    """Measure training tokens per second, with lmlab's or the default allocator settings."""
    if our_allocator:
        retain_freed_memory()
    torch.manual_seed(0)
    step = make(*arguments)
    rate(step, 2.0)
    return partial(rate, step)


def compare_training(
    ours: tuple[Any, ...], peers: dict[str, Callable[[], Callable[[], int]]], rounds: int
) -> dict[str, object]:
    """lmlab with its allocator settings against each peer with default and with the same ones."""
    threads = torch.get_num_threads()
    make, *arguments = ours
    results: dict[str, object] = {}
    with SubprocessMeasurement(training_rate, make, True, *arguments, threads=threads) as our_side:
        for (name, peer), our_allocator in product(peers.items(), (False, True)):
            with SubprocessMeasurement(
                training_rate, peer, our_allocator, threads=threads
            ) as peer_side:
                title = f"{name}, our memory settings" if our_allocator else name
                results[title] = measure_alternating(our_side, peer_side, rounds)
                print(title, results[title], flush=True)
    return results


def compare_gpt(rounds: int, compiled: bool) -> dict[str, object]:
    peers = {"over nanoGPT-style": plain_gpt, "over transformers' GPT-2": hf_gpt}
    results = compare_training((lmlab_gpt,), peers, rounds)
    if compiled:
        over_eager = compare_training((lmlab_gpt, True), {"compiled over eager": lmlab_gpt}, rounds)
        results["compiled over eager"] = over_eager["compiled over eager, our memory settings"]
    return results


def compare_bert(rounds: int) -> dict[str, object]:
    return compare_training((lmlab_bert,), {"over transformers' BertForMaskedLM": hf_bert}, rounds)


def matrix_peak(seconds: float = 2.0) -> float:
    """Peak FLOP/s of a large float32 matrix product: the best of several."""
    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best, start = 0.0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        product_start = time.perf_counter()
        left @ right
        best = max(best, 2 * 2048**3 / (time.perf_counter() - product_start))
    return best


def measure_peak(rounds: int) -> dict[str, float]:
    """Median FLOPs utilisation, with the peak measured anew in each round."""
    system, plain = build_lmlab("gpt"), PlainGPT()
    ours, peer = lmlab_stepper(system, context=1), plain_gpt()
    shares: dict[str, list[float]] = {"ours": [], "nanoGPT-style": []}
    plain_parameters = sum(p.numel() for p in plain.parameters())
    for _ in range(rounds):
        peak = matrix_peak()
        shares["ours"].append(6 * system.parameter_count * rate(ours) / peak)
        shares["nanoGPT-style"].append(6 * plain_parameters * rate(peer) / peak)
    return {name: statistics.median(values) for name, values in shares.items()} | {
        "lowest of ours": min(shares["ours"]),
        "highest of ours": max(shares["ours"]),
    }


@torch.no_grad()
def measure_cache(rounds: int) -> dict[str, object]:
    """Milliseconds per decoding step of 8 rows: late position divided by early."""
    module = system_module("gpt")
    config = module.Config(width=WIDTH, layers=LAYERS, heads=HEADS, length=512)
    system = module.build(config, VOCABULARY).eval()

    def milliseconds(position: int) -> float:
        state = system.start(8)
        for _ in range(position):
            state = system.advance(state, torch.full((8,), 7))
        start = time.perf_counter()
        for _ in range(8):
            system.peek(state)
            state = system.advance(state, torch.full((8,), 7))
        return (time.perf_counter() - start) * 1000 / 8

    milliseconds(4), attention_milliseconds(480)
    steps = [(milliseconds(480), milliseconds(16)) for _ in range(rounds)]
    attention = [(attention_milliseconds(480), attention_milliseconds(16)) for _ in range(rounds)]
    return {
        "place 480 over place 16": ratio(
            [late for late, _ in steps], [early for _, early in steps]
        ),
        "growth in milliseconds": {
            "a step": statistics.median(late - early for late, early in steps),
            "attention alone": statistics.median(late - early for late, early in attention),
        },
    }


def attention_milliseconds(key_count: int, steps: int = 32) -> float:
    """Milliseconds of attention from one position to `key_count` keys, 8 rows, all layers."""
    shape = (LAYERS, 8, HEADS, key_count, WIDTH // HEADS)
    keys, values, queries = torch.randn(shape), torch.randn(shape), torch.randn(shape)[..., :1, :]
    start = time.perf_counter()
    for _ in range(steps):
        for layer in range(LAYERS):
            F.scaled_dot_product_attention(queries[layer], keys[layer], values[layer])
    return (time.perf_counter() - start) * 1000 / steps


@torch.no_grad()
def compare_beam(rounds: int) -> dict[str, object]:
    """Tokens per second of beam search, width 5, 64 tokens without an early end."""
    ours = build_lmlab("gpt").eval()
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    prompt = torch.full((1, 4), 7)

    def our_rate() -> float:
        start = time.perf_counter()
        beam = BeamConfig(width=5, best=1, max_length=64)
        [[hypothesis]] = beam_search(ours, beam, prefix=[7, 7, 7])
        return len(hypothesis.tokens) / (time.perf_counter() - start)

    def their_rate() -> float:
        start = time.perf_counter()
        output = theirs.generate(
            prompt, num_beams=5, do_sample=False, max_new_tokens=64, eos_token_id=3, pad_token_id=0
        )
        return (output.shape[1] - 4) / (time.perf_counter() - start)

    our_rate(), their_rate()
    return {"beam of 5 over generate": measure_alternating(our_rate, their_rate, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="gpt,bert,peak,cache,beam")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="also measure lmlab compiled")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    retain_freed_memory()
    torch.manual_seed(0)
    parts: dict[str, Callable[[], object]] = {
        "gpt": lambda: compare_gpt(options.rounds, options.compile),
        "bert": lambda: compare_bert(options.rounds),
        "peak": lambda: measure_peak(options.rounds),
        "cache": lambda: measure_cache(options.rounds),
        "beam": lambda: compare_beam(options.rounds),
    }
    record: dict[str, object] = {"threads": options.threads}
    if options.out and options.out.exists():
        record |= json.loads(options.out.read_text(encoding="utf-8"))
    for name in options.only.split(","):
        record[name] = parts[name]()
        print(name, json.dumps(record[name], indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
