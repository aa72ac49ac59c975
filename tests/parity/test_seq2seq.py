"""Recurrent encoder-decoders against torch.nn's modules and explicit attention loops."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import CoupledLSTMCell, GRUCell, LSTMCell, TanhCell
from lmlab.layers.rnn_attention import RNN_ATTENTIONS

VOCABULARY = Vocabulary(size=20)
FUSED = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
START, END = VOCABULARY.start, VOCABULARY.end
SOURCES = [[START, 7, 8, 9, END], [START, 11, END], [START, 5, 6, 7, 12, 13, END]]
TARGETS = [[START, 14, 15, END], [START, 16, 17, 18, 19, END], [START, 6, END]]


def built(name: str, **settings: object):
    module = system_module(name)
    torch.manual_seed(0)
    config = module.Config(**{"width": 8, "dropout": 0.0, **settings})
    system = module.build(config, VOCABULARY).eval()
    for parameter in system.parameters():
        nn.init.normal_(parameter, std=0.5)
    return system


def pairs() -> Batch:
    condition = Batch.collate(SOURCES, pad=VOCABULARY.pad)
    return Batch.collate(TARGETS, pad=VOCABULARY.pad, condition=condition)


def loaded(cell: str, ours: nn.Module) -> nn.RNNBase:
    """torch's module with the same weights."""
    weights = ours.state_dict()
    theirs = FUSED[cell](
        weights["weight_ih_l0"].shape[1], weights["weight_hh_l0"].shape[1], batch_first=True
    )
    theirs.load_state_dict(weights)
    return theirs


def encode_unpadded(system, cell: str, source: list[int]) -> tuple[Tensor, list]:
    """One source by torch's modules, layer after layer, nothing padded; its states at the end."""
    values = system.backbone.encoder.embedding(torch.tensor([source]))
    states = []
    for layer, there in enumerate(system.backbone.encoder.forwards):
        outputs, last = loaded(cell, there.fused)(values)
        last = last if isinstance(last, tuple) else (last,)
        if len(system.backbone.encoder.backwards):
            back = system.backbone.encoder.backwards[layer]
            result, other = loaded(cell, back.fused)(values.flip(1))
            other = other if isinstance(other, tuple) else (other,)
            outputs = torch.cat([outputs, result.flip(1)], -1)
            last = tuple(torch.cat(parts, -1) for parts in zip(last, other, strict=True))
        values = outputs
        states.append(last)
    return values, states


def log_prob(system, hidden: Tensor, target: int) -> Tensor:
    logits = hidden @ system.emission.weight.T + system.emission.bias
    logits[..., list(VOCABULARY.unpredictable)] = -float("inf")
    return torch.log_softmax(logits, -1)[..., target]


@torch.no_grad()
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_encoder_decoder_equals_torch(cell: str, layers: int, reverse: bool) -> None:
    system = built("seq2seq", cell=cell, layers=layers, reverse_source=reverse)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        _, states = encode_unpadded(system, cell, source[::-1] if reverse else source)
        values = system.backbone.decoder.embedding(torch.tensor([target[:-1]]))
        for layer, state in enumerate(states):
            theirs = loaded(cell, system.backbone.decoder.stack.blocks[layer].mixer.fused)
            values, _ = theirs(values, state if cell == "lstm" else state[0])
        expected = [log_prob(system, values[0, t], target[t + 1]) for t in range(len(target) - 1)]
        actual = system.log_prob(pairs()).per_token[row, : len(expected)]
        torch.testing.assert_close(actual, torch.stack(expected), atol=1e-5, rtol=0)


def score(name: str, attention: nn.Module, query: Tensor, key: Tensor) -> Tensor:
    """The score of one query and one position, as in the papers."""
    match name:
        case "dot":
            return query @ key
        case "scaled":
            return query @ key / len(query) ** 0.5
        case "general":
            return query @ (attention.matrix.weight @ key)
        case _:
            summed = attention.from_query.weight @ query + attention.from_key.weight @ key
            return attention.weigh.weight[0] @ torch.tanh(summed + attention.from_key.bias)


