"""Fitted models reproduce the relative frequencies of a tiny corpus."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary

SENTENCES = ["我是人", "你很强", "我爆零了", "我是吊打"]
"""After 我 comes 是 in two sentences of three and 爆 in one."""


@pytest.mark.parametrize("name", ["window", "lstm"])
def test_fitted_model_matches_corpus_frequencies(name):
    torch.manual_seed(0)
    characters = sorted(set("".join(SENTENCES)))
    ids = {character: 5 + i for i, character in enumerate(characters)}
    sequences = [[2, *(ids[c] for c in sentence), 3] for sentence in SENTENCES]
    module = system_module(name)
    system = module.build(module.SIZES["tiny"], Vocabulary(size=5 + len(characters)))
    batch = Batch.collate(sequences, pad=0)
    optimizer = torch.optim.Adam(system.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        loss, _ = system.loss(batch)
        loss.mean.backward()
        optimizer.step()
    with torch.no_grad():
        state = system.advance(system.start(1), torch.tensor([ids["我"]]))
        after = system.peek(state).log_probs[0].exp()
    assert after[ids["是"]].item() == pytest.approx(2 / 3, abs=0.01)
    assert after[ids["爆"]].item() == pytest.approx(1 / 3, abs=0.01)
