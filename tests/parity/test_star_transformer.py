"""The Star-Transformer against its update written out in loops of numpy, and its cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmlab.core.attention_mask import FullMask
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import MaskedLM
from lmlab.zoo import bert, star_transformer

VOCABULARY = Vocabulary(size=23)
CONFIGS = {
    "paper": {"width": 12, "layers": 3, "heads": 2},
    "far reach": {"width": 12, "layers": 2, "heads": 3, "neighbour_radius": 2},
    "one layer": {"width": 8, "layers": 1, "heads": 1},
}


def build(**settings) -> MaskedLM:
    torch.manual_seed(0)
    config = star_transformer.Config(length=40, dropout=0.0, **settings)
    system = star_transformer.build(config, VOCABULARY).eval()
    for name, parameter in system.backbone.named_parameters():
        norm = "norm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.5)
    return system


class Loops:
    """Guo et al. 2019, algorithm 1, one word, one head and one slot at a time, in float64."""

    def __init__(self, system: MaskedLM, settings: dict) -> None:
        weights = system.backbone.state_dict()
        self.weights = {name: value.double().numpy() for name, value in weights.items()}
        self.settings = {"neighbour_radius": 1, **settings}

    def read(self, tokens: list[int]) -> np.ndarray:
        table = self.weights["embedding.positions.table.weight"]
        vectors = self.weights["embedding.tokens.weight"]
        inputs = [vectors[token] + table[position] for position, token in enumerate(tokens)]
        words, relay, count = list(inputs), sum(inputs) / len(inputs), len(inputs)
        for layer in range(self.settings["layers"]):
            updated = []
            for i, word in enumerate(words):
                steps = range(
                    -self.settings["neighbour_radius"], self.settings["neighbour_radius"] + 1
                )
                context = [words[(i + step) % count] for step in steps]
                context += [inputs[i], relay]
                output = self.attend(f"stack.blocks.{layer}.mixer.ring.attention", word, context)
                updated.append(
                    self.norm(f"stack.blocks.{layer}.mixer.connection.norm", np.maximum(output, 0))
                )
            words = updated
            if layer + 1 < self.settings["layers"]:
                name = f"stack.blocks.{layer}.mixer.relay.attention"
                output = self.attend(name, relay, [relay, *words])
                relay = self.norm(
                    f"stack.blocks.{layer}.mixer.relay_connection.norm", np.maximum(output, 0)
                )
        return np.array(words)

    def attend(self, name: str, query_input: np.ndarray, context: list[np.ndarray]) -> np.ndarray:
        width, heads = len(query_input), self.settings["heads"]
        size = width // heads
        project = (
            self.weights[f"{name}.qkv_projection.weight"],
            self.weights[f"{name}.qkv_projection.bias"],
        )
        query = (project[0] @ query_input + project[1])[:width]
        keys = [(project[0] @ each + project[1])[width : 2 * width] for each in context]
        values = [(project[0] @ each + project[1])[2 * width :] for each in context]
        joined = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = [math.exp(query[part] @ key[part] / math.sqrt(size)) for key in keys]
            shares = [score / sum(scores) for score in scores]
            joined.append(
                sum(share * value[part] for share, value in zip(shares, values, strict=True))
            )
        output = self.weights[f"{name}.output.weight"] @ np.concatenate(joined)
        return output + self.weights[f"{name}.output.bias"]

    def norm(self, name: str, vector: np.ndarray) -> np.ndarray:
        spread = math.sqrt(vector.var() + 1e-5)
        scaled = (vector - vector.mean()) / spread
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def view_of(texts: list[list[int]]) -> View:
    lengths = torch.tensor([len(text) for text in texts])
    inputs = torch.zeros(len(texts), int(lengths.max()), dtype=torch.long)
    for row, text in enumerate(texts):
        inputs[row, : len(text)] = torch.tensor(text)
    return View(inputs=inputs, lengths=lengths, attention_mask=FullMask())


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_hidden_states_equal_numpy_loops(settings: dict):
    """Four texts of different lengths in one batch, one of two words: neighbours come twice."""
    system = build(**settings)
    texts = [[2, 7, 9, 22, 5, 6, 3], [2, 14, 8, 3], [2, 3], [5]]
    actual = system.hidden(view_of(texts)).values
    for row, text in enumerate(texts):
        expected = Loops(system, settings).read(text)
        if len(text) > 2:
            assert expected.std() > 0.5
        difference = np.abs(actual[row, : len(text)].numpy() - expected).max()
        assert difference < 1e-4


@torch.no_grad()
def test_relay_connects_all_words_in_two_layers():
    """In one layer only neighbours move, but for the relay's mean of all embeddings."""
    system = build(width=12, layers=2, heads=2)
    text = [2, *range(5, 20), 3]
    before = system.hidden(view_of([text])).values[0]
    after = system.hidden(view_of([[*text[:8], 21, *text[9:]]])).values[0]
    assert ((after - before).abs().amax(-1) > 1e-6).all()


def flops(system: MaskedLM, time: int) -> int:
    """Multiply-adds of a pass that records its attention: the counter can't see fused kernels."""
    view = view_of([[5] * time])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        system.backbone.capture_internals(view)
    return counter.get_total_flops()


def test_flops_are_linear_in_length():
    """Each further word costs as many multiply-adds as the one before; in BERT more and more."""
    star = star_transformer.build(
        star_transformer.Config(width=16, layers=3, heads=2, length=256), VOCABULARY
    )
    whole = bert.build(bert.Config(width=16, layers=3, heads=2, length=256), VOCABULARY)
    counts = {
        name: [flops(system.eval(), time) for time in (64, 128, 192)]
        for name, system in {"star": star, "whole": whole}.items()
    }
    first, second = np.diff(counts["star"])
    assert first == second > 0
    first, second = np.diff(counts["whole"])
    assert second > first > 0


def test_captured_attention_shares():
    """Shares sum to one over the slots; the relay's over the words are what it leaves itself."""
    system, text = build(width=12, layers=2, heads=2), [2, 7, 9, 22, 3]
    captures = system.backbone.capture_internals(view_of([text]))
    ring = captures["layer 1 ring attention"]
    assert ring.axes == ("batch", "head", "time", "slot")
    assert ring.values.shape == (1, 2, 5, 5)
    torch.testing.assert_close(ring.values.sum(-1), torch.ones(1, 2, 5))
    relay = captures["layer 1 relay attention"]
    assert relay.values.shape == (1, 2, 5)
    assert ((relay.values.sum(-1) > 0) & (relay.values.sum(-1) < 1)).all()
    assert "layer 2 relay attention" not in captures
