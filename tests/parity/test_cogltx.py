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
    """Blocks of so many tokens; block i has the tokens 10 i, 10 i + 1 …"""
    return LongText(
        query=TextBlock(tokens=(5,) * query, spans=((0, 0),) * query),
        blocks=tuple(
            TextBlock(tokens=tuple(range(10 * i, 10 * i + n)), spans=((0, 1),) * n)
            for i, n in enumerate(sizes)
        ),
    )


def brute_force(costs: Sequence[int], longest: int) -> int:
    """The least Σ (EACH + cost of the end) over every way to cut."""
    places = range(1, len(costs))
    found = []
    for count in range(len(costs)):
        for cuts in combinations(places, count):
            ends = [*cuts, len(costs)]
            if all(b - a <= longest for a, b in pairwise([0, *ends])):
                found.append(sum(BLOCK_COST + costs[end - 1] for end in ends))
    return min(found)


@pytest.mark.parametrize("longest", [1, 2, 3, 5])
def test_blocks_are_the_cheapest_of_all_cuts(longest: int):
    generator = np.random.default_rng(longest)
    for _ in range(30):
        costs = [*generator.choice([0, 1, 2, 8], size=generator.integers(1, 10)).tolist(), 0]
        ends = block_ends(costs, longest)
        assert ends[-1] == len(costs)
        assert all(0 < b - a <= longest for a, b in pairwise([0, *ends]))
        assert sum(BLOCK_COST + costs[end - 1] for end in ends) == brute_force(costs, longest)


class Given:
    """A judge whose scores are given: of each block, in the company of which blocks."""

    def __init__(self, score: Callable[[int, tuple[int, ...]], float]) -> None:
        self.score, self.asked = score, []

    def __call__(self, memories: Sequence[WorkingMemory]) -> list[list[float]]:
        self.asked += [memory.numbers for memory in memories]
        return [[self.score(n, memory.numbers) for n in memory.numbers] for memory in memories]


def recalled(text: LongText, judge: Given, longest: int, **settings: object):
    [found] = mem_recall(
        [text],
        judge,
        MemRecallConfig(**settings),  # type: ignore[arg-type]
        longest=longest,
        vocabulary=VOCABULARY,
    )
    return found


def test_two_steps_of_memrecall_by_hand():
    """Five blocks of 2 tokens, a query of 1, 12 tokens in all: <s> q </s> and three blocks of 3.

    Scores .1 .6 .2 .5 .4, but block 4 has .9 beside block 3, and block 0 has .8 beside block 4: it
    is found only by what the first step kept, as the second hop of a question is.
    """
    base = [0.1, 0.6, 0.2, 0.5, 0.4]

    def score(number: int, company: tuple[int, ...]) -> float:
        if number == 4 and 3 in company:
            return 0.9
        return 0.8 if number == 0 and 4 in company else base[number]

    judge = Given(score)
    found = recalled(text_of(2, 2, 2, 2, 2), judge, 12, retained_blocks=(1, 2))
    first, second = found.steps
    # Groups of neighbours: 0 1 2 | 3 4. The best three are 4 (.9), 1 (.6), 3 (.5); one stays.
    assert first.coarse == {0: 0.1, 1: 0.6, 2: 0.2, 3: 0.5, 4: 0.9}
    assert first.fine == {1: 0.6, 3: 0.5, 4: 0.9}
    assert first.kept == (4,)
    # Beside block 4 two more fit: 0 1 4 | 2 3 4. Then 0 (.8) and 1 (.6) join it; two stay, and
    # block 4 without block 3 has .4, less than both: it decays.
    assert judge.asked == [(0, 1, 2), (3, 4), (1, 3, 4), (0, 1, 4), (2, 3, 4), (0, 1, 4)]
    assert second.coarse == {0: 0.8, 1: 0.6, 2: 0.2, 3: 0.5}
    assert second.fine == {0: 0.8, 1: 0.6, 4: 0.4}
    assert second.kept == found.memory.numbers == (0, 1)


def test_blocks_alone_fill_up_to_the_first_that_does_not_fit():
    """Blocks of 2, 5, 2 and 1 tokens, room for 9 with their ends: the best 2 + 1 and 5 + 1."""
    judge = Given(lambda number, _: [0.9, 0.8, 0.7, 0.1][number])
    found = recalled(text_of(2, 5, 2, 1), judge, 12, retained_blocks=(0,), grouped=False)
    assert judge.asked == [(0,), (1,), (2,), (3,), (0, 1)]
    assert found.memory.numbers == (0, 1)
    assert found.scores == {0: 0.9, 1: 0.8}


def test_equal_scores_are_settled_by_the_order_of_the_text():
    found = recalled(text_of(2, 2, 2, 2, 2), Given(lambda *_: 0.5), 12, retained_blocks=(2,))
    assert found.memory.numbers == (0, 1)


