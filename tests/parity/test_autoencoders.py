"""Autoencoders against matrices in numpy and against torch.nn with the same weights."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import Autoencoder
from lmlab.training.system_building import build_system

VOCABULARY = Vocabulary(size=8)
NEVER = [0, 2, 4]
SENTENCES = [[2, 5, 6, 7, 7, 3], [2, 6, 3], [2, 7, 5, 5, 6, 5, 6, 3]]


def tiny(name: str, **settings: object) -> Autoencoder:
    config = asdict(system_module(name).SIZES["tiny"]) | settings
    system = build_system(name, config, VOCABULARY, seed=1)
    assert isinstance(system, Autoencoder)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return system.double().eval()


def batch_of(sentences: list[list[int]]) -> Batch:
    return Batch.collate(sentences, pad=VOCABULARY.pad)


def weights_of(system: Autoencoder) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in system.named_parameters()}


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def log_softmax(scores: np.ndarray, axis: int) -> np.ndarray:
    return scores - np.logaddexp.reduce(scores, axis=axis, keepdims=True)


def embedded(weights: dict[str, np.ndarray], name: str, tokens: list[int]) -> np.ndarray:
    """Embeddings of length √W."""
    table = weights[name]
    return unit(table[tokens]) * math.sqrt(table.shape[1])


def mixture_log_probs(
    weights: dict[str, np.ndarray], hidden: np.ndarray, targets: list[int]
) -> np.ndarray:
    """log Σ_z P(z | h) P(s | z), both sides of P(s | z) on the sphere."""
    vectors = unit(weights["emission.states.vectors"])
    scaled = vectors * np.exp(weights["emission.states.log_scales"])[:, None]
    scores = unit(weights["emission.states.weight"]) @ scaled.T
    scores[NEVER] = -np.inf
    table = log_softmax(scores, 0)[targets]
    choice = hidden @ weights["emission.choose.weight"].T + weights["emission.choose.bias"]
    return np.logaddexp.reduce(log_softmax(choice, 1) + table, axis=1)


def padded_embeddings(
    sentence: list[int], weights: dict[str, np.ndarray], count: int
) -> np.ndarray:
    """The embeddings of a sentence without <s> side by side, zeros behind them."""
    values = embedded(weights, "backbone.encoder.embedding.weight", sentence[1:])
    return np.concatenate([values.ravel(), np.zeros((count - len(values)) * values.shape[1])])


@pytest.mark.parametrize("sentence", SENTENCES)
def test_linear_autoencoder_equals_one_matrix(sentence: list[int]):
    """h = D (C x + c) + d: the two layers multiplied out to one matrix by hand."""
    system = tiny("linear-autoencoder")
    weights, count = weights_of(system), system.decoder.longest
    encoder, decoder = "backbone.encoder.network.", "backbone.decoder.network."
    matrix = weights[decoder + "weight"] @ weights[encoder + "weight"]
    offset = weights[decoder + "weight"] @ weights[encoder + "bias"] + weights[decoder + "bias"]
    hidden = (matrix @ padded_embeddings(sentence, weights, count) + offset).reshape(count, -1)
    expected = mixture_log_probs(weights, hidden[: len(sentence) - 1], sentence[1:])
    with torch.no_grad():
        actual = system.log_prob(batch_of([sentence])).per_token[0].numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-10)


def test_identity_weights_reconstruct_every_embedding():
    """Identity encoder and decoder: every embedding is restored, the latent is the sentence.

    With as many latent dimensions as positions · width, h_t = e(s_t) exactly for any sentence.
    """
    module = system_module("linear-autoencoder")
    config = module.Config(width=4, latent=7 * 4, states=3, length=8)
    system = module.build(config, VOCABULARY).eval()
    with torch.no_grad():
        for layer in (system.backbone.encoder.network, system.decoder.network):
            layer.weight.copy_(torch.eye(28))
            layer.bias.zero_()
        batch = batch_of(SENTENCES)
        hidden = system.backbone(system.objective.view(batch)).values
        expected = system.backbone.encoder.embedding(batch.tokens[:, 1:])
    inside = batch.targets_mask()[:, 1:]
    torch.testing.assert_close(hidden[inside], expected[inside])
    assert hidden[~inside].abs().max() == 0


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sentence", SENTENCES)
def test_mlp_autoencoder_by_hand(sentence: list[int], activation: str):
    system = tiny("mlp-autoencoder", activation=activation)
    squash = {"tanh": np.tanh, "relu": lambda values: values.clip(min=0)}[activation]
    weights, count = weights_of(system), system.decoder.longest

    def layers(name: str, values: np.ndarray) -> np.ndarray:
        inner = squash(weights[f"{name}.0.weight"] @ values + weights[f"{name}.0.bias"])
        return weights[f"{name}.2.weight"] @ inner + weights[f"{name}.2.bias"]

    latent = layers("backbone.encoder.network", padded_embeddings(sentence, weights, count))
    hidden = layers("backbone.decoder.network", latent).reshape(count, -1)
    expected = mixture_log_probs(weights, hidden[: len(sentence) - 1], sentence[1:])
    with torch.no_grad():
        np.testing.assert_allclose(system.encode(batch_of([sentence]))[0].numpy(), latent)
        actual = system.log_prob(batch_of([sentence])).per_token[0].numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "network"), [("gru-autoencoder", nn.GRU), ("rnn-autoencoder", nn.RNN)]
)
@pytest.mark.parametrize("decoder_name", ["free-running", "teacher-forced"])
@pytest.mark.parametrize("sentence", SENTENCES)
def test_recurrent_autoencoders_equal_torch(
    name: str, network: type[nn.RNNBase], decoder_name: str, sentence: list[int]
):
    """torch's network encodes the reversed text; the decoder's inputs are the latent at each step,
    or the preceding tokens."""
    system = tiny(name, decoder=decoder_name)
    weights, width = weights_of(system), 16
    encoder, decoder = (network(width, width, batch_first=True).double() for _ in range(2))
    parts = ("backbone.encoder.encoder.cell.fused.", "backbone.decoder.cell.fused.")
    for ours, theirs in zip(parts, (encoder, decoder), strict=True):
        theirs.load_state_dict({k: torch.tensor(weights[ours + k]) for k in theirs.state_dict()})
    linear = "backbone.encoder.network."
    first = "backbone.decoder.from_latent.linear."
    inputs = embedded(weights, "backbone.encoder.encoder.embedding.weight", sentence[:0:-1])
    with torch.no_grad():
        _, final_state = encoder(torch.tensor(inputs)[None])
        latent = weights[linear + "weight"] @ final_state[0, 0].numpy() + weights[linear + "bias"]
        initial_hidden = weights[first + "weight"] @ latent + weights[first + "bias"]
        decoder_inputs = torch.tensor(latent).expand(1, len(sentence) - 1, -1)
        if decoder_name == "teacher-forced":
            table = "backbone.encoder.encoder.embedding.weight"
            decoder_inputs = torch.tensor(embedded(weights, table, sentence[:-1]))[None]
        hidden, _ = decoder(decoder_inputs, torch.tensor(initial_hidden)[None, None])
        actual = system.log_prob(batch_of([sentence])).per_token[0].numpy()
        np.testing.assert_allclose(system.encode(batch_of([sentence]))[0].numpy(), latent)
    expected = mixture_log_probs(weights, hidden[0].numpy(), sentence[1:])
    np.testing.assert_allclose(actual, expected, atol=1e-10)


@pytest.mark.parametrize("name", ["gru-autoencoder", "linear-autoencoder"])
def test_decoder_depends_on_the_latent_alone(name: str):
    """Given a latent, the predictions do not depend on the tokens decoded so far."""
    system, batch = tiny(name), batch_of([SENTENCES[0]])
    other = batch_of([[2, 7, 7, 7, 5, 3]])
    with torch.no_grad():
        given = system.given(system.encode(batch))
        first, second = given.start(1), given.start(1)
        for token, another in zip(SENTENCES[0][1:], other.tokens[0, 1:].tolist(), strict=True):
            assert torch.equal(given.peek(first).log_probs, given.peek(second).log_probs)
            first = given.advance(first, torch.tensor([token]))
            second = given.advance(second, torch.tensor([another]))


def test_teacher_forced_reconstruction_equals_given_latent():
    """The score of a sentence is that of its tokens in turn, given its own latent; noise and
    padding leave what the decoder is fed as it is."""
    system, batch = tiny("gru-autoencoder", decoder="teacher-forced"), batch_of(SENTENCES)
    with torch.no_grad():
        actual = system.log_prob(batch).totals
        for row, sentence in enumerate(SENTENCES):
            given = system.given(system.encode(batch_of([sentence])))
            state, total = given.start(1), 0.0
            for token in sentence[1:]:
                total += float(given.peek(state).log_probs[0, token])
                state = given.advance(state, torch.tensor([token]))
            assert float(actual[row]) == pytest.approx(total, abs=1e-10)
        erased = system.reconstruct(batch, token_noise=1.0)  # the encoder sees no word
        latent = system.encode(batch_of([[2, 4, 4, 4, 4, 4]]))  # the noise's <mask>
        unknown = system.given(latent).log_prob(batch_of([SENTENCES[0]])).totals
    assert float(erased.totals[0]) == pytest.approx(float(unknown[0]), abs=1e-10)


def test_reconstruction_change_grows_with_latent_noise():
    system, batch = tiny("linear-autoencoder"), batch_of(SENTENCES)
    clean = system.log_prob(batch).totals
    still = system.reconstruct(batch)
    assert torch.equal(still.totals, clean.detach())
    losses = []
    for noise in (0.01, 0.3, 3.0):
        generator = torch.Generator().manual_seed(0)
        result = system.reconstruct(batch, latent_noise=noise, generator=generator)
        losses.append((result.totals - clean).abs().sum().item())
    assert losses[0] < losses[1] < losses[2]


def test_too_long_sentence_is_refused():
    module = system_module("linear-autoencoder")
    system = module.build(module.Config(width=4, latent=4, states=2, length=6), VOCABULARY)
    with pytest.raises(UserError, match=r"at most 6 tokens.*got 8.*length=8"):
        system.log_prob(batch_of(SENTENCES))


def test_free_running_vae_decodes_from_the_latent_alone():
    config = asdict(system_module("gru-vae").SIZES["tiny"])
    config |= {"decoder": "free-running"}
    system = build_system("gru-vae", config, VOCABULARY, seed=1).eval()
    given = system.given(torch.randn(1, 3, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        scores = [given.log_prob(batch_of([[2, *middle, 3]])).per_token for middle in ([5], [6])]
    assert torch.equal(scores[0][0, 1], scores[1][0, 1]) and scores[0][0, 0] != scores[1][0, 0]
    for setting in ({"latent_every_step": True}, {"word_dropout": 0.1}):
        with pytest.raises(UserError, match="do not apply to decoder=free-running"):
            build_system("gru-vae", config | setting, VOCABULARY, seed=1)
