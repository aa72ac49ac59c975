"""The same suite for energies, for joint fills, and for word vectors."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.protocols import Energy, Fill, JointFill, Vectors
from lmlab.core.registry import catalogue

from .claims import claim, claim_close, claim_mass, claim_protocol, claim_sampled
from .conftest import Specimen
from .test_conformance import (
    chi_square_p_value,
    enumerate_space,
    some_sentences,
    totals,
    with_replaced_token,
)

EQUAL_UP_TO_A_CONSTANT = ("exact", "estimate", "unnormalised")
"""Kinds of log_prob that must be minus the energy, but for a constant of each length."""


@torch.no_grad()
def energies(specimen: Specimen, batch: Batch) -> torch.Tensor:
    claim_protocol(specimen.system, Energy)
    return specimen.system.energy(batch).double()


@pytest.mark.protocol("Energy")
def test_1_energies_normalise_over_texts_of_one_length(specimen: Specimen):
    """Z is finite by enumeration, and log_prob is -E less a constant of the length."""
    complete, _ = enumerate_space(specimen)
    energy, scored = energies(specimen, complete), totals(specimen, complete)
    infinite = int((~energy.isfinite()).sum())
    claim(not infinite, f"the energy of {infinite} of {len(energy)} texts is not finite")
    for length in complete.lengths.unique():
        here = complete.lengths == length
        log_z = torch.logsumexp(-energy[here], 0)
        claim(log_z.isfinite(), f"log Z over texts of {length} tokens is {log_z.item()}")
        log_p = -energy[here] - log_z
        claim_mass(log_p.exp().sum().item(), int(here.sum()), exact=True, tolerance=1e-9)
        if catalogue()[specimen.name].kind in EQUAL_UP_TO_A_CONSTANT:
            again = scored[here] - torch.logsumexp(scored[here], 0)
            what = f"among texts of {length} tokens log_prob is not minus the energy"
            claim_close(again, log_p, what, atol=1e-4, axes=("text",))
        if here.sum() > 1:
            claim(log_p.std() > 1e-3, f"all texts of {length} tokens have the same energy")


@pytest.mark.protocol("Energy")
def test_1_energy_fill_is_its_conditional(specimen: Specimen):
    """Where nothing but an energy defines the system: p(x_t | rest) ∝ exp(-E), token by token."""
    system = specimen.system
    if catalogue()[specimen.name].kind != "unnormalised" or not isinstance(system, Fill):
        pytest.skip("it fills in by other means than its energy, or not at all")
    sentence, pad = some_sentences(specimen)[2], system.vocabulary.pad
    positions = range(1, len(sentence))
    batch = Batch.collate([sentence] * len(positions), pad=pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[range(len(positions)), list(positions)] = True
    with torch.no_grad():
        filled = system.fill(batch, masked).log_probs.double()
    for row, position in enumerate(positions):
        tokens = filled[row].isfinite().nonzero()[:, 0].tolist()
        claim(len(tokens) >= 3, f"only {len(tokens)} tokens can fill position {position}")
        each = [[*sentence[:position], token, *sentence[position + 1 :]] for token in tokens]
        energy = energies(specimen, Batch.collate(each, pad=pad))
        expected = torch.log_softmax(-energy, 0)
        what = f"what fills position {position} is not the conditional of the energy"
        claim_close(filled[row, tokens], expected, what, atol=1e-4, axes=("token",))


@pytest.mark.protocol("Energy")
def test_3_energy_does_not_depend_on_the_batch(specimen: Specimen):
    sentences, pad = some_sentences(specimen), specimen.system.vocabulary.pad
    alone = torch.cat([energies(specimen, Batch.collate([s], pad=pad)) for s in sentences])
    together = energies(specimen, Batch.collate(sentences[::-1], pad=pad)).flip(0)
    what = "in a batch with others, a text has another energy than alone"
    claim_close(together, alone, what, atol=1e-5, axes=("text",))


def two_texts(specimen: Specimen) -> tuple[list[list[int]], list[list[int]]]:
    """Two sentences, and the masked positions of each: adjacent, and some apart where
    the system supports that."""
    _, _, first, second = some_sentences(specimen)
    one_span = getattr(specimen.system, "one_span", False)
    return [first, second], [[1, 2, 3], [1, 2]] if one_span else [[2, 3, 6], [1, 4]]


def masked_copies(specimen: Specimen, text: int, copies: int) -> tuple[Batch, torch.Tensor]:
    """Copies of one of the two texts, and the same masked positions in each."""
    texts, positions = two_texts(specimen)
    batch = Batch.collate([texts[text]] * copies, pad=specimen.system.vocabulary.pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, positions[text]] = True
    return batch, masked


def all_fillings(specimen: Specimen, text: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(F, N) every filling of the masked positions, and (F,) its log-probability."""
    system, vocabulary = specimen.system, specimen.system.vocabulary
    claim_protocol(system, JointFill)
    predictable = [i for i in range(vocabulary.size) if i not in vocabulary.unpredictable]
    positions = two_texts(specimen)[1][text]
    fillings = torch.tensor(list(itertools.product(predictable, repeat=len(positions))))
    batch, masked = masked_copies(specimen, text, len(fillings))
    with torch.no_grad():
        return fillings, system.joint_fill(batch, masked).log_prob(fillings.flatten()).double()


