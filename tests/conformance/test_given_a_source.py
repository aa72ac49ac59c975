"""The same laws for systems that are given another text: log p(text | source)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import catalogue
from lmlab.core.score import NORMALISED_KINDS
from lmlab.sampling.decoding import sample_sequences
from lmlab.training.run_folder import load_run

from .claims import claim, claim_close, claim_mass, claim_same, claim_sampled
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
    return replace(batch, condition=Batch.collate([source] * len(batch), pad))


def beside(specimen: Specimen, sources: list[list[int]], texts: list[list[int]]) -> Batch:
    """Texts, each beside its own source."""
    pad = specimen.system.vocabulary.pad
    return Batch.collate(texts, pad, condition=Batch.collate(sources, pad))


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
    claim(
        kind in NORMALISED_KINDS,
        f"a score of the kind {kind} does not sum to 1; exempt it from this",
    )
    for source in (some_sentences(specimen)[0], [vocabulary.start, vocabulary.end]):
        found = probabilities(specimen, source)
        claim_mass(sum(found.values()), len(found), exact=kind == "exact")


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
    companies = {
        "together": scored(sources, texts),
        "in reverse order": backwards,
        "with a longer source": longer_source,
        "with a longer text": longer_text,
    }
    for how, company in companies.items():
        what = f"scored {how}, a text has another log-probability than alone"
        claim_close(company, alone, what, atol=1e-5, axes=("pair",))
    # One text beside many sources: what begins alike is not the same for that.
    many = scored(sources, [texts[0]] * len(sources))
    each = torch.cat([scored([source], [texts[0]]) for source in sources])
    what = "with many sources in a batch, a text has another log-probability than with one"
    claim_close(many, each, what, atol=1e-5, axes=("source",))
    different = len(set(each.tolist()))
    claim(different == len(sources), f"{len(sources)} sources give {different} log-probabilities")


@pytest.mark.check("source")
def test_5_saved_and_loaded_it_scores_the_same_given_a_source(specimen: Specimen):
    again, batch = load_run(specimen.run), one_pair(specimen)
    with torch.no_grad():
        first, second = specimen.system.log_prob(batch), again.system.log_prob(batch)
    what = "loaded from its folder, a text has another log-probability"
    claim_same(second.per_token, first.per_token, what, axes=("text", "prediction"))
    claim_same(second.totals, first.totals, what, axes=("text",))


@pytest.mark.check("source", "sample")
def test_6_given_a_source_it_samples_what_it_scores(specimen: Specimen):
    source, drawn = some_sentences(specimen)[0], 2000
    expected = probabilities(specimen, source)
    samples = sample_sequences(
        specimen.system,
        drawn,
        max_length=LONGEST,
        generator=torch.Generator().manual_seed(0),
        condition=Batch.collate([source] * drawn, specimen.system.vocabulary.pad),
    )
    counts = dict.fromkeys(expected, 0)
    for one in samples:
        counts[(*one.tokens, specimen.system.vocabulary.end) if one.finished else one.tokens] += 1
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), drawn * np.array(list(expected.values()))
    )
    claim_sampled(counts, expected, p_value)
