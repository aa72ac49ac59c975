"""Decoded texts of real systems have the log-probability that the scorer gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmlab.core.protocols import Countable
from lmlab.core.registry import system_module
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import greedy_search, sample_sequences
from lmlab.scoring.scorer import Scorer

SENTENCES = ["the cat sat", "the dog saw a cat", "a dog sat", "a cat saw the dog"]


@pytest.fixture(params=["ngram", "lstm"])
def fitted(request):
    tokenizer = train_tokenizer("word", SENTENCES)
    module = system_module(request.param)
    torch.manual_seed(0)
    system = module.build(module.SIZES["tiny"], tokenizer.vocabulary)
    if isinstance(system, Countable):
        rows = [[2, *tokenizer.encode(text), 3] for text in SENTENCES]
        offsets = np.cumsum([0, *map(len, rows)])
        system.fit_counts(np.concatenate(rows), offsets)
    return system, tokenizer


def test_decoded_log_probs_equal_scores(fitted):
    system, tokenizer = fitted
    scorer = Scorer(system, tokenizer, Layout())
    generator = torch.Generator().manual_seed(0)
    decoded = sample_sequences(system, 20, max_length=60, generator=generator)
    decoded += greedy_search(system, max_length=60)
    decoded += beam_search(system, BeamConfig(width=5, best=5, max_length=60))[0]
    finished = [hypothesis for hypothesis in decoded if hypothesis.finished]
    texts = [tokenizer.decode(hypothesis.tokens) for hypothesis in finished]
    assert len(finished) >= 10
    for hypothesis, score in zip(finished, scorer.score(texts), strict=True):
        assert score.tokens == len(hypothesis.tokens) + 1
        assert score.total == pytest.approx(hypothesis.log_prob, abs=1e-4)


def test_beam_is_at_least_as_good_as_greedy_and_samples(fitted):
    system, _ = fitted
    ((best,),) = beam_search(system, BeamConfig(width=50, max_length=30))
    (greedy,) = greedy_search(system, max_length=30)
    assert best.log_prob >= greedy.log_prob - 1e-5 or not greedy.finished
    for sample in sample_sequences(
        system, 50, max_length=30, generator=torch.Generator().manual_seed(1)
    ):
        assert not sample.finished or best.log_prob >= sample.log_prob - 1e-5
