"""PALM: what each stage shows and trains, and a pointer that copies words of the source."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.pointer import Pointer
from lmlab.zoo import palm

VOCABULARY = Vocabulary(size=12)
PAD, START, END, MASK = 0, 2, 3, 4
PARTS = (
    "backbone.encoder.stack",
    "backbone.encoder.embedding",
    "backbone.decoder",
    "backbone.pointer",
    "emission.bias",
    "objective.head.transform",
)
TINY = replace(palm.SIZES["tiny"], width=8, layers=1, full_mask_rate=0.0)


def build(vocabulary: Vocabulary = VOCABULARY, **settings) -> palm.DenoisingSeq2Seq:
    torch.manual_seed(0)
    system = palm.build(replace(TINY, **settings), vocabulary).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return system


def batch_of(*bodies: list[int], end: bool = True, condition: Batch | None = None) -> Batch:
    rows = [[START, *body, *([END] if end else [])] for body in bodies]
    return Batch.collate(rows, PAD, condition=condition)


def drawn(system: palm.DenoisingSeq2Seq, batch: Batch, seed: int = 0) -> View:
    return system.objective.view(batch, generator=torch.Generator().manual_seed(seed))


def test_stages_go_by_the_number_of_the_step():
    system = build(stage_one_steps=3)
    stages = []
    for step in range(6):
        system.begin_step(step)
        stages.append(system.objective.stage)
    assert stages == [1, 1, 1, 2, 2, 2]
    system.begin_step(1)
    assert system.objective.stage == 1, "it depends on the number alone, as resuming needs"
    assert build(stage_one_steps=3).objective.stage == 2, "who is not told is past stage one"


def test_stage_one_shows_the_whole_text_to_the_encoder_alone():
    system, batch = build(rate=0.5).train(), batch_of([6, 7, 8, 9, 10], [6, 7])
    system.begin_step(0)
    view = drawn(system, batch)
    assert view.decoder is None and isinstance(view.attention_mask, FullMask)
    assert view.targets is not None
    hidden = view.targets != NO_TARGET
    assert torch.equal(view.targets[hidden], batch.tokens[hidden])
    assert torch.equal(view.inputs[~hidden], batch.tokens[~hidden])
    assert hidden.any(1).all() and not hidden[:, 0].any()
    assert torch.equal(view.lengths, batch.lengths)


def test_stage_two_shows_the_first_part_and_asks_for_the_rest():
    """10 tokens: 8 are read, 2 are written; with rate 0 one token is hidden all the same."""
    view = drawn(build(rate=0.0), batch_of([6, 7, 8, 9, 10, 11, 6, 7, 8, 9]))
    assert view.targets is not None and view.clean_positions is not None
    hidden = view.targets[0] != NO_TARGET
    assert int(hidden.sum()) == 1
    clean = torch.tensor([START, 6, 7, 8, 9, 10, 11, 6, 7, END])
    assert torch.equal(view.inputs[0][~hidden], clean[~hidden])
    assert torch.equal(view.targets[0][hidden], clean[hidden])
    assert view.clean_positions[0].tolist() == [-1, 1, 2, 3, 4, 5, 6, 7, 8, -1]
    asked = view.prediction_view
    assert isinstance(asked.attention_mask, CausalMask)
    assert asked.inputs.tolist() == [[START, 8, 9]]
    assert asked.targets is not None and asked.targets.tolist() == [[8, 9, END]]
    assert asked.clean_positions is not None and asked.clean_positions.tolist() == [[9, 10, 11]]


@pytest.mark.parametrize(
    ("time", "read"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 4), (10, 8), (20, 16)]
)
def test_four_fifths_are_read(time: int, read: int):
    """0.8 T rounded, but not all of it; a single token is read, and the end alone written."""
    assert build().objective.source_length(time) == read


def test_hidden_tokens_are_the_share_that_was_asked_for():
    """0.15 of the 16 tokens read of each text, within 4 standard errors of what `at least one`
    makes of it: a row with none (0.85^16) gets one."""
    view = drawn(build(), batch_of(*[[6, 7] * 10] * 500))
    assert view.targets is not None
    hidden = (view.targets != NO_TARGET).sum(1).float()
    expected = 16 * 0.15 + 0.85**16
    assert abs(hidden.mean() - expected) < 4 * math.sqrt(16 * 0.15 * 0.85 / 500)


def test_a_share_of_the_texts_is_continued_from_nothing():
    """One in five within 4 standard errors; such texts are written whole, and nothing is masked."""
    view = drawn(build(full_mask_rate=0.2), batch_of(*[[6, 7, 8]] * 1000))
    hidden = view.inputs[:, 2] == END
    assert abs(hidden.float().mean() - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 1000)
    assert view.inputs[hidden].unique(dim=0).tolist() == [[START, MASK, END, PAD]]
    assert view.targets is not None and (view.targets[hidden] == NO_TARGET).all()
    assert (view.targets[~hidden] != NO_TARGET).any(1).all()
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets[hidden].unique(dim=0).tolist() == [[6, 7, 8, END]]


def test_a_pair_is_written_beside_its_clean_source_and_masked_in_stage_one():
    source = batch_of([10, 11], [9])
    batch = batch_of([6, 7], [8], condition=source)
    system = build(rate=0.9)
    view = drawn(system, batch)
    assert torch.equal(view.inputs, source.tokens) and view.targets is None
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets.tolist() == [[6, 7, END], [8, END, NO_TARGET]]
    system.train().begin_step(0)
    masked = drawn(system, batch)
    assert masked.targets is not None
    hidden = masked.targets != NO_TARGET
    assert torch.equal(masked.targets[hidden], source.tokens[hidden])


def trained(system: palm.DenoisingSeq2Seq, step: int) -> set[str]:
    """Which parts get a gradient at a step."""
    system.train().begin_step(step)
    system.zero_grad()
    batch = batch_of([6, 7, 8, 9, 10], [6, 11, 7])
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    found = {
        name
        for name, parameter in system.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().sum() > 0
    }
    return {part for part in PARTS if any(name.startswith(part) for name in found)}


def test_each_stage_trains_what_it_should():
    """Stage one: the encoder and its head; stage two: all but the head, or all of it if joint."""
    first = {"backbone.encoder.stack", "backbone.encoder.embedding", "objective.head.transform"}
    everything = first | {"backbone.decoder", "backbone.pointer", "emission.bias"}
    system = build(stage_one_steps=5)
    assert trained(system, 4) == first
    assert trained(system, 5) == everything - {"objective.head.transform"}
    assert trained(build(stage_one_steps=5, joint=True), 5) == everything


def test_held_out_text_is_asked_stage_two_s_question_all_along():
    """So that what is watched compares, and the best checkpoint is none of stage one."""
    system, batch = build(stage_one_steps=5), batch_of([6, 7, 8, 9, 10])
    losses = []
    for step in (0, 5):
        system.begin_step(step)
        with torch.no_grad():
            loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
        losses.append(loss.total.item())
    assert losses[0] == losses[1]


def test_losses_are_those_of_their_views():
    """Stage two's is what the emission gives to its targets; joint, what the head gives besides."""
    alone, system = build(), build(joint=True)
    batch = batch_of([6, 7, 8, 9, 10], [6, 11, 7])
    with torch.no_grad():
        continued, _ = alone.loss(batch, generator=torch.Generator().manual_seed(3))
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(3))
        view = drawn(system, batch, 3)
        written = -system.target_log_probs(view).log_probs
        assert view.targets is not None
        places = view.targets != NO_TARGET
        read = system.backbone.run_encoder(view)[places]
        every = system.objective.head.log_probs(read)
        restored = -every[torch.arange(len(every)), view.targets[places]]
    torch.testing.assert_close(continued.total, written.sum())
    assert continued.count.item() == len(written)
    torch.testing.assert_close(loss.parts["continuation"].total, written.sum())
    torch.testing.assert_close(loss.parts["masked"].total, restored.sum())
    torch.testing.assert_close(loss.total, written.sum() + restored.sum())
    assert loss.count.item() == len(written) + len(restored) == 5 + 2


