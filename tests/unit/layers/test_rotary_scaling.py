"""Scaling of rotary frequencies: arithmetic by hand, and the settings that are refused."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.layers.relative_positions import RotaryEmbedding
from lmlab.layers.rotary_scaling import LinearScaling, Llama3Scaling, parse_rotary_scaling
from lmlab.zoo import llama


def test_linear_scaling_divides_positions() -> None:
    """Position 6 scaled by 3 is position 2, at frequencies 1 and 100^(-1/2) = 0.1."""
    vectors = torch.randn(1, 1, 1, 4)
    scaled = RotaryEmbedding(4, base=100.0, scaling=LinearScaling(3.0))
    plain = RotaryEmbedding(4, base=100.0)
    torch.testing.assert_close(plain.frequencies, torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(
        scaled.transform_queries(vectors, torch.tensor([[6]])),
        plain.transform_queries(vectors, torch.tensor([[2]])),
    )


def test_llama3_scaling_by_wavelength() -> None:
    """8, 1/2 and 2 rotations in 16 positions: as they are; divided by 4; and a = (2 - 1) / (5 - 1)
    of the way from divided to as it is, 1/4 + 3/4 · 1/4 = 7/16."""
    rotations = torch.tensor([8.0, 0.5, 2.0])
    frequencies = rotations * 2 * math.pi / 16
    scaled = Llama3Scaling(4.0, 1.0, 5.0, 16).scale(frequencies)
    torch.testing.assert_close(scaled, frequencies * torch.tensor([1, 1 / 4, 7 / 16]))


@pytest.mark.parametrize("text", ["linear:2.5", "llama3:8:1:4:8192", "linear:0.1"])
def test_setting_round_trip(text: str) -> None:
    scaling = parse_rotary_scaling(text)
    assert scaling is not None and scaling.setting == text
    assert parse_rotary_scaling("none") is None


@pytest.mark.parametrize(
    "text",
    ["yarn:2", "linear", "linear:0", "linear:x", "linear:1:2", "linear:inf", "llama3:8:4:1:8192"],
)
def test_malformed_scaling_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"rotary_scaling must be none, .* got {text}"):
        llama.Config(rotary_scaling=text)


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"multiple of key_value_heads \(3\), got 4"):
        llama.Config(key_value_heads=3)
    with pytest.raises(UserError, match="linear:2 does not apply to alibi positions; remove it"):
        llama.Config(positions="alibi", rotary_scaling="linear:2")
