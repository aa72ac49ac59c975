"""Every recurrent system supports any emission and any number of initial states."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo._emissions import EMISSIONS

TOKENS = [2, 5, 7, 7, 6, 3]


@pytest.mark.parametrize("starts", [0, 1, 3])
@pytest.mark.parametrize("emission", EMISSIONS)
def test_stepping_equals_scoring_for_emissions_and_starts(emission, starts):
    torch.manual_seed(0)
    module = system_module("gru")
    config = module.Config(width=6, dropout=0.0, emission=emission, states=4, starts=starts)
    system = module.build(config, Vocabulary(size=9)).eval()
    with torch.no_grad():
        scored = system.log_prob(Batch.collate([TOKENS], pad=0)).per_token[0]
        state, stepped = system.start(1), []
        for token in TOKENS[1:]:
            log_probs = system.peek(state).log_probs[0]
            assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)
            stepped.append(log_probs[token].item())
            state = system.advance(state, torch.tensor([token]))
    assert stepped == pytest.approx(scored.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["rnn", "lstm", "lstm-peephole", "lstm-coupled", "gru-notes"])
def test_every_cell_supports_several_initial_states(name):
    torch.manual_seed(0)
    module = system_module(name)
    system = module.build(module.Config(width=6, dropout=0.0, starts=3), Vocabulary(size=9))
    loss, _ = system.loss(Batch.collate([TOKENS, [2, 6, 3]], pad=0))
    loss.total.backward()
    for vector in system.starts.parameters():
        assert vector.grad.abs().sum() > 0


def test_default_lstm_has_its_standard_parameter_names():
    """With default settings a system has a softmax, no learned starts and plain names."""
    module = system_module("lstm")
    system = module.build(module.Config(width=6), Vocabulary(size=9))
    assert type(system.emission).__name__ == "Softmax" and not hasattr(system, "starts")
    assert set(system.state_dict()) == {
        "backbone.embedding.weight",
        "backbone.stack.blocks.0.mixer.fused.weight_ih_l0",
        "backbone.stack.blocks.0.mixer.fused.weight_hh_l0",
        "backbone.stack.blocks.0.mixer.fused.bias_ih_l0",
        "backbone.stack.blocks.0.mixer.fused.bias_hh_l0",
        "emission.weight",
        "emission.bias",
    }
