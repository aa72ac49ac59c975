"""Speed of the Transformers as ratios measured in one run, the two sides alternating.

    python benchmarks/transformers_speed.py [--only gpt,bert,peak,cache,beam] [--out FILE]

- gpt: training in tokens per second (4 layers, 256 wide, 4 heads, 128 tokens, 8,000 words) against
  plain PyTorch in the style of nanoGPT, and against transformers' GPT-2 of the same size; eager
  against eager. `--compile` adds ours compiled over ours eager.
- bert: the same for `bert` against transformers' BertForMaskedLM; ours computes logits at masked
  positions only, theirs everywhere, its default.
- peak: the share of the machine's float32 matrix product throughput that `gpt` training reaches, 6
  · parameters · tokens per second over the measured peak.
- cache: milliseconds per token of sampling at positions 16 and 480, and how much of the growth is
  due to attention itself: the same reads of as many keys and nothing else.
- beam: tokens per second of a beam of 5 against transformers' `generate`.

In gpt and bert each side trains in its own process: ours with the memory settings of `lmlab train`
(`core/allocator.py`), a peer once with the default ones, and once with ours.
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
from measuring import Apart, rate, ratio, taking_turns
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
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, time_, _ = x.shape
        parts = self.attention(self.before(x)).split(WIDTH, dim=2)
        q, k, v = (p.view(rows, time_, HEADS, WIDTH // HEADS).transpose(1, 2) for p in parts)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(read.transpose(1, 2).contiguous().view(rows, time_, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))


class PlainGPT(nn.Module):
    """A plain GPT: logits and cross entropy at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, WORDS), targets.reshape(-1))


def draw_tokens() -> torch.Tensor:
    """(rows, 129) uniformly sampled words; speed does not depend on them."""
    return torch.randint(5, WORDS, (ROWS, LENGTH + 1))


