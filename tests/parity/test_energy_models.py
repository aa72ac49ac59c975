"""Energies, their loss and their normaliser against arithmetic and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lmlab
from lmlab.core.attention_mask import ExplicitMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.languages import capitals
from lmlab.data.membership import TextSet
from lmlab.emissions.energies import InnerProductEnergy, LinearEnergy, SquaredEnergy
from lmlab.models.energy import EnergyBasedModel
from lmlab.objectives.corruption_nce import (
    AllPositionsPooling,
    CorruptionNCE,
    TokenCorruption,
    UniformCorruption,
)
from lmlab.objectives.objective_interfaces import DATA_LABEL

VOCABULARY = Vocabulary(size=8)  # <pad> <unk> <s> </s> <mask> a b c
START, END, A, B, C = 2, 3, 5, 6, 7
NUMBERS = [0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 2.0, -1.0]
"""The embedding of each token, one number wide."""


class EmbeddingBackbone(Backbone):
    """Hidden states are the token embeddings: positions do not attend to each other."""

    supported_masks = (FullMask, ExplicitMask)
    width = 1

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY.size, 1)
        with torch.no_grad():
            self.tokens.weight.copy_(torch.tensor(NUMBERS)[:, None])

    def forward(self, view: View, state: object = None) -> HiddenStates:
        return HiddenStates(values=self.tokens(view.inputs))


class FixedCorruption(TokenCorruption):
    def __init__(self, *tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, batch: Batch, positions: Tensor, count: int, *, generator=None) -> Tensor:
        assert count == len(self.tokens)
        return torch.tensor(self.tokens).expand(len(batch), -1)


def squared_embedding_model(
    corruption: TokenCorruption, *, negatives: int = 1, index=TextSet
) -> EnergyBasedModel:
    """E(x) = c - Σ_t e(x_t)², with c = 1."""
    backbone = EmbeddingBackbone()
    system = EnergyBasedModel(
        vocabulary=VOCABULARY,
        backbone=backbone,
        emission=InnerProductEnergy(1, backbone.tokens),
        objective=CorruptionNCE(
            VOCABULARY, corruption, AllPositionsPooling(), negatives=negatives, index=index
        ),
    )
    with torch.no_grad():
        system.constant.fill_(1.0)
    return system


def batch_of(*texts: list[int]) -> Batch:
    return Batch.collate([[START, *text, END] for text in texts], pad=VOCABULARY.pad)


def test_position_energies_by_hand():
    """h = (1, 2): -(1, 2)·(3, -1) = -1;  -(2, 1)·(1, 2)/√2 = -√8;  mean of (1 + 1)², 2² is 4."""
    hidden, tokens = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    embedding = nn.Embedding(2, 2)
    linear, squared = LinearEnergy(2), SquaredEnergy(2)
    with torch.no_grad():
        embedding.weight[1] = torch.tensor([3.0, -1.0])
        linear.score.weight.copy_(torch.tensor([[2.0, 1.0]]))
        squared.dense.weight.copy_(torch.eye(2))
        squared.dense.bias.copy_(torch.tensor([1.0, 0.0]))
    assert InnerProductEnergy(2, embedding).energies(hidden, tokens).item() == -1.0
    assert linear.energies(hidden, tokens).item() == pytest.approx(-math.sqrt(8), abs=1e-6)
    assert squared.energies(hidden, tokens).item() == 4.0


def test_text_energy_by_hand():
    """c - Σ e²: 1 - (1 + 4 + 1) = -5, and per position without the constant."""
    system, batch = squared_embedding_model(UniformCorruption(VOCABULARY)), batch_of([A, B, C], [A])
    assert system.energy(batch).tolist() == [-5.0, 0.0]
    result = system.log_prob(batch)
    assert result.kind == "unnormalised"
    assert result.per_token.tolist() == [[1.0, 4.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    assert result.totals.tolist() == [5.0, 0.0]


def test_loss_by_hand():
    """E(a) = 0 and E(b) = -3, so the loss is ln 2 + log(1 + e³), of two texts."""
    system = squared_embedding_model(FixedCorruption(B))
    loss, _ = system.loss(batch_of([A]))
    assert loss.count.item() == 2
    assert loss.total.item() == pytest.approx(math.log(2) + math.log(1 + math.exp(3)), abs=1e-5)


def test_loss_by_hand_with_two_corruptions():
    """Odds are e^(-E) to 2. Data: 1 to 2. E(b) = -3: e³ to 2; E(<unk>) = 0.75: e^(-0.75) to 2."""
    system = squared_embedding_model(FixedCorruption(B, 1), negatives=2)
    loss, _ = system.loss(batch_of([A]))
    expected = -math.log(1 / 3)
    for energy in (-3.0, 0.75):
        expected -= math.log(2 / (2 + math.exp(-energy)))
    assert loss.count.item() == 3
    assert loss.total.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_normaliser_of_each_length_by_enumeration(length: int):
    """Positions are independent, so Z = e^-c (Σ_v e^(e_v²))^T over the four tokens of a text."""
    system, inner = squared_embedding_model(UniformCorruption(VOCABULARY)), (1, A, B, C)
    texts = [list(text) for text in itertools.product(inner, repeat=length)]
    with torch.no_grad():
        log_z = torch.logsumexp(-system.energy(batch_of(*texts)).double(), 0).item()
    each = sum(math.exp(NUMBERS[token] ** 2) for token in inner)
    assert log_z == pytest.approx(-1 + length * math.log(each), abs=1e-5)


def test_fill_distribution_by_hand():
    """p(v) ∝ e^(e_v²), the end token included at the last position only."""
    system, batch = squared_embedding_model(UniformCorruption(VOCABULARY)), batch_of([A, B])
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, [1, 3]] = True
    with torch.no_grad():
        filled = system.fill(batch, masked).log_probs.exp()
    inner, last = {1, A, B, C}, {1, END, A, B, C}
    for row, allowed_tokens in zip(filled, (inner, last), strict=True):
        weights = [math.exp(e**2) if v in allowed_tokens else 0.0 for v, e in enumerate(NUMBERS)]
        assert row.tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-6)


def setup_data(system: EnergyBasedModel, texts: list[list[int]]) -> None:
    rows = [[START, *text, END] for text in texts]
    tokens = np.array([token for row in rows for token in row])
    system.setup_data(tokens, np.concatenate([[0], np.cumsum([len(row) for row in rows])]))


def test_corruptions_found_in_the_data_are_no_negatives():
    """Of {<unk>, a, b, c}² the data has nine: what is left is what brute force leaves."""
    texts = [list(text) for text in itertools.product((A, B, C), repeat=2)]
    data = [text for text in texts if text != [B, B]] + [[1, A]]
    system, rows = (
        squared_embedding_model(UniformCorruption(VOCABULARY), negatives=20),
        batch_of(*data),
    )
    setup_data(system, data)
    view = system.objective.view(rows, generator=torch.Generator().manual_seed(0))
    everything = squared_embedding_model(UniformCorruption(VOCABULARY), negatives=20, index=None)
    all_samples = everything.objective.view(rows, generator=torch.Generator().manual_seed(0))
    corruptions = all_samples.inputs[len(data) :].tolist()
    assert len(corruptions) == 20 * len(data)
    held = {(START, *text, END) for text in data}
    expected = [row for row in corruptions if tuple(row) not in held]
    assert view.inputs[len(data) :].tolist() == expected
    # With probability 1/4 nothing changes, and most changes within {a, b, c}² are data as well.
    assert 0 < len(expected) < 0.5 * len(corruptions)
    assert view.inputs[: len(data)].tolist() == rows.tokens.tolist()
    labels = view.targets[view.targets >= 0].tolist()
    assert labels == [DATA_LABEL] * len(data) + [0] * len(expected)
    loss, _ = system.loss(rows, generator=torch.Generator().manual_seed(0))
    assert loss.count.item() == len(data) + len(expected)


def test_text_itself_is_no_negative_without_data_index():
    system = squared_embedding_model(FixedCorruption(A))
    loss, _ = system.loss(batch_of([A, A]))
    assert loss.count.item() == 1


def test_empty_text_has_no_corruption():
    system = squared_embedding_model(FixedCorruption(B))
    loss, _ = system.loss(batch_of([], [A]))
    assert loss.count.item() == 3


def test_optimal_energy_is_the_log_density_ratio():
    """One position, p_data = (.7, .2, .1) of a, b, c, corruptions uniform: E → log p_c / p_d.

    The loss is convex in the energies, which are free here, so gradient descent finds its minimum.
    """
    counts = {A: 7, B: 2, C: 1}
    rows = batch_of(*[[token] for token, count in counts.items() for _ in range(count)])
    system = squared_embedding_model(UniformCorruption(VOCABULARY), negatives=100, index=None)
    system.emission = PerTokenEnergy(VOCABULARY.size)
    optimizer = torch.optim.Adam(system.emission.parameters(), lr=0.15)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        optimizer.zero_grad()
        loss, _ = system.loss(rows, generator=generator)
        loss.mean.backward()
        optimizer.step()
    with torch.no_grad():
        energies = system.energy(batch_of([A], [B], [C]))
    expected = torch.tensor([math.log(0.25 / (count / 10)) for count in counts.values()])
    torch.testing.assert_close(energies, expected, atol=0.1, rtol=0)


class PerTokenEnergy(InnerProductEnergy):
    """An energy of its own for each token."""

    def __init__(self, size: int) -> None:
        super().__init__(1, nn.Embedding(size, 1))
        self.free = nn.Parameter(torch.zeros(size))

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return self.free[tokens] * (tokens >= A)


def corrupted(texts: list[str], seed: int) -> list[tuple[str, str]]:
    """Each text with one letter replaced by another of the language, but for what is a text too."""
    generator, held = np.random.default_rng(seed), capitals.truth().probabilities
    letters = sorted({letter for text in held for letter in text})
    pairs = []
    for text in texts:
        position, letter = generator.integers(len(text)), generator.choice(letters)
        other = text[:position] + letter + text[position + 1 :]
        if other not in held:
            pairs.append((text, other))
    return pairs


def test_capitals_are_ranked_above_their_corruptions(tmp_path):
    """After some seconds of training, by every letter of the language at every position."""
    corpus = capitals.corpus(sentences=3000)
    settings = {"width": 32, "heads": 4, "length": 32, "learning_rate": 3e-3, "warmup_steps": 30}
    result = lmlab.train(
        "ebm",
        data=corpus,
        out=tmp_path / "run",
        size="tiny",
        settings=settings | {"tokens_per_batch": 640, "schedule": "constant", "grad_clip": 1.0},
        steps=100,
        quiet=True,
    )
    model = lmlab.load(result.path)
    pairs = corrupted([example.text for example in corpus.splits["test"]][:300], seed=0)
    assert len(pairs) > 250
    with torch.no_grad():
        right, wrong = (
            model.system.energy(batch_of(*[model.tokenizer.encode(text) for text in side]))
            for side in zip(*pairs, strict=True)
        )
    assert (right < wrong).double().mean().item() > 0.75
