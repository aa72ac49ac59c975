"""Segment boundaries in texts longer than a system's segment length (XLNet, Transformer-XL)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.registry import system_module
from lmlab.core.score_descriptions import describe_convention
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer
from lmlab.scoring.scorer import Scorer

TEXT = " ".join(["the cat sat on a mat", "a dog saw the bird on the mat"] * 3)


def xlnet(word_tokenizer: Tokenizer, **settings: int):
    module = system_module("xlnet")
    torch.manual_seed(0)
    return module.build(replace(module.SIZES["tiny"], **settings), word_tokenizer.vocabulary).eval()


def test_convention_records_segment_and_memory_length(word_tokenizer):
    system = xlnet(word_tokenizer, length=8, memory=4)
    convention = Scorer(system, word_tokenizer, Layout()).convention
    assert (convention.window, convention.segment_length, convention.memory) == (None, 8, 4)
    assert "segments of 8, each with a memory of 4 tokens" in describe_convention(convention)
    # With windows no longer than a segment there are no segments.
    rolled = Scorer(system, word_tokenizer, Layout(), window=8).convention
    assert (rolled.window, rolled.segment_length, rolled.memory) == (8, None, None)


def test_context_is_cut_at_segment_boundaries(word_tokenizer):
    """Without a memory, tokens depend only on their segment and the token before it."""
    system = xlnet(word_tokenizer, length=8, memory=0)
    scorer = Scorer(system, word_tokenizer, Layout())
    segment = scorer.convention.segment_length
    assert segment is not None
    text = TEXT.split()
    changed = [*["bird"] * (2 * segment - 1), *text[2 * segment - 1 :]]
    before, after = (
        [token.log_prob for token in scorer.score_one(" ".join(each)).per_token]
        for each in (text, changed)
    )
    assert before[2 * segment :] == pytest.approx(after[2 * segment :], abs=1e-6)
    assert before[2 * segment - 1] != pytest.approx(after[2 * segment - 1], abs=1e-6)


@pytest.mark.parametrize("batch_tokens", [5, 20, 30])
def test_segments_do_not_depend_on_batch_size(word_tokenizer, batch_tokens: int):
    """43 tokens in batches of 8, 16 and 24: whole segments, so that no batch splits one."""
    system = xlnet(word_tokenizer, length=8, memory=4)
    whole = Scorer(system, word_tokenizer, Layout(), tokens_per_batch=1000).score_one(TEXT)
    blocks = Scorer(system, word_tokenizer, Layout(), tokens_per_batch=batch_tokens).score_one(TEXT)
    assert whole.tokens == 43
    assert blocks.total == pytest.approx(whole.total, abs=1e-4)
    assert blocks.convention == whole.convention


def test_transformer_xl_convention_records_memory_length(word_tokenizer):
    module = system_module("transformer-xl")
    config = replace(module.SIZES["tiny"], eval_memory_length=6)
    convention = Scorer(
        module.build(config, word_tokenizer.vocabulary), word_tokenizer, Layout()
    ).convention
    assert (convention.window, convention.segment_length, convention.memory) == (None, None, 6)
