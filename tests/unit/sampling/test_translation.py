"""Translation with a tabular system: strategies, prefixes, constraints and MBR ranking."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.sampling.beam_search import BeamConfig, Hypothesis
from lmlab.sampling.decoding import EncodedSources
from lmlab.sampling.decoding_strategies import BeamSearch, Greedy, Sampling
from lmlab.sampling.translation import (
    Translation,
    TranslationCandidate,
    Translator,
    make_translator,
    rank_by_expected_utility,
)

WORDS = {"a": 5, "b": 6, "c": 7}


class StubTokenizer:
    """A tokenizer of three words."""

    kind = "word"

    def __init__(self, vocabulary) -> None:
        self.vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        return [WORDS.get(word, self.vocabulary.unknown) for word in text.split()]

    def token(self, id: int) -> str:
        return self.decode([id])

    def decode(self, ids: list[int]) -> str:
        names = {id: word for word, id in WORDS.items()}
        return " ".join(names.get(id, "<unk>") for id in ids)


@pytest.fixture
def translator(random_table):
    """The table's condition is the first token of its output, so it distinguishes sources."""

    def make(strategy, **options) -> Translator:
        letters = StubTokenizer(random_table.vocabulary)
        return Translator(
            system=random_table,
            tokenizer=letters,
            source_tokenizer=letters,
            strategy=strategy,
            **options,
        )

    return make


def test_translations_stay_aligned_with_sources(translator):
    """Sources of several lengths in two chunks, one of them empty: as each translated alone."""
    beam_translator = translator(BeamSearch(beam=BeamConfig(width=3)), max_length=4)
    chunks = [["a", "b c a", "", "c"], ["b"]]
    translations = list(beam_translator.translate(chunks))
    assert [translation.source for translation in translations] == ["a", "b c a", "", "c", "b"]
    assert translations[2].candidates == ()
    for translation in translations:
        if translation.source:
            (alone,) = beam_translator.translate([[translation.source]])
            assert translation == alone


@pytest.mark.parametrize(
    "strategy", [Greedy(), BeamSearch(beam=BeamConfig(width=3)), Sampling(rows=2)]
)
def test_translation_does_not_depend_on_the_batch(translator, table, strategy):
    """A text that never ends is as long as its own source allows: 2 · 3 + 10 tokens, 2 · 5 + 10.

    Special tokens of a source count; its samples depend on its index alone.
    """
    endless = {tuple(5 + bits % 3 for bits in range(n, n + 40)): 1.0 for n in range(3)}
    table_translator = replace(translator(strategy, best=2), system=table(endless, 8))
    together = list(table_translator.translate([["a", "b c a", "c"]]))
    assert [translation.candidates[0].tokens for translation in together] == [16, 20, 16]
    assert list(table_translator.translate([["a"], ["b c a"], ["c"]])) == together


def test_samples_differ_between_equal_sources(translator):
    """One source eight times, three texts each: equal without the source index in the seed."""
    translations = translator(Sampling(rows=3), best=3, max_length=4).translate([["a"] * 8])
    assert (
        len(
            {
                tuple(candidate.text for candidate in translation.candidates)
                for translation in translations
            }
        )
        > 4
    )


def test_forced_prefix_is_scored(random_table):
    """p(b a | source) is the same whether `b` was forced or decoded."""
    letters = StubTokenizer(random_table.vocabulary)
    options = {"best": 20, "beam": 27, "within": math.inf, "max_length": 4}
    free_translator = make_translator(random_table, letters, letters, **options)
    prefix_translator = make_translator(random_table, letters, letters, prefix="b", **options)
    (unconstrained,), (prefixed,) = (
        free_translator.translate([["a"]]),
        prefix_translator.translate([["a"]]),
    )
    expected = [
        candidate for candidate in unconstrained.candidates if candidate.text.startswith("b")
    ]
    assert (
        [candidate.text for candidate in prefixed.candidates]
        == [candidate.text for candidate in expected]
        != []
    )
    for candidate, other in zip(prefixed.candidates, expected, strict=True):
        assert (candidate.log_prob, candidate.score) == pytest.approx((other.log_prob, other.score))
        assert candidate.tokens == other.tokens


def test_translation_log_probs_equal_the_table(translator, random_table):
    """p(y | first token) = mass(first, y) / mass(first), the end with it."""
    (translation,) = translator(
        BeamSearch(beam=BeamConfig(width=3, best=5)), best=5, max_length=4
    ).translate([["b"]])
    total = random_table.mass[(6,)]
    assert len(translation.candidates) == 5
    for candidate in translation.candidates:
        ids = (6, *(WORDS[word] for word in candidate.text.split()), random_table.vocabulary.end)
        assert candidate.log_prob == pytest.approx(math.log(random_table.mass[ids] / total))
        assert candidate.tokens == len(ids) - 1 and candidate.finished


def test_greedy_is_never_better_than_a_wide_beam(translator):
    (greedy,) = translator(Greedy(), max_length=4).translate([["a"]])
    (beam,) = translator(BeamSearch(beam=BeamConfig(width=27)), max_length=4).translate([["a"]])
    assert greedy.candidates[0].log_prob <= beam.candidates[0].log_prob + 1e-12


