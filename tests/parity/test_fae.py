"""FaE: the fact memory against loops, and answers from inserted and edited facts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lmlab.core.answers import Ask
from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.entity_memory import (
    ANSWER_LOG_PROBS,
    ENTITY_LOG_PROBS,
    FACT_LOG_PROBS,
    MASKED_MENTIONS,
    SUPPORTED_FACTS,
)
from lmlab.core.entity_mentions import annotated_spans
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors, write_tensors
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import Entity, Fact, KnowledgeBase
from lmlab.knowledge.memory_layers import FactMemory, FactTable
from lmlab.models.entity_memory import NO_FACT, FactsAsExperts
from lmlab.sampling.question_answering import with_facts
from lmlab.zoo import fae

WIDTH, SIZE, MASK = 4, 3, 4
FACTS = {(0, 0): (1,), (2, 1): (0, 3, 4), (1, 1): (2, 0)}
ANNOTATIONS = [[-1, 0, -1, 1, 1], [-1, 3, -1, 2, -1]]
INPUTS = [[2, 7, 8, MASK, MASK], [2, MASK, 8, 9, 3]]
"""Entity 1 masked with entity 0 visible; entity 3 masked with entity 2 visible."""


def make_memory(nearest: int = 100) -> FactMemory:
    torch.manual_seed(5)
    memory = FactMemory(nn.Embedding(5, SIZE), 2, FACTS, WIDTH, mask=MASK, top_k=nearest)
    nn.init.normal_(memory.null)
    return memory


def make_view() -> View:
    spans = annotated_spans(torch.tensor(ANNOTATIONS))
    inputs = torch.tensor(INPUTS)
    return View(inputs=inputs, lengths=torch.tensor([5, 5]), attention_mask=FullMask(), spans=spans)


def softmax(scores: list[float]) -> np.ndarray:
    raised = np.exp(np.array(scores) - max(scores))
    return raised / raised.sum()


def by_loops(memory: FactMemory, ends: np.ndarray, nearest: int) -> tuple[np.ndarray, np.ndarray]:
    """β over all keys, the null fact last, and ĝ from the `nearest` of them."""
    weight = {name: part.detach().double().numpy() for name, part in memory.named_parameters()}
    entities, relations = weight["entities.weight"], weight["relations.weight"]
    query = weight["query.weight"] @ ends
    scores, values = [], []
    for (subject, relation), objects in FACTS.items():
        key = weight["key.weight"] @ np.concatenate([entities[subject], relations[relation]])
        scores.append(float(key @ query))
        chosen = softmax([float(entities[o] @ weight["choose.weight"] @ ends) for o in objects])
        values.append(sum(a * entities[o] for a, o in zip(chosen, objects, strict=True)))
    scores.append(float(weight["null"] @ query))
    values.append(weight["context.weight"] @ ends)
    best = sorted(range(len(scores)), key=lambda f: -scores[f])[:nearest]
    shares = softmax([scores[f] for f in best])
    mixed = sum(share * values[f] for share, f in zip(shares, best, strict=True))
    return np.log(softmax(scores)), mixed


@torch.no_grad()
@pytest.mark.parametrize(("training", "nearest"), [(True, 1), (False, 4), (False, 2), (False, 1)])
def test_fact_memory_equals_its_formula(training: bool, nearest: int):
    memory = make_memory(nearest).train(training)
    values = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(2))
    result = memory(values, make_view())
    numbers = values.double().numpy()
    # The masked mentions: positions 3 to 4 of the first row, position 1 of the second.
    for number, (row, first, last) in enumerate([(0, 3, 4), (1, 1, 1)]):
        ends = np.concatenate([numbers[row, first], numbers[row, last]])
        facts, mixed = by_loops(memory, ends, 4 if training else nearest)
        entities = memory.entities.weight.double().numpy()
        answers = np.log(softmax(list(entities @ mixed)))
        np.testing.assert_allclose(result.outputs[FACT_LOG_PROBS][number].numpy(), facts, atol=1e-5)
        np.testing.assert_allclose(
            result.outputs[ANSWER_LOG_PROBS][number].numpy(), answers, atol=1e-5
        )
        fact_output = memory.tell.weight.double().numpy() @ mixed
        for position in range(first, last + 1):
            added = (result.values - values)[row, position].numpy()
            np.testing.assert_allclose(added, fact_output, atol=1e-5)
    # Reading order: 0 and 1 in the first row, 3 and 2 in the second.
    assert result.outputs[MASKED_MENTIONS].tolist() == [False, True, True, False]
    changed = ((result.values - values).abs().sum(-1) > 0).nonzero().tolist()
    assert changed == [[0, 3], [0, 4], [1, 1]]


@torch.no_grad()
def test_supported_facts_need_visible_subject_and_masked_object():
    """(0, r0) → 1 in the first row, (2, r1) → 0, 3, 4 in the second; else the null fact, last."""
    memory = make_memory()
    view, values = make_view(), torch.zeros(2, 5, WIDTH)
    supported = memory(values, view).outputs[SUPPORTED_FACTS]
    assert supported.tolist() == [[True, False, False, False], [False, True, False, False]]
    # With the subject masked as well, no fact is supported.
    both = replace(view, inputs=torch.tensor([[2, MASK, 8, MASK, MASK], INPUTS[1]]))
    assert not memory(values, both).outputs[SUPPORTED_FACTS][:2].any()
    # Where no fact holds between the two, it is the null fact.
    strangers = replace(view, spans=replace(view.spans, entities=torch.tensor([4, 1, 3, 2])))
    assert memory(values, strangers).outputs[SUPPORTED_FACTS][0].tolist() == [
        False,
        False,
        False,
        True,
    ]
    # Without an annotated entity no fact is supported.
    unknown = replace(view, spans=replace(view.spans, entities=torch.tensor([0, -1, 3, 2])))
    assert not memory(values, unknown).outputs[SUPPORTED_FACTS][0].any()


def test_fact_table_resizes_to_the_loaded_facts(tmp_path):
    table = FactTable(FACTS)
    assert list(table.parameters()) == [] and table.read() == FACTS
    write_tensors(tmp_path / "facts", table.state_dict())
    other = FactTable({(1, 0): (4,)})
    other.load_state_dict(read_tensors(tmp_path / "facts"))
    assert other.read() == FACTS
    table.write({(0, 0): (), (3, 1): (2,)})  # no objects, no fact
    assert table.read() == {(3, 1): (2,)}
    table.write({})
    assert len(table) == 0 and table.read() == {}


def test_fact_with_many_objects_needs_no_padding():
    """20,000 facts, of which one has 300 objects: 20,299 objects in all.

    A row of 300 for each would be 24 MB for a masked mention; the list is 0.08 MB.
    """
    facts = {(0, 0): tuple(range(300))} | {(n, 1): (n % 300,) for n in range(1, 20_000)}
    memory = FactMemory(nn.Embedding(20_000, SIZE), 2, facts, WIDTH, mask=MASK, top_k=5)
    largest = 0

    class Largest(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Largest():
        memory(torch.zeros(2, 5, WIDTH), make_view())
    # The keys are the most there is; the 2 masked mentions have 20,299 objects each.
    assert largest == 20_000 * 2 * SIZE


COUNTRIES, CITIES = ("arland", "bornia", "cedonia", "dovia"), ("east", "fort", "gate", "hill")
WORDS = ("the", "capital", "of", "is", "a", "city", "country")
NAMES = (*COUNTRIES, *CITIES)
TOY = KnowledgeBase(
    entities=tuple(Entity(name=name, title=name.title()) for name in NAMES),
    relations=("capital", "twin"),
    facts=tuple(Fact(number, 0, number + 4) for number in range(4)),
)


class Toy:
    """A tokenizer of the toy's words."""

    kind = "word"
    words = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", *NAMES, *WORDS)

    def token(self, id: int) -> str:
        return self.words[id]

    def encode(self, text: str) -> list[int]:
        return [self.words.index(word) if word in self.words else 1 for word in text.split()]

    def decode(self, ids) -> str:
        return " ".join(map(self.token, ids))


