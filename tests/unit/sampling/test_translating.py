"""Translating by a system that is a table, and what the best of several samples is."""

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


class Letters:
    """A tokeniser of three words."""

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
    """The table's condition is the first token of what it writes: it tells sources apart."""

    def make(way, **options) -> Translator:
        letters = Letters(random_table.vocabulary)
        return Translator(
            system=random_table,
            tokenizer=letters,
            source_tokenizer=letters,
            strategy=way,
            **options,
        )

    return make


def test_lines_stay_beside_each_other(translator):
    """Sources of several lengths in two chunks, an empty one among them: as each by itself."""
    each = translator(BeamSearch(beam=BeamConfig(width=3)), max_length=4)
    chunks = [["a", "b c a", "", "c"], ["b"]]
    found = list(each.translate(chunks))
    assert [one.source for one in found] == ["a", "b c a", "", "c", "b"]
    assert found[2].candidates == ()
    for one in found:
        if one.source:
            (alone,) = each.translate([[one.source]])
            assert one == alone


@pytest.mark.parametrize("way", [Greedy(), BeamSearch(beam=BeamConfig(width=3)), Sampling(rows=2)])
def test_a_translation_does_not_depend_on_its_company(translator, table, way):
    """A text that never ends is as long as its own source allows: 2 · 3 + 10 tokens, 2 · 5 + 10.

    The symbols of a source are counted; what is drawn depends on its number alone.
    """
    endless = {tuple(5 + bits % 3 for bits in range(n, n + 40)): 1.0 for n in range(3)}
    each = replace(translator(way, best=2), system=table(endless, 8))
    together = list(each.translate([["a", "b c a", "c"]]))
    assert [one.candidates[0].tokens for one in together] == [16, 20, 16]
    assert list(each.translate([["a"], ["b c a"], ["c"]])) == together


def test_what_is_drawn_for_a_source_is_not_what_is_drawn_for_another(translator):
    """The same source eight times, three texts each: all would be alike if the number were not."""
    found = translator(Sampling(rows=3), best=3, max_length=4).translate([["a"] * 8])
    assert len({tuple(one.text for one in each.candidates) for each in found}) > 4


def test_a_prefix_is_part_of_what_is_scored(random_table):
    """p(b a | source) is the same whether `b` was asked for or found."""
    letters = Letters(random_table.vocabulary)
    options = {"best": 20, "beam": 27, "within": math.inf, "max_length": 4}
    free = make_translator(random_table, letters, letters, **options)
    begun = make_translator(random_table, letters, letters, prefix="b", **options)
    (every,), (some,) = free.translate([["a"]]), begun.translate([["a"]])
    expected = [one for one in every.candidates if one.text.startswith("b")]
    assert [one.text for one in some.candidates] == [one.text for one in expected] != []
    for one, other in zip(some.candidates, expected, strict=True):
        assert (one.log_prob, one.score) == pytest.approx((other.log_prob, other.score))
        assert one.tokens == other.tokens


def test_log_probabilities_add_up_to_the_tables(translator, random_table):
    """p(y | first token) = mass(first, y) / mass(first), the end with it."""
    (found,) = translator(
        BeamSearch(beam=BeamConfig(width=3, best=5)), best=5, max_length=4
    ).translate([["b"]])
    total = random_table.mass[(6,)]
    assert len(found.candidates) == 5
    for one in found.candidates:
        ids = (6, *(WORDS[word] for word in one.text.split()), random_table.vocabulary.end)
        assert one.log_prob == pytest.approx(math.log(random_table.mass[ids] / total))
        assert one.tokens == len(ids) - 1 and one.finished


def test_greedy_is_a_beam_of_one_or_worse(translator):
    (greedily,) = translator(Greedy(), max_length=4).translate([["a"]])
    (searched,) = translator(BeamSearch(beam=BeamConfig(width=27)), max_length=4).translate([["a"]])
    assert greedily.candidates[0].log_prob <= searched.candidates[0].log_prob + 1e-12


