"""XLM's objective: pairs as one input, single sides, languages and positions."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import xlm

VOCABULARY = Vocabulary(size=30)
PAD, START, END = 0, 2, 3
TEXTS = [[START, 5, 6, 7, 8, END], [START, 9, END]]
SOURCES = [[START, 10, 11, END], [START, 12, 13, 14, 15, END]]


def build(**settings):
    torch.manual_seed(0)
    config = xlm.Config(width=16, layers=1, heads=2, length=12, **settings)
    return xlm.build(config, VOCABULARY).eval().double()


def pairs(texts=TEXTS, sources=SOURCES) -> Batch:
    return Batch.collate(texts, pad=PAD, condition=Batch.collate(sources, pad=PAD))


def clean(view) -> list[list[int]]:
    """The inputs with their targets restored, without padding."""
    tokens = torch.where(view.targets == NO_TARGET, view.inputs, view.targets)
    return [row[:n].tolist() for row, n in zip(tokens, view.lengths.tolist(), strict=True)]


def rows(values: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(values, lengths.tolist(), strict=True)]


def test_pair_is_text_then_source_with_positions_from_zero():
    view = build(translation_share=1.0).objective.view(pairs())
    assert clean(view) == [text + source for text, source in zip(TEXTS, SOURCES, strict=True)]
    assert rows(view.positions, view.lengths) == [[*range(6), *range(4)], [*range(3), *range(6)]]
    assert rows(view.segments, view.lengths) == [[1] * 6 + [0] * 4, [1] * 3 + [0] * 6]


def test_without_translation_each_side_is_a_text_in_its_language():
    system = build(translation_share=0.0)
    count = 2000
    batch = pairs([TEXTS[0]] * count, [SOURCES[1]] * count)
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(0))
    sides = [tuple(row) for row in clean(view)]
    assert set(sides) == {tuple(TEXTS[0]), tuple(SOURCES[1])}
    languages = {
        (side, *set(row))
        for side, row in zip(sides, rows(view.segments, view.lengths), strict=True)
    }
    assert languages == {(tuple(TEXTS[0]), 1), (tuple(SOURCES[1]), 0)}
    share = sides.count(tuple(TEXTS[0])) / count
    assert abs(share - 0.5) < 4.5 * math.sqrt(0.25 / count)


def test_share_of_pairs_and_masking_rate():
    """A third are pairs; 15 % of the words are masked on both sides, and no special tokens."""
    count = 4000
    text, source = [START, *[5] * 40, END], [START, *[6] * 40, END]
    view = build(translation_share=1 / 3).objective.view(
        pairs([text] * count, [source] * count), generator=torch.Generator().manual_seed(1)
    )
    is_pair = view.lengths == len(text) + len(source)
    assert abs(is_pair.float().mean() - 1 / 3) < 4.5 * math.sqrt(2 / 9 / count)
    for language, word in ((1, 5), (0, 6)):
        words = (torch.tensor(clean_words(view)) == word) & (view.segments == language)
        masked = (view.targets != NO_TARGET)[words].float().mean().item()
        assert abs(masked - 0.15) < 4.5 * math.sqrt(0.15 * 0.85 / int(words.sum()))
    assert set(view.targets[view.targets != NO_TARGET].tolist()) == {5, 6}


def clean_words(view) -> list[list[int]]:
    return torch.where(view.targets == NO_TARGET, view.inputs, view.targets).tolist()


def test_text_without_source_is_in_the_selected_language():
    system = build(languages=("de", "en", "fr"), language="fr")
    batch = Batch.collate(TEXTS, pad=PAD)
    assert system.objective.view(batch).segments.unique().tolist() == [2]
    vectors = {}
    for name in system.languages:
        system.use_language(name)
        vectors[name] = system.encode(batch)
    assert len({round(vector[0, 0].item(), 9) for vector in vectors.values()}) == 3
    with pytest.raises(UserError, match="no language called 'it'; choose from de, en, fr"):
        system.use_language("it")


def test_text_is_aligned_whatever_the_padding_of_text_and_source():
    """A short text among long ones, with a short source: fill, score and encode as alone."""
    system = build()
    batch = pairs([*TEXTS, [START, *[7] * 9, END]], [*SOURCES, [START, 8, END]])
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, 1] = True
    with torch.no_grad():
        filled, encoded = system.fill(batch, masked).log_probs, system.encode_tokens(batch)
        scores = system.log_prob(batch).totals
        for row in range(3):
            length = int(batch.lengths[row])
            source = batch.condition.tokens[row, : int(batch.condition.lengths[row])].tolist()
            alone = pairs([batch.tokens[row, :length].tolist()], [source])
            torch.testing.assert_close(
                filled[row], system.fill(alone, masked[row : row + 1, :length]).log_probs[0]
            )
            torch.testing.assert_close(encoded[row, :length], system.encode_tokens(alone)[0])
            torch.testing.assert_close(scores[row], system.log_prob(alone).totals[0])


def test_pseudo_likelihood_given_the_source_by_hand():
    """Σ_t log p(s_t | the other tokens, the whole source), one mask at a time."""
    system = build()
    batch = pairs(TEXTS[:1], SOURCES[:1])
    expected = 0.0
    with torch.no_grad():
        for position in range(1, 5):
            masked = torch.zeros(1, 6, dtype=torch.bool)
            masked[0, position] = True
            expected += system.fill(batch, masked).log_probs[0, TEXTS[0][position]].item()
        assert system.log_prob(batch).totals.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"languages": ("de",)}, "at least two different names"),
        ({"languages": ("de", "de")}, "at least two different names"),
        ({"language": "fr"}, "no language called 'fr'; choose from source, text"),
        ({"attention": "window:2"}, "attention=window:2 does not apply"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(UserError, match=message):
        build(**settings)
