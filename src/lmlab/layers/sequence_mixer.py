"""Sequence mixers, by which the positions of a sequence exchange information, and their context.

A Transformer layer mixes positions by attention, then units by a feed-forward layer (token mixing
and channel mixing, Tolstikhin et al. 2021). Whatever mixes positions is a `SequenceMixer`:
attention of any kind, a recurrent cell, a star, inducing points. `layers/block.py` adds norms,
residual connections and the feed-forward layer; `layers/stack.py` stacks blocks of any mixers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import AttentionMask, CausalMask, FullMask
from lmlab.core.capture import REAL, Bounds, Capture
from lmlab.core.prefix_sharing import PrefixIndex
from lmlab.core.state import State

NO_POSITIONS = torch.empty(1, 0, dtype=torch.long)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerContext:
    """What a sequence mixer needs to know of a pass besides the values, the same for all layers.

    With Tq queries and Tk keys; mixers that are no attention ignore positions and masks.
    """

    mask: Tensor | None = None
    """(B or 1, H or 1, Tq, Tk): bool, true where attention is allowed, or additive; None if nothing
    is masked."""
    causal: bool = False
    """Causal attention; the mask is then None, and Tq is Tk."""
    query_positions: Tensor = NO_POSITIONS
    """(B or 1, Tq), or (…, 2) where positions are pairs; empty if no mixer uses them."""
    key_positions: Tensor = NO_POSITIONS
    """(B or 1, Tk), or (…, 2)."""
    query_segments: Tensor | None = None
    """(B, Tq) segment ids, if attention itself uses them (XLNet)."""
    key_segments: Tensor | None = None
    """(B, Tk)"""
    record: dict[str, Capture] | None = None
    """Captured internal values by name; None if not requested, which costs nothing."""
    name: str = ""
    """Prefix of the names of captured values: "layer 3"."""
    disabled_heads: frozenset[int] = field(default_factory=frozenset)
    """Heads of this layer whose output is set to zero."""
    shared_prefixes: PrefixIndex | None = None
    """Shared prefixes of the rows: layers then work on (1, U, W), each unique prefix once, expanded
    to (B, T) only inside attention."""
    score_bias: Callable[[Tensor, Tensor], Tensor] | None = None
    """Bias of the scores by query and key positions, not yet in the mask: sparse attention computes
    it only for the pairs that it needs."""
    auxiliary_nodes: int = 0
    """Nodes after the T positions among the values, which are no positions (a star's relay)."""

    def for_layer(self, name: str, disabled_heads: frozenset[int] = frozenset()) -> LayerContext:
        """The same for one layer; names are joined."""
        full_name = f"{self.name} {name}".strip()
        return replace(self, name=full_name, disabled_heads=disabled_heads)

    def with_captures(self, record: dict[str, Capture]) -> LayerContext:
        """The same with internal values captured."""
        return replace(self, record=record)

    def capture(
        self,
        name: str,
        values: Tensor,
        axes: tuple[str, ...],
        caption: str,
        names: Mapping[str, tuple[str, ...]] | None = None,
        *,
        bounds: Bounds = REAL,
        sums_to_one: str = "",
    ) -> None:
        """Record an internal value under the name of this layer, if requested."""
        if self.record is not None:
            capture = Capture(
                values=values.detach(),
                axes=axes,
                caption=caption,
                names=names or {},
                bounds=bounds,
                sums_to_one=sums_to_one,
            )
            self.add(name, capture)

    def add(self, name: str, capture: Capture) -> None:
        """Record a capture under the name of this layer, if requested."""
        if self.record is not None:
            self.record[f"{self.name} {name}".strip()] = capture

    def additive_mask(self, like: Tensor) -> Tensor | None:
        """The mask as additive values: 0 and -inf, or unchanged if additive already."""
        if self.causal:
            return to_additive(self._causal_mask(), like)
        return None if self.mask is None else to_additive(self.mask, like)

    def at_positions(self, positions: Tensor) -> LayerContext:
        """The same with queries only at the positions (B, M) of each row."""
        rows = torch.arange(len(positions), device=positions.device)[:, None]

        def entries(values: Tensor) -> Tensor:
            return values.expand(len(positions), *values.shape[1:])[rows, positions]

        mask = self.mask
        if self.causal:
            mask = self._causal_mask()
        if mask is not None:
            mask = entries(mask.transpose(1, 2)).transpose(1, 2)
        segments = None if self.query_segments is None else entries(self.query_segments)
        return replace(
            self,
            mask=mask,
            causal=False,
            query_positions=entries(self.query_positions),
            query_segments=segments,
        )

    def select_rows(self, rows: Tensor) -> LayerContext:
        """The same with the masks of some rows only."""
        return replace(self, mask=None if self.mask is None else self.mask[rows])

    def _causal_mask(self) -> Tensor:
        """(1, 1, T, T) the causal mask."""
        time, device = self.query_positions.shape[1], self.query_positions.device
        return torch.ones(1, 1, time, time, dtype=torch.bool, device=device).tril()

    def with_bias(self, bias: Tensor) -> LayerContext:
        """The same with a bias (B or 1, H, Tq, Tk) added to all scores."""
        mask = self.additive_mask(bias)
        return replace(self, mask=bias if mask is None else mask + bias, causal=False)

    def with_score_bias(self) -> LayerContext:
        """The same with `score_bias` in the mask."""
        if self.score_bias is None:
            return self
        bias = self.score_bias(self.query_positions, self.key_positions)
        return replace(self, score_bias=None).with_bias(bias)

    def restricted(self, allowed: Tensor) -> LayerContext:
        """The same where attention must also be `allowed`, (B or 1, 1, Tq, Tk) bool."""
        mask = self._causal_mask() if self.causal else self.mask
        if mask is None:
            mask = allowed
        elif mask.dtype == torch.bool:
            mask = mask & allowed
        else:
            mask = mask.masked_fill(~allowed, float("-inf"))
        return replace(self, mask=mask, causal=False)

    def select_keys(self, keys: Tensor) -> LayerContext:
        """The same with some of the keys only, by their indices (K,)."""
        segments = None if self.key_segments is None else self.key_segments[:, keys]
        return replace(
            self,
            mask=None if self.mask is None else self.mask[..., keys],
            key_positions=self.key_positions[:, keys],
            key_segments=segments,
        )


def to_additive(mask: Tensor, like: Tensor) -> Tensor:
    """A bool mask as 0 where true and -inf where false; additive masks are unchanged."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device)
    return zeros.masked_fill(~mask, float("-inf"))


def attention_mask_tensor(
    attention_mask: AttentionMask, lengths: Tensor, time: int
) -> tuple[Tensor | None, bool]:
    """The (B, 1, T, T) mask tensor, None if none is needed, and whether it is causal.

    Padding is at the end, so causal attention never sees it and needs no mask.
    """
    if isinstance(attention_mask, CausalMask) and attention_mask.window is None:
        return None, True
    if isinstance(attention_mask, FullMask) and bool((lengths == time).all()):
        return None, False
    return attention_mask.mask(lengths, time)[:, None], False


def source_padding_mask(lengths: Tensor, time: int) -> Tensor | None:
    """(B, 1, 1, S) true at the unpadded positions of the source; None if there is no padding."""
    if bool((lengths == time).all()):
        return None
    return (torch.arange(time, device=lengths.device) < lengths[:, None])[:, None, None]


def unpadded(values: Tensor, context: LayerContext) -> Tensor:
    """(B or 1, 1, 1, T) bool: the unpadded positions of values (B, T, W), by a context's mask."""
    if context.mask is not None:
        return context.mask[:, :, :1]
    return torch.ones(1, 1, 1, values.shape[1], dtype=torch.bool, device=values.device)


class SequenceMixer(nn.Module, ABC):
    """Sequence mixer: values (B, T, W) to (B, T, W), in which positions exchange information.

    The context says which positions see which (a mask of `supported_masks`), which heads are
    disabled, and where internal values are captured.
    """

    supported_masks: ClassVar[tuple[type, ...]]
    """The kinds of `AttentionMask` that it supports."""
    kind: ClassVar[str] = "attention"
    """What it is called in the names of captured values: attention or recurrence."""
    heads: int = 0
    """Number of heads that can be disabled; 0 if it has none."""
    is_sparse: ClassVar[bool] = False
    """Whether it computes only the pairs of positions that it needs, so that nothing may be made
    for all pairs beforehand."""

    @abstractmethod
    def forward(self, values: Tensor, context: LayerContext) -> Tensor:
        """(B, T, W) the whole sequence at once."""


class CausalMixer(SequenceMixer):
    """A mixer that can also continue a sequence, by one position or several, from a state.

    Laws: positions one by one, or in parts, give what the whole sequence gives at once under a
    causal mask; `state.select` forks the sequences. tests/unit/layers/test_sequence_mixers.py
    checks them for every mixer.
    """

    has_bounded_state: ClassVar[bool]
    """Whether its state stays of one size, so that it can be carried through text of any length."""

    @abstractmethod
    def initial_state(self, rows: int, like: Tensor) -> State:
        """The state of `rows` sequences before their first position; on the device of `like`."""

    @abstractmethod
    def step(self, values: Tensor, context: LayerContext, state: State) -> tuple[Tensor, State]:
        """(B, new, W) outputs at new positions, and the state after them."""
