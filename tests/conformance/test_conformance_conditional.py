"""The same checks for systems conditioned on a source: log p(text | source)."""

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
    check_masked_inputs_are_ignored,
    check_no_future_leak,
    chi_square_p_value,
    enumerate_space,
    some_sentences,
    totals,
)

pytestmark = pytest.mark.conditional


def with_source(specimen: Specimen, batch: Batch, source: list[int]) -> Batch:
    """The batch with one source for all of its texts."""
    pad = specimen.system.vocabulary.pad
    return replace(batch, condition=Batch.collate([source] * len(batch), pad))


def pair_batch(specimen: Specimen, sources: list[list[int]], texts: list[list[int]]) -> Batch:
    """Texts, each conditioned on its own source."""
    pad = specimen.system.vocabulary.pad
    return Batch.collate(texts, pad, condition=Batch.collate(sources, pad))


def one_pair(specimen: Specimen) -> Batch:
    source, _, text, _ = some_sentences(specimen)
    return pair_batch(specimen, [source], [text])


def probabilities(specimen: Specimen, source: list[int]) -> dict[tuple[int, ...], float]:
    """Of every text of the enumerable space, complete or not, by its tokens after the start."""
    result = {}
    for batch in enumerate_space(specimen):
        for tokens, length, total in zip(
            batch.tokens.tolist(),
            batch.lengths.tolist(),
            totals(specimen, with_source(specimen, batch, source)),
            strict=True,
        ):
            result[tuple(tokens[1:length])] = total.exp().item()
    return result


@pytest.mark.check("source", "distribution")
def test_1_conditional_probabilities_sum_to_one(specimen: Specimen):
    """Given a source, and given an empty one."""
    vocabulary, kind = specimen.system.vocabulary, catalogue()[specimen.name].kind
    claim(
        kind in NORMALISED_KINDS,
        f"a score of the kind {kind} does not sum to 1; exempt it from this",
    )
    for source in (some_sentences(specimen)[0], [vocabulary.start, vocabulary.end]):
        result = probabilities(specimen, source)
        claim_mass(sum(result.values()), len(result), exact=kind == "exact")


@pytest.mark.check("source", "cheat")
def test_2_conditional_predictions_ignore_masked_inputs(specimen: Specimen):
    """By its attention mask, and by its score, which must not depend on later tokens."""
    check_masked_inputs_are_ignored(specimen, one_pair(specimen))
    check_no_future_leak(specimen, one_pair(specimen))


@pytest.mark.check("source", "company")
def test_3_conditional_score_does_not_depend_on_the_batch(specimen: Specimen):
    """Nor on the order of the pairs, nor on how far the sources or the texts are padded."""
    texts = some_sentences(specimen)
    sources = [texts[2], texts[3], texts[1], texts[0]]
    long, start = [2] + [5] * 30, texts[1]

    def scored(sources: list[list[int]], texts: list[list[int]]) -> torch.Tensor:
        return totals(specimen, pair_batch(specimen, sources, texts))

    alone = torch.cat([scored([s], [t]) for s, t in zip(sources, texts, strict=True)])
    backwards = scored(sources[::-1], texts[::-1]).flip(0)
    longer_source = scored([*sources, long], [*texts, start])[: len(texts)]
    longer_text = scored([*sources, start], [*texts, long])[: len(texts)]
    batched_scores = {
        "together": scored(sources, texts),
        "in reverse order": backwards,
        "with a longer source": longer_source,
        "with a longer text": longer_text,
    }
    for how, scores in batched_scores.items():
        what = f"scored {how}, a text has another log-probability than alone"
        claim_close(scores, alone, what, atol=1e-5, axes=("pair",))
    # One text with many sources: equal prefixes must not be shared between sources.
    many = scored(sources, [texts[0]] * len(sources))
    each = torch.cat([scored([source], [texts[0]]) for source in sources])
    what = "with many sources in a batch, a text has another log-probability than with one"
    claim_close(many, each, what, atol=1e-5, axes=("source",))
    different = len(set(each.tolist()))
    claim(different == len(sources), f"{len(sources)} sources give {different} log-probabilities")


@pytest.mark.check("source")
def test_5_loaded_model_scores_the_same_given_a_source(specimen: Specimen):
    again, batch = load_run(specimen.run), one_pair(specimen)
    with torch.no_grad():
        first, second = specimen.system.log_prob(batch), again.system.log_prob(batch)
    what = "loaded from its folder, a text has another log-probability"
    claim_same(second.per_token, first.per_token, what, axes=("text", "prediction"))
    claim_same(second.totals, first.totals, what, axes=("text",))


@pytest.mark.check("source", "sample")
def test_6_conditional_samples_follow_the_distribution(specimen: Specimen):
    source, sample_count = some_sentences(specimen)[0], 2000
    expected = probabilities(specimen, source)
    samples = sample_sequences(
        specimen.system,
        sample_count,
        max_length=LONGEST,
        generator=torch.Generator().manual_seed(0),
        condition=Batch.collate([source] * sample_count, specimen.system.vocabulary.pad),
    )
    counts = dict.fromkeys(expected, 0)
    for one in samples:
        counts[(*one.tokens, specimen.system.vocabulary.end) if one.finished else one.tokens] += 1
    p_value = chi_square_p_value(
        np.array(list(counts.values()), float), sample_count * np.array(list(expected.values()))
    )
    claim_sampled(counts, expected, p_value)
