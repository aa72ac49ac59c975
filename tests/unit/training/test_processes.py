from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.training.distributed import gather_rows, local_rows, seed_step, shard_batch


def process(index: int, world: int) -> Any:
    """What these functions ask of an accelerator, for one process of several."""
    return SimpleNamespace(
        process_index=index,
        num_processes=world,
        device=torch.device("cpu"),
        is_main_process=not index,
    )


def drawn(seed: int, step: int, index: int = 0) -> tuple[float, float]:
    generator = seed_step(seed, step, process(index, 4))
    return torch.rand(1, dtype=torch.float64).item(), torch.rand(1, generator=generator).item()


def test_the_randomness_of_a_step_depends_on_seed_step_and_process() -> None:
    with torch.random.fork_rng():
        assert drawn(3, 5) == drawn(3, 5)
        draws = {drawn(*place) for place in ((3, 5), (3, 6), (4, 5), (5, 3), (3, 5, 1), (0, 0))}
    assert len({first for first, _ in draws}) == 6
    assert len({second for _, second in draws}) == 6


def test_nearby_steps_draw_unrelated_numbers() -> None:
    with torch.random.fork_rng():
        draws = torch.tensor([drawn(0, step)[0] for step in range(400)])
    assert draws.mean().item() == pytest.approx(0.5, abs=4 / (12 * 400) ** 0.5)
    # The correlation of independent draws has standard deviation 1/√400 = 0.05.
    centred = draws - draws.mean()
    assert abs((centred[1:] * centred[:-1]).mean() / centred.square().mean()) < 0.2


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_rows_are_shared_out_without_loss(world: int) -> None:
    batch = Batch.collate([[2, 5], [2, 5, 6, 7], [2, 6, 6], [2, 7]], 0)
    parts = [shard_batch(batch, process(index, world)) for index in range(world)]
    rows = [int(row) for part in parts if part is not None for row in part.rows]
    assert sorted(rows) == [0, 1, 2, 3]
    assert sum(part.count for part in parts if part is not None) == batch.count
    assert sum(part is None for part in parts) == max(world - 4, 0)


def test_gathered_rows_are_in_the_order_before_sharing() -> None:
    rows = torch.arange(12.0).view(6, 2)
    parts = [local_rows({"h": rows}, process(index, 3))["h"] for index in range(3)]
    assert parts[1].tolist() == rows[[1, 4]].tolist()
    accelerator = process(0, 3)
    accelerator.gather = lambda value: torch.cat(parts)  # what the exchange would give
    assert torch.equal(gather_rows({"h": parts[0]}, accelerator)["h"], rows)
