"""Memories between layers: where they stand, what reaches them, what comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.core.attention_mask import FullMask
from lmlab.core.entity_mentions import annotated_spans
from lmlab.core.hidden_memory import HiddenMemory, MemoryOutput
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.head_importance import disabled_parts
from lmlab.zoo import bert
from lmlab.zoo._transformer import make_token_embedding, make_transformer

VOCABULARY = Vocabulary(size=20)
CONFIG = replace(bert.SIZES["tiny"], layers=3)


class Adding(HiddenMemory):
    """Adds a number at the first place of each mention."""

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = amount

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        added = torch.zeros_like(values)
        if view.spans is not None:
            added[view.spans.rows, view.spans.first] = self.amount
        return MemoryOutput(values=values + added, outputs={"before": values})


def plain_and_remembering(memories: dict[int, HiddenMemory]):
    torch.manual_seed(0)
    plain = make_transformer(CONFIG, make_token_embedding(CONFIG, VOCABULARY)).eval()
    width = CONFIG.width
    with_memory = MemoryTransformer(plain.embedding, plain.stack, memories, width=width)
    return plain, with_memory.eval()


def make_view(told: list[list[int]] | None = None) -> View:
    inputs = torch.randint(5, 20, (2, 6), generator=torch.Generator().manual_seed(1))
    spans = None if told is None else annotated_spans(torch.tensor(told))
    return View(inputs=inputs, lengths=torch.tensor([6, 4]), attention_mask=FullMask(), spans=spans)


@torch.no_grad()
def test_a_memory_that_adds_nothing_changes_nothing():
    plain, remembering = plain_and_remembering({2: Adding(1.0)})
    view = make_view()
    assert torch.equal(remembering(view).values, plain(view).values)
    places = torch.tensor([[0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]]).bool()
    assert torch.allclose(
        remembering.hidden_at(view, places), plain.hidden_at(view, places), atol=1e-5
    )


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, 3])
def test_what_it_adds_is_seen_by_the_layers_after_it(layer: int):
    plain, remembering = plain_and_remembering({layer: Adding(2.0)})
    view = make_view([[-1, 3, 3, -1, -1, -1], [-1] * 6])
    before, after = plain(view).values, remembering(view)
    assert set(after.memory_outputs) == {layer}
    changed = (after.values - before).abs().amax(-1) > 1e-6
    # After the last layer it changes the mention's first place alone, before that the whole row.
    first_alone = [False, True, False, False, False, False]
    assert changed[0].tolist() == (first_alone if layer == 3 else [True] * 6)
    assert not changed[1].any()


@torch.no_grad()
def test_each_memory_finds_what_the_layer_before_it_gave():
    plain, remembering = plain_and_remembering({1: Adding(0.0), 2: Adding(0.0)})
    view = make_view([[-1, 3, 3, -1, -1, -1], [-1] * 6])
    record = plain.capture_internals(view)
    for layer in (1, 2):
        found = remembering(view).memory_outputs[layer]["before"]
        # Attention that is shown is computed in steps, so the last digits differ.
        assert torch.allclose(found, record[f"layer {layer} hidden"].values, atol=1e-5)


@torch.no_grad()
def test_a_memory_behind_a_silent_layer_finds_what_passed_it_by():
    _, remembering = plain_and_remembering({1: Adding(0.0), 2: Adding(0.0), 3: Adding(2.0)})
    view = make_view([[-1, 3, 3, -1, -1, -1], [-1] * 6])
    with disabled_parts(remembering.stack, layers=[2, 3]):
        after = remembering(view)
    found = {layer: each["before"] for layer, each in after.memory_outputs.items()}
    assert set(found) == {1, 2, 3}
    assert torch.equal(found[2], found[1]) and torch.equal(found[3], found[1])
    assert (after.values - found[3]).abs().amax(-1).nonzero().tolist() == [[0, 1]]
