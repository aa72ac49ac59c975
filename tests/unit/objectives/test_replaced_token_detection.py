"""Replaced token detection (ELECTRA): masking rate, generator samples, labels and loss."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import PROTOCOLS
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.token_detection import ReplacedTokenDetector
from lmlab.objectives.replaced_token_detection import (
    ORIGINAL,
    REPLACED,
    discriminator_view,
    sample_gumbel,
)
from lmlab.zoo import electra

VOCABULARY = Vocabulary(size=12)


def build(**settings) -> ReplacedTokenDetector:
    torch.manual_seed(0)
    config = electra.Config(
        **{
            "width": 16,
            "layers": 1,
            "heads": 2,
            "generator_width": 8,
            "length": 64,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            **settings,
        }
    )
    return electra.build(config, VOCABULARY).eval()


def with_constant_generator(system: ReplacedTokenDetector) -> ReplacedTokenDetector:
    """The same with a generator that always predicts 7."""
    with torch.no_grad():
        system.objective.generator.emission.bias.fill_(-1000.0)[7] = 1000.0
    return system


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def many_texts(rows: int = 400, words: int = 40) -> Batch:
    tokens = torch.randint(5, VOCABULARY.size, (rows, words), generator=seeded(7)).tolist()
    return Batch.collate([[2, *row, 3] for row in tokens], pad=VOCABULARY.pad)


def test_replaced_token_labels_by_hand():
    """<s> 5 6 7 </s> shown as <s> 5 9 7 </s>: one replaced; the shorter row ends before padding."""
    batch = Batch.collate([[2, 5, 6, 7, 3], [2, 8, 3]], pad=0)
    shown = torch.tensor([[2, 5, 9, 7, 3], [2, 8, 3, 0, 0]])
    view = discriminator_view(batch, shown)
    w, r, n = ORIGINAL, REPLACED, NO_TARGET
    assert view.targets.tolist() == [[w, w, r, w, w], [w, w, w, n, n]]
    assert view.clean_positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]]
    assert torch.equal(view.inputs, shown)


def test_correct_generator_sample_counts_as_original():
    """A generator that always predicts 7: a masked 7 is original, all other masked replaced."""
    system = with_constant_generator(build(rate=0.5))
    generator_model = system.objective.generator
    batch = many_texts(rows=50)
    view = system.objective.view(batch, generator=seeded())
    masked = generator_model.objective.view(batch, generator=seeded()).targets != NO_TARGET
    assert torch.equal(view.inputs, batch.tokens.masked_fill(masked, 7))
    assert torch.equal(view.targets == REPLACED, masked & (batch.tokens != 7))
    assert (masked & (batch.tokens == 7)).any()


def test_generator_inputs_are_masked_at_the_rate():
    """16,000 tokens, each masked with probability 0.15: within five binomial errors of it."""
    system, batch = build(), many_texts()
    view = system.objective.generator.objective.view(batch, generator=seeded())
    masked = view.targets != NO_TARGET
    assert (view.inputs[masked] == VOCABULARY.mask).all()
    assert torch.equal(view.inputs[~masked], batch.tokens[~masked])
    ordinary = 400 * 40
    error = math.sqrt(0.15 * 0.85 / ordinary)
    assert abs(masked.sum().item() / ordinary - 0.15) < 5 * error
    assert not masked[:, 0].any() and not masked[:, -1].any()


def test_discriminator_input_has_no_mask_token():
    system = build(rate=0.9)
    view = system.objective.view(many_texts(rows=20), generator=seeded())
    assert not (view.inputs == VOCABULARY.mask).any()


def test_gumbel_samples_follow_the_distribution():
    """Pearson's statistic of 20,000 draws from five probabilities: below its 1e-6 quantile."""
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    samples = sample_gumbel(probabilities.log().expand(20_000, -1), generator=seeded())
    counts = torch.bincount(samples, minlength=5).double()
    assert counts[4] == 0
    expected = 20_000 * probabilities[:4].double()
    statistic = ((counts[:4] - expected) ** 2 / expected).sum().item()
    # Upper tail with three degrees of freedom.
    tail = torch.special.gammaincc(torch.tensor(1.5).double(), torch.tensor(statistic / 2).double())
    assert tail > 1e-6


