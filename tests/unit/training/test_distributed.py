from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.training.distributed import gather_rows, local_rows, seed_step, shard_batch


def process(index: int, world: int) -> Any:
    """The accelerator attributes that these functions use, for one process of several."""
    return SimpleNamespace(
        process_index=index,
        num_processes=world,
        device=torch.device("cpu"),
        is_main_process=not index,
    )


def random_numbers(seed: int, step: int, index: int = 0) -> tuple[float, float]:
    generator = seed_step(seed, step, process(index, 4))
    return torch.rand(1, dtype=torch.float64).item(), torch.rand(1, generator=generator).item()


def test_step_rng_depends_on_seed_step_and_process() -> None:
    with torch.random.fork_rng():
        assert random_numbers(3, 5) == random_numbers(3, 5)
        samples = {
            random_numbers(*arguments)
            for arguments in ((3, 5), (3, 6), (4, 5), (5, 3), (3, 5, 1), (0, 0))
        }
    assert len({first for first, _ in samples}) == 6
    assert len({second for _, second in samples}) == 6


def test_consecutive_step_seeds_are_uncorrelated() -> None:
    with torch.random.fork_rng():
        samples = torch.tensor([random_numbers(0, step)[0] for step in range(400)])
    assert samples.mean().item() == pytest.approx(0.5, abs=4 / (12 * 400) ** 0.5)
    # The correlation of independent samples has standard deviation 1/√400 = 0.05.
    centred = samples - samples.mean()
    assert abs((centred[1:] * centred[:-1]).mean() / centred.square().mean()) < 0.2


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_batch_shards_cover_all_rows(world: int) -> None:
    batch = Batch.collate([[2, 5], [2, 5, 6, 7], [2, 6, 6], [2, 7]], 0)
    parts = [shard_batch(batch, process(index, world)) for index in range(world)]
    rows = [int(row) for part in parts if part is not None for row in part.rows]
    assert sorted(rows) == [0, 1, 2, 3]
    assert sum(part.count for part in parts if part is not None) == batch.count
    assert sum(part is None for part in parts) == max(world - 4, 0)


def test_gathered_rows_restore_the_original_order() -> None:
    rows = torch.arange(12.0).view(6, 2)
    parts = [local_rows({"h": rows}, process(index, 3))["h"] for index in range(3)]
    assert parts[1].tolist() == rows[[1, 4]].tolist()
    accelerator = process(0, 3)
    accelerator.gather = lambda value: torch.cat(parts)  # what the gather would return
    assert torch.equal(gather_rows({"h": parts[0]}, accelerator)["h"], rows)
