"""Segment-recurrent Transformer: memory contents, receptive field, decoding, training."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.tokenizers import tokenizer_for
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.scoring.scorer import Scorer
from lmlab.training.run_folder import RunFolder
from lmlab.training.train import train
from lmlab.zoo import transformer_xl
from lmlab.zoo.transformer_xl import RELATIVE_POSITIONS

VOCABULARY = Vocabulary(size=20)
ABSOLUTE = ("learned", "sinusoidal", "concatenated", "pairs")


def build(seed: int = 0, vocabulary: Vocabulary = VOCABULARY, **settings):
    torch.manual_seed(seed)
    config = replace(transformer_xl.SIZES["tiny"], **settings)
    return transformer_xl.build(config, vocabulary).eval()


def random_tokens(rows: int, time: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 20, (rows, time), generator=generator)


def make_view(tokens: torch.Tensor, lengths=None, window: int | None = None) -> View:
    row_lengths = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
    return View(inputs=tokens, lengths=row_lengths, attention_mask=CausalMask(window))


def encode(system, tokens, state=None, lengths=None, window=None):
    with torch.no_grad():
        return system.backbone(make_view(tokens, lengths, window), state)


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_memory_holds_the_last_unpadded_positions_per_row(training: bool):
    """Rows of 3, 6 and 1 positions, then of 4, 0 and 6: each stores what it would alone."""
    system = build(memory=5, eval_memory_length=5, length=100).train(training)
    parts = [
        (random_tokens(3, 6), torch.tensor([3, 6, 1])),
        (random_tokens(3, 6, seed=2), torch.tensor([4, 0, 6])),
    ]
    state = None
    for tokens, lengths in parts:
        state = encode(system, tokens, state, lengths).state
    assert state["positions"].tolist() == [list(range(-5, 0))] * 3
    for row in range(3):
        alone = None
        for tokens, lengths in parts:
            real = tokens[row : row + 1, : int(lengths[row])]
            alone = encode(system, real, alone).state
        for name in ("layer.1", "layer.2"):
            torch.testing.assert_close(state[name][row], alone[name][0], atol=1e-6, rtol=0)


def test_rows_shorter_than_the_memory_mark_empty_positions():
    state = encode(build(), random_tokens(2, 4), lengths=torch.tensor([2, 4])).state
    assert state["positions"].tolist() == [[0, 0, -2, -1], [-4, -3, -2, -1]]


def test_padding_tokens_do_not_affect_the_memory():
    system, tokens, lengths = build(), random_tokens(2, 6), torch.tensor([2, 6])
    other = tokens.clone()
    other[0, 2:] = 7
    following = random_tokens(2, 3, seed=3)
    first, second = (
        encode(system, following, encode(system, inputs, lengths=lengths).state).values
        for inputs in (tokens, other)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("training", "expected"), [(True, 4), (False, 9)], ids=["training", "evaluation"]
)
def test_memory_length_differs_in_training_and_evaluation(training: bool, expected: int):
    system = build(memory=4, eval_memory_length=9).train(training)
    state = encode(system, random_tokens(2, 20)).state
    assert state["positions"].shape == (2, expected)
    assert state["layer.2"].shape == (2, expected, 16)


def dependencies(system, position: int, state_of: int = 0) -> list[int]:
    """Positions whose token changes the hidden state at `position`; `state_of` are memory."""
    tokens, receptive_field = random_tokens(1, 20), []

    def values(tokens):
        state = encode(system, tokens[:, :state_of]).state if state_of else None
        return encode(system, tokens[:, state_of:], state).values[0, position - state_of]

    before = values(tokens)
    for changed in range(20):
        perturbed = tokens.clone()
        perturbed[0, changed] = 5 if tokens[0, changed] != 5 else 6
        if not torch.equal(values(perturbed), before):
            receptive_field.append(changed)
    return receptive_field


def test_training_attends_to_the_segment_and_memory():
    """Segments of 8 from position 6 (after the memory): 15 is in the second one, 14 … 21."""
    system = build(layers=1, memory=3, length=8).train()
    assert dependencies(system, 15, state_of=6) == [11, 12, 13, 14, 15]
    assert dependencies(system, 13, state_of=6) == list(range(3, 14))


def test_evaluation_context_is_the_same_at_every_position():
    system = build(layers=1, memory=3, eval_memory_length=5, length=8)
    for position, state_of in itertools.product((12, 15), (0, 6, 11)):
        assert dependencies(system, position, state_of) == list(range(position - 5, position + 1))


def test_receptive_field_grows_with_layers():
    """A memory of 3 in each of two layers: 6 positions back."""
    system = build(layers=2, eval_memory_length=3)
    assert dependencies(system, 15, state_of=6) == list(range(9, 16))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_causal_window_of_the_view_is_respected(training: bool):
    """CausalMask(window=3) allows two earlier positions, in memory too: as a memory of 2."""
    tokens = random_tokens(1, 12)
    system = build(eval_memory_length=8).train(training)
    expected = encode(build(eval_memory_length=2), tokens).values
    state = encode(system, tokens[:, :5], window=3).state
    hidden = encode(system, tokens[:, 5:], state, window=3).values
    torch.testing.assert_close(hidden, expected[:, 5:], atol=1e-5, rtol=0)


def test_empty_input_leaves_the_memory_unchanged():
    system = build()
    state = encode(system, random_tokens(2, 5)).state
    hidden = encode(system, random_tokens(2, 5)[:, :0], state)
    assert hidden.values.shape == (2, 0, 16) and hidden.state is state


# Positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", RELATIVE_POSITIONS)
def test_stepping_equals_full_forward_for_relative_positions(positions: str):
    """80 tokens with a memory of 5: the decoding state is truncated twice on the way."""
    system, tokens = build(positions=positions, eval_memory_length=5), random_tokens(2, 80)
    batch = Batch.collate([[2, *row] for row in tokens.tolist()], pad=0)
    with torch.no_grad():
        at_once = system.log_prob(batch).per_token
        state, stepped = system.start(2), []
        for token in tokens.unbind(1):
            stepped.append(system.peek(state).log_prob(token))
            state = system.advance(state, token)
    torch.testing.assert_close(torch.stack(stepped, 1), at_once, atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", ABSOLUTE)
def test_absolute_positions_are_refused(positions: str):
    message = "one-dimensional" if positions == "pairs" else "transformer-xl"
    with pytest.raises(UserError, match=f"{message}.*got {positions}"):
        build(positions=positions)


def test_position_biases_are_tied_unless_untied():
    for untied, count in ((False, 1), (True, 3)):
        system = build(layers=3, untied_position_biases=untied)
        biases = [block.mixer.positions.content_bias for block in system.backbone.stack.blocks]
        assert len({id(bias) for bias in biases}) == count


# Decoding -------------------------------------------------------------------------------------


def test_decoding_state_is_bounded_and_immutable():
    system = build(eval_memory_length=4)
    state, sizes, early = system.start(1), set(), None
    with torch.no_grad():
        for position, token in enumerate(random_tokens(1, 200)[0]):
            if position == 34:
                early, before = state, system.peek(state).log_probs
            state = system.advance(state, token[None])
            sizes.add(state.memory.positions.shape[1])
            assert state.memory.layers[0].mixer.storage.keys.shape[2] <= 96
    assert max(sizes) == 36
    assert torch.equal(system.peek(early).log_probs, before)
    with torch.no_grad():
        again = system.advance(early.select(torch.tensor([0, 0])), torch.tensor([5, 6]))
        alone = system.advance(early, torch.tensor([6]))
    torch.testing.assert_close(again.values[1:], alone.values, atol=1e-6, rtol=0)


def test_beam_search_log_prob_equals_scoring():
    """Texts longer than the memory, whose rows are reordered on the way."""
    system = build(vocabulary=Vocabulary(size=8), eval_memory_length=2)
    hypotheses = beam_search(system, BeamConfig(width=5, best=5, length_penalty=3.0, max_length=9))[
        0
    ]
    assert len(hypotheses) >= 3 and max(len(hypothesis.tokens) for hypothesis in hypotheses) > 3
    ends = [[3] if hypothesis.finished else [] for hypothesis in hypotheses]
    texts = [
        [2, *hypothesis.tokens, *end] for hypothesis, end in zip(hypotheses, ends, strict=True)
    ]
    with torch.no_grad():
        log_probs = system.log_prob(Batch.collate(texts, pad=0)).totals
    assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx(
        log_probs.tolist(), abs=1e-5
    )


# Contiguous text ------------------------------------------------------------------------------


def contiguous(lines: list[str]) -> Corpus:
    splits = {
        name: Split.from_list(lines, identity=f"lines {name}", name=name)
        for name in ("train", "validation")
    }
    return Corpus(name="lines", splits=splits, layout=Layout(kind="contiguous"))


def test_contiguous_scores_do_not_depend_on_block_size():
    lines = ["a b a a b", "b b a", "a a a a b a b", "b"]
    tokenizer = tokenizer_for(contiguous(lines), "word")
    system = build(vocabulary=tokenizer.vocabulary, memory=2, eval_memory_length=7)

    def scores(tokens: int) -> list[float]:
        scorer = Scorer(system, tokenizer, Layout(kind="contiguous"), tokens_per_batch=tokens)
        return [score.total for score in scorer.score(lines)]

    whole = scores(1000)
    for block in (1, 3, 5):
        assert scores(block) == pytest.approx(whole, abs=1e-4)
    system.backbone.eval_memory_length = 2
    assert scores(1000) != pytest.approx(whole, abs=1e-3)


def test_resumed_training_restores_the_memory_exactly(tmp_path):
    """Six steps at once, or three and three: the recurrent memory is in the checkpoint."""
    corpus = contiguous(["a b b a", "b a", "a a b b b a"] * 8)
    settings = {"stream_batch_size": 2, "bptt": 5, "log_every": 1, "memory": 7}

    def weights(out, steps: int, resume: bool = False) -> dict[str, torch.Tensor]:
        result = train(
            "transformer-xl",
            data=corpus,
            out=out,
            size="tiny",
            settings=settings,
            steps=steps,
            resume=resume,
            quiet=True,
        )
        checkpoint = RunFolder(result.path).load_checkpoint(print)
        assert checkpoint is not None
        assert checkpoint.recurrent_state["layer.1"].shape == (2, 7, 16)
        return checkpoint.model | checkpoint.recurrent_state

    whole = weights(tmp_path / "whole", 6)
    weights(tmp_path / "halves", 3)
    halves = weights(tmp_path / "halves", 6, resume=True)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
