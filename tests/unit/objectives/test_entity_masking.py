"""KnowBERT: masking outside entity mentions, entity linking and its losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.retrieval_protocols import Link
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.capture_axes import AxisLabels
from lmlab.inspection.capture_figures import capture_figure
from lmlab.knowledge.knowledge_base import Alias, Entity, Fact, KnowledgeBase
from lmlab.models.knowbert import KnowBERT
from lmlab.training.external_memory import ExternalMemory
from lmlab.training.system_building import build_system, build_tiny

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b"]
VOCABULARY = Vocabulary(size=len(TOKENS))
KNOWLEDGE = KnowledgeBase(
    entities=tuple(Entity(name=name, description="a b") for name in ("A", "B", "AB", "other")),
    relations=("has",),
    aliases=(Alias("a", 0, 3.0), Alias("a", 3, 1.0), Alias("b", 1, 1.0), Alias("a b", 2, 1.0)),
    facts=(Fact(2, 0, 0), Fact(2, 0, 1)),
)
TINY = {"entity_width": 8, "heads": 2, "dropout": 0.0}


class StubTokenizer:
    kind = "word"

    def token(self, id: int) -> str:
        return TOKENS[id]

    def encode(self, text: str) -> list[int]:
        return [TOKENS.index(word) if word in TOKENS else 1 for word in text.split()]


def build(**settings) -> KnowBERT:
    system = build_system(
        "knowbert",
        {**TINY, **settings},
        VOCABULARY,
        seed=0,
        base=build_tiny("bert", VOCABULARY),
        memories=ExternalMemory(knowledge=KNOWLEDGE),
    )
    assert isinstance(system, KnowBERT)
    system.setup_tokenizer(StubTokenizer())
    system.setup_data(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return system.eval()


def batch() -> Batch:
    tokens = Batch.collate([[2, 5, 6, 5, 3], [2, 6, 3]], pad=0)
    entities = torch.full_like(tokens.tokens, -1)
    entities[0, 3] = 3  # the second `a` is the other
    return replace(tokens, entities=entities)


def test_each_mention_is_linked_to_one_of_its_candidates():
    system = build()
    assert isinstance(system, Link)
    links = system.link(batch())
    spans = [(link.row, link.first, link.last) for link in links]
    assert spans == [(0, 1, 1), (0, 1, 2), (0, 2, 2), (0, 3, 3), (1, 1, 1)]
    assert all(link.entity in (0, 3) for link in (links[0], links[3]))
    # `b` and `a b` have one candidate entity, so its probability is 1.
    assert [(link.entity, link.probability) for link in links[1:3]] == [(2, 1.0), (1, 1.0)]
    assert all(link.probability >= 0.5 for link in links)


def test_masked_tokens_are_in_no_mention():
    system = build(rate=0.4)
    clean = replace(batch(), entities=None)
    for seed in range(8):
        view = system.objective.view(clean, generator=torch.Generator().manual_seed(seed))
        assert view.targets is not None
        [spans] = view.memory_spans.values()
        for row, first, last in zip(spans.rows, spans.first, spans.last, strict=True):
            assert (view.targets[row, first : last + 1] == NO_TARGET).all()
    masked = torch.zeros_like(clean.tokens, dtype=torch.bool)
    masked[0, 2] = True
    [shown] = system.objective.fill_view(clean, masked).memory_spans.values()
    assert shown.first.tolist() == [1, 3, 1]


def test_masked_and_linking_losses_are_summed():
    system = build(linking_weight=2.0)
    system.begin_step(system.objective.linking_steps)
    loss, _ = system.loss(batch(), generator=torch.Generator().manual_seed(1))
    masked, linking = loss.parts["masked"], loss.parts["linking"]
    torch.testing.assert_close(loss.total, masked.total + 2 * linking.total)
    assert loss.count == masked.count and linking.count == 1
    # While the linker is pretrained its loss is the only one, and only in training mode.
    system.begin_step(0)
    system.train()
    alone, _ = system.loss(batch(), generator=torch.Generator().manual_seed(1))
    assert alone.count == 1 and set(alone.parts) == {"linking"}
    system.eval()
    held_out, _ = system.loss(batch(), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(held_out.total, loss.total)


def test_unlabelled_batch_has_zero_linking_gradient():
    system = build()
    system.begin_step(0)
    system.train()
    loss, _ = system.loss(replace(batch(), entities=None))
    loss.total.backward()
    gradients = [p.grad for p in system.memories[0].linking_parameters()]
    assert all(grad is not None and grad.abs().sum() == 0 for grad in gradients)


def test_captured_mentions_start_at_their_first_token():
    system = build()
    capture = system.capture_internals(replace(batch(), entities=None))["linked mentions"]
    assert capture.axes == ("batch", "time", "entity")
    assert capture.names == {"entity": ("A", "B", "AB", "other")}
    # Position 1 has two mentions, of which the longer is captured, `a b`; <s> and </s> have none.
    sure = {(0, 1): "AB", (0, 2): "B", (1, 1): "B"}
    for (row, position), entity in sure.items():
        probabilities = dict(
            zip(capture.names["entity"], capture.values[row, position].tolist(), strict=True)
        )
        assert {name: share for name, share in probabilities.items() if share >= 0} == {entity: 1.0}
    # `a` alone is A or the other, as `link` has it.
    [linked] = [link for link in system.link(batch()) if link.first == 3]
    shares = capture.values[0, 3]
    assert shares[[1, 2]].isnan().all()
    assert float(shares[[0, 3]].sum()) == pytest.approx(1)
    assert float(shares[linked.entity]) == pytest.approx(linked.probability)
    assert capture.values[0, [0, 4]].isnan().all() and capture.values[1, [0, 2]].isnan().all()


def test_figure_of_linked_mentions_names_entities():
    """Only the candidates of each mention; a text without mentions has no figure."""
    labels = AxisLabels(token=TOKENS.__getitem__, tokens=("<s>", "b", "b", "</s>"))
    captures = build().capture_internals(Batch.collate([[2, 6, 6, 3]], pad=0))
    figure = capture_figure("linked mentions", captures["linked mentions"], labels)
    assert figure is not None
    assert figure.draw.keywords["listing"].rows == (("b", "B 1.00"), ("b", "B 1.00"))
    no_mentions = build().capture_internals(Batch.collate([[2, 1, 3]], pad=0))["linked mentions"]
    assert capture_figure("linked mentions", no_mentions, labels) is None


def test_invalid_knowbert_settings_are_reported():
    with pytest.raises(UserError, match="layers"):
        build(knowledge_layers=(9,))
    with pytest.raises(UserError, match="heads"):
        build(entity_width=9)
    with pytest.raises(UserError, match="masked language model"):
        build_system(
            "knowbert",
            TINY,
            VOCABULARY,
            seed=0,
            base=build_tiny("lstm", VOCABULARY),
            memories=ExternalMemory(knowledge=KNOWLEDGE),
        )


@pytest.mark.parametrize(("name", "value"), [("threshold", 3.0), ("margin", 0.9)])
def test_margin_settings_apply_to_margin_linking_only(name: str, value: float):
    message = f"{name}={value:g} does not apply to linking=softmax; .*linking=margin"
    with pytest.raises(UserError, match=message):
        build(**{name: value})
    system = build(linking="margin", **{name: value})
    by_margin = {
        "threshold": system.memories[0].linker.threshold,
        "margin": getattr(system.objective.linking, "margin", None),
    }
    assert by_margin == {"threshold": 0.0, "margin": 0.2} | {name: value}
