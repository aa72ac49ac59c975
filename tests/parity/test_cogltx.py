"""CogLTX held to brute force and to cases worked by hand (Ding et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.vocabulary import Vocabulary
from lmlab.tasks.long_context.blocks import BLOCK_COST, TextBlock, block_ends
from lmlab.tasks.long_context.memrecall import (
    LongText,
    MemoryBudget,
    WorkingMemory,
    mean_block_scores,
    mem_recall,
    random_blocks,
    relevance_labels,
    relevant_and_random,
)
from lmlab.tasks.long_context.memrecall_batches import reasoner_memory
from lmlab.tasks.long_context.relevance_labels import (
    initial_relevance,
    intervene,
    updated_relevance,
)

VOCABULARY = Vocabulary(size=60)
START, END = VOCABULARY.start, VOCABULARY.end


def text_of(*sizes: int, query: int = 1) -> LongText:
    """Blocks of the given sizes; block i has the tokens 10 i, 10 i + 1 …"""
    return LongText(
        query=TextBlock(tokens=(5,) * query, spans=((0, 0),) * query),
        blocks=tuple(
            TextBlock(tokens=tuple(range(10 * i, 10 * i + n)), spans=((0, 1),) * n)
            for i, n in enumerate(sizes)
        ),
    )


def brute_force(costs: Sequence[int], longest: int) -> int:
    """The least Σ (BLOCK_COST + cost of the end) over all segmentations."""
    positions = range(1, len(costs))
    result = []
    for count in range(len(costs)):
        for cuts in combinations(positions, count):
            ends = [*cuts, len(costs)]
            if all(b - a <= longest for a, b in pairwise([0, *ends])):
                result.append(sum(BLOCK_COST + costs[end - 1] for end in ends))
    return min(result)


@pytest.mark.parametrize("longest", [1, 2, 3, 5])
def test_block_split_has_minimal_cost(longest: int):
    generator = np.random.default_rng(longest)
    for _ in range(30):
        costs = [*generator.choice([0, 1, 2, 8], size=generator.integers(1, 10)).tolist(), 0]
        ends = block_ends(costs, longest)
        assert ends[-1] == len(costs)
        assert all(0 < b - a <= longest for a, b in pairwise([0, *ends]))
        assert sum(BLOCK_COST + costs[end - 1] for end in ends) == brute_force(costs, longest)


class FixedScorer:
    """A relevance scorer with given scores: of a block, conditioned on the blocks in memory."""

    def __init__(self, score: Callable[[int, tuple[int, ...]], float]) -> None:
        self.score, self.evaluated = score, []

    def __call__(self, memories: Sequence[WorkingMemory]) -> list[list[float]]:
        self.evaluated += [memory.numbers for memory in memories]
        return [[self.score(n, memory.numbers) for n in memory.numbers] for memory in memories]


def recalled(text: LongText, scorer: FixedScorer, longest: int, **settings: object):
    [result] = mem_recall(
        [text],
        scorer,
        MemRecallConfig(**settings),  # type: ignore[arg-type]
        max_length=longest,
        vocabulary=VOCABULARY,
    )
    return result


def test_two_steps_of_memrecall_by_hand():
    """Five blocks of 2 tokens, a query of 1, 12 tokens in all: <s> q </s> and three blocks of 3.

    Scores .1 .6 .2 .5 .4, but block 4 has .9 with block 3, and block 0 has .8 with block 4: it
    is found only through what the first step retained, as the second hop of a question is.
    """
    base = [0.1, 0.6, 0.2, 0.5, 0.4]

    def score(number: int, block_numbers: tuple[int, ...]) -> float:
        if number == 4 and 3 in block_numbers:
            return 0.9
        return 0.8 if number == 0 and 4 in block_numbers else base[number]

    scorer = FixedScorer(score)
    result = recalled(text_of(2, 2, 2, 2, 2), scorer, 12, retained_blocks=(1, 2))
    first, second = result.steps
    # Groups of neighbours: 0 1 2 | 3 4. The best three are 4 (.9), 1 (.6), 3 (.5); one stays.
    assert first.coarse == {0: 0.1, 1: 0.6, 2: 0.2, 3: 0.5, 4: 0.9}
    assert first.fine == {1: 0.6, 3: 0.5, 4: 0.9}
    assert first.kept == (4,)
    # With block 4 two more fit: 0 1 4 | 2 3 4. Then 0 (.8) and 1 (.6) join it; two stay, and
    # block 4 without block 3 has .4, less than both: it decays.
    assert scorer.evaluated == [(0, 1, 2), (3, 4), (1, 3, 4), (0, 1, 4), (2, 3, 4), (0, 1, 4)]
    assert second.coarse == {0: 0.8, 1: 0.6, 2: 0.2, 3: 0.5}
    assert second.fine == {0: 0.8, 1: 0.6, 4: 0.4}
    assert second.kept == result.memory.numbers == (0, 1)


def test_ungrouped_blocks_stop_at_the_first_that_overflows():
    """Blocks of 2, 5, 2 and 1 tokens, room for 9 with their ends: the best 2 + 1 and 5 + 1."""
    scorer = FixedScorer(lambda number, _: [0.9, 0.8, 0.7, 0.1][number])
    result = recalled(text_of(2, 5, 2, 1), scorer, 12, retained_blocks=(0,), grouped=False)
    assert scorer.evaluated == [(0,), (1,), (2,), (3,), (0, 1)]
    assert result.memory.numbers == (0, 1)
    assert result.scores == {0: 0.9, 1: 0.8}


def test_ties_are_broken_by_text_order():
    result = recalled(text_of(2, 2, 2, 2, 2), FixedScorer(lambda *_: 0.5), 12, retained_blocks=(2,))
    assert result.memory.numbers == (0, 1)


def test_relevance_labels_by_hand():
    """Query of 2 tokens, blocks 0 (2 tokens, irrelevant) and 2 (1 token, relevant)."""
    memory = WorkingMemory(text=text_of(2, 3, 1, query=2), numbers=(0, 2))
    labelled = relevance_labels(memory, [False, False, True], VOCABULARY)
    assert labelled.tokens == [START, 5, 5, END, 0, 1, END, 20, END]
    assert labelled.labels == [1, 1, 1, 1, 0, 0, 0, 1, 1]


def test_block_score_is_the_mean_of_its_tokens():
    memory = WorkingMemory(text=text_of(2, 3, 1, query=2), numbers=(0, 1))
    scores = np.array([9, 9, 9, 9, 0.2, 0.4, 9, 0.1, 0.2, 0.6, 9])
    assert mean_block_scores(scores, memory, VOCABULARY) == pytest.approx([0.3, 0.3])


def test_judge_training_blocks():
    """Budget for three blocks of 2 + 1 after <s> q </s>."""
    budget, text = MemoryBudget(longest=12, vocabulary=VOCABULARY), text_of(*[2] * 8)
    generator = np.random.default_rng(0)
    relevant = [number in (1, 6) for number in range(8)]
    starts, others = set(), set()
    for _ in range(60):
        segment = random_blocks(text, budget, generator).numbers
        assert segment == tuple(range(segment[0], segment[0] + 3))
        starts.add(segment[0])
        mixed = relevant_and_random(text, relevant, budget, generator).numbers
        assert {1, 6} < set(mixed) and len(mixed) == 3 and list(mixed) == sorted(mixed)
        others |= set(mixed) - {1, 6}
    assert starts == set(range(6))
    assert others == {0, 2, 3, 4, 5, 7}


def test_reasoner_training_blocks_are_relevant_and_top_scored():
    """Block 4 is certain, 1 is marked; of the best 3 (.9), 0 (.8), 2 (.1) one more is retained."""
    empty = WorkingMemory(text=text_of(*[2] * 5), numbers=())
    marks = [False, True, False, False, True]
    certain = [False, False, False, False, True]
    scores = {0: 0.8, 1: 0.0, 2: 0.1, 3: 0.9, 4: 0.0}
    budget = MemoryBudget(longest=20, vocabulary=VOCABULARY)
    result = reasoner_memory(empty, marks, certain, scores, budget, retained_count=3)
    assert result.numbers == (1, 3, 4)
    # Where two fit, the certain one and then the marked one.
    small = MemoryBudget(longest=9, vocabulary=VOCABULARY)
    assert reasoner_memory(empty, marks, certain, scores, small, retained_count=3).numbers == (1, 4)


@pytest.mark.parametrize(
    ("before", "increase", "after"),
    [
        (False, 0.3, True),
        (True, 0.3, True),
        (False, 0.1, False),  # between t_down and t_up the mark stays
        (True, 0.1, True),
        (True, 0.01, False),
        (False, -1.0, False),
    ],
)
def test_relevance_changes_only_outside_the_thresholds(before: bool, increase: float, after: bool):
    assert updated_relevance(before, increase, MemRecallConfig(t_up=0.2, t_down=0.05)) is after


def test_interventions_by_hand():
    """loss(z) = 1 without 0, + 0.5 without 2, - 0.1 without 3; block 1 is not in z, 4 is certain.

    With t_up = 0.2 and t_down = 0.05: taking 0 out costs 1 - 0 = 1 > t_up, so it is relevant; 2
    costs 0.1, in between, stays relevant; 3 costs -0.1, is not; 1 stays as it was.
    """
    costs = {0: 1.0, 2: 0.1, 3: -0.1, 4: 5.0}
    evaluated: list[tuple[int, ...]] = []

    def losses(memories: Sequence[WorkingMemory], rows: Sequence[int]) -> list[float]:
        assert set(rows) <= {0}
        evaluated.extend(memory.numbers for memory in memories)
        return [sum(c for n, c in costs.items() if n not in m.numbers) for m in memories]

    memory = WorkingMemory(text=text_of(*[2] * 5), numbers=(0, 2, 3, 4))
    [marks] = intervene(
        [memory],
        [[False, True, True, True, False]],
        [[False, False, False, False, True]],
        losses,
        MemRecallConfig(t_up=0.2, t_down=0.05),
    )
    assert marks == [True, True, True, False, True]
    assert evaluated == [(0, 2, 3, 4), (2, 3, 4), (0, 3, 4), (0, 2, 4)]


def test_initial_relevance_prefers_rare_shared_tokens():
    """Token 7 is in one block, token 8 in two, token 9 in all; 4 of 5 blocks are alike else."""
    blocks = [(9, 1), (9, 8), (9, 7), (9, 8), (9, 2)]
    text = LongText(
        query=TextBlock(tokens=(7, 8), spans=((0, 0),) * 2),
        blocks=tuple(TextBlock(tokens=tokens, spans=((0, 1),) * 2) for tokens in blocks),
    )
    generator = np.random.default_rng(0)
    assert initial_relevance(text, 1, generator) == [False, False, True, False, False]
    assert initial_relevance(text, 3, generator) == [False, True, True, True, False]
    # Blocks without a shared token are not marked, however many are requested.
    assert initial_relevance(text, 5, generator) == [False, True, True, True, False]
    assert initial_relevance(LongText(query=text.query, blocks=()), 2, generator) == []
    nothing = LongText(query=TextBlock(tokens=(), spans=()), blocks=text.blocks)
    assert sum(initial_relevance(nothing, 2, generator)) == 2


def test_default_block_length_is_that_of_the_paper():
    assert MemRecallConfig().block_length(512) == MemRecallConfig().block_length(511) == 63
    assert MemRecallConfig(block_size=20).block_length(512) == 20