@torch.no_grad()
@pytest.mark.parametrize("name", list(RNN_ATTENTIONS))
@pytest.mark.parametrize(
    ("query_state", "input_feeding"), [("before", False), ("after", False), ("after", True)]
)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_attention_equals_explicit_loops(
    name: str, query_state: str, input_feeding: bool, cell: str
) -> None:
    system = built(
        "seq2seq-attention",
        score=name,
        query_state=query_state,
        input_feeding=input_feeding,
        cell=cell,
    )
    decoder = system.backbone.decoder
    theirs = loaded(cell, decoder.stack.blocks[0].mixer.fused)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        encoded, (state,) = encode_unpadded(system, cell, source)
        attention_output, expected = torch.zeros(8), []

        def context(query: Tensor, encoded: Tensor = encoded) -> Tensor:
            scores = torch.stack([score(name, decoder.attention, query, key) for key in encoded[0]])
            return torch.softmax(scores, 0) @ encoded[0]

        for before, after in pairwise(target):
            word = decoder.embedding.weight[before]
            context_vector = context(state[0][0, 0])
            extra = (
                [context_vector]
                if query_state == "before"
                else [attention_output]
                if input_feeding
                else []
            )
            inputs = torch.cat([word, *extra])[None, None]
            output, state = theirs(inputs, state if cell == "lstm" else state[0])
            state = state if isinstance(state, tuple) else (state,)
            hidden = output[0, 0]
            context_vector = context_vector if query_state == "before" else context(hidden)
            joined = torch.cat([hidden, context_vector])
            attention_output = torch.tanh(decoder.combine.weight @ joined + decoder.combine.bias)
            expected.append(log_prob(system, attention_output, after))
        actual = system.log_prob(pairs()).per_token[row, : len(expected)]
        torch.testing.assert_close(actual, torch.stack(expected), atol=1e-5, rtol=0)


