"""The recurrent translators against torch.nn's own modules and the formula, place by place."""

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


def read_alone(system, cell: str, source: list[int]) -> tuple[Tensor, list]:
    """One source by torch's modules, layer after layer, nothing padded; its states at the end."""
    values = system.backbone.encoder.embedding(torch.tensor([source]))
    states = []
    for layer, there in enumerate(system.backbone.encoder.forwards):
        outputs, last = loaded(cell, there.fused)(values)
        last = last if isinstance(last, tuple) else (last,)
        if len(system.backbone.encoder.backwards):
            back = system.backbone.encoder.backwards[layer]
            found, other = loaded(cell, back.fused)(values.flip(1))
            other = other if isinstance(other, tuple) else (other,)
            outputs = torch.cat([outputs, found.flip(1)], -1)
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
def test_two_networks_by_torch(cell: str, layers: int, reverse: bool) -> None:
    system = built("seq2seq", cell=cell, layers=layers, reverse_source=reverse)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        _, states = read_alone(system, cell, source[::-1] if reverse else source)
        values = system.backbone.decoder.embedding(torch.tensor([target[:-1]]))
        for layer, state in enumerate(states):
            theirs = loaded(cell, system.backbone.decoder.cells[layer].fused)
            values, _ = theirs(values, state if cell == "lstm" else state[0])
        expected = [log_prob(system, values[0, t], target[t + 1]) for t in range(len(target) - 1)]
        found = system.log_prob(pairs()).per_token[row, : len(expected)]
        torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)


def score(name: str, glance: nn.Module, query: Tensor, key: Tensor) -> Tensor:
    """One number for one query and one place, as the papers write it."""
    match name:
        case "dot":
            return query @ key
        case "scaled":
            return query @ key / len(query) ** 0.5
        case "general":
            return query @ (glance.matrix.weight @ key)
        case _:
            summed = glance.from_query.weight @ query + glance.from_key.weight @ key
            return glance.weigh.weight[0] @ torch.tanh(summed + glance.from_key.bias)


@torch.no_grad()
@pytest.mark.parametrize("name", list(RNN_ATTENTIONS))
@pytest.mark.parametrize(
    ("looks", "input_feeding"), [("before", False), ("after", False), ("after", True)]
)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_attention_place_by_place(name: str, looks: str, input_feeding: bool, cell: str) -> None:
    system = built(
        "seq2seq-attention", score=name, looks=looks, input_feeding=input_feeding, cell=cell
    )
    writer = system.backbone.decoder
    theirs = loaded(cell, writer.cells[0].fused)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        read, (state,) = read_alone(system, cell, source)
        fed, expected = torch.zeros(8), []

        def context(query: Tensor, read: Tensor = read) -> Tensor:
            scores = torch.stack([score(name, writer.attention, query, key) for key in read[0]])
            return torch.softmax(scores, 0) @ read[0]

        for before, after in pairwise(target):
            word = writer.embedding.weight[before]
            looked = context(state[0][0, 0])
            extra = [looked] if looks == "before" else [fed] if input_feeding else []
            inputs = torch.cat([word, *extra])[None, None]
            output, state = theirs(inputs, state if cell == "lstm" else state[0])
            state = state if isinstance(state, tuple) else (state,)
            hidden = output[0, 0]
            looked = looked if looks == "before" else context(hidden)
            joined = torch.cat([hidden, looked])
            fed = torch.tanh(writer.combine.weight @ joined + writer.combine.bias)
            expected.append(log_prob(system, fed, after))
        found = system.log_prob(pairs()).per_token[row, : len(expected)]
        torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_last_state_joins_every_input() -> None:
    """Cho's form: with the same state, an input of word and summary gives torch's GRU."""
    system = built("seq2seq", cell="gru", everywhere=True)
    source, target = SOURCES[0], TARGETS[0]
    _, [(last,)] = read_alone(system, "gru", source)
    words = system.backbone.decoder.embedding(torch.tensor([target[:-1]]))
    inputs = torch.cat([words, last.transpose(0, 1).expand(1, words.shape[1], -1)], -1)
    values, _ = loaded("gru", system.backbone.decoder.cells[0].fused)(inputs, last)
    expected = [log_prob(system, values[0, t], target[t + 1]) for t in range(3)]
    found = system.log_prob(pairs()).per_token[0, :3]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cell", [TanhCell, GRUCell, LSTMCell, CoupledLSTMCell])