def plain_stepper(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Callable[[], int]:
    """A plain training step: mean loss, clipping, torch's AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def step() -> int:
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return ROWS * LENGTH

    return step


def plain_gpt() -> Callable[[], int]:
    model = PlainGPT()

    def loss_of() -> torch.Tensor:
        tokens = draw_tokens()
        return model(tokens[:, :-1], tokens[:, 1:])

    return plain_stepper(model, loss_of)


def their_gpt() -> Callable[[], int]:
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

    def loss_of() -> torch.Tensor:
        tokens = draw_tokens()[:, :-1].contiguous()
        return model(tokens, labels=tokens).loss

    return plain_stepper(model, loss_of)


def their_bert() -> Callable[[], int]:
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

    def loss_of() -> torch.Tensor:
        tokens = draw_tokens()[:, :-1].contiguous()
        hidden = torch.rand(tokens.shape) < 0.15
        labels = tokens.masked_fill(~hidden, -100)
        return model(tokens.masked_fill(hidden, 4), labels=labels).loss

    return plain_stepper(model, loss_of)


def build_ours(name: str, **settings: object) -> System:
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


def our_stepper(system: System, *, context: int) -> Callable[[], int]:
    """lmlab's own loss, clipping and optimiser; `context` tokens per row are input only."""
    optimizer = build_optimizer(system, TrainingConfig(learning_rate=RATE))
    parameters = list(system.parameters())
    lengths = torch.full((ROWS,), LENGTH + context)
    generator = torch.Generator().manual_seed(0)

    def step() -> int:
        tokens = draw_tokens()[:, : LENGTH + context]
        batch = Batch(tokens=tokens, lengths=lengths, rows=torch.arange(ROWS))
        loss, _ = system(batch, generator=generator)
        loss.total.backward()
        clip_gradients(parameters, 1 / loss.count.item(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ROWS * LENGTH

    return step


def our_gpt(compiled: bool = False) -> Callable[[], int]:
    system = build_ours("gpt")
    if compiled:
        system.compile(dynamic=True)
    return our_stepper(system, context=1)


def our_bert() -> Callable[[], int]:
    # Without pairs of segments, which BertForMaskedLM does not train either.
    return our_stepper(build_ours("bert", pairs="none", masking="dynamic"), context=0)


def training_rate(make: Callable[..., Callable[[], int]], keeping: bool, *made_of: Any) -> Any:
    """Tokens per second of a side, with lmlab's memory settings or the default ones."""
    if keeping:
        retain_freed_memory()
    torch.manual_seed(0)
    step = make(*made_of)
    rate(step, 2.0)
    return partial(rate, step)


def compare_training(
    ours: tuple[Any, ...], peers: dict[str, Callable[[], Callable[[], int]]], rounds: int
) -> dict[str, object]:
    """Ours, as `lmlab train` runs it, over each peer with default and with our memory settings."""
    threads = torch.get_num_threads()
    make, *made_of = ours
    found: dict[str, object] = {}
    with Apart(training_rate, make, True, *made_of, threads=threads) as fast:
        for (name, peer), keeping in product(peers.items(), (False, True)):
            with Apart(training_rate, peer, keeping, threads=threads) as slow:
                title = f"{name}, our memory settings" if keeping else name
                found[title] = taking_turns(fast, slow, rounds)
                print(title, found[title], flush=True)
    return found


def compare_gpt(rounds: int, compiled: bool) -> dict[str, object]:
    peers = {"over nanoGPT-style": plain_gpt, "over transformers' GPT-2": their_gpt}
    found = compare_training((our_gpt,), peers, rounds)
    if compiled:
        over_eager = compare_training((our_gpt, True), {"compiled over eager": our_gpt}, rounds)
        found["compiled over eager"] = over_eager["compiled over eager, our memory settings"]
    return found


def compare_bert(rounds: int) -> dict[str, object]:
    return compare_training((our_bert,), {"over transformers' BertForMaskedLM": their_bert}, rounds)


def matrix_peak(seconds: float = 2.0) -> float:
    """Multiply-adds counted twice, per second, of a large float32 product: the best of a few."""
    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        left @ right
        best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    return best


def measure_peak(rounds: int) -> dict[str, float]:
    """6 · parameters · tokens per second over the peak, ours and plain, each round its own peak."""
    system, plain = build_ours("gpt"), PlainGPT()
    ours, peer = our_stepper(system, context=1), plain_gpt()
    shares: dict[str, list[float]] = {"ours": [], "nanoGPT-style": []}
    counted = sum(p.numel() for p in plain.parameters())
    for _ in range(rounds):
        peak = matrix_peak()
        shares["ours"].append(6 * system.parameter_count * rate(ours) / peak)
        shares["nanoGPT-style"].append(6 * counted * rate(peer) / peak)
    return {name: statistics.median(values) for name, values in shares.items()} | {
        "lowest of ours": min(shares["ours"]),
        "highest of ours": max(shares["ours"]),
    }


@torch.no_grad()
def measure_cache(rounds: int) -> dict[str, object]:
    """Milliseconds per step of 8 rows, late in a text over early."""
    module = system_module("gpt")
    config = module.Config(width=WIDTH, layers=LAYERS, heads=HEADS, length=512)
    system = module.build(config, VOCABULARY).eval()

    def milliseconds(place: int) -> float:
        state = system.start(8)
        for _ in range(place):
            state = system.advance(state, torch.full((8,), 7))
        began = time.perf_counter()
        for _ in range(8):
            system.peek(state)
            state = system.advance(state, torch.full((8,), 7))
        return (time.perf_counter() - began) * 1000 / 8

    milliseconds(4), attention_alone(480)
    steps = [(milliseconds(480), milliseconds(16)) for _ in range(rounds)]
    reads = [(attention_alone(480), attention_alone(16)) for _ in range(rounds)]
    return {
        "place 480 over place 16": ratio(
            [late for late, _ in steps], [early for _, early in steps]
        ),
        "growth in milliseconds": {
            "a step": statistics.median(late - early for late, early in steps),
            "attention alone": statistics.median(late - early for late, early in reads),
        },
    }


def attention_alone(place: int, steps: int = 32) -> float:
    """Milliseconds in which one position of 8 rows attends to `place` keys, in all layers."""
    shape = (LAYERS, 8, HEADS, place, WIDTH // HEADS)
    keys, values, asking = torch.randn(shape), torch.randn(shape), torch.randn(shape)[..., :1, :]
    began = time.perf_counter()
    for _ in range(steps):
        for layer in range(LAYERS):
            F.scaled_dot_product_attention(asking[layer], keys[layer], values[layer])
    return (time.perf_counter() - began) * 1000 / steps


@torch.no_grad()
def compare_beam(rounds: int) -> dict[str, object]:
    """Tokens per second of the best of a beam of 5, 64 tokens long, that never ends early."""
    ours = build_ours("gpt").eval()
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    prompt = torch.full((1, 4), 7)

    def our_rate() -> float:
        began = time.perf_counter()
        beam = BeamConfig(width=5, best=1, max_length=64)
        [[found]] = beam_search(ours, beam, prefix=[7, 7, 7])
        return len(found.tokens) / (time.perf_counter() - began)

    def their_rate() -> float:
        began = time.perf_counter()
        answer = theirs.generate(
            prompt, num_beams=5, do_sample=False, max_new_tokens=64, eos_token_id=3, pad_token_id=0
        )
        return (answer.shape[1] - 4) / (time.perf_counter() - began)

    our_rate(), their_rate()
    return {"beam of 5 over generate": taking_turns(our_rate, their_rate, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="gpt,bert,peak,cache,beam")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="measure ours compiled as well")
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
    found: dict[str, object] = {"threads": options.threads}
    if options.out and options.out.exists():
        found |= json.loads(options.out.read_text(encoding="utf-8"))
    for name in options.only.split(","):
        found[name] = parts[name]()
        print(name, json.dumps(found[name], indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