def test_samples_follow_the_table_probabilities(translator, random_table):
    """Frequency of the likeliest translation, within five standard errors."""
    (best,) = translator(BeamSearch(beam=BeamConfig(width=27)), max_length=4).translate([["c"]])
    (sampled,) = translator(Sampling(rows=4000), best=4000, max_length=4).translate([["c"]])
    p = math.exp(best.candidates[0].log_prob)
    share = sum(candidate.text == best.text for candidate in sampled.candidates) / 4000
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / 4000)


def test_one_seed_gives_one_result(translator):
    strategy = Sampling(rows=3)
    first, second = (
        list(translator(strategy, best=3, seed=7).translate([["a", "b"]])) for _ in "12"
    )
    assert first == second
    assert first != list(translator(strategy, best=3, seed=8).translate([["a", "b"]]))


def make_candidate(text: str) -> TranslationCandidate:
    return TranslationCandidate(text=text, log_prob=-1.0, score=-1.0, tokens=1, finished=True)


def test_minimum_bayes_risk_by_hand():
    """u = share of letters in common; of aab, aac, zzz and aab again, aab is worth most:
    (1 + 2/3 + 0 + 1) / 4 = 2/3, aac (2/3 + 1 + 0 + 2/3) / 4 = 7/12, zzz 1/4."""

    def utility(text: str, reference: str) -> float:
        return sum(a == b for a, b in zip(text, reference, strict=True)) / len(text)

    ranked = rank_by_expected_utility(
        [make_candidate(t) for t in ("aac", "aab", "zzz", "aab")], utility
    )
    assert [(candidate_text.text, round(candidate_text.score, 9)) for candidate_text in ranked] == [
        ("aab", round(2 / 3, 9)),
        ("aac", round(7 / 12, 9)),
        ("zzz", 0.25),
    ]


def test_options_that_do_not_apply_are_refused(random_table):
    letters = StubTokenizer(random_table.vocabulary)
    with pytest.raises(UserError, match="beam does not apply to the method greedy"):
        make_translator(random_table, letters, letters, method="greedy", beam=3)
    with pytest.raises(UserError, match="did you mean"):
        make_translator(random_table, letters, letters, method="beams")
    with pytest.raises(UserError, match="1 or more"):
        make_translator(random_table, letters, letters, best=0)
    with pytest.raises(UserError, match="greedy gives one text per source, got 3"):
        make_translator(random_table, letters, letters, method="greedy", best=3)
    with pytest.raises(UserError, match="a seed must be from 0"):
        make_translator(random_table, letters, letters, method="sample", seed=-1)
    with pytest.raises(UserError, match="the prefix contains a banned phrase"):
        make_translator(random_table, letters, letters, prefix="a b", banned=("b",))


def test_too_long_source_is_truncated_with_a_note(translator, random_table, monkeypatch):
    def refuse(tokens: int) -> None:
        if tokens > 4:
            raise UserError(f"at most 4 tokens, and {tokens} came.")

    monkeypatch.setattr(random_table, "check_condition_length", refuse)
    greedy_translator = translator(Greedy(), max_length=4)
    translations = list(greedy_translator.translate([["a", "b c"], ["a b c a"]]))
    assert [translation.truncated_tokens for translation in translations] == [
        0,
        0,
        2,
    ] and not translations[1].notes
    assert "last 2 tokens" in translations[2].notes[0]
    (cut,) = greedy_translator.translate([["a b"]])
    assert translations[2].candidates == cut.candidates


def test_source_starts_with_a_special_token_as_in_training(translator):
    """Without a start token (T5) it is the end token: systems expect a special token there."""

    class RecordingStrategy:
        rows = 1
        seen: ClassVar[list[list[int]]] = []

        def decode(
            self, system, sources: EncodedSources, max_lengths, seed
        ) -> list[list[Hypothesis]]:
            self.seen.extend(sources.batch.tokens.tolist())
            return [[]]

    letters = StubTokenizer(Vocabulary(size=8, start=None))
    list(replace(translator(RecordingStrategy()), source_tokenizer=letters).translate([["a b"]]))
    assert RecordingStrategy.seen == [[3, 5, 6, 3]]


def test_missing_words_and_translations_are_noted():
    lacking = replace(make_candidate("x"), missing=("dog",))
    (note,) = Translation(source="a", candidates=(make_candidate("y"), lacking, lacking)).notes
    assert "'dog' is required" in note
    (note,) = Translation(source="a", candidates=()).notes
    assert "no translation was found" in note
    assert Translation(source=" ", candidates=()).notes == ()


def test_required_and_banned_words_constrain_the_search(random_table):
    letters = StubTokenizer(random_table.vocabulary)
    constrained = make_translator(
        random_table, letters, letters, required=("b",), banned=("c",), max_length=4
    )
    (translation,) = constrained.translate([["a"]])
    assert "b" in translation.text.split() and "c" not in translation.text.split()


def test_condition_has_one_row_per_source(random_table):
    """The table uses its condition, so a wrong row order would be detected."""
    sources = Batch.collate([[2, 5, 3], [2, 6, 3]], pad=0)
    strategy = BeamSearch(beam=BeamConfig(width=2))
    decoded = strategy.decode(random_table, EncodedSources.encode(random_table, sources), [4, 4], 0)
    swapped = strategy.decode(
        random_table,
        EncodedSources.encode(random_table, sources.select(torch.tensor([1, 0]))),
        [4, 4],
        0,
    )
    assert decoded == swapped[::-1]