def test_the_judges_labels_by_hand():
    """Query of 2 tokens, blocks 0 (2 tokens, irrelevant) and 2 (1 token, relevant)."""
    memory = WorkingMemory(text=text_of(2, 3, 1, query=2), numbers=(0, 2))
    read = relevance_labels(memory, [False, False, True], VOCABULARY)
    assert read.tokens == [START, 5, 5, END, 0, 1, END, 20, END]
    assert read.labels == [1, 1, 1, 1, 0, 0, 0, 1, 1]


def test_a_blocks_score_is_the_mean_of_its_tokens():
    memory = WorkingMemory(text=text_of(2, 3, 1, query=2), numbers=(0, 1))
    scores = np.array([9, 9, 9, 9, 0.2, 0.4, 9, 0.1, 0.2, 0.6, 9])
    assert mean_block_scores(scores, memory, VOCABULARY) == pytest.approx([0.3, 0.3])


def test_what_the_judge_is_taught_on():
    """Room for three blocks of 2 + 1 beside <s> q </s>."""
    room, text = MemoryBudget(longest=12, vocabulary=VOCABULARY), text_of(*[2] * 8)
    generator = np.random.default_rng(0)
    relevant = [number in (1, 6) for number in range(8)]
    starts, others = set(), set()
    for _ in range(60):
        stretch = random_blocks(text, room, generator).numbers
        assert stretch == tuple(range(stretch[0], stretch[0] + 3))
        starts.add(stretch[0])
        mixed = relevant_and_random(text, relevant, room, generator).numbers
        assert {1, 6} < set(mixed) and len(mixed) == 3 and list(mixed) == sorted(mixed)
        others |= set(mixed) - {1, 6}
    assert starts == set(range(6))
    assert others == {0, 2, 3, 4, 5, 7}


def test_the_reasoner_is_taught_on_relevant_blocks_and_winners():
    """Block 4 is certain, 1 is marked; of the winners 3 (.9), 0 (.8), 2 (.1) one more is kept."""
    empty = WorkingMemory(text=text_of(*[2] * 5), numbers=())
    marks = [False, True, False, False, True]
    certain = [False, False, False, False, True]
    scores = {0: 0.8, 1: 0.0, 2: 0.1, 3: 0.9, 4: 0.0}
    room = MemoryBudget(longest=20, vocabulary=VOCABULARY)
    found = reasoner_memory(empty, marks, certain, scores, room, keep=3)
    assert found.numbers == (1, 3, 4)
    # Where two fit, the certain one and then the marked one.
    small = MemoryBudget(longest=9, vocabulary=VOCABULARY)
    assert reasoner_memory(empty, marks, certain, scores, small, keep=3).numbers == (1, 4)


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
def test_marks_change_outside_the_buffer_only(before: bool, increase: float, after: bool):
    assert updated_relevance(before, increase, MemRecallConfig(t_up=0.2, t_down=0.05)) is after


def test_interventions_by_hand():
    """loss(z) = 1 without 0, + 0.5 without 2, - 0.1 without 3; block 1 is not in z, 4 is certain.

    With t_up = 0.2 and t_down = 0.05: taking 0 out costs 1 - 0 = 1 > t_up, so it is relevant; 2
    costs 0.1, in between, stays relevant; 3 costs -0.1, is not; 1 stays as it was.
    """
    costs = {0: 1.0, 2: 0.1, 3: -0.1, 4: 5.0}
    asked: list[tuple[int, ...]] = []

    def losses(memories: Sequence[WorkingMemory], rows: Sequence[int]) -> list[float]:
        assert set(rows) <= {0}
        asked.extend(memory.numbers for memory in memories)
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
    assert asked == [(0, 2, 3, 4), (2, 3, 4), (0, 3, 4), (0, 2, 4)]


def test_first_marks_are_those_that_share_rare_tokens_with_the_query():
    """Token 7 is in one block, token 8 in two, token 9 in all; 4 of 5 blocks are alike else."""
    blocks = [(9, 1), (9, 8), (9, 7), (9, 8), (9, 2)]
    text = LongText(
        query=TextBlock(tokens=(7, 8), spans=((0, 0),) * 2),
        blocks=tuple(TextBlock(tokens=tokens, spans=((0, 1),) * 2) for tokens in blocks),
    )
    generator = np.random.default_rng(0)
    assert initial_relevance(text, 1, generator) == [False, False, True, False, False]
    assert initial_relevance(text, 3, generator) == [False, True, True, True, False]
    # What shares nothing is not marked, however many are asked for.
    assert initial_relevance(text, 5, generator) == [False, True, True, True, False]
    assert initial_relevance(LongText(query=text.query, blocks=()), 2, generator) == []
    nothing = LongText(query=TextBlock(tokens=(), spans=()), blocks=text.blocks)
    assert sum(initial_relevance(nothing, 2, generator)) == 2


def test_the_papers_blocks_are_63_of_512():
    assert MemRecallConfig().block_length(512) == MemRecallConfig().block_length(511) == 63
    assert MemRecallConfig(block_size=20).block_length(512) == 20
