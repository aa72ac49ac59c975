"""Where the context of a text is cut that is longer than a system reads at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.registry import system_module
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer
from lmlab.scoring.formatting import describe_convention
from lmlab.scoring.scorer import Scorer

TEXT = " ".join(["the cat sat on a mat", "a dog saw the bird on the mat"] * 3)


def xlnet(words: Tokenizer, **settings: int):
    module = system_module("xlnet")
    torch.manual_seed(0)
    return module.build(replace(module.SIZES["tiny"], **settings), words.vocabulary).eval()


def test_a_score_says_in_what_stretches_it_was_read(words):
    system = xlnet(words, length=8, memory=4)
    convention = Scorer(system, words, Layout()).convention
    assert (convention.window, convention.segment_length, convention.memory) == (None, 8, 4)
    assert "segments of 8, each with a memory of 4 tokens" in describe_convention(convention)
    # Windows that fit into a stretch leave no stretches.
    rolled = Scorer(system, words, Layout(), window=8).convention
    assert (rolled.window, rolled.segment_length, rolled.memory) == (8, None, None)


def test_context_is_cut_where_the_convention_says(words):
    """Without a memory the tokens of a stretch depend on it and on the token before it alone."""
    system = xlnet(words, length=8, memory=0)
    scorer = Scorer(system, words, Layout())
    stretch = scorer.convention.segment_length
    assert stretch is not None
    text = TEXT.split()
    changed = [*["bird"] * (2 * stretch - 1), *text[2 * stretch - 1 :]]
    before, after = (
        [token.log_prob for token in scorer.score_one(" ".join(each)).per_token]
        for each in (text, changed)
    )
    assert before[2 * stretch :] == pytest.approx(after[2 * stretch :], abs=1e-6)
    assert before[2 * stretch - 1] != pytest.approx(after[2 * stretch - 1], abs=1e-6)


@pytest.mark.parametrize("at_once", [5, 20, 30])
def test_a_text_is_cut_alike_whatever_is_read_at_once(words, at_once: int):
    """43 tokens in blocks of 8, 16 and 24: whole stretches, so that no block cuts one."""
    system = xlnet(words, length=8, memory=4)
    whole = Scorer(system, words, Layout(), tokens_per_batch=1000).score_one(TEXT)
    blocks = Scorer(system, words, Layout(), tokens_per_batch=at_once).score_one(TEXT)
    assert whole.tokens == 43
    assert blocks.total == pytest.approx(whole.total, abs=1e-4)
    assert blocks.convention == whole.convention


def test_transformer_xl_says_how_far_each_token_sees(words):
    module = system_module("transformer-xl")
    config = replace(module.SIZES["tiny"], eval_memory_length=6)
    convention = Scorer(module.build(config, words.vocabulary), words, Layout()).convention
    assert (convention.window, convention.segment_length, convention.memory) == (None, None, 6)