@torch.no_grad()
def test_summary_vector_is_fed_at_every_step() -> None:
    """Cho's form: with the same state, an input of word and summary gives torch's GRU."""
    system = built("seq2seq", cell="gru", context_every_step=True)
    source, target = SOURCES[0], TARGETS[0]
    _, [(last,)] = encode_unpadded(system, "gru", source)
    words = system.backbone.decoder.embedding(torch.tensor([target[:-1]]))
    inputs = torch.cat([words, last.transpose(0, 1).expand(1, words.shape[1], -1)], -1)
    values, _ = loaded("gru", system.backbone.decoder.stack.blocks[0].mixer.fused)(inputs, last)
    expected = [log_prob(system, values[0, t], target[t + 1]) for t in range(3)]
    actual = system.log_prob(pairs()).per_token[0, :3]
    torch.testing.assert_close(actual, torch.stack(expected), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cell", [TanhCell, GRUCell, LSTMCell, CoupledLSTMCell])
def test_padded_rows_are_encoded_as_alone(cell) -> None:
    torch.manual_seed(0)
    network, inputs, lengths = cell(3, 4), torch.randn(3, 6, 3), torch.tensor([4, 1, 6])
    outputs, state = network.read(inputs, lengths)
    for row, length in enumerate(lengths.tolist()):
        each = inputs[row : row + 1, :length]
        alone, last = network.run(each, network.start(1, each))
        torch.testing.assert_close(outputs[row, :length], alone[0], atol=1e-6, rtol=0)
        for part, expected in zip(state, last, strict=True):
            torch.testing.assert_close(part[row], expected[0], atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-attention"])
def test_stepping_with_a_source_equals_scoring(name: str) -> None:
    system, batch = built(name), pairs()
    expected = system.log_prob(batch).per_token
    state = system.start(3, condition=batch.condition)
    for position in range(1, 4):
        tokens = batch.tokens[:, position]
        real = position < batch.lengths
        actual = system.peek(state).log_prob(tokens)
        torch.testing.assert_close(actual[real], expected[real, position - 1], atol=1e-5, rtol=0)
        state = system.advance(state, tokens)


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_label_smoothing_equals_torch_cross_entropy(name: str) -> None:
    """(1 - ε) of the target's and ε of the mean over the tokens that can be predicted."""
    heads = {"heads": 2, "layers": 1, "attention_dropout": 0.0} if name == "transformer" else {}
    system, batch = built(name, label_smoothing=0.2, **heads).train(), pairs()
    actual, _ = system.loss(batch)
    view = system.objective.view(batch)
    logits = system.emission.logits(system.hidden(view).values)
    possible = [i for i in range(VOCABULARY.size) if i not in VOCABULARY.unpredictable]
    targets = view.prediction_view.targets
    renumbered = torch.tensor([possible.index(t) if t in possible else -100 for t in range(20)])
    expected = torch.nn.functional.cross_entropy(
        logits[..., possible].flatten(0, 1),
        torch.where(targets < 0, -100, renumbered[targets.clamp(min=0)]).flatten(),
        label_smoothing=0.2,
        reduction="sum",
    )
    torch.testing.assert_close(actual.total, expected, atol=1e-4, rtol=0)
    assert actual.count == sum(len(target) - 1 for target in TARGETS)
    plain, _ = system.eval().loss(batch)
    torch.testing.assert_close(plain.total, -system.log_prob(batch).totals.sum())


@torch.no_grad()
@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-attention", "transformer"])
def test_sources_may_have_their_own_vocabulary(name: str) -> None:
    module = system_module(name)
    heads = {"heads": 2, "layers": 1} if name == "transformer" else {}
    config = module.Config(width=8, dropout=0.0, **heads)
    system = module.build(config, VOCABULARY, source=Vocabulary(size=50)).eval()
    condition = Batch.collate([[START, 40, 49, END]], pad=VOCABULARY.pad)
    batch = Batch.collate([[START, 7, END]], pad=VOCABULARY.pad, condition=condition)
    sizes = {tuple(p.shape) for p in system.parameters() if p.ndim == 2 and p.shape[1] == 8}
    assert {(50, 8), (20, 8)} <= sizes
    assert system.peek(system.start(1, condition=condition)).log_probs.shape == (1, 20)
    assert torch.isfinite(system.log_prob(batch).totals).all()


@torch.no_grad()
@pytest.mark.parametrize(
    ("cell", "layers", "everywhere"), [("gru", 1, True), ("lstm", 2, False), ("rnn", 1, False)]
)
def test_latent_choice_is_marginalised(cell: str, layers: int, everywhere: bool) -> None:
    """Each value's own text by torch's modules, then the sum over the values."""
    system = built(
        "seq2seq", cell=cell, layers=layers, context_every_step=everywhere, latent_choices=3
    )
    choices, decoder = system.choices, system.backbone.decoder
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        _, states = encode_unpadded(system, cell, source)
        top = states[-1]
        prior = torch.log_softmax(choices.weigh(top[-1][0, 0]), -1)
        joint = []
        for choice in range(3):
            values = decoder.embedding(torch.tensor([target[:-1]]))
            if everywhere:
                values = torch.cat([values, top[0].expand(-1, values.shape[1], -1)], -1)
            vectors = iter(choices.vectors)
            for layer, state in enumerate(states):
                moved = tuple(part + next(vectors)[choice] for part in state)
                theirs = loaded(cell, decoder.stack.blocks[layer].mixer.fused)
                values, _ = theirs(values, moved if cell == "lstm" else moved[0])
            token_log_probs = [
                log_prob(system, values[0, t], target[t + 1]) for t in range(len(target) - 1)
            ]
            joint.append(prior[choice] + torch.stack(token_log_probs).sum())
        expected = torch.logsumexp(torch.stack(joint), 0)
        actual = system.log_prob(pairs()).per_token[row, : len(target) - 1].sum()
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-attention"])
def test_latent_choice_stepping_equals_scoring(name: str) -> None:
    system = built(name, latent_choices=4)
    batch = pairs()
    scored = system.log_prob(batch).per_token
    state = system.start(len(batch), condition=batch.condition)
    for t in range(batch.tokens.shape[1] - 1):
        nexts = system.peek(state)
        torch.testing.assert_close(
            nexts.log_probs.logsumexp(-1), torch.zeros(len(batch)), atol=1e-5, rtol=0
        )
        tokens = batch.tokens[:, t + 1]
        inside = t + 1 < batch.lengths
        result = nexts.log_probs[torch.arange(len(batch)), tokens]
        torch.testing.assert_close(result[inside], scored[inside, t], atol=1e-5, rtol=0)
        state = system.advance(state, tokens)
    shown = system.capture_internals(batch)
    torch.testing.assert_close(
        shown["latent given the source"].values.sum(-1), torch.ones(len(batch))
    )


def test_latent_choice_refuses_label_smoothing() -> None:
    with pytest.raises(UserError, match="smoothing"):
        built("seq2seq", latent_choices=2, label_smoothing=0.1)
