"""Checks of joint masked prediction (`JointFill`): all fillings of a text are enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lmlab.conformance.assertions import (
    assert_close,
    assert_samples_follow,
    assert_that,
    assert_total_mass,
    chi_square_p_value,
    lacks,
)
from lmlab.conformance.check import Failure, check
from lmlab.conformance.system_under_test import SystemUnderTest, with_replaced_token
from lmlab.core.batch import Batch
from lmlab.core.protocols import JointFill


def _joint_fill(tested: SystemUnderTest) -> JointFill:
    if isinstance(tested.system, JointFill):
        return tested.system
    raise lacks(tested.system, "JointFill")


def _two_texts(tested: SystemUnderTest) -> tuple[list[list[int]], list[list[int]]]:
    """Two sentences, and the masked positions of each: adjacent, and some apart where
    the system supports that."""
    _, _, first, second = tested.sentences
    one_span = getattr(tested.system, "one_span", False)
    return [first, second], [[1, 2, 3], [1, 2]] if one_span else [[2, 3, 6], [1, 4]]


def _masked_copies(tested: SystemUnderTest, text: int, copies: int) -> tuple[Batch, Tensor]:
    """Copies of one of the two texts, and the same masked positions in each."""
    texts, positions = _two_texts(tested)
    batch = tested.batch([texts[text]] * copies)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, positions[text]] = True
    return batch, masked


def _all_fillings(tested: SystemUnderTest, text: int) -> tuple[Tensor, Tensor]:
    """(F, N) every filling of the masked positions, and (F,) its log-probability."""
    vocabulary = tested.vocabulary
    predictable = [i for i in range(vocabulary.size) if i not in vocabulary.unpredictable]
    positions = _two_texts(tested)[1][text]
    fillings = torch.tensor(list(itertools.product(predictable, repeat=len(positions))))
    batch, masked = _masked_copies(tested, text, len(fillings))
    joint = _joint_fill(tested).joint_fill(batch, masked)
    return fillings, joint.log_prob(fillings.flatten()).double()


@check(
    "joint-fill-normalisation",
    "All fillings of a text sum to one, the best is the likeliest, and never-predicted tokens have "
    "no probability.",
    law="is a distribution",
    protocol="JointFill",
)
@torch.no_grad()
def joint_fill_sums_to_one(tested: SystemUnderTest) -> None:
    for text in (0, 1):
        fillings, log_probs = _all_fillings(tested, text)
        assert_total_mass(log_probs.exp().sum().item(), len(fillings), exact=True, of="fillings")
        batch, masked = _masked_copies(tested, text, 1)
        joint = _joint_fill(tested).joint_fill(batch, masked)
        best = joint.best()
        never = fillings[:1].clone()
        never[0, 0] = tested.vocabulary.pad
        mass = joint.log_prob(never.flatten()).exp().item()
        assert_that(
            mass == 0.0, f"<pad>, which is never predicted, fills a gap with probability {mass}"
        )
        # Of equals any will do, so what is compared is how likely they are.
        reached, most = joint.log_prob(best).item(), log_probs.max().item()
        if abs(reached - most) > 1e-5:
            raise Failure(
                f"the best filling {best.tolist()} has {reached:.6g}, and another has {most:.6g}",
                where={"text": text, "tokens": str(best.tolist())},
                expected=most,
                measured=reached,
            )


@check(
    "joint-fill-masked-inputs",
    "Joint fillings do not depend on the tokens under the masks, and depend on the others.",
    law="does not use masked inputs",
    protocol="JointFill",
)
@torch.no_grad()
def joint_fill_ignores_masked_tokens(tested: SystemUnderTest) -> None:
    fillings, before = _all_fillings(tested, 0)
    batch, masked = _masked_copies(tested, 0, len(fillings))

    def with_other_token(position: int) -> Tensor:
        tokens = with_replaced_token(batch.tokens[:1], position).expand_as(batch.tokens)
        joint = _joint_fill(tested).joint_fill(replace(batch, tokens=tokens), masked)
        return joint.log_prob(fillings.flatten()).double()

    for position in _two_texts(tested)[1][0]:
        assert_close(
            with_other_token(position),
            before,
            f"what is filled in depends on the token under the mask at position {position}",
            atol=1e-6,
            axes=("filling",),
            position=position,
        )
    assert_that(
        not torch.equal(with_other_token(4), before),
        "another token at position 4, which is not masked, changes nothing that is filled in",
        position=4,
    )


@check(
    "joint-fill-batch-independence",
    "A filling has the same log-probability alone and with another text in the batch.",
    law="does not depend on the batch",
    protocol="JointFill",
)
@torch.no_grad()
def joint_fill_does_not_depend_on_the_batch(tested: SystemUnderTest) -> None:
    """Both texts in one batch, with as many masked positions as each has."""
    texts, positions = _two_texts(tested)
    batch = tested.batch(texts)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for row, each in enumerate(positions):
        masked[row, each] = True
    result = [_all_fillings(tested, text) for text in (0, 1)]
    chosen = [len(fillings) // 3 for fillings, _ in result]
    tokens = torch.cat([fillings[i] for (fillings, _), i in zip(result, chosen, strict=True)])
    alone = torch.stack([log_probs[i] for (_, log_probs), i in zip(result, chosen, strict=True)])
    together = _joint_fill(tested).joint_fill(batch, masked).log_prob(tokens).double()
    what = "with the other text in the batch, a filling has another log-probability"
    assert_close(together, alone, what, atol=1e-5, axes=("text",))


@check(
    "joint-fill-sampling",
    "Sampled fillings follow their joint distribution (chi-square test of 4,000 samples).",
    law="samples what it scores",
    protocol="JointFill",
)
@torch.no_grad()
def joint_samples_follow_the_joint_distribution(tested: SystemUnderTest) -> None:
    sample_count = 4000
    fillings, log_probs = _all_fillings(tested, 0)
    batch, masked = _masked_copies(tested, 0, sample_count)
    joint = _joint_fill(tested).joint_fill(batch, masked)
    tokens = joint.sample(generator=torch.Generator().manual_seed(0)).view(sample_count, -1)
    counts: dict[Hashable, int] = dict.fromkeys(map(tuple, fillings.tolist()), 0)
    for one in tokens.tolist():
        counts[tuple(one)] += 1
    expected = dict(zip(counts, log_probs.exp().tolist(), strict=True))
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), sample_count * np.array(list(expected.values()))
    )
    assert_samples_follow(counts, expected, p_value, tested.show)
