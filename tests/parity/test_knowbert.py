"""KAR worked by loops in numpy, step by step, and its losses by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.entity_mentions import MentionSpans
from lmlab.core.view import View
from lmlab.knowledge.entity_embeddings import EntityEmbeddings
from lmlab.knowledge.knowledge_attention import KnowledgeAttention, candidate_weights
from lmlab.knowledge.knowledge_base import Entity, KnowledgeBase
from lmlab.objectives.entity_linking_loss import MarginLinkingLoss, SoftmaxLinkingLoss, linking_loss

WIDTH, ENTITY_WIDTH, HEADS, ENTITIES = 6, 4, 2, 5
NONE = -1
THRESHOLD = -10.0
"""Above some of the scores that the weights below happen to give."""


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


@pytest.fixture
def memory() -> KnowledgeAttention:
    torch.manual_seed(0)
    knowledge = KnowledgeBase(entities=tuple(Entity(name=str(n)) for n in range(ENTITIES)))
    vectors = EntityEmbeddings(knowledge, "graph", ENTITY_WIDTH, gloss_width=1)
    made = KnowledgeAttention(
        WIDTH, vectors, entity_width=ENTITY_WIDTH, heads=HEADS, threshold=THRESHOLD
    ).double()
    with torch.no_grad():  # far from what it starts as, so that nothing is zero or one by chance
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        vectors.vectors.normal_()
    return made


# Rows: a mention at positions 1 to 2 and one at 2 in the first, one at 0 in the second; the last
# row has none. The second mention has one candidate, the third three.
SPANS = MentionSpans(
    rows=torch.tensor([0, 0, 1]),
    first=torch.tensor([1, 2, 0]),
    last=torch.tensor([2, 2, 0]),
    entities=torch.tensor([3, NONE, 0]),
    candidates=torch.tensor([[3, 1, NONE], [2, NONE, NONE], [4, 1, 0]]),
    priors=torch.tensor([[0.75, 0.25, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25]]).double(),
)


def view() -> View:
    tokens = torch.zeros(3, 4, dtype=torch.long)
    lengths = torch.tensor([4, 4, 4])
    return View(inputs=tokens, lengths=lengths, attention_mask=FullMask(), spans=SPANS)


def hidden() -> torch.Tensor:
    return torch.randn(3, 4, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def linear(layer, vector: np.ndarray) -> np.ndarray:
    result = numbers(layer.weight) @ vector
    return result if layer.bias is None else result + numbers(layer.bias)


def softmax(scores: Sequence[float]) -> np.ndarray:
    powers = np.exp(np.array(scores) - max(scores))
    return powers / powers.sum()


def gelu(vector: np.ndarray) -> np.ndarray:
    return np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in vector])


def norm(layer, vector: np.ndarray) -> np.ndarray:
    centred = vector - vector.mean()
    scaled = centred / math.sqrt((centred**2).mean() + layer.eps)
    return scaled * numbers(layer.weight) + numbers(layer.bias)


def feed_forward(layer, vector: np.ndarray) -> np.ndarray:
    return linear(layer.down_projection, gelu(linear(layer.up_projection, vector)))


def attend(attention, query_input: np.ndarray, context: list[np.ndarray]) -> np.ndarray:
    """Attention of one vector to others, head by head."""
    size = ENTITY_WIDTH // HEADS
    weight, bias = numbers(attention.qkv_projection.weight), numbers(attention.qkv_projection.bias)
    part = {
        name: (weight[at * ENTITY_WIDTH :][:ENTITY_WIDTH], bias[at * ENTITY_WIDTH :][:ENTITY_WIDTH])
        for at, name in enumerate(("query", "key", "value"))
    }

    def mapped(name: str, vector: np.ndarray, head: int) -> np.ndarray:
        return (part[name][0] @ vector + part[name][1])[head * size : (head + 1) * size]

    heads = []
    for head in range(HEADS):
        query = mapped("query", query_input, head)
        scores = [query @ mapped("key", each, head) / math.sqrt(size) for each in context]
        values = [mapped("value", each, head) for each in context]
        heads.append(sum(w * v for w, v in zip(softmax(scores), values, strict=True)))
    return linear(attention.output, np.concatenate(heads))


def step_1(memory, values: np.ndarray) -> np.ndarray:
    return np.array([[linear(memory.project, position) for position in row] for row in values])


def step_2(memory, projected: np.ndarray) -> list[np.ndarray]:
    result = []
    for row, first, last in zip(SPANS.rows, SPANS.first, SPANS.last, strict=True):
        positions = projected[row, first : last + 1]
        scores = [
            float((numbers(memory.linker.pooling.score.weight) @ x).item()) for x in positions
        ]
        result.append(sum(a * x for a, x in zip(softmax(scores), positions, strict=True)))
    return result


def step_3(memory, pooled: list[np.ndarray]) -> list[np.ndarray]:
    block, rows, result = memory.linker.block, SPANS.rows.tolist(), []
    for row, vector in zip(rows, pooled, strict=True):
        same = [other for at, other in zip(rows, pooled, strict=True) if at == row]
        attended = norm(block.mixer_connection.norm, vector + attend(block.mixer, vector, same))
        ffn_output = attended + feed_forward(block.feed_forward, attended)
        result.append(norm(block.feed_forward_connection.norm, ffn_output))
    return result


def step_4(memory, mentions: list[np.ndarray]) -> tuple[list[list[float]], list[np.ndarray]]:
    """ψ of the candidates of each mention, and ẽ."""
    linker, every, mixed = memory.linker, [], []
    table = numbers(linker.entities.vectors)
    for mention, (vector, candidates) in enumerate(zip(mentions, SPANS.candidates, strict=True)):
        real = [int(c) for c in candidates if c != NONE]
        entities = [linear(linker.entities.project, table[c]) for c in real]
        scores = []
        for position, entity in enumerate(entities):
            given = np.array([float(SPANS.priors[mention, position]), vector @ entity])
            units = np.maximum(linear(linker.scores.widen, given), 0)
            scores.append(float(linear(linker.scores.narrow, units).item()))
        selected = [position for position, score in enumerate(scores) if score >= linker.threshold]
        if selected:
            weights = softmax([scores[position] for position in selected])
            mixed.append(sum(w * entities[p] for w, p in zip(weights, selected, strict=True)))
        else:
            mixed.append(numbers(memory.null))
        every.append(scores)
    return every, mixed


def steps_6_and_7(memory, values, projected, enhanced) -> np.ndarray:
    result = np.zeros_like(values)
    for row in range(len(values)):
        row_mentions = [s for at, s in zip(SPANS.rows, enhanced, strict=True) if at == row]
        for position in range(values.shape[1]):
            read = attend(
                memory.attention, projected[row, position], [numbers(memory.null), *row_mentions]
            )
            inner = norm(memory.feed_forward_connection.norm, read)
            read = read + feed_forward(memory.feed_forward, inner)
            result[row, position] = linear(memory.back, read) + values[row, position]
    return result


def test_kar_equals_numpy_step_by_step(memory):
    values, output = hidden(), memory(hidden(), view())
    projected = step_1(memory, numbers(values))
    mentions = step_3(memory, step_2(memory, projected))
    torch.testing.assert_close(
        memory.linker.mention_vectors(memory.project(values), SPANS),
        torch.from_numpy(np.array(mentions)),
        atol=1e-10,
        rtol=0,
    )
    scores, mixed = step_4(memory, mentions)
    for row, each in zip(output.outputs["scores"].tolist(), scores, strict=True):
        assert row[: len(each)] == pytest.approx(each, abs=1e-10)
        assert set(row[len(each) :]) <= {-math.inf}
    # Both sides of the threshold come in this case, or it would show less than it says.
    every = [score for each in scores for score in each]
    assert min(every) < THRESHOLD < max(every) and any(max(each) < THRESHOLD for each in scores)
    enhanced = [s + e for s, e in zip(mentions, mixed, strict=True)]  # step 5
    expected = steps_6_and_7(memory, numbers(values), projected, enhanced)
    torch.testing.assert_close(output.values, torch.from_numpy(expected), atol=1e-10, rtol=0)
    for chosen, each, candidates in zip(
        output.outputs["chosen"].tolist(), scores, SPANS.candidates.tolist(), strict=True
    ):
        best = int(np.argmax(each))
        assert chosen == (candidates[best] if each[best] >= THRESHOLD else NONE)


def test_null_entity_used_when_no_candidate_passes_threshold(memory):
    memory.linker.threshold = 1e6
    output = memory(hidden(), view())
    assert output.outputs["chosen"].tolist() == [NONE] * 3
    assert output.outputs["weights"].abs().sum() == 0
    output.values.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in memory.parameters())
    with torch.no_grad():
        memory.null.add_(1.0)
    assert (memory(hidden(), view()).values != output.values).all()


def test_candidate_weights_are_a_softmax_above_threshold():
    """Of scores 0, ln 3 and -1 the last is below 0: 1/4 and 3/4; of -1 and -2 both are."""
    none = -math.inf
    scores = torch.tensor([[0.0, math.log(3), -1.0], [-1.0, -2.0, none]])
    kept = candidate_weights(scores, 0.0)
    torch.testing.assert_close(kept, torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]))
    # Without a threshold e^-1 : e^-2 is e : 1.
    share = math.e / (1 + math.e)
    every = candidate_weights(scores, None)[1].tolist()
    assert every == pytest.approx([share, 1 - share, 0.0], abs=1e-6)


def test_back_projection_initialised_as_pseudo_inverse(memory):
    """W₁ W₂ is a projection: there and back twice is there and back once; and from E it is 1."""
    memory.align()
    there, back = memory.project.weight.T, memory.back.weight.T
    torch.testing.assert_close(back @ there, torch.eye(ENTITY_WIDTH).double(), atol=1e-9, rtol=0)
    around = there @ back
    torch.testing.assert_close(around @ around, around, atol=1e-9, rtol=0)
    assert torch.linalg.matrix_rank(around) == ENTITY_WIDTH
    assert memory.back.bias.abs().sum() == 0


def test_initial_kar_output_is_close_to_its_input():
    """The added entity information is small at initialisation, relative to a hidden state."""
    torch.manual_seed(0)
    knowledge = KnowledgeBase(entities=tuple(Entity(name=str(n)) for n in range(ENTITIES)))
    vectors = EntityEmbeddings(knowledge, "graph", 32, gloss_width=1)
    vectors.setup_vectors(None, torch.zeros(1, 1), unknown=None)
    made = KnowledgeAttention(64, vectors, entity_width=32, heads=4)
    values = torch.nn.functional.layer_norm(torch.randn(3, 4, 64), (64,))
    spans = MentionSpans(**{**SPANS.__dict__, "priors": SPANS.priors.float()})
    linked_view = View(**{**view().__dict__, "spans": spans})
    added = made(values, linked_view).values - values
    assert 0 < added.norm() < 0.2 * values.norm()


def test_initial_entity_prior_effect_at_large_width():
    """ψ of a prior of 1 and of 0 differ by a sum over some 50 of 100 units of two weights, with
    standard deviations 0.2/√12 and √2/√12: about 0.06 · 0.41 · √50 = 0.17. With the 0.05 of the
    layers around it would be 0.05² · √50 = 0.02."""
    torch.manual_seed(0)
    knowledge = KnowledgeBase(entities=tuple(Entity(name=str(n)) for n in range(ENTITIES)))
    differences = []
    for _ in range(20):
        vectors = EntityEmbeddings(knowledge, "graph", 128, gloss_width=1)
        made = KnowledgeAttention(128, vectors, entity_width=128, heads=4)
        with torch.no_grad():
            low, high = made.linker.scores(torch.tensor([0.0, 1.0]), torch.zeros(2)).tolist()
        differences.append(abs(high - low))
    assert np.mean(differences) > 0.05


SCORES = torch.tensor([[1.0, 0.1, -math.inf], [0.5, -math.inf, -math.inf], [-0.1, 0.3, 0.0]])


def test_softmax_linking_loss_by_hand():
    """Mention 0 names its first candidate, mention 2 its third, mention 1 has no annotation."""
    result = linking_loss(SoftmaxLinkingLoss(), SCORES.double(), SPANS)
    first = -math.log(math.exp(1.0) / (math.exp(1.0) + math.exp(0.1)))
    third = -math.log(1 / (math.exp(-0.1) + math.exp(0.3) + 1))
    assert result.total.item() == pytest.approx(first + third, abs=1e-6)
    assert result.count.item() == 2


def test_margin_linking_loss_by_hand():
    """γ = 0.2. Mention 0: max(0, 0.2 - 1) + max(0, 0.2 + 0.1) = 0.3.
    Mention 2: max(0, 0.2 - 0) + max(0, 0.2 - 0.1) + max(0, 0.2 + 0.3) = 0.2 + 0.1 + 0.5."""
    result = linking_loss(MarginLinkingLoss(0.2), SCORES.double(), SPANS)
    assert result.total.item() == pytest.approx(0.3 + 0.8, abs=1e-6)
    assert result.count.item() == 2


def test_gold_entity_outside_candidates_adds_no_loss():
    spans = MentionSpans(**{**SPANS.__dict__, "entities": torch.tensor([4, NONE, NONE])})
    result = linking_loss(SoftmaxLinkingLoss(), SCORES, spans)
    assert (result.total.item(), result.count.item()) == (0.0, 0.0)
