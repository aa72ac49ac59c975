"""Hybrid: gpt with attention alone, a gru with recurrence alone, contiguous text, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary

HYBRID, GPT = system_module("hybrid"), system_module("gpt")
VOCABULARY = Vocabulary(size=12)
BATCH = Batch.collate([[2, 5, 6, 7, 8, 9, 3], [2, 9, 4, 3]], pad=0)
SHAPE = {"width": 8, "layers": 4, "heads": 2, "length": 16, "dropout": 0.0}


def build(*mixers: str, **settings: object):
    torch.manual_seed(0)
    config = HYBRID.Config(**SHAPE, attention_dropout=0.0, mixers=mixers, **settings)
    return HYBRID.build(config, VOCABULARY).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("positions", ["rotary", "alibi", "buckets", "none"])
def test_attention_alone_equals_gpt(positions: str) -> None:
    ours = build("attention", positions=positions)
    config = GPT.Config(**SHAPE, attention_dropout=0.0, positions=positions, norm="rms")
    theirs = GPT.build(config, VOCABULARY).double().eval()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours.log_prob(BATCH).per_token, theirs.log_prob(BATCH).per_token)


@torch.no_grad()
def test_attention_and_gru_in_turns_equal_torch() -> None:
    """Layers 1 and 3 by torch.nn's attention, 2 and 4 by torch.nn's GRU."""
    system = build("attention", "gru", positions="none")
    backbone, tokens = system.backbone, BATCH.tokens[:, :-1]
    x, mask = backbone.embedding.tokens(tokens), torch.ones(6, 6).triu(1).bool()
    for layer, block in enumerate(backbone.stack.all_blocks(), 1):
        normed = block.mixer_connection.norm(x)
        if layer % 2:
            theirs = nn.MultiheadAttention(8, 2, batch_first=True).double()
            theirs.in_proj_weight.copy_(block.mixer.qkv_projection.weight)
            theirs.in_proj_bias.copy_(block.mixer.qkv_projection.bias)
            theirs.out_proj.load_state_dict(block.mixer.output.state_dict())
            mixed = theirs(normed, normed, normed, attn_mask=mask)[0]
        else:
            recurrent = nn.GRU(8, 8, batch_first=True).double()
            recurrent.load_state_dict(block.mixer.fused.state_dict())
            mixed = recurrent(normed)[0]
        x = x + mixed
        x = x + block.feed_forward(block.feed_forward_connection.norm(x))
    log_probs = system.emission.log_probs(backbone.stack.norm(x))
    expected = log_probs.gather(-1, BATCH.tokens[:, 1:, None]).squeeze(-1)
    result = system.log_prob(BATCH).per_token
    real = BATCH.mask()[:, 1:]
    torch.testing.assert_close(result[real], expected[real])


@torch.no_grad()
@pytest.mark.parametrize("mixers", [("min-gru",), ("lstm", "mgru"), ("min-gru", "gru", "linear")])
def test_recurrent_hybrid_carries_its_state_through_contiguous_text(mixers) -> None:
    system = build(*mixers)
    text = torch.tensor([[2, 5, 6, 7, 8, 9, 10, 11, 5, 6, 7, 3]])
    whole = system.log_prob(Batch.collate(text.tolist(), pad=0)).per_token[0]
    state, parts = None, []
    for start in (0, 4, 8):
        batch = Batch.collate(text[:, start : start + 5].tolist(), pad=0)
        score = system.log_prob(batch, state=state)
        state = score.state
        parts.append(score.per_token[0])
    torch.testing.assert_close(torch.cat(parts), whole)
    assert system.window is None


def test_hybrid_resumed_on_contiguous_text_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    """A checkpoint holds the state carried from batch to batch, so training continues with it."""
    (tmp_path / "text.txt").write_text("the dog sees a cat\nthe cat sleeps\n" * 40)
    settings = {"mixers": "min-gru,lstm", "stream_batch_size": "4", "bptt": "9"}
    options = {"data": f"contiguous:{tmp_path / 'text.txt'}", "quiet": True}
    new = {"size": "tiny", "settings": settings}
    whole = lmlab.train("hybrid", out=tmp_path / "whole", steps=5, **new, **options)
    lmlab.train("hybrid", out=tmp_path / "run", steps=2, **new, **options)
    resumed = lmlab.train("hybrid", out=tmp_path / "run", steps=5, resume=True, **options)
    ours, theirs = (lmlab.load(run.path).system.state_dict() for run in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("layers", [(1,), (2, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("mixers", [("attention", "gru"), ("min-gru", "lstm")])
@torch.no_grad()
def test_disabled_layers_step_as_they_score(mixers, layers: tuple[int, ...]) -> None:
    system = build(*mixers, disabled_layers=layers)
    whole, state, steps = system.log_prob(BATCH).per_token[0], system.start(1), []
    for token in BATCH.tokens[0, 1:]:
        steps.append(system.peek(state).log_probs[0, token])
        state = system.advance(state, token[None])
    torch.testing.assert_close(torch.stack(steps), whole)
    assert (whole - build(*mixers).log_prob(BATCH).per_token[0]).abs().max() > 1e-4


@torch.no_grad()
def test_with_attention_there_is_a_window_and_no_carried_state() -> None:
    system = build("attention", "min-gru")
    assert system.window == SHAPE["length"]
    assert system.log_prob(BATCH).state is None


def test_mixers_are_repeated_over_the_layers() -> None:
    config = HYBRID.Config(**SHAPE, mixers=("attention", "min-gru", "lstm"))
    assert config.layer_mixers == ["attention", "min-gru", "lstm", "attention"]
    kinds = [type(b.mixer).__name__ for b in build(*config.mixers).backbone.stack.all_blocks()]
    assert kinds == ["MultiHeadAttention", "MinGRUCell", "LSTMCell", "MultiHeadAttention"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixers": ("atention",)}, "attention"),
        ({"mixers": ("attention", "star")}, "mixers must be causal, and star needs the whole text"),
        ({"mixers": ()}, "mixers must list at least one"),
        ({"positions": "learned"}, "positions must be one of transformer-xl"),
        ({"shared_layers": True}, "shared_layers does not apply"),
        ({"mixers": ("gru",) * 5}, r"at most one for each layer \(4\), got 5; use fewer, or"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HYBRID.Config(**SHAPE, **settings)
