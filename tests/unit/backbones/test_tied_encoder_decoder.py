"""Encoder and decoder of the denoising systems with one set of layer weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.tensor_files import read_tensors, write_tensors
from lmlab.core.vocabulary import Vocabulary

WIDTH, LAYERS = 16, 2
ATTENTION = 4 * WIDTH * WIDTH
FEED_FORWARD = 2 * WIDTH * 4 * WIDTH
BIASES = 4 * WIDTH + 4 * WIDTH + WIDTH
"""Of attention and of the feed-forward layer."""
LAYER_NORMS = 2 * 2 * WIDTH
SAVED = {
    "bart": ATTENTION + FEED_FORWARD + BIASES + LAYER_NORMS,
    "mass": ATTENTION + FEED_FORWARD + BIASES + LAYER_NORMS,
    "palm": ATTENTION + FEED_FORWARD + BIASES + LAYER_NORMS,
    "pegasus": ATTENTION + FEED_FORWARD + BIASES + LAYER_NORMS,
    "t5": ATTENTION + FEED_FORWARD + 2 * WIDTH,  # no biases, and RMS norms have a scale alone
}
"""Parameters of a decoder layer without cross-attention and its norm."""
VOCABULARY = Vocabulary(size=12, mask=4)


def build(name: str, **settings: object) -> torch.nn.Module:
    torch.manual_seed(0)
    module = system_module(name)
    return module.build(module.Config(**vars(module.SIZES["tiny"]) | settings), VOCABULARY)


@pytest.mark.parametrize("name", SAVED)
def test_parameters_are_counted_and_saved_once(name: str, tmp_path: Path) -> None:
    untied, tied = build(name), build(name, tied_encoder_decoder=True)
    assert untied.parameter_count - tied.parameter_count == LAYERS * SAVED[name]
    write_tensors(tmp_path / "tied", tied.state_dict())
    write_tensors(tmp_path / "untied", untied.state_dict())
    sizes = [_stored_numbers(tmp_path / file) for file in ("untied", "tied")]
    assert sizes[0] - sizes[1] == LAYERS * SAVED[name]
    other = build(name, tied_encoder_decoder=True)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(read_tensors(tmp_path / "tied"))
    batch = Batch.collate([[2, 5, 6, 7, 8, 3], [2, 9, 3]], pad=0)
    with torch.no_grad():
        expected, loaded = (system.eval().log_prob(batch).totals for system in (tied, other))
    assert torch.equal(expected, loaded)


def _stored_numbers(path: Path) -> int:
    """How many numbers a safetensors file holds, from its header."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    return sum(int(torch.tensor(entry["shape"]).prod()) for entry in tensors)


@pytest.mark.parametrize("name", SAVED)
def test_all_but_cross_attention_is_shared(name: str) -> None:
    system = build(name, tied_encoder_decoder=True)
    pairs = zip(
        system.backbone.encoder.stack.all_blocks(),
        system.backbone.decoder.stack.all_blocks(),
        strict=True,
    )
    for encoder_block, decoder_block in pairs:
        assert decoder_block.mixer is encoder_block.mixer
        assert decoder_block.feed_forward is encoder_block.feed_forward
        assert decoder_block.cross_attention not in (None, encoder_block.mixer)


def test_as_many_layers_on_both_sides() -> None:
    with pytest.raises(UserError, match="decoder_layers must be 2, as many as the encoder's"):
        build("bart", tied_encoder_decoder=True, decoder_layers=1)