def test_samples_follow_the_table(translator, random_table):
    """How often the likeliest translation is drawn, within five standard errors."""
    (best,) = translator(BeamSearch(beam=BeamConfig(width=27)), max_length=4).translate([["c"]])
    (drawn,) = translator(Sampling(rows=4000), best=4000, max_length=4).translate([["c"]])
    p = math.exp(best.candidates[0].log_prob)
    share = sum(one.text == best.text for one in drawn.candidates) / 4000
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / 4000)


def test_one_seed_one_result(translator):
    way = Sampling(rows=3)
    first, second = (list(translator(way, best=3, seed=7).translate([["a", "b"]])) for _ in "12")
    assert first == second
    assert first != list(translator(way, best=3, seed=8).translate([["a", "b"]]))


def written(text: str) -> TranslationCandidate:
    return TranslationCandidate(text=text, log_prob=-1.0, score=-1.0, tokens=1, finished=True)


def test_minimum_bayes_risk_by_hand():
    """u = share of letters in common; of aab, aac, zzz and aab again, aab is worth most:
    (1 + 2/3 + 0 + 1) / 4 = 2/3, aac (2/3 + 1 + 0 + 2/3) / 4 = 7/12, zzz 1/4."""

    def utility(text: str, reference: str) -> float:
        return sum(a == b for a, b in zip(text, reference, strict=True)) / len(text)

    ranked = rank_by_expected_utility([written(t) for t in ("aac", "aab", "zzz", "aab")], utility)
    assert [(one.text, round(one.score, 9)) for one in ranked] == [
        ("aab", round(2 / 3, 9)),
        ("aac", round(7 / 12, 9)),
        ("zzz", 0.25),
    ]


def test_what_a_method_has_no_use_for_is_refused(random_table):
    letters = Letters(random_table.vocabulary)
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


def test_a_source_that_is_too_long_is_cut_and_says_so(translator, random_table, monkeypatch):
    def refuse(tokens: int) -> None:
        if tokens > 4:
            raise UserError(f"at most 4 tokens, and {tokens} came.")

    monkeypatch.setattr(random_table, "check_condition_length", refuse)
    each = translator(Greedy(), max_length=4)
    found = list(each.translate([["a", "b c"], ["a b c a"]]))
    assert [one.truncated_tokens for one in found] == [0, 0, 2] and not found[1].notes
    assert "last 2 tokens" in found[2].notes[0]
    (cut,) = each.translate([["a b"]])
    assert found[2].candidates == cut.candidates


def test_a_source_begins_with_a_symbol_as_in_training(translator):
    """Where there is no start (T5) the end stands there: systems count on a symbol."""

    class Noting:
        rows = 1
        seen: ClassVar[list[list[int]]] = []

        def decode(
            self, system, sources: EncodedSources, max_lengths, seed
        ) -> list[list[Hypothesis]]:
            self.seen.extend(sources.batch.tokens.tolist())
            return [[]]

    letters = Letters(Vocabulary(size=8, start=None))
    list(replace(translator(Noting()), source_tokenizer=letters).translate([["a b"]]))
    assert Noting.seen == [[3, 5, 6, 3]]


def test_what_is_not_as_asked_for_is_told():
    lacking = replace(written("x"), missing=("dog",))
    (note,) = Translation(source="a", candidates=(written("y"), lacking, lacking)).notes
    assert "'dog' is required" in note
    (note,) = Translation(source="a", candidates=()).notes
    assert "no translation was found" in note
    assert Translation(source=" ", candidates=()).notes == ()


def test_required_and_banned_words_reach_the_search(random_table):
    letters = Letters(random_table.vocabulary)
    made = make_translator(
        random_table, letters, letters, required=("b",), banned=("c",), max_length=4
    )
    (found,) = made.translate([["a"]])
    assert "b" in found.text.split() and "c" not in found.text.split()


def test_a_condition_is_one_row_for_each_source(random_table):
    """The table reads its condition, so a wrong order of rows would show."""
    sources = Batch.collate([[2, 5, 3], [2, 6, 3]], pad=0)
    way = BeamSearch(beam=BeamConfig(width=2))
    found = way.decode(random_table, EncodedSources.encode(random_table, sources), [4, 4], 0)
    swapped = way.decode(
        random_table,
        EncodedSources.encode(random_table, sources.select(torch.tensor([1, 0]))),
        [4, 4],
        0,
    )
    assert found == swapped[::-1]
