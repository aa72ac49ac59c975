"""PALM: inputs, targets and gradients of each stage, and the copy pointer."""

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


def sampled_view(system: palm.DenoisingSeq2Seq, batch: Batch, seed: int = 0) -> View:
    return system.objective.view(batch, generator=torch.Generator().manual_seed(seed))


def test_stage_depends_on_the_step_number():
    system = build(stage_one_steps=3)
    stages = []
    for step in range(6):
        system.begin_step(step)
        stages.append(system.objective.stage)
    assert stages == [1, 1, 1, 2, 2, 2]
    system.begin_step(1)
    assert system.objective.stage == 1, "it depends on the step alone, as resuming needs"
    assert build(stage_one_steps=3).objective.stage == 2, (
        "without a step number it is past stage one"
    )


def test_stage_one_is_masked_lm_in_the_encoder_alone():
    system, batch = build(rate=0.5).train(), batch_of([6, 7, 8, 9, 10], [6, 7])
    system.begin_step(0)
    view = sampled_view(system, batch)
    assert view.decoder is None and isinstance(view.attention_mask, FullMask)
    assert view.targets is not None
    masked = view.targets != NO_TARGET
    assert torch.equal(view.targets[masked], batch.tokens[masked])
    assert torch.equal(view.inputs[~masked], batch.tokens[~masked])
    assert masked.any(1).all() and not masked[:, 0].any()
    assert torch.equal(view.lengths, batch.lengths)


def test_stage_two_encodes_the_prefix_and_predicts_the_rest():
    """10 tokens: 8 are encoded, 2 predicted; with rate 0 one token is still masked."""
    view = sampled_view(build(rate=0.0), batch_of([6, 7, 8, 9, 10, 11, 6, 7, 8, 9]))
    assert view.targets is not None and view.clean_positions is not None
    masked = view.targets[0] != NO_TARGET
    assert int(masked.sum()) == 1
    clean = torch.tensor([START, 6, 7, 8, 9, 10, 11, 6, 7, END])
    assert torch.equal(view.inputs[0][~masked], clean[~masked])
    assert torch.equal(view.targets[0][masked], clean[masked])
    assert view.clean_positions[0].tolist() == [-1, 1, 2, 3, 4, 5, 6, 7, 8, -1]
    decoder_view = view.prediction_view
    assert isinstance(decoder_view.attention_mask, CausalMask)
    assert decoder_view.inputs.tolist() == [[START, 8, 9]]
    assert decoder_view.targets is not None and decoder_view.targets.tolist() == [[8, 9, END]]
    assert decoder_view.clean_positions is not None and decoder_view.clean_positions.tolist() == [
        [9, 10, 11]
    ]


@pytest.mark.parametrize(
    ("length", "source_length"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 4), (10, 8), (20, 16)]
)
def test_source_is_four_fifths_of_the_text(length: int, source_length: int):
    """0.8 T rounded, but not all of it; a single token is encoded and only the end predicted."""
    assert build().objective.source_length(length) == source_length


def test_masked_tokens_follow_the_masking_rate():
    """0.15 of the 16 source tokens of each text, within 4 standard errors; a row without any mask
    (0.85^16) gets one."""
    view = sampled_view(build(), batch_of(*[[6, 7] * 10] * 500))
    assert view.targets is not None
    masked_counts = (view.targets != NO_TARGET).sum(1).float()
    expected = 16 * 0.15 + 0.85**16
    assert abs(masked_counts.mean() - expected) < 4 * math.sqrt(16 * 0.15 * 0.85 / 500)


def test_full_mask_rate_hides_the_whole_source():
    """One in five within 4 standard errors; such texts have no masked-LM targets."""
    view = sampled_view(build(full_mask_rate=0.2), batch_of(*[[6, 7, 8]] * 1000))
    fully_masked = view.inputs[:, 2] == END
    assert abs(fully_masked.float().mean() - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 1000)
    assert view.inputs[fully_masked].unique(dim=0).tolist() == [[START, MASK, END, PAD]]
    assert view.targets is not None and (view.targets[fully_masked] == NO_TARGET).all()
    assert (view.targets[~fully_masked] != NO_TARGET).any(1).all()
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets[fully_masked].unique(dim=0).tolist() == [[6, 7, 8, END]]


def test_pairs_keep_a_clean_source_except_in_stage_one():
    source = batch_of([10, 11], [9])
    batch = batch_of([6, 7], [8], condition=source)
    system = build(rate=0.9)
    view = sampled_view(system, batch)
    assert torch.equal(view.inputs, source.tokens) and view.targets is None
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets.tolist() == [[6, 7, END], [8, END, NO_TARGET]]
    system.train().begin_step(0)
    masked_view = sampled_view(system, batch)
    assert masked_view.targets is not None
    masked = masked_view.targets != NO_TARGET
    assert torch.equal(masked_view.targets[masked], source.tokens[masked])