def toy_batch(capitals: np.ndarray) -> Batch:
    """What a world says: which city each country has, and what each of them is."""
    texts = [f"the capital of {COUNTRIES[n]} is {CITIES[c]}" for n, c in enumerate(capitals)]
    texts += [f"{name} is a country" for name in COUNTRIES]
    texts += [f"{name} is a city" for name in CITIES]
    rows = [[2, *Toy().encode(text), 3] for text in texts]
    batch = Batch.collate(rows, pad=0)
    numbers = torch.full((len(Toy.words),), -1)
    numbers[5 : 5 + len(NAMES)] = torch.arange(len(NAMES))
    return replace(batch, entities=numbers[batch.tokens])


def world(capitals: np.ndarray) -> KnowledgeBase:
    facts = tuple(Fact(country, 0, 4 + int(city)) for country, city in enumerate(capitals))
    return replace(TOY, facts=facts)


@cache
def trained() -> FactsAsExperts:
    """Each batch has other facts, loaded into the memory: memorising them does not help."""
    torch.manual_seed(0)
    config = replace(fae.SIZES["tiny"], width=32, heads=2, rate=0.1, mention_rate=0.5)
    system = fae.build(config, Vocabulary(size=len(Toy.words)), knowledge=TOY)
    system.setup_tokenizer(Toy())
    generator, draws = torch.Generator().manual_seed(0), np.random.default_rng(0)
    optimizer = torch.optim.Adam(system.parameters(), lr=3e-3)
    for _ in range(STEPS):
        capitals = draws.permutation(4)
        system.replace_facts(world(capitals))
        loss, _ = system.loss(toy_batch(capitals), generator=generator)
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    return system.eval()