def test_loss_is_masked_mean_plus_50_times_detection_mean():
    system, batch = build(), many_texts(rows=6)
    loss, _ = system.loss(batch, generator=seeded())
    generator_model = system.objective.generator
    masked_view = generator_model.objective.view(batch, generator=seeded())
    masked = -generator_model.target_log_probs(masked_view).log_probs
    view = system.objective.view(batch, generator=seeded())
    detection = -system.target_log_probs(view).log_probs
    assert len(detection) == int(batch.lengths.sum())
    assert loss.count.item() == len(masked)
    expected = masked.mean() + 50 * detection.mean()
    torch.testing.assert_close(loss.mean, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(loss.parts["masked"].mean, masked.mean())
    torch.testing.assert_close(loss.parts["detection"].mean, detection.mean())


def test_detection_of_masked_tokens_alone():
    """ "ELECTRA 15%": the mean is over the positions that were masked."""
    system, batch = build(detected="masked"), many_texts(rows=6)
    loss, _ = system.loss(batch, generator=seeded())
    view = system.objective.view(batch, generator=seeded())
    predictions = system.target_log_probs(view).to_dense()
    masked_view = system.objective.generator.objective.view(batch, generator=seeded())
    masked = masked_view.targets != NO_TARGET
    assert 0 < int(masked.sum()) < int(batch.lengths.sum())
    torch.testing.assert_close(loss.parts["detection"].mean, -predictions[masked].mean())


def test_detection_passes_no_gradient_to_the_generator():
    """The generator learns from masked tokens only: the same gradient for any weight."""
    gradients = []
    for weight in (0.0, 50.0):
        system = build(discriminator_weight=weight)
        loss, _ = system.loss(many_texts(rows=4), generator=seeded())
        loss.total.backward()
        gradients.append(system.objective.generator.backbone.stack.blocks[0].mixer.qkv_projection)
    first, second = (part.weight.grad for part in gradients)
    assert first.abs().sum() > 0
    assert torch.equal(first, second)


def test_generator_and_discriminator_share_embeddings():
    system = build(segments=2)
    detector, generator_model = (
        system.backbone.embedding,
        system.objective.generator.backbone.embedding,
    )
    for part in ("tokens", "positions", "segments", "norm"):
        assert getattr(detector, part) is getattr(generator_model, part)
    assert generator_model.projection.weight.shape == (8, 16)
    assert detector.projection is None


def test_row_without_target_has_zero_loss():
    """What a process without rows gets: a text truncated to its start token."""
    batch = Batch.collate([[2]], pad=0)
    loss, _ = build().loss(batch, generator=seeded())
    assert loss.count.item() == 0
    assert loss.total.item() == 0


def test_discriminator_learns_to_detect():
    """A generator that always predicts 7, which no text has: log-odds separate it."""
    system = with_constant_generator(build(rate=0.3))
    batch = Batch.collate([[2, 5, 6, 8, 9, 10, 11, 3]] * 4, pad=0)
    parts = [*system.backbone.stack.parameters(), *system.emission.parameters()]
    optimizer = torch.optim.Adam(parts, lr=0.02)
    for step in range(25):
        loss, _ = system.loss(batch, generator=seeded(step))
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    changed = Batch.collate([[2, 5, 6, 7, 9, 7, 11, 3]], pad=0)
    with torch.no_grad():
        odds = system.detect(changed)[0]
    seven = changed.tokens[0] == 7
    assert odds[seven].min() > 0 > odds[~seven].max()


def test_electra_implements_the_detect_protocol():
    assert isinstance(build(), PROTOCOLS["Detect"])


def test_generator_width_must_be_a_multiple_of_heads():
    config = electra.Config(width=16, heads=2, generator_width=7, generator_heads=2)
    with pytest.raises(UserError, match="width must be a multiple of heads"):
        electra.build(config, VOCABULARY)


def test_disabled_layers_and_heads_are_the_discriminators():
    """It has layers 1 to 3 and heads 1 to 4; the generator has one of each and is unchanged."""
    sizes = {"layers": 3, "heads": 4, "generator_layers": 1, "generator_heads": 1}
    plain, silent = build(**sizes), build(**sizes, disabled_layers=(3,), disabled_heads=("1.3",))
    for system in (plain, silent):
        torch.manual_seed(1)
        for parameter in system.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    batch = Batch.collate([[2, 5, 6, 7, 9, 3]], pad=0)
    with torch.no_grad():
        assert torch.equal(silent.log_prob(batch).per_token, plain.log_prob(batch).per_token)
        assert (silent.detect(batch) - plain.detect(batch)).abs().max() > 1e-3


def test_validation_metric_is_the_generator_loss():
    system = build()
    loss, _ = system.loss(many_texts(rows=4), generator=seeded())
    assert system.validation_metric in loss.parts
    assert loss.parts[system.validation_metric].count == loss.count
