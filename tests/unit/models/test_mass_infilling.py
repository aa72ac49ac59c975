"""MASS fills blanks of any length: training views, and its distribution against enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.mass import MASS
from lmlab.objectives.masked_span import uniform_span
from lmlab.sampling.infill_search import InfillSearch, generated_log_probs
from lmlab.zoo import mass

PAD, START, END, MASK = 0, 2, 3, 4
VOCABULARY = Vocabulary(size=7)
WORDS = (5, 6)
OTHERS = (1, 5, 6)
"""Tokens that an answer may have; 1 is the unknown token."""


def build(**settings) -> MASS:
    torch.manual_seed(1)
    config = mass.Config(
        width=12, layers=1, heads=2, dropout=0.0, attention_dropout=0.0, length=12, **settings
    )
    system = mass.build(config, VOCABULARY).eval().double()
    with torch.no_grad():  # so that the tokens differ in probability
        system.emission.bias.normal_()
    return system


@pytest.fixture(scope="module")
def system() -> MASS:
    return build(blank_rate=1.0)


def batch_of(*texts: list[int]) -> Batch:
    return Batch.collate(texts, pad=PAD)


def test_blank_in_training_is_one_mask_and_its_span_ends_with_the_end_token(system):
    """Every span of a text occurs, also the empty one before, within and after it."""
    text = [START, 5, 6, 5, END]
    view = system.objective.view(
        batch_of(*[text] * 400), generator=torch.Generator().manual_seed(0)
    )
    seen = set()
    for row in range(400):
        inputs = view.inputs[row, : int(view.lengths[row])].tolist()
        place, length = inputs.index(MASK), int(view.decoder.lengths[row])
        targets = view.decoder.targets[row, :length].tolist()
        decoded = view.decoder.inputs[row, :length].tolist()
        assert targets[-1] == END and (view.decoder.targets[row, length:] == NO_TARGET).all()
        assert [*inputs[:place], *targets[:-1], *inputs[place + 1 :]] == text
        assert decoded == [START if place == 1 else MASK, *targets[:-1]]
        assert view.decoder.positions[row, :length].tolist() == [
            *range(place - 1, place + length - 1)
        ]
        assert view.decoder.clean_positions[row, :length].tolist() == [
            *range(place, place + length - 1),
            -1,
        ]
        seen.add((place, length - 1))
    assert seen == {(place, size) for size in range(4) for place in range(1, 5 - size)}


def test_sizes_of_blanks_are_uniform():
    """0 to 3 tokens of 3, each a quarter of 8,000 (χ² with 3 degrees is above 21.1 in 10,000)."""
    rows = 8000
    first, size = uniform_span(torch.full((rows,), 3), torch.Generator().manual_seed(0))
    counts = Counter(size.tolist())
    assert sum((counts[s] - rows / 4) ** 2 / (rows / 4) for s in range(4)) < 21.1
    assert bool((first >= 1).all()) and bool((first + size <= 4).all())


@torch.no_grad()
def test_log_prob_of_an_answer_equals_the_loss_of_training(system):
    """The answer with its end, at the single mask, as the objective's own view predicts it."""
    batch, sizes = batch_of([START, 5, 6, 6, 5, END]), set()
    for seed in range(12):
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(seed))
        view = system.objective.view(batch, generator=torch.Generator().manual_seed(seed))
        answer = view.decoder.targets[0, : int(view.decoder.lengths[0]) - 1].tolist()
        decoder = system.infill_decoder(batch_of(view.inputs[0, : int(view.lengths[0])].tolist()))
        [log_prob] = generated_log_probs(decoder, [decoder.linearise_fillings(0, [answer])])
        assert log_prob == pytest.approx(-float(loss.total), abs=1e-9)
        sizes.add(len(answer))
    assert {0, 1, 2} <= sizes


def answers(max_tokens: int) -> list[tuple[int, ...]]:
    return [a for size in range(max_tokens + 1) for a in itertools.product(OTHERS, repeat=size)]


def enumerated(system: MASS, text: list[int], max_tokens: int) -> dict[tuple[int, ...], float]:
    """log p of each answer to the one blank: the product of its conditionals, one view each."""
    objective, place = system.objective, text.index(MASK)
    table = {}
    for answer in answers(max_tokens):
        view = objective.blank_view([text], [place], [list(answer)], torch.device("cpu"))
        log_probs = system.emission.log_probs(system.hidden(view).values[0])
        targets = torch.tensor([*answer, END])
        table[answer] = log_probs.gather(1, targets[:, None]).sum().item()
    return table


@torch.no_grad()
def test_search_finds_the_best_of_all_answers(system):
    text = [START, 5, MASK, 6, END]
    table = enumerated(system, text, 4)
    search = InfillSearch(
        decoder=system.infill_decoder(batch_of(text)), blanks=1, width=200, best=6, max_tokens=4
    )
    best = sorted(table, key=table.__getitem__, reverse=True)[:6]
    found = search()
    assert [sequence.tokens for sequence in found] == best
    assert [s.log_prob for s in found] == pytest.approx([table[a] for a in best], abs=1e-9)


@torch.no_grad()
def test_answers_up_to_the_window_have_the_whole_probability():
    """A text of 12 positions leaves room for so many tokens; the longest must end there."""
    system = build(blank_rate=1.0)
    text = [START, *[5] * 7, MASK, END]
    decoder = system.infill_decoder(batch_of(text))
    table = [decoder.linearise_fillings(0, [answer]) for answer in answers(3)]
    many = system.infill_decoder(batch_of(*[text] * len(table)))
    values = generated_log_probs(many, table)
    by_size = Counter()
    for row, value in zip(table, values, strict=True):
        by_size[len(row)] += math.exp(value)
    assert by_size[3] == 0 and by_size[2] > 0
    # Nothing is renormalised: what the window forbids is missing.
    state = many.start(len(table))
    for token in (5, 5):
        state = many.advance(state, torch.full((len(table),), token))
    assert (many.peek(state).log_probs.exp() > 0).nonzero()[:, 1].unique().tolist() == [END]


@torch.no_grad()
def test_second_blank_is_filled_in_the_text_with_the_first_answer(system):
    """p(a, b) = p(a | text with both masks) p(b | text with a in it)."""
    text = [START, MASK, 6, MASK, END]
    first, second = (5, 6), (6,)
    decoder = system.infill_decoder(batch_of(text))
    [together] = generated_log_probs(decoder, [decoder.linearise_fillings(0, [first, second])])
    assert decoder.answers(0, decoder.linearise_fillings(0, [first, second])) == [first, second]
    apart = enumerated(system, text, 2)[first]
    apart += enumerated(system, [START, *first, 6, MASK, END], 1)[second]
    assert together == pytest.approx(apart, abs=1e-9)


def test_run_without_blanks_in_training_says_how_to_fill():
    with pytest.raises(UserError, match=r"one <mask> for each token.*blank_rate=0\.5"):
        build().infill_decoder(batch_of([START, MASK, END]))
    with pytest.raises(UserError, match="full_mask_rate and blank_rate must sum to at most 1"):
        build(full_mask_rate=0.6, blank_rate=0.5)
