"""ELBO and reconstruction: noise in training only, all randomness from the generator."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=8)
BATCH = Batch.collate([[2, 5, 6, 7, 7, 3], [2, 6, 3], [2, 7, 5, 5, 6, 5, 6, 3]], pad=0)


def build(name: str, **settings):
    module = system_module(name)
    torch.manual_seed(0)
    common = {"width": 8, "latent": 4, "states": 4}
    return module.build(module.Config(**{**common, **settings}), VOCABULARY)


def loss_of(system, seed: int | None = 0) -> float:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return system.loss(BATCH, generator=generator)[0].total.item()


@pytest.mark.parametrize("name", ["gru-vae", "gru-autoencoder", "linear-autoencoder"])
@pytest.mark.parametrize("noise", [{"token_noise": 0.5}, {"latent_noise": 0.5}])
def test_noise_applies_in_training_only(name: str, noise: dict[str, float]):
    noisy, clean = build(name, **noise), build(name)
    clean.load_state_dict(noisy.state_dict())
    assert loss_of(noisy.train()) != loss_of(clean.train())
    assert loss_of(noisy.eval()) == loss_of(clean.eval())
    scored, expected = noisy.log_prob(BATCH).totals, clean.log_prob(BATCH).totals
    assert torch.equal(scored, expected)


def test_word_dropout_masks_decoder_inputs_but_not_start():
    system = build("gru-vae", word_dropout=0.9).train()
    view = system.objective.view(BATCH, generator=torch.Generator().manual_seed(0))
    assert (view.inputs[:, 0] == 2).all()
    assert (view.inputs == VOCABULARY.mask).any()
    assert torch.equal(view.targets, system.eval().objective.view(BATCH).targets)
    assert not (system.objective.view(BATCH).inputs == VOCABULARY.mask).any()


@pytest.mark.parametrize("name", ["gru-vae", "gru-autoencoder"])
def test_one_seed_gives_one_loss(name: str):
    system = build(name, token_noise=0.3, latent_noise=0.3).train()
    assert loss_of(system, 1) == loss_of(system, 1)
    assert loss_of(system, 1) != loss_of(system, 2)


def test_elbo_does_not_depend_on_the_generator_state():
    system, generator = build("gru-vae").eval(), torch.Generator().manual_seed(3)
    first = system.log_prob(BATCH, generator=generator).totals
    torch.rand(10, generator=generator)
    assert torch.equal(system.log_prob(BATCH, generator=generator).totals, first)


def test_chunked_elbo_samples_equal_unchunked(monkeypatch):
    system = build("gru-vae", samples=5).eval()
    at_once = system.log_prob(BATCH)
    monkeypatch.setattr("lmlab.objectives.elbo.POSITIONS_PER_CHUNK", 1)
    one_by_one = system.log_prob(BATCH)
    torch.testing.assert_close(one_by_one.per_token, at_once.per_token)
    torch.testing.assert_close(one_by_one.per_sequence, at_once.per_sequence)


def test_row_without_target_has_zero_loss():
    """What `split_rows` gives to a process without a row of its own."""
    system = build("gru-vae").eval()
    idle = Batch(tokens=BATCH.tokens, lengths=torch.tensor([6, 1, 8]), rows=BATCH.rows)
    assert system.log_prob(idle).totals[1].item() == 0.0
    alone = Batch(tokens=BATCH.tokens, lengths=torch.tensor([1, 1, 1]), rows=BATCH.rows)
    loss, _ = system.loss(alone, generator=torch.Generator().manual_seed(0))
    assert (loss.total.item(), loss.count.item()) == (0.0, 0.0)


def test_captures_hold_posterior_means_stds_and_kl():
    system = build("gru-vae").eval()
    captures = system.capture_internals(BATCH)
    posterior = system.objective.posterior(BATCH)
    assert torch.equal(captures["latent means"].values, posterior.mean)
    assert captures["latent spreads"].values.shape == (3, 4)
    expected = 0.5 * (posterior.mean**2 + posterior.std**2 - 1 - posterior.std.log() * 2)
    torch.testing.assert_close(captures["divergence"].values, expected.mean(0))
    latents = build("linear-autoencoder").eval().capture_internals(BATCH)["latents"]
    assert latents.values.shape == (3, 4)


def test_latent_is_decoded_to_its_likeliest_words():
    """By argmax over the emission's log-probabilities at all positions."""
    system = build("linear-autoencoder", length=9).eval()
    latents = system.encode(BATCH)
    hidden = system.decoder.network(latents).view(3, 8, 8)
    best = system.emission.log_probs(hidden).argmax(-1).tolist()
    cut = [row[: row.index(3)] if 3 in row else row for row in best]
    assert system.decode(latents) == cut
    assert all(len(row) <= 2 for row in system.decode(latents, max_length=2))


def test_wrong_number_of_latents_is_reported():
    system = build("gru-vae").eval()
    with pytest.raises(UserError, match=r"2 given latents, got 3"):
        system.given(torch.zeros(2, 4)).log_prob(BATCH)
    one = system.given(torch.zeros(1, 4)).log_prob(BATCH).totals
    many = system.given(torch.zeros(3, 4)).log_prob(BATCH).totals
    torch.testing.assert_close(one, many)


def test_cells_stuck_at_zero_learn_an_initial_state():
    system = build("gru-vae", cell="mgru").eval()
    stuck = build("gru-vae", cell="gru-minimal", off=(3, 5)).eval()
    for model in (system, stuck):
        first = model.objective.encoder.first
        assert (first is None) == model.objective.encoder.cell.can_leave_zero
        assert torch.isfinite(model.log_prob(BATCH).totals).all()
