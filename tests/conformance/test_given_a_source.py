"""The same laws for systems that are given another text: log p(text | source)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.kinds import NORMALISED
from lmlab.core.registry import catalogue
from lmlab.sampling.decode import sample
from lmlab.training.runs import load_run

from .conftest import Specimen
from .test_conformance import (
    LONGEST,
    chi_square_p_value,
    enumerate_space,
    no_token_reaches_an_earlier_prediction,
    nothing_hidden_is_used,
    some_sentences,
    totals,
)

pytestmark = pytest.mark.conditional


def given(specimen: Specimen, batch: Batch, source: list[int]) -> Batch:
    """The batch with one source for all of its texts."""
    pad = specimen.system.vocabulary.pad
    return replace(batch, condition=Batch.from_sequences([source] * len(batch), pad))


def beside(specimen: Specimen, sources: list[list[int]], texts: list[list[int]]) -> Batch:
    """Texts, each beside its own source."""
    pad = specimen.system.vocabulary.pad
    return Batch.from_sequences(texts, pad, condition=Batch.from_sequences(sources, pad))


def one_pair(specimen: Specimen) -> Batch:
    source, _, text, _ = some_sentences(specimen)
    return beside(specimen, [source], [text])


def probabilities(specimen: Specimen, source: list[int]) -> dict[tuple[int, ...], float]:
    """Of every text of the enumerable space, complete or not, by its tokens after the start."""
    found = {}
    for batch in enumerate_space(specimen):
        for tokens, length, total in zip(
            batch.tokens.tolist(),
            batch.lengths.tolist(),
            totals(specimen, given(specimen, batch, source)),
            strict=True,
        ):
            found[tuple(tokens[1:length])] = total.exp().item()
    return found


@pytest.mark.check("source", "distribution")
def test_1_given_a_source_it_is_a_distribution(specimen: Specimen):
    """Given a source, and given an empty one."""
    vocabulary, kind = specimen.system.vocabulary, catalogue()[specimen.name].kind
    assert kind in NORMALISED
    for source in (some_sentences(specimen)[0], [vocabulary.start, vocabulary.end]):
        mass = sum(probabilities(specimen, source).values())
        if kind == "exact":
            assert mass == pytest.approx(1.0, abs=1e-5)
        else:
            assert mass <= 1.0 + 1e-5


@pytest.mark.check("source", "cheat")
def test_2_given_a_source_it_does_not_cheat(specimen: Specimen):
    """By what its view hides, and by its score, which no later token of the text may reach."""
    nothing_hidden_is_used(specimen, one_pair(specimen))
    no_token_reaches_an_earlier_prediction(specimen, one_pair(specimen))


@pytest.mark.check("source", "company")
def test_3_given_a_source_it_does_not_depend_on_company(specimen: Specimen):
    """Nor on the order of the pairs, nor on how far the sources or the texts are padded."""
    texts = some_sentences(specimen)
    sources = [texts[2], texts[3], texts[1], texts[0]]
    long, start = [2] + [5] * 30, texts[1]

    def scored(sources: list[list[int]], texts: list[list[int]]) -> torch.Tensor:
        return totals(specimen, beside(specimen, sources, texts))

    alone = torch.cat([scored([s], [t]) for s, t in zip(sources, texts, strict=True)])
    backwards = scored(sources[::-1], texts[::-1]).flip(0)
    longer_source = scored([*sources, long], [*texts, start])[: len(texts)]
    longer_text = scored([*sources, start], [*texts, long])[: len(texts)]
    for company in (scored(sources, texts), backwards, longer_source, longer_text):
        torch.testing.assert_close(company, alone, atol=1e-5, rtol=0)
    # One text beside many sources: what begins alike is not the same for that.
    many = scored(sources, [texts[0]] * len(sources))
    each = torch.cat([scored([source], [texts[0]]) for source in sources])
    torch.testing.assert_close(many, each, atol=1e-5, rtol=0)
    assert len(set(each.tolist())) == len(sources), "the source must count"


@pytest.mark.check("source")
def test_5_saved_and_loaded_it_scores_the_same_given_a_source(specimen: Specimen):
    again, batch = load_run(specimen.run), one_pair(specimen)
    with torch.no_grad():
        first, second = specimen.system.log_prob(batch), again.system.log_prob(batch)
    assert torch.equal(first.per_token, second.per_token)
    assert torch.equal(first.totals, second.totals)


@pytest.mark.check("source", "sample")
def test_6_given_a_source_it_samples_what_it_scores(specimen: Specimen):
    source, drawn = some_sentences(specimen)[0], 2000
    expected = probabilities(specimen, source)
    samples = sample(
        specimen.system,
        drawn,
        max_length=LONGEST,
        generator=torch.Generator().manual_seed(0),
        condition=Batch.from_sequences([source] * drawn, specimen.system.vocabulary.pad),
    )
    counts = dict.fromkeys(expected, 0)
    for one in samples:
        counts[(*one.tokens, specimen.system.vocabulary.end) if one.finished else one.tokens] += 1
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), drawn * np.array(list(expected.values()))
    )
    assert p_value > 1e-6
