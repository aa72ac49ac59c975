"""How a text longer than a system's window is read by recalling its blocks (CogLTX): settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.errors import UserError

BLOCKS_PER_WINDOW = 8
"""Blocks that fit into a window: 512 tokens hold eight of 63, each with its end symbol."""


@dataclass(frozen=True, kw_only=True)
class MemRecallConfig:
    """Settings of MemRecall and of how its judge is taught (Ding et al. 2020)."""

    block_size: int = field(default=0, metadata={"at_least": 0})
    """Tokens of a block at most; 0 for an eighth of the window less one: the paper's 63 of 512."""
    retained_blocks: tuple[int, ...] = (3, 5)
    """Blocks that stay in the working memory after each step; 0 for all that fit. As many steps as
    numbers."""
    grouped: bool = True
    """Whether blocks compete in groups, as many neighbours as fit beside what is kept, as in the
    authors' program; else each by itself, as in the paper's figure."""
    first_relevant: int = field(default=3, metadata={"at_least": 1})
    """Blocks marked relevant at first where no labels tell: the best by BM25, random ones where
    nothing is asked."""
    t_up: float = field(default=0.2, metadata={"at_least": 0})
    """A block is marked relevant where the answer costs at least so many nats more without it."""
    t_down: float = field(default=0.02, metadata={"at_least": -1})
    """It is marked irrelevant where it costs less than so many more; in between the mark stays."""
    intervene_after: int = field(default=1, metadata={"at_least": 0})
    """Epochs that the reasoner learns before its losses change any mark."""

    def __post_init__(self) -> None:
        check_memrecall_config(self)

    def block_length(self, longest: int) -> int:
        """Tokens of a block at most, in a system that takes `longest` tokens, <s> counted."""
        return self.block_size or max(1, (longest + 1) // BLOCKS_PER_WINDOW - 1)


def check_memrecall_config(settings: MemRecallConfig) -> None:
    """A UserError where settings do not go together."""
    if not settings.retained_blocks or min(settings.retained_blocks) < 0:
        raise UserError(
            f"retained_blocks must be one number per step, such as 3,5, got "
            f"{','.join(map(str, settings.retained_blocks)) or 'empty'}."
        )
    if settings.t_down > settings.t_up:
        raise UserError(
            f"t_down {settings.t_down:g} is above t_up {settings.t_up:g}; a block would be marked "
            "relevant and irrelevant at once."
        )