def trained_parts(system: palm.DenoisingSeq2Seq, step: int) -> set[str]:
    """The parts that get a gradient at a step."""
    system.train().begin_step(step)
    system.zero_grad()
    batch = batch_of([6, 7, 8, 9, 10], [6, 11, 7])
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    with_gradient = {
        name
        for name, parameter in system.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().sum() > 0
    }
    return {part for part in PARTS if any(name.startswith(part) for name in with_gradient)}


def test_each_stage_trains_its_own_parameters():
    """Stage one: the encoder and its head; stage two: all but the head, or all of it if joint."""
    first = {"backbone.encoder.stack", "backbone.encoder.embedding", "objective.head.transform"}
    everything = first | {"backbone.decoder", "backbone.pointer", "emission.bias"}
    system = build(stage_one_steps=5)
    assert trained_parts(system, 4) == first
    assert trained_parts(system, 5) == everything - {"objective.head.transform"}
    assert trained_parts(build(stage_one_steps=5, joint=True), 5) == everything


def test_held_out_loss_is_always_that_of_stage_two():
    """So that validation losses are comparable and the best checkpoint is not of stage one."""
    system, batch = build(stage_one_steps=5), batch_of([6, 7, 8, 9, 10])
    losses = []
    for step in (0, 5):
        system.begin_step(step)
        with torch.no_grad():
            loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
        losses.append(loss.total.item())
    assert losses[0] == losses[1]


def test_losses_equal_the_negative_log_probs_of_views():
    """Stage two: the emission's loss on its targets; joint: the masked-LM head's loss as well."""
    alone, system = build(), build(joint=True)
    batch = batch_of([6, 7, 8, 9, 10], [6, 11, 7])
    with torch.no_grad():
        continued, _ = alone.loss(batch, generator=torch.Generator().manual_seed(3))
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(3))
        view = sampled_view(system, batch, 3)
        continuation_losses = -system.target_log_probs(view).log_probs
        assert view.targets is not None
        positions = view.targets != NO_TARGET
        encoded = system.backbone.run_encoder(view)[positions]
        head_log_probs = system.objective.head.log_probs(encoded)
        masked_losses = -head_log_probs[torch.arange(len(head_log_probs)), view.targets[positions]]
    torch.testing.assert_close(continued.total, continuation_losses.sum())
    assert continued.count.item() == len(continuation_losses)
    torch.testing.assert_close(loss.parts["continuation"].total, continuation_losses.sum())
    torch.testing.assert_close(loss.parts["masked"].total, masked_losses.sum())
    torch.testing.assert_close(loss.total, continuation_losses.sum() + masked_losses.sum())
    assert loss.count.item() == len(continuation_losses) + len(masked_losses) == 5 + 2


def test_pointer_distribution_equals_plain_loops():
    """λ p_generate + (1 - λ) Σ α over equal tokens, by plain arithmetic."""
    torch.manual_seed(0)
    pointer = Pointer(4)
    hidden, encoded = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    source = torch.tensor([[START, 6, 7, 6, END], [START, MASK, END, PAD, PAD]])
    copyable = source > 5
    with torch.no_grad():
        copies = pointer(hidden, encoded, source, copyable)
        generated = torch.log_softmax(torch.randn(2, 12), -1)
        result = copies.log_probs(generated).exp()
        query, key = pointer.query(hidden[0, -1]), pointer.key(encoded[0])
        scores = [math.exp(float(query @ key[j]) / 2) for j in (1, 2, 3)]
        alpha = [score / sum(scores) for score in scores]
        mean = sum(weight * encoded[0, j] for weight, j in zip(alpha, (1, 2, 3), strict=True))
        gate = torch.sigmoid(pointer.gate(torch.cat([hidden[0, -1], mean]))).item()
    expected = gate * generated[0].exp()
    expected[6] += (1 - gate) * (alpha[0] + alpha[2])
    expected[7] += (1 - gate) * alpha[1]
    torch.testing.assert_close(result[0], expected)
    torch.testing.assert_close(result[1], generated[1].exp())  # nothing to copy: all is generated
    positions = torch.tensor([[False, False, True], [False, False, True]])
    for targets in itertools.product((1, 6, 7, 8), repeat=2):
        target_ids = torch.tensor(targets)
        target_log_probs = copies.log_prob(generated[[0, 1], target_ids], positions, target_ids)
        torch.testing.assert_close(target_log_probs.exp(), result[[0, 1], target_ids])


@pytest.mark.parametrize("copies", [True, False])
def test_conditional_distribution_sums_to_one_and_steps(copies: bool):
    """All texts of at most 3 of 3 words and the prefixes of 4 sum to one given a source."""
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


def test_copy_gradients_are_finite_with_nothing_to_copy():
    """Rows whose source is one mask, and rows whose targets are not in their source."""
    system = build(full_mask_rate=0.5)
    batch = batch_of([6, 7, 8, 9], [10, 11, 6, 5], [7], [8, 8, 8, 8])
    for seed in range(5):
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(seed))
        system.zero_grad()
        loss.total.backward()
        gradients = [p.grad for p in system.parameters() if p.grad is not None]
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
