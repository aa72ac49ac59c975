"""Memories between layers: their input, their output, and which layers see it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.core.attention_mask import FullMask
from lmlab.core.entity_memory import HiddenMemory, MemoryOutput
from lmlab.core.entity_mentions import annotated_spans
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import bert
from lmlab.zoo._transformer import make_token_embedding, make_transformer

VOCABULARY = Vocabulary(size=20)
CONFIG = replace(bert.SIZES["tiny"], layers=3)


class AddingMemory(HiddenMemory):
    """Adds a number at the first position of each mention."""

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = amount

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        added = torch.zeros_like(values)
        if view.spans is not None:
            added[view.spans.rows, view.spans.first] = self.amount
        return MemoryOutput(values=values + added, outputs={"before": values})


def with_and_without_memory(memories: dict[int, HiddenMemory]):
    torch.manual_seed(0)
    plain = make_transformer(CONFIG, make_token_embedding(CONFIG, VOCABULARY)).eval()
    width = CONFIG.width
    with_memory = MemoryTransformer(plain.embedding, plain.stack, memories, width=width)
    return plain, with_memory.eval()


def make_view(entity_ids: list[list[int]] | None = None) -> View:
    inputs = torch.randint(5, 20, (2, 6), generator=torch.Generator().manual_seed(1))
    spans = None if entity_ids is None else annotated_spans(torch.tensor(entity_ids))
    return View(inputs=inputs, lengths=torch.tensor([6, 4]), attention_mask=FullMask(), spans=spans)


@torch.no_grad()
def test_memory_without_spans_changes_nothing():
    plain, with_memory_model = with_and_without_memory({2: AddingMemory(1.0)})
    view = make_view()
    assert torch.equal(with_memory_model(view).values, plain(view).values)
    positions = torch.tensor([[0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 0]]).bool()
    assert torch.allclose(
        with_memory_model.hidden_at(view, positions), plain.hidden_at(view, positions), atol=1e-5
    )


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, 3])
def test_memory_output_reaches_the_following_layers(layer: int):
    plain, with_memory_model = with_and_without_memory({layer: AddingMemory(2.0)})
    view = make_view([[-1, 3, 3, -1, -1, -1], [-1] * 6])
    before, after = plain(view).values, with_memory_model(view)
    assert set(after.memory_outputs) == {layer}
    changed = (after.values - before).abs().amax(-1) > 1e-6
    # After the last layer it changes only the mention's first position, else the whole row.
    first_alone = [False, True, False, False, False, False]
    assert changed[0].tolist() == (first_alone if layer == 3 else [True] * 6)
    assert not changed[1].any()


@torch.no_grad()
def test_memory_input_is_the_output_of_its_layer():
    plain, with_memory_model = with_and_without_memory({1: AddingMemory(0.0), 2: AddingMemory(0.0)})
    view = make_view([[-1, 3, 3, -1, -1, -1], [-1] * 6])
    record = plain.capture_internals(view)
    for layer in (1, 2):
        memory_input = with_memory_model(view).memory_outputs[layer]["before"]
        # Recorded attention uses the unfused computation, so the last digits differ.
        assert torch.allclose(memory_input, record[f"layer {layer} hidden"].values, atol=1e-5)


@torch.no_grad()
def test_memory_after_a_disabled_layer_gets_the_skipped_input():
    _, with_memory_model = with_and_without_memory(
        {1: AddingMemory(0.0), 2: AddingMemory(0.0), 3: AddingMemory(2.0)}
    )
    view = make_view([[-1, 3, 3, -1, -1, -1], [-1] * 6])
    with with_memory_model.stack.disabled(layers=[2, 3]):
        after = with_memory_model(view)
    memory_inputs = {layer: outputs["before"] for layer, outputs in after.memory_outputs.items()}
    assert set(memory_inputs) == {1, 2, 3}
    assert torch.equal(memory_inputs[2], memory_inputs[1]) and torch.equal(
        memory_inputs[3], memory_inputs[1]
    )
    assert (after.values - memory_inputs[3]).abs().amax(-1).nonzero().tolist() == [[0, 1]]
