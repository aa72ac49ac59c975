"""Energy-based model: pooling, energy and corruption options of noise-contrastive training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.energy import EnergyBasedModel
from lmlab.objectives.corruption_nce import MaskedLMCorruption, UniformCorruption, UnigramCorruption
from lmlab.training.system_building import build_system, build_tiny

VOCABULARY = Vocabulary(size=12)
START, END, PAD = 2, 3, 0
TINY = {"width": 16, "layers": 2, "heads": 2, "length": 16, "dropout": 0.0}


def build(**settings) -> EnergyBasedModel:
    base = build_tiny("bert", VOCABULARY) if settings.get("corruption") == "proposals" else None
    settings = TINY | {"attention_dropout": 0.0} | settings
    system = build_system("ebm", settings, VOCABULARY, seed=0, base=base)
    assert isinstance(system, EnergyBasedModel)
    return system


def texts() -> list[list[int]]:
    """Twelve texts in which a token is followed by the next: 5 6 7, 6 7 8 9, …"""
    return [
        [START, *range(first, first + size), END] for first in range(5, 9) for size in (2, 3, 4)
    ]


def data() -> Batch:
    return Batch.collate(texts(), pad=PAD)


def setup_data(system: EnergyBasedModel, rows: list[list[int]]) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    system.setup_data(np.concatenate([np.array(row) for row in rows]), offsets)


OPTIONS = [
    {"pooling": "all"},
    {"pooling": "blanks"},
    {"pooling": "stopped"},
    {"energy": "linear"},
    {"energy": "squared"},
    {"energy": "inner-product", "embedding_width": 8},
    {"corruption": "unigram"},
    {"corruption": "proposals"},
    {"corruption_filter": "grams", "filter_order": 3},
    {"corruption_filter": "none"},
    {"negatives": 3},
]


@pytest.mark.parametrize("settings", OPTIONS, ids=lambda s: "-".join(map(str, s.values())))
def test_every_option_learns_to_reject_corruptions(settings: dict):
    """Below the loss of the best constant guess; every parameter gets a gradient."""
    system, batch = build(**settings), data()
    setup_data(system, texts())
    trainable = [parameter for parameter in system.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=1e-2)
    generator, gains = torch.Generator().manual_seed(0), []
    while len(gains) < 10 or (np.mean(gains[-10:]) < 0.1 and len(gains) < 200):
        optimizer.zero_grad()
        loss, _ = system.loss(batch, generator=generator)
        loss.mean.backward()
        assert all(parameter.grad is not None for parameter in trainable)
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        share = len(batch) / loss.count.item()
        guessing = -share * np.log(share) - (1 - share) * np.log(1 - share)
        gains.append(guessing - loss.mean.item())
    assert len(gains) < 200


def with_token(batch: Batch, position: int, token: int) -> Batch:
    tokens = batch.tokens.clone()
    tokens[:, position] = token
    return replace(batch, tokens=tokens)


def one_blank(batch: Batch, position: int) -> torch.Tensor:
    blanks = torch.zeros_like(batch.tokens, dtype=torch.bool)
    blanks[:, position] = True
    return blanks


def test_pooling_selects_positions_and_their_context():
    """Changing a blank's token changes all position energies, or the blank's alone."""
    batch = data().select([5])
    blanks = one_blank(batch, 2)
    for pooling in ("all", "blanks", "stopped"):
        system = build(pooling=pooling)
        with torch.no_grad():
            first, second = (
                system.position_energies(with_token(batch, 2, token), blanks) for token in (5, 9)
            )
        changed = (first != second)[0]
        real = batch.mask()[0]
        expected = real if pooling == "all" else blanks[0]
        assert torch.equal(changed, expected), pooling
        counted = blanks[0] if pooling == "blanks" else real
        assert torch.equal((first != 0)[0], counted), pooling


def test_poolings_agree_without_a_template():
    batch, energies = data(), []
    for pooling in ("all", "blanks", "stopped"):
        with torch.no_grad():
            energies.append(build(pooling=pooling).energy(batch))
    torch.testing.assert_close(energies[1], energies[0])
    torch.testing.assert_close(energies[2], energies[0], atol=1e-5, rtol=1e-5)


def frequencies(corruption, count: int = 20_000) -> torch.Tensor:
    batch = data().select([0])
    samples = corruption(
        batch, torch.tensor([2]), count, generator=torch.Generator().manual_seed(0)
    )
    assert samples.shape == (1, count)
    return torch.bincount(samples.flatten(), minlength=VOCABULARY.size) / count


def close(observed: torch.Tensor, expected: torch.Tensor, count: int = 20_000) -> bool:
    """Within five standard deviations of the probability; impossible tokens never occur."""
    spread = (expected * (1 - expected) / count).sqrt()
    return bool(((observed - expected).abs() <= 5 * spread).all())


def test_corruptions_sample_by_their_weights():
    """Ordinary tokens are <unk> and 5 to 11."""
    even = torch.zeros(12)
    even[[1, *range(5, 12)]] = 1 / 8
    assert close(frequencies(UniformCorruption(VOCABULARY)), even)
    unigram = UnigramCorruption(VOCABULARY)
    assert close(frequencies(unigram), even)  # before counts are set
    unigram.setup_data(np.array([2, 5, 5, 5, 3, 2, 7, 3]))  # special tokens do not count
    expected = torch.zeros(12)
    expected[5], expected[7] = 0.75, 0.25
    assert close(frequencies(unigram), expected)


def test_proposals_follow_the_masked_language_model():
    base = build_tiny("bert", VOCABULARY, seed=1).eval()
    with torch.no_grad():
        base.emission.bias += torch.linspace(0, 2, 12)
        batch = data().select([0])
        proposed = base.fill(batch, one_blank(batch, 2)).log_probs[0].exp()
    ordinary = torch.tensor([v not in (0, 2, 3, 4) for v in range(12)])
    expected = torch.where(ordinary, proposed, torch.zeros(()))
    assert close(frequencies(MaskedLMCorruption(base)), expected / expected.sum())


def test_proposal_model_is_frozen():
    system = build(corruption="proposals").train()
    proposer = system.objective.corruption.proposer
    assert not proposer.system.training
    assert not any(parameter.requires_grad for parameter in proposer.parameters())


def test_masked_positions_are_filled_independently():
    """Two masked positions in one text: each prediction ignores the other's token."""
    system, batch = build().eval(), data().select([5])
    both = one_blank(batch, 2) | one_blank(batch, 4)
    with torch.no_grad():
        first = system.fill(batch, both).log_probs
        other = with_token(with_token(batch, 2, 11), 4, 10)
        assert torch.equal(system.fill(other, both).log_probs, first)
        alone = system.fill(batch, one_blank(batch, 2)).log_probs
    assert not torch.allclose(alone[0], first[0])


def test_chunked_filling_equals_unchunked(monkeypatch: pytest.MonkeyPatch):
    system, batch = build().eval(), data().select([1, 5])
    masked = one_blank(batch, 2)
    with torch.no_grad():
        whole = system.fill(batch, masked).log_probs
        monkeypatch.setattr("lmlab.models.energy.MAX_TOKENS_AT_ONCE", 5 * batch.tokens.shape[1])
        torch.testing.assert_close(system.fill(batch, masked).log_probs, whole)


def test_invalid_energy_options_are_reported():
    with pytest.raises(UserError, match="give a run of one by --base"):
        build_system("ebm", TINY | {"corruption": "proposals"}, VOCABULARY, seed=0)
    lstm = build_tiny("lstm", VOCABULARY)
    with pytest.raises(UserError, match=r"needs a system with Fill, which this one lacks"):
        build_system("ebm", TINY | {"corruption": "proposals"}, VOCABULARY, seed=0, base=lstm)
    with pytest.raises(UserError, match="--base does not apply"):
        build_system("ebm", TINY, VOCABULARY, seed=0, base=lstm)
    long = Batch.collate([[START, *[5] * 20, END]], pad=PAD)
    with pytest.raises(UserError, match="at most 16 tokens"):
        build().energy(long)
