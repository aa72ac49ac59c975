"""Masking with mentions: what is hidden is no mention, and what is lost is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import Link
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.capture_axes import AxisLabels
from lmlab.inspection.capture_figures import capture_figure
from lmlab.knowledge.knowledge_base import Alias, Entity, Fact, KnowledgeBase
from lmlab.models.knowbert import KnowBERT
from lmlab.training.external_memory import ExternalMemory
from lmlab.training.run_folder import build_system, build_tiny

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b"]
VOCABULARY = Vocabulary(size=len(TOKENS))
KNOWLEDGE = KnowledgeBase(
    entities=tuple(Entity(name=name, description="a b") for name in ("A", "B", "AB", "other")),
    relations=("has",),
    aliases=(Alias("a", 0, 3.0), Alias("a", 3, 1.0), Alias("b", 1, 1.0), Alias("a b", 2, 1.0)),
    facts=(Fact(2, 0, 0), Fact(2, 0, 1)),
)
TINY = {"entity_width": 8, "heads": 2, "dropout": 0.0}


class Pieces:
    kind = "word"

    def token(self, id: int) -> str:
        return TOKENS[id]

    def encode(self, text: str) -> list[int]:
        return [TOKENS.index(word) if word in TOKENS else 1 for word in text.split()]


def made(**settings) -> KnowBERT:
    system = build_system(
        "knowbert",
        {**TINY, **settings},
        VOCABULARY,
        seed=0,
        base=build_tiny("bert", VOCABULARY),
        memories=ExternalMemory(knowledge=KNOWLEDGE),
    )
    assert isinstance(system, KnowBERT)
    system.setup_tokenizer(Pieces())
    system.setup_data(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return system.eval()


def batch() -> Batch:
    tokens = Batch.collate([[2, 5, 6, 5, 3], [2, 6, 3]], pad=0)
    entities = torch.full_like(tokens.tokens, -1)
    entities[0, 3] = 3  # the second `a` is the other
    return replace(tokens, entities=entities)


def test_every_mention_is_linked_to_one_of_its_candidates():
    system = made()
    assert isinstance(system, Link)
    found = system.link(batch())
    where = [(each.row, each.first, each.last) for each in found]
    assert where == [(0, 1, 1), (0, 1, 2), (0, 2, 2), (0, 3, 3), (1, 1, 1)]
    assert all(each.entity in (0, 3) for each in (found[0], found[3]))
    # `b` and `a b` may name one entity only, which then is sure.
    assert [(each.entity, each.probability) for each in found[1:3]] == [(2, 1.0), (1, 1.0)]
    assert all(each.probability >= 0.5 for each in found)


def test_what_is_hidden_is_in_no_mention():
    system = made(rate=0.4)
    clean = replace(batch(), entities=None)
    for seed in range(8):
        view = system.objective.view(clean, generator=torch.Generator().manual_seed(seed))
        assert view.spans is not None and view.targets is not None
        for row, first, last in zip(
            view.spans.rows, view.spans.first, view.spans.last, strict=True
        ):
            assert (view.targets[row, first : last + 1] == NO_TARGET).all()
    masked = torch.zeros_like(clean.tokens, dtype=torch.bool)
    masked[0, 2] = True
    shown = system.objective.fill_view(clean, masked).spans
    assert shown is not None
    assert shown.first.tolist() == [1, 3, 1]


def test_both_losses_are_summed_and_named():
    system = made(linking_weight=2.0)
    system.begin_step(system.linking_steps)
    loss, _ = system.loss(batch(), generator=torch.Generator().manual_seed(1))
    masked, linking = loss.parts["masked"], loss.parts["linking"]
    torch.testing.assert_close(loss.total, masked.total + 2 * linking.total)
    assert loss.count == masked.count and linking.count == 1
    # While the linker is trained it is all that counts, but only while it is trained.
    system.begin_step(0)
    system.train()
    alone, _ = system.loss(batch(), generator=torch.Generator().manual_seed(1))
    assert alone.count == 1 and set(alone.parts) == {"linking"}
    system.eval()
    held_out, _ = system.loss(batch(), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(held_out.total, loss.total)


def test_a_batch_that_tells_nothing_has_a_gradient_of_zero():
    system = made()
    system.begin_step(0)
    system.train()
    loss, _ = system.loss(replace(batch(), entities=None))
    loss.total.backward()
    gradients = [p.grad for p in system.memory.linking_parameters()]
    assert all(grad is not None and grad.abs().sum() == 0 for grad in gradients)


def test_mentions_are_revealed_where_they_begin():
    system = made()
    found = system.capture_internals(replace(batch(), entities=None))["linked mentions"]
    assert found.axes == ("batch", "time", "entity")
    assert found.names == {"entity": ("A", "B", "AB", "other")}
    # Place 1 has two mentions, of which the longer is shown, `a b`; <s> and </s> are none.
    sure = {(0, 1): "AB", (0, 2): "B", (1, 1): "B"}
    for (row, place), entity in sure.items():
        told = dict(zip(found.names["entity"], found.values[row, place].tolist(), strict=True))
        assert {name: share for name, share in told.items() if share >= 0} == {entity: 1.0}
    # `a` alone is A or the other, as `link` has it.
    [linked] = [each for each in system.link(batch()) if each.first == 3]
    shares = found.values[0, 3]
    assert shares[[1, 2]].isnan().all()
    assert float(shares[[0, 3]].sum()) == pytest.approx(1)
    assert float(shares[linked.entity]) == pytest.approx(linked.probability)
    assert found.values[0, [0, 4]].isnan().all() and found.values[1, [0, 2]].isnan().all()


def test_the_picture_of_mentions_names_entities():
    """Those that a mention may name and no others; a text without mentions has no picture."""
    labels = AxisLabels(token=TOKENS.__getitem__, tokens=("<s>", "b", "b", "</s>"))
    found = made().capture_internals(Batch.collate([[2, 6, 6, 3]], pad=0))
    drawn = capture_figure("linked mentions", found["linked mentions"], labels)
    assert drawn is not None
    assert drawn.draw.keywords["listing"].rows == (("b", "B 1.00"), ("b", "B 1.00"))
    none = made().capture_internals(Batch.collate([[2, 1, 3]], pad=0))["linked mentions"]
    assert capture_figure("linked mentions", none, labels) is None


def test_settings_that_do_not_fit_are_told():
    with pytest.raises(UserError, match="layers"):
        made(knowledge_layer=9)
    with pytest.raises(UserError, match="heads"):
        made(entity_width=9)
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
def test_settings_of_margins_count_by_margin_alone(name: str, value: float):
    told = f"{name}={value:g} does not apply to linking=softmax; .*linking=margin"
    with pytest.raises(UserError, match=told):
        made(**{name: value})
    system = made(linking="margin", **{name: value})
    by_margin = {
        "threshold": system.memory.linker.threshold,
        "margin": getattr(system.objective.linking, "margin", None),
    }
    assert by_margin == {"threshold": 0.0, "margin": 0.2} | {name: value}