def test_rows_of_any_length_are_read_as_they_are_alone(cell) -> None:
    torch.manual_seed(0)
    network, inputs, lengths = cell(3, 4), torch.randn(3, 6, 3), torch.tensor([4, 1, 6])
    outputs, state = network.read(inputs, lengths)
    for row, length in enumerate(lengths.tolist()):
        each = inputs[row : row + 1, :length]
        alone, last = network(each, network.start(1, each))
        torch.testing.assert_close(outputs[row, :length], alone[0], atol=1e-6, rtol=0)
        for part, expected in zip(state, last, strict=True):
            torch.testing.assert_close(part[row], expected[0], atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-attention"])
def test_stepping_with_a_source_is_scoring_with_it(name: str) -> None:
    system, batch = built(name), pairs()
    expected = system.log_prob(batch).per_token
    state = system.start(3, condition=batch.condition)
    for place in range(1, 4):
        tokens = batch.tokens[:, place]
        real = place < batch.lengths
        found = system.peek(state).log_prob(tokens)
        torch.testing.assert_close(found[real], expected[real, place - 1], atol=1e-5, rtol=0)
        state = system.advance(state, tokens)


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_label_smoothing_is_torchs_cross_entropy(name: str) -> None:
    """(1 - ε) of the target's and ε of the mean over the tokens that can be predicted."""
    heads = {"heads": 2, "layers": 1, "attention_dropout": 0.0} if name == "transformer" else {}
    system, batch = built(name, label_smoothing=0.2, **heads).train(), pairs()
    found, _ = system.loss(batch)
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
    torch.testing.assert_close(found.total, expected, atol=1e-4, rtol=0)
    assert found.count == sum(len(target) - 1 for target in TARGETS)
    plain, _ = system.eval().loss(batch)
    torch.testing.assert_close(plain.total, -system.log_prob(batch).totals.sum())


@torch.no_grad()
@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-attention", "transformer"])
def test_sources_may_have_a_vocabulary_of_their_own(name: str) -> None:
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
def test_a_latent_variable_is_summed_out(cell: str, layers: int, everywhere: bool) -> None:
    """Each value's own text by torch's modules, then the sum over the values."""
    system = built("seq2seq", cell=cell, layers=layers, everywhere=everywhere, latent_choices=3)
    choices, writer = system.choices, system.backbone.decoder
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        _, states = read_alone(system, cell, source)
        top = states[-1]
        prior = torch.log_softmax(choices.weigh(top[-1][0, 0]), -1)
        joint = []
        for choice in range(3):
            values = writer.embedding(torch.tensor([target[:-1]]))
            if everywhere:
                values = torch.cat([values, top[0].expand(-1, values.shape[1], -1)], -1)
            vectors = iter(choices.vectors)
            for layer, state in enumerate(states):
                moved = tuple(part + next(vectors)[choice] for part in state)
                theirs = loaded(cell, writer.cells[layer].fused)
                values, _ = theirs(values, moved if cell == "lstm" else moved[0])
            told = [log_prob(system, values[0, t], target[t + 1]) for t in range(len(target) - 1)]
            joint.append(prior[choice] + torch.stack(told).sum())
        expected = torch.logsumexp(torch.stack(joint), 0)
        found = system.log_prob(pairs()).per_token[row, : len(target) - 1].sum()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-attention"])
def test_a_latent_variable_steps_as_it_scores(name: str) -> None:
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
        found = nexts.log_probs[torch.arange(len(batch)), tokens]
        torch.testing.assert_close(found[inside], scored[inside, t], atol=1e-5, rtol=0)
        state = system.advance(state, tokens)
    shown = system.capture_internals(batch)
    torch.testing.assert_close(
        shown["latent given the source"].values.sum(-1), torch.ones(len(batch))
    )


def test_a_latent_variable_can_be_trained_without_smoothing_only() -> None:
    with pytest.raises(UserError, match="smoothing"):
        built("seq2seq", latent_choices=2, label_smoothing=0.1)