@pytest.mark.protocol("JointFill")
@pytest.mark.parametrize("text", [0, 1])
def test_1_joint_fill_sums_to_one(specimen: Specimen, text: int):
    """All fillings sum to one, the best is the likeliest, and never-predicted tokens have none."""
    system = specimen.system
    claim_protocol(system, JointFill)
    fillings, log_probs = all_fillings(specimen, text)
    claim_mass(log_probs.exp().sum().item(), len(fillings), exact=True)
    batch, masked = masked_copies(specimen, text, 1)
    with torch.no_grad():
        joint = system.joint_fill(batch, masked)
        best = joint.best()
        never = fillings[:1].clone()
        never[0, 0] = system.vocabulary.pad
        mass = joint.log_prob(never.flatten()).exp().item()
        claim(mass == 0.0, f"<pad>, which is never predicted, fills a gap with probability {mass}")
        reached = joint.log_prob(best).item()
    # Of equals any will do, so what is compared is how likely they are.
    most = log_probs.max().item()
    claim(
        abs(reached - most) <= 1e-5,
        f"the best filling {best.tolist()} has {reached:.6g}, and another has {most:.6g}",
    )


@pytest.mark.protocol("JointFill")
def test_2_joint_fill_ignores_masked_tokens(specimen: Specimen):
    system = specimen.system
    claim_protocol(system, JointFill)
    fillings, before = all_fillings(specimen, 0)
    batch, masked = masked_copies(specimen, 0, len(fillings))
    with torch.no_grad():
        for position in two_texts(specimen)[1][0]:
            tokens = with_replaced_token(batch.tokens[:1], position).expand_as(batch.tokens)
            other = system.joint_fill(replace(batch, tokens=tokens), masked)
            after = other.log_prob(fillings.flatten()).double()
            what = f"what is filled in depends on the token under the mask at position {position}"
            claim_close(after, before, what, atol=1e-6, axes=("filling",))
        tokens = with_replaced_token(batch.tokens[:1], 4).expand_as(batch.tokens)
        moved = system.joint_fill(replace(batch, tokens=tokens), masked)
        claim(
            not torch.equal(moved.log_prob(fillings.flatten()).double(), before),
            "another token at position 4, which is not masked, changes nothing that is filled in",
        )


@pytest.mark.protocol("JointFill")
def test_3_joint_fill_does_not_depend_on_the_batch(specimen: Specimen):
    """Both texts in one batch, with as many masked positions as each has."""
    system = specimen.system
    claim_protocol(system, JointFill)
    texts, positions = two_texts(specimen)
    batch = Batch.collate(texts, pad=system.vocabulary.pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for row, each in enumerate(positions):
        masked[row, each] = True
    result = [all_fillings(specimen, text) for text in (0, 1)]
    chosen = [len(fillings) // 3 for fillings, _ in result]
    tokens = torch.cat([fillings[i] for (fillings, _), i in zip(result, chosen, strict=True)])
    alone = torch.stack([log_probs[i] for (_, log_probs), i in zip(result, chosen, strict=True)])
    with torch.no_grad():
        together = system.joint_fill(batch, masked).log_prob(tokens).double()
    what = "with the other text in the batch, a filling has another log-probability"
    claim_close(together, alone, what, atol=1e-5, axes=("text",))


@pytest.mark.protocol("JointFill")
def test_6_joint_samples_follow_the_joint_distribution(specimen: Specimen):
    system, sample_count = specimen.system, 4000
    claim_protocol(system, JointFill)
    fillings, log_probs = all_fillings(specimen, 0)
    batch, masked = masked_copies(specimen, 0, sample_count)
    with torch.no_grad():
        joint = system.joint_fill(batch, masked)
        tokens = joint.sample(generator=torch.Generator().manual_seed(0)).view(sample_count, -1)
    counts = dict.fromkeys(map(tuple, fillings.tolist()), 0)
    for one in tokens.tolist():
        counts[tuple(one)] += 1
    expected = dict(zip(counts, log_probs.exp().tolist(), strict=True))
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), sample_count * np.array(list(expected.values()))
    )
    claim_sampled(counts, expected, p_value)


@pytest.mark.protocol("Vectors")
def test_every_word_has_a_vector(specimen: Specimen):
    system = specimen.system
    claim_protocol(system, Vectors)
    with torch.no_grad():
        vectors = system.vectors()
    size = system.vocabulary.size
    claim(
        vectors.ndim == 2 and len(vectors) == size,
        f"vectors have the shape {tuple(vectors.shape)}, expected ({size}, width)",
    )
    claim(vectors.isfinite().all(), "a vector has a number that is not finite")
    first, second = (specimen.model.tokenizer.encode(word)[0] for word in "ab")
    claim(not torch.equal(vectors[first], vectors[second]), "a and b have the same vector")