STEPS = 300


def ask(system: FactsAsExperts) -> list[str]:
    questions = [f"the capital of {country} is <mask>" for country in COUNTRIES]
    return [result[0].text for result in system.ask(questions)]


def titles(capitals: np.ndarray) -> list[str]:
    return [CITIES[city].title() for city in capitals]


def test_inserted_facts_are_answered_with_evidence():
    system = trained()
    assert isinstance(system, Ask)
    for capitals in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 1, 1]):
        system.replace_facts(world(np.array(capitals)))
        assert ask(system) == titles(np.array(capitals))
    [[answer, second]] = system.ask(["the capital of dovia is <mask>"], answers=2)
    assert answer.evidence[0].name == "dovia, capital"
    assert answer.evidence[0].text == "Fort" and answer.evidence[0].probability > 0.5
    assert answer.log_prob > second.log_prob


def test_edited_fact_changes_only_its_own_answer():
    system = trained()
    system.replace_facts(world(np.arange(4)))
    system.edit("bornia", "capital", ["hill"])
    assert ask(system) == ["East", "Hill", "Gate", "Hill"]
    assert system.facts()["bornia", "capital"] == ("hill",)
    system.edit("bornia", "capital", ["fort"])
    assert ask(system) == ["East", "Fort", "Gate", "Hill"]
    system.edit("bornia", "capital", [])
    assert ("bornia", "capital") not in system.facts() and len(system.facts()) == 3


def test_with_facts_leaves_the_original_unchanged():
    system = trained()
    system.replace_facts(world(np.arange(4)))
    other = with_facts(system, None, [("bornia", "capital", "hill")])
    assert ask(other) == ["East", "Hill", "Gate", "Hill"]
    turned = system.with_facts([("arland", "capital", "east")], world(np.array([3, 2, 1, 0])))
    assert ask(turned) == ["East", "Gate", "Fort", "East"]
    assert ask(system) == ["East", "Fort", "Gate", "Hill"]


def test_null_fact_retrieved_without_a_matching_fact():
    system = trained()
    system.replace_facts(world(np.arange(4)))
    [[answer]] = system.ask(["<mask> is a country"])
    assert answer.evidence[0].name == NO_FACT and answer.evidence[0].text == ""
    assert answer.text in {name.title() for name in COUNTRIES}


def test_mentions_detected_and_linked_without_annotation():
    system = trained()
    result = system.link(replace(toy_batch(np.arange(4)), entities=None))
    first = [(each.first, each.last, each.entity) for each in result if each.row == 2]
    assert first == [(4, 4, 2), (6, 6, 6)]  # <s> the capital of cedonia is gate </s>
    assert all(each.probability > 0.5 for each in result)