def test_the_pointer_against_loops():
    """λ p_made + (1 - λ) Σ α over equal tokens, place by place, by plain arithmetic."""
    torch.manual_seed(0)
    pointer = Pointer(4)
    hidden, read = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    source = torch.tensor([[START, 6, 7, 6, END], [START, MASK, END, PAD, PAD]])
    copyable = source > 5
    with torch.no_grad():
        copies = pointer(hidden, read, source, copyable)
        made = torch.log_softmax(torch.randn(2, 12), -1)
        found = copies.log_probs(made).exp()
        query, key = pointer.query(hidden[0, -1]), pointer.key(read[0])
        scores = [math.exp(float(query @ key[j]) / 2) for j in (1, 2, 3)]
        alpha = [score / sum(scores) for score in scores]
        mean = sum(weight * read[0, j] for weight, j in zip(alpha, (1, 2, 3), strict=True))
        gate = torch.sigmoid(pointer.gate(torch.cat([hidden[0, -1], mean]))).item()
    expected = gate * made[0].exp()
    expected[6] += (1 - gate) * (alpha[0] + alpha[2])
    expected[7] += (1 - gate) * alpha[1]
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], made[1].exp())  # nothing to copy: all is made
    places = torch.tensor([[False, False, True], [False, False, True]])
    for targets in itertools.product((1, 6, 7, 8), repeat=2):
        wanted = torch.tensor(targets)
        each = copies.log_prob(made[[0, 1], wanted], places, wanted)
        torch.testing.assert_close(each.exp(), found[[0, 1], wanted])


@pytest.mark.parametrize("copies", [True, False])
def test_given_a_source_it_is_a_distribution_that_steps_as_it_scores(copies: bool):
    """All texts of at most 3 of 3 words and the prefixes of 4 sum to one beside a source."""
    system = build(Vocabulary(size=7), copy_mechanism=copies)
    source = [START, 5, 6, 5, END]
    bodies = [b for n in range(4) for b in itertools.product((1, 5, 6), repeat=n)]
    longest = list(itertools.product((1, 5, 6), repeat=4))
    rows = [[START, *b, END] for b in bodies] + [[START, *b] for b in longest]
    condition = Batch.collate([source] * len(rows), PAD)
    with torch.no_grad():
        totals = system.log_prob(Batch.collate(rows, PAD, condition=condition)).totals
        assert totals.double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)
        text = torch.tensor([5, 6, 6, END])
        state = system.start(2, condition=condition.select([0, 1])).select(torch.tensor([1]))
        stepped = []
        for token in text:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, token[None])
    batch = Batch.collate([[START, *text.tolist()]], PAD, condition=Batch.collate([source], PAD))
    with torch.no_grad():
        scored = system.log_prob(batch).per_token[0]
    torch.testing.assert_close(torch.stack(stepped), scored, atol=1e-5, rtol=0)


def test_a_copying_loss_has_finite_gradients_where_nothing_can_be_copied():
    """Rows whose source is one mask beside rows whose targets are not in their source."""
    system = build(full_mask_rate=0.5)
    batch = batch_of([6, 7, 8, 9], [10, 11, 6, 5], [7], [8, 8, 8, 8])
    for seed in range(5):
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(seed))
        system.zero_grad()
        loss.total.backward()
        gradients = [p.grad for p in system.parameters() if p.grad is not None]
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
