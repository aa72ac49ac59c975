"""Base of backbones that sum out a discrete latent per position; token context, view chunking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, Predictions
from lmlab.core.state import State, TensorState
from lmlab.core.view import View


class LatentChoiceBackbone(Backbone):
    """Backbone with a latent choice at each position, which is marginalised."""

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def initial_state(self, rows: int) -> TensorState:
        device = next(self.parameters()).device
        return TensorState({"tokens": torch.zeros(rows, 0, dtype=torch.int64, device=device)})

    def explain(self, posterior: Tensor) -> dict[str, Capture]:
        """The posterior (B, T, M) over components or sources, as a labelled capture."""
        return {
            "posterior": Capture(
                values=posterior,
                axes=("batch", "time", "choice"),
                caption="P(choice | all tokens up to and including the predicted one).",
                sums_to_one="choice",
            )
        }


@dataclass(frozen=True, eq=False)
class TokenContext:
    """The tokens visible to the positions of a view."""

    ids: Tensor
    """(B, S) tokens from the state, then the view's inputs: S = `past_length` + T."""
    past_length: int
    """Number of tokens from the state; the first input has this position, or a later one."""
    state: TensorState
    """The last tokens, for what follows the view."""

    @property
    def time(self) -> int:
        """T, the number of inputs of the view."""
        return self.ids.shape[1] - self.past_length


def token_context(view: View, state: State | None, *, keep: int | None) -> TokenContext:
    """The view's inputs after those of the state; the last `keep` are carried on, None for all.

    Until the memory is full its size is the position, so no counter is needed; once it is full, all
    positions are treated alike.
    """
    ids, past_length = view.inputs, 0
    if state is not None:
        assert isinstance(state, TensorState)
        past_length = state["tokens"].shape[1]
        ids = torch.cat([state["tokens"].to(ids.device), ids], dim=1)
    first = 0 if keep is None else max(0, ids.shape[1] - keep)
    return TokenContext(ids, past_length, TensorState({"tokens": ids[:, first:]}))


def split_view(view: View, max_length: int) -> Iterator[View]:
    """Split a causal view into chunks of at most `longest` positions, processed in sequence."""
    for start in range(0, view.inputs.shape[1], max_length):
        chunk = slice(start, start + max_length)
        yield replace(
            view,
            inputs=view.inputs[:, chunk],
            lengths=(view.lengths - start).clamp(0, max_length),
            targets=None if view.targets is None else view.targets[:, chunk],
            weights=None if view.weights is None else view.weights[:, chunk],
            clean_positions=None
            if view.clean_positions is None
            else view.clean_positions[:, chunk],
        )


def concatenate_predictions(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate the predictions of chunks into those of the whole view."""
    target_mask = torch.cat([part.target_mask for part in parts], dim=1)
    log_probs = torch.cat([part.to_dense() for part in parts], dim=1)
    return Predictions(
        log_probs=log_probs[target_mask], target_mask=target_mask, state=parts[-1].state
    )
