"""HMM forward recursion: time against pytorch-struct and against a log-space implementation.

    python -m pip install --no-deps --target PEER torch-struct==0.5
    PYTHONPATH=PEER python benchmarks/latent.py [--rounds N] [--out benchmarks/results/latent.json]

The peer is installed in a separate folder, since lmlab does not depend on it. One
measurement is the log-likelihood of a batch of texts and its gradient with respect to all
parameters, after checking that both sides agree. The sides alternate within a round. The peer gets
its potentials (batch, time, K, K) precomputed and differentiates only with respect to them, which
favours it.

- peer: `forward_filter` vs. pytorch-struct's LinearChainCRF, by number of states. Sizes marked
  `attempt` are run by the peer once, in a process with limits on memory and time.
- scaled: `forward_filter` vs. `forward_filter_clear`, our log-space version, by number of
  states.
- blocks: several blocks vs. one block, at 1,024 states.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lmlab.core.allocator import retain_freed_memory
from lmlab.inference.forward_algorithm import forward_filter, forward_filter_clear

ROWS, TIME = 16, 32
GIGABYTES, SECONDS = 6, 120
"""Memory and time limits of the peer's single runs."""

Recursion = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Case:
    """Random tables with K states in C blocks, and random emissions for texts of TIME tokens."""

    def __init__(self, states: int, blocks: int = 1, rows: int = ROWS) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.start = torch.log_softmax(normal(states), 0).requires_grad_()
        self.transition = torch.log_softmax(normal(states, states), 1).requires_grad_()
        self.emission = (normal(rows, TIME, states // blocks) * 2 - 5).requires_grad_()
        self.block = torch.randint(0, blocks, (rows, TIME), generator=generator)

    def log_likelihood(self, recursion: Recursion) -> Tensor:
        """(ROWS,) sums of the tokens' log-probabilities given the preceding tokens."""
        rows, _, inside = self.emission.shape
        first = self.start.expand(rows, 1, -1)
        later = recursion(first[:, 0], self.emission[:, :-1], self.block[:, :-1], self.transition)
        predicted = torch.cat([first, later], 1).view(rows, TIME, -1, inside)
        index = self.block[..., None, None].expand(-1, -1, 1, inside)
        in_block = predicted.gather(2, index).squeeze(2)
        return torch.logsumexp(in_block + self.emission, -1).sum(1)

    def step(self, recursion: Recursion) -> None:
        self.log_likelihood(recursion).sum().backward()

    def peer_potentials(self) -> Tensor:
        """(ROWS, TIME - 1, K, K) in the layout of LinearChainCRF: next state before state."""
        with torch.no_grad():
            potentials = self.transition.t() + self.emission[:, 1:, :, None]
            potentials[:, 0] += (self.start + self.emission[:, 0])[:, None, :]
        return potentials.requires_grad_()


def peer_partition(potentials: Tensor) -> Tensor:
    from torch_struct import LinearChainCRF

    partition: Tensor = LinearChainCRF(potentials).partition
    return partition


def milliseconds(function: Callable[[], object], repetitions: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repetitions):
        function()
    return (time.perf_counter() - start) * 1000 / repetitions


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Milliseconds of both and the speed-up of ours, with the spread over rounds."""
    speedups = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    return {
        "ours_ms": statistics.median(ours),
        "other_ms": statistics.median(theirs),
        "times_faster": statistics.median(theirs) / statistics.median(ours),
        "lowest": speedups[0],
        "highest": speedups[-1],
        "rounds": len(speedups),
    }


def alternate(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int
) -> dict[str, float]:
    ours(), theirs()
    pairs = [(milliseconds(ours, 3), milliseconds(theirs)) for _ in range(rounds)]
    return ratio([a for a, _ in pairs], [b for _, b in pairs])


def compare_peer(states: int, rounds: int) -> dict[str, float]:
    case = Case(states)
    potentials = case.peer_potentials()
    with torch.no_grad():
        torch.testing.assert_close(
            peer_partition(potentials), case.log_likelihood(forward_filter), atol=1e-2, rtol=1e-4
        )
    return alternate(
        lambda: case.step(forward_filter),
        lambda: peer_partition(potentials).sum().backward(),
        rounds,
    )


def attempt_peer(states: int) -> str:
    """Run the peer once at a size that may exceed its limits; return time or error."""
    command = [sys.executable, __file__, "--peer-once", str(states)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} seconds"
    if process.returncode == 0:
        return process.stdout.strip()
    message = (process.stderr.strip().splitlines() or ["no message"])[-1][:120]
    return f"failed with {GIGABYTES} GB: {message}"


def peer_once(states: int) -> None:
    limit = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    potentials = Case(states).peer_potentials()
    print(f"{milliseconds(lambda: peer_partition(potentials).sum().backward()):.0f} ms")


def compare_scaled(states: int, rounds: int) -> dict[str, float]:
    case = Case(states)
    with torch.no_grad():
        fast, clear = (case.log_likelihood(f) for f in (forward_filter, forward_filter_clear))
    torch.testing.assert_close(fast, clear, atol=1e-3, rtol=1e-5)
    return alternate(
        lambda: case.step(forward_filter), lambda: case.step(forward_filter_clear), rounds
    )


def compare_blocks(blocks: int, rounds: int) -> dict[str, float]:
    several, one = Case(1024, blocks, rows=64), Case(1024, rows=64)
    return alternate(lambda: several.step(forward_filter), lambda: one.step(forward_filter), rounds)


def show(title: str, results: dict[str, object]) -> None:
    print(f"\n{title}")
    for name, values in results.items():
        line = values
        if isinstance(values, dict):
            line = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
        print(f"  {name:14}{line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="peer,scaled,blocks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer-once", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peer_once:
        return peer_once(options.peer_once)
    retain_freed_memory()
    parts, rounds = options.only.split(","), options.rounds
    report: dict[str, object] = {
        "threads": options.threads,
        "rows": ROWS,
        "time": TIME,
        "measured": "log-likelihood and gradient, milliseconds; higher times_faster is better",
    }
    if "peer" in parts:
        peer: dict[str, object] = {f"{k} states": compare_peer(k, rounds) for k in (16, 64)}
        peer["256, attempt"] = attempt_peer(256)
        report["peer"] = peer
        show("scaled recursion vs. pytorch-struct", peer)
    if "scaled" in parts:
        scaled: dict[str, object] = {
            f"{k} states": compare_scaled(k, rounds) for k in (64, 256, 512)
        }
        report["scaled"] = scaled
        show("scaled recursion vs. log-space recursion", scaled)
    if "blocks" in parts:
        blocks: dict[str, object] = {f"{c} blocks": compare_blocks(c, rounds) for c in (8, 32)}
        report["blocks"] = blocks
        show("several blocks vs. one block, 1,024 states, 64 texts", blocks)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
