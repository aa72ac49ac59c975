"""Traces against averages computed by hand."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary


def test_each_trace_decays_at_its_rate():
    """Width 1, e(<s>) = 1, e(a) = 2, e(b) = 4; a trace of rate 0 is the last word."""
    module = system_module("traces")
    system = module.build(module.Config(width=1, rates=(0.0, 0.5)), Vocabulary(size=7))
    with torch.no_grad():
        vectors = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0], [2.0], [4.0]])
        system.backbone.embedding.weight.copy_(vectors)
    view = system.objective.view(Batch.collate([[2, 5, 6, 3]], pad=0))
    last, average = system.backbone(view).values[0].T.tolist()
    assert last == [1.0, 2.0, 4.0]
    # 1/2;  1/4 + 2/2;  1/8 + 2/4 + 4/2
    assert average == pytest.approx([0.5, 1.25, 2.625])