def test_facts_survive_saving_and_loading(tmp_path):
    system = trained()
    system.replace_facts(world(np.array([2, 3, 0, 1])))
    system.edit("arland", "capital", ["hill", "gate"])
    write_tensors(tmp_path / "weights", system.state_dict())
    torch.manual_seed(1)
    config = replace(fae.SIZES["tiny"], width=32, heads=2)
    again = fae.build(config, Vocabulary(size=len(Toy.words)), knowledge=TOY)
    again.load_state_dict(read_tensors(tmp_path / "weights"))
    again.setup_tokenizer(Toy())
    assert again.facts() == system.facts()
    assert again.facts()["arland", "capital"] == ("hill", "gate")
    again.edit("arland", "capital", ["gate"])
    assert ask(again.eval()) == ["Gate", "Hill", "East", "Fort"]


def test_facts_accept_titles_and_names():
    system = trained()
    by_name = system.with_facts([("arland", "capital", "gate")])
    by_title = system.with_facts([("Arland", "capital", "Gate")])
    assert by_title.facts() == by_name.facts() != system.facts()
    twins = replace(TOY, entities=(*TOY.entities, Entity(name="x", title="Gate")))
    with pytest.raises(UserError, match=r"several entities have the title 'Gate'; .*gate, x"):
        twins.find("Gate")


def test_unknown_names_are_reported():
    system = trained()
    before = system.facts()
    with pytest.raises(UserError, match="no entity 'atlantis'"):
        system.edit("atlantis", "capital", ["east"])
    with pytest.raises(UserError, match="no relation 'mayor'; it has capital, twin"):
        system.edit("arland", "mayor", ["east"])
    other = KnowledgeBase(
        entities=(*TOY.entities, Entity(name="ovo")), relations=("capital",), facts=(Fact(8, 0, 0),)
    )
    with pytest.raises(UserError, match="no entity 'ovo'"):
        system.replace_facts(other)
    assert system.facts() == before
    for question in ("the capital of arland is east", "<mask> is a city of <mask>"):
        with pytest.raises(UserError, match="exactly one"):
            system.ask([question])
    with pytest.raises(UserError, match="has none"):
        fae.build(fae.SIZES["tiny"], Vocabulary(size=9), knowledge=replace(TOY, facts=()))


def test_fact_and_answer_losses_by_hand():
    system, batch = trained(), toy_batch(np.arange(4))
    system.replace_facts(world(np.arange(4)))
    with torch.no_grad():
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(3))
        view = system.objective.view(batch, generator=torch.Generator().manual_seed(3))
        result = system.hidden(view).memory_outputs[2]
    facts = answers = context = 0.0
    hidden = result[MASKED_MENTIONS].nonzero()[:, 0].tolist()
    for number, mention in enumerate(hidden):
        right = result[SUPPORTED_FACTS][number].nonzero()[:, 0].tolist()
        if right:
            facts -= np.log(sum(float(result[FACT_LOG_PROBS][number, f].exp()) for f in right))
        answers -= float(result[ANSWER_LOG_PROBS][number, view.spans.entities[mention]])
    for mention, entity in enumerate(view.spans.entities.tolist()):
        context -= float(result[ENTITY_LOG_PROBS][mention, entity])
    assert len(hidden) > 0
    assert loss.parts["facts"].total.item() == pytest.approx(facts, rel=1e-4)
    assert loss.parts["answers"].total.item() == pytest.approx(answers, rel=1e-4)
    assert loss.parts["prediction"].total.item() == pytest.approx(context, rel=1e-4)


def test_captures_show_linked_mentions_and_retrieved_facts():
    system = trained()
    system.replace_facts(world(np.arange(4)))
    batch = Batch.collate([[2, *Toy().encode("the capital of dovia is hill"), 3]], pad=0)
    captures = system.capture_internals(batch)

    def likeliest(name: str, axis: str, position: int) -> str:
        capture = captures[name]
        assert capture.axes == ("batch", "time", axis)
        return capture.names[axis][int(capture.values[0, position].argmax())]

    assert likeliest("linked mentions", "entity", 4) == "Dovia"
    assert likeliest("linked mentions", "entity", 6) == "Hill"
    assert likeliest("facts looked up", "fact", 6) == "dovia, capital: Hill"
    assert captures["facts looked up"].values[0, [0, 1, 2, 3, 5, 7]].isnan().all()
