"""MemRecall settings (CogLTX): long texts by recalling relevant blocks into the window."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.errors import UserError

BLOCKS_PER_WINDOW = 8
"""Blocks per window: 512 tokens hold eight of 63, each with its end token."""


@dataclass(frozen=True, kw_only=True)
class MemRecallConfig:
    """Settings of MemRecall and of training its relevance scorer (Ding et al. 2020)."""

    block_size: int = field(default=0, metadata={"at_least": 0})
    """Maximum tokens per block; 0 for an eighth of the window less one: the paper's 63 of 512."""
    retained_blocks: tuple[int, ...] = (3, 5)
    """Blocks retained in the working memory after each step; 0 for all that fit. One number per
    step."""
    grouped: bool = True
    """Whether blocks compete in groups of neighbours that fit into the window with the retained
    ones, as in the authors' code; else each block is scored alone, as in the paper's figure."""
    first_relevant: int = field(default=3, metadata={"at_least": 1})
    """Blocks initially labelled relevant without annotations: the best by BM25, or random ones
    without a query."""
    t_up: float = field(default=0.2, metadata={"at_least": 0})
    """Label a block relevant if removing it raises the loss by at least this many nats."""
    t_down: float = field(default=0.02, metadata={"at_least": -1})
    """Label it irrelevant if removing it raises the loss by less than this; between, no change."""
    intervene_after: int = field(default=1, metadata={"at_least": 0})
    """Epochs of training the reasoner before its losses change labels."""

    def __post_init__(self) -> None:
        check_memrecall_config(self)

    def block_length(self, max_length: int) -> int:
        """Maximum tokens per block, for inputs of `max_length` tokens including <s>."""
        return self.block_size or max(1, (max_length + 1) // BLOCKS_PER_WINDOW - 1)


def check_memrecall_config(config: MemRecallConfig) -> None:
    """Raise a UserError if settings are inconsistent."""
    if not config.retained_blocks or min(config.retained_blocks) < 0:
        raise UserError(
            f"retained_blocks must be one number per step, such as 3,5, got "
            f"{','.join(map(str, config.retained_blocks)) or 'empty'}."
        )
    if config.t_down > config.t_up:
        raise UserError(
            f"t_down {config.t_down:g} is above t_up {config.t_up:g}; a block would be marked "
            "relevant and irrelevant at once."
        )
