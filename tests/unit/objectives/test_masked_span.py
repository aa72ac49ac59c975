"""MASS: span distribution, encoder and decoder inputs, and the BERT and GPT limits."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET, View, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.denoising_base import DenoisingSpecialTokens
from lmlab.objectives.masked_span import ContiguousSpan, MASSObjective
from lmlab.objectives.masking.token_masking import MaskReplacement
from lmlab.zoo import mass

VOCABULARY = Vocabulary(size=60)
PAD, START, END, MASK = 0, 2, 3, 4


def objective(
    mask: float = 1.0, random: float = 0.0, whole: float = 0.0, **settings
) -> MASSObjective:
    replacement = MaskReplacement(vocabulary=VOCABULARY, mask=mask, random=random)
    return MASSObjective(
        DenoisingSpecialTokens.from_vocabulary(VOCABULARY),
        ContiguousSpan(**settings),
        replacement,
        full_mask_rate=whole,
    )


def batch_of(*texts: list[int]) -> Batch:
    return Batch.collate([[START, *text, END] for text in texts], pad=PAD)


def sample_view(mass_objective: MASSObjective, batch: Batch, seed: int = 0) -> View:
    return mass_objective.view(batch, generator=torch.Generator().manual_seed(seed))


def test_span_length_and_uniform_start():
    """Of 9 tokens round(4.5) = 4 are masked in one span, from 6 positions equally often (χ² with
    5 degrees of freedom is above 25.7 once in 10,000)."""
    rows = 6000
    view = sample_view(objective(), batch_of(*[list(range(5, 14))] * rows))
    masked = view.inputs == MASK
    assert (masked.sum(1) == 4).all()
    first = masked.int().argmax(1)
    assert all((masked[row, f : f + 4]).all() for row, f in enumerate(first.tolist()))
    counts = Counter(first.tolist())
    assert sorted(counts) == [1, 2, 3, 4, 5, 6]
    assert sum((count - rows / 6) ** 2 / (rows / 6) for count in counts.values()) < 25.7


@pytest.mark.parametrize("size", range(1, 12))
def test_half_of_each_text_is_masked_and_at_least_one(size: int):
    view = sample_view(objective(), batch_of(list(range(5, 5 + size))))
    assert int((view.inputs == MASK).sum()) == max(1, round(size / 2))
    assert view.inputs[0, 0] == START and view.inputs[0, -1] == END


def test_mask_replacement_is_80_10_10():
    """80/10/10 of 12,000 masked tokens: four standard errors are 0.015 and 0.011."""
    text = list(range(5, 17))
    batch = batch_of(*[text] * 2000)
    view = sample_view(objective(mask=0.8, random=0.1), batch)
    positions = view.decoder.clean_positions
    inputs, clean = view.inputs.gather(1, positions), batch.tokens.gather(1, positions)
    assert (inputs == MASK).float().mean().item() == pytest.approx(0.8, abs=0.015)
    # One random token in 56 is the token itself: <unk> and 55 others can be sampled.
    assert (inputs == clean).float().mean().item() == pytest.approx(0.1 + 0.1 / 56, abs=0.011)
    outside = torch.ones_like(batch.tokens).scatter(1, positions, 0).bool()
    assert torch.equal(view.inputs[outside], batch.tokens[outside])


def test_span_view_equals_the_figure_of_the_paper():
    """x_3 … x_6 of eight are masked; decoder input _ x_3 x_4 x_5 at the positions of x_2 … x_5."""
    mass_objective = objective()
    text = list(range(5, 13))
    view = mass_objective.span_view(batch_of(text), torch.tensor([3]), torch.tensor([4]))
    assert view.inputs.tolist() == [[MASK, *text[2:5]]]
    assert view.targets.tolist() == [text[2:6]]
    assert view.positions.tolist() == [[2, 3, 4, 5]]
    assert view.clean_positions.tolist() == [[3, 4, 5, 6]]


def test_batch_of_different_lengths():
    texts = [[], [5], [6, 7, 8], list(range(9, 29))]
    batch = batch_of(*texts)
    view = sample_view(objective(), batch)
    assert view.decoder.lengths.tolist() == [0, 1, 2, 10]
    assert torch.equal(view.lengths, batch.lengths)
    for row, text in enumerate(texts):
        size = int(view.decoder.lengths[row])
        targets = view.decoder.targets[row]
        assert (targets[size:] == NO_TARGET).all()
        positions = view.decoder.clean_positions[row, :size]
        assert targets[:size].tolist() == [text[position - 1] for position in positions.tolist()]
        assert torch.equal(view.decoder.positions[row, :size], positions - 1)


def test_span_of_one_token_is_masked_lm():
    """K = 1: the decoder input has no token of the text, so it depends on the encoder alone."""
    texts = [list(range(5, 5 + size)) for size in range(2, 12)]
    view = sample_view(objective(tokens=1), batch_of(*texts))
    assert (view.decoder.lengths == 1).all()
    assert ((view.inputs == MASK).sum(1) == 1).all()
    first = view.decoder.clean_positions[:, 0] == 1
    assert 0 < first.sum() < len(texts)
    expected = torch.where(first, START, MASK)
    assert torch.equal(view.decoder.inputs[:, 0], expected)


def test_span_of_the_whole_text_is_causal_lm():
    """K = n: the encoder sees only masks; decoder inputs and targets are those of a GPT."""
    texts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    batch = batch_of(*texts)
    view = sample_view(objective(span_share=1.0), batch)
    for row, text in enumerate(texts):
        length = int(view.lengths[row])
        assert view.inputs[row, :length].tolist() == [START, *[MASK] * len(text), END]
        expected = causal_view(batch_of(text))
        span = slice(0, len(text))
        assert view.decoder.lengths[row] == len(text)
        assert view.decoder.inputs[row, span].tolist() == expected.inputs[0, span].tolist()
        assert view.decoder.targets[row, span].tolist() == expected.targets[0, span].tolist()
        assert view.decoder.positions[row, span].tolist() == list(range(len(text)))


def system(**settings):
    torch.manual_seed(0)
    config = mass.Config(**{"width": 8, "layers": 1, "heads": 2, "length": 16, **settings})
    return mass.build(config, Vocabulary(size=7)).eval()


def test_fully_masked_encoder_reveals_only_the_length():
    """K = n: two texts of one length have equal predictions for equal decoder inputs."""
    network = system(share=1.0, masked=1.0, random_rate=0.0)
    batch = Batch.collate([[2, 5, 6, 6, 3], [2, 5, 6, 5, 3]], pad=0)
    view = network.objective.view(batch, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values = network.hidden(view).values
    torch.testing.assert_close(values[0], values[1], atol=1e-6, rtol=0)


def test_fully_masked_loss_equals_negative_log_prob():
    """full_mask_rate = 1: the loss is minus the log-probability, token for token."""
    network = system(full_mask_rate=1.0)
    batch = Batch.collate([[2, 5, 6, 6, 3], [2, 5, 3]], pad=0)
    with torch.no_grad():
        loss, _ = network.loss(batch, generator=torch.Generator().manual_seed(0))
        total = network.log_prob(batch).totals.sum()
    assert loss.total.item() == pytest.approx(-total.item(), rel=1e-5)
    assert loss.count.item() == 4 + 2


@pytest.mark.parametrize("given", [False, True])
def test_log_prob_sums_to_one_over_texts(given: bool):
    network, tokens = system(), (1, 5, 6)
    rows = [[2, *body, 3] for size in range(3) for body in itertools.product(tokens, repeat=size)]
    rows += [[2, *body] for body in itertools.product(tokens, repeat=3)]
    source = Batch.collate([[2, 5, 6, 6, 3]] * len(rows), pad=0) if given else None
    with torch.no_grad():
        totals = network.log_prob(Batch.collate(rows, pad=0, condition=source)).totals
    assert totals.double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_full_mask_rate_masks_whole_texts():
    """3000 draws at 0.25, within 4 standard errors: 4 · √(0.25 · 0.75 / 3000) = 0.032."""
    view = sample_view(objective(whole=0.25), batch_of(*[list(range(5, 15))] * 3000))
    fully_masked = view.lengths == 3
    assert fully_masked.float().mean().item() == pytest.approx(0.25, abs=0.032)
    assert (view.inputs[fully_masked, :3] == torch.tensor([START, MASK, END])).all()
    assert (view.decoder.targets[fully_masked, 10] == END).all()


def test_pairs_are_conditioned_on_the_clean_source():
    source = batch_of([20, 21])
    batch = Batch.collate([[START, 5, 6, END]], pad=PAD, condition=source)
    view = sample_view(objective(), batch)
    assert view.inputs.tolist() == [[START, 20, 21, END]]
    assert view.decoder.inputs.tolist() == [[START, 5, 6]]
    assert view.decoder.targets.tolist() == [[5, 6, END]]


def test_joint_fill_equals_the_training_view():
    """log p of spans of one to three masks: sums to one, and is the log-probability of the
    objective's own view with everything masked."""
    vocabulary = Vocabulary(size=8)
    torch.manual_seed(0)
    system = mass.build(mass.SIZES["tiny"], vocabulary).eval()
    batch = Batch.collate([[START, 5, 6, 7, 5, END], [START, 6, 5, 7, 7, END]], pad=PAD)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, 2:4] = masked[1, 1:4] = True
    possible = [i for i in range(8) if i not in vocabulary.unpredictable]
    with torch.no_grad():
        joint = system.joint_fill(batch, masked)
        first_row_joint = system.joint_fill(batch.select([0]), masked[:1])
        table = {
            pair: first_row_joint.log_prob(torch.tensor(pair)).item()
            for pair in itertools.product(possible, repeat=2)
        }
        assert sum(math.exp(value) for value in table.values()) == pytest.approx(1, abs=1e-5)
        best = sorted(table, key=table.__getitem__, reverse=True)
        ranked = joint.ranked(0, 5)
        assert [filling.tokens for filling in ranked] == best[:5]
        assert all(filling.proven for filling in ranked)
        assert [filling.log_prob for filling in ranked] == pytest.approx(
            [table[pair] for pair in best[:5]], abs=1e-5
        )
        # Both rows together, against the view of training with the first row's span.
        both = joint.log_prob(batch.tokens[masked])
        view = system.objective.fill_view(batch, masked, torch.tensor([2, 1]), torch.tensor([2, 3]))
        assert view.inputs.tolist() == [[2, 5, 4, 4, 5, 3], [2, 4, 4, 4, 7, 3]]
        assert view.decoder.inputs.tolist() == [[4, 6, 2], [2, 6, 5]]
        assert both[0].item() == pytest.approx(table[6, 7], abs=1e-5)
        samples = joint.sample(generator=torch.Generator().manual_seed(0))
        assert samples.shape == (5,) and set(samples.tolist()) <= set(possible)


def test_joint_samples_follow_the_span_distribution():
    vocabulary = Vocabulary(size=7)
    torch.manual_seed(1)
    system = mass.build(mass.SIZES["tiny"], vocabulary).eval()
    with torch.no_grad():
        system.emission.bias.normal_()
        rows = 4000
        batch = Batch.collate([[START, 5, 6, END]] * rows, pad=PAD)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[:, 1:3] = True
        samples = system.joint_fill(batch, masked).sample(
            generator=torch.Generator().manual_seed(0)
        )
        counts = Counter(tuple(pair) for pair in samples.view(rows, 2).tolist())
        single_joint = system.joint_fill(batch.select([0]), masked[:1])
        for pair, count in counts.items():
            p = single_joint.log_prob(torch.tensor(pair)).exp().item()
            assert abs(count - rows * p) < 5 * math.sqrt(rows * p * (1 - p)) + 1


def test_non_adjacent_masks_are_refused():
    system = mass.build(mass.SIZES["tiny"], VOCABULARY).eval()
    batch = batch_of([5, 6, 7])
    masked = batch.tokens == 5
    masked[0, 3] = True
    with pytest.raises(UserError, match="masks must be adjacent"):
        system.joint_fill(batch, masked)
