"""ARPA files: round trip, and malformed files reported by line."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.inference.backoff import BackoffModel, BackoffTables
from lmlab.inference.kneser_ney import fit_kneser_ney
from lmlab.interop.arpa import read_arpa, write_arpa

WORDS = [*SPECIAL_TOKENS, "a", "b", "Tür", "早上", "non\u00a0breaking"]


def tables(order: int, seed: int = 0) -> BackoffTables:
    generator = np.random.default_rng(seed)
    sequences = [
        [2, *generator.integers(5, 9, size=generator.integers(0, 8)), 3] for _ in range(60)
    ]
    offsets = np.cumsum([0] + [len(s) for s in sequences])
    vocabulary = Vocabulary(size=len(WORDS))
    return fit_kneser_ney(
        np.concatenate(sequences), offsets, order=order, vocabulary=vocabulary
    ).tables


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_arpa_round_trip(tmp_path, order, name):
    written = tables(order)
    write_arpa(tmp_path / name, written, WORDS)
    read, strings = read_arpa(tmp_path / name)
    assert strings == WORDS
    assert read.vocabulary == written.vocabulary
    assert np.array_equal(read.keys, written.keys)
    assert np.array_equal(read.level_ends, written.level_ends)
    # Nine digits of log10 are stored.
    assert np.allclose(read.log_probs, written.log_probs, rtol=1e-8, atol=0)
    assert np.allclose(read.log_backoffs, written.log_backoffs, rtol=1e-8, atol=1e-15)
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if "gz" in name else b"\\d")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_small_arpa_file_by_hand(tmp_path):
    path = tmp_path / "small.arpa"
    path.write_text(SMALL, encoding="utf-8")
    read, strings = read_arpa(path)
    assert strings == [*SPECIAL_TOKENS, "a", "b"]
    # After <s>: a 0.7, the others B(<s>) = 0.5 of the 1-grams; after a: b 0.4, the others 0.8.
    whole = np.exp(BackoffModel(read).distribution(np.array([[2], [5], [6]])))
    assert whole[0, [1, 3, 5, 6]] == pytest.approx([0.05, 0.125, 0.7, 0.125], abs=1e-6)
    assert whole[1, [1, 3, 5, 6]] == pytest.approx([0.08, 0.2, 0.32, 0.4], abs=1e-6)
    assert whole[2, [1, 3, 5, 6]] == pytest.approx([0.1, 0.25, 0.4, 0.25], abs=1e-6)
    assert (whole[:, [0, 2, 4]] == 0).all()


SMALL = rf"""made by hand; <s> is given the probability 1, as KenLM does

\data\
ngram 1=5
ngram 2=2

\1-grams:
-1	<unk>
0	<s>	{math.log10(0.5)}
{math.log10(0.25)}	</s>
{math.log10(0.4)}	a	{math.log10(0.8)}
{math.log10(0.25)}	b	0

\2-grams:
{math.log10(0.7)}	<s> a
{math.log10(0.4)} a b

\end\
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("ngram 2=2", "ngram 3=2", "line 5: expected 'ngram 2='"),
        ("ngram 1=5\nngram 2=2", "", "expected counts"),
        (r"\data" + "\\", "data", "line 18: expected a line"),
        (r"\1-grams:", r"\1-gram:", r"line 7: expected \\1-grams"),
        (r"\2-grams:", r"\3-grams:", r"line 14: expected \\2-grams"),
        ("-1\t<unk>", "none\t<unk>", "line 8: expected log10 P"),
        ("-1\t<unk>", "-1", "line 8: expected"),
        ("-1\t<unk>", "-1\t<unk>\t0\t0", "line 8: expected"),
        ("-1\t<unk>", "0.1\t<unk>", "line 8: 0.1 and 0 can't be"),
        ("-1\t<unk>", "nan\t<unk>", "line 8: nan and 0 can't be"),
        ("-1\t<unk>", "-1\tb", "line 12: this n-gram is a duplicate"),
        ("-1\t<unk>", "-1\t<pad>", "line 8: padding and mask"),
        ("<s> a", "<s> c", "line 15: 'c' is not among the 1-grams"),
        ("<s> a", "a b", "line 16: this n-gram is a duplicate"),
        ("ngram 2=2", "ngram 2=3", "line 17: expected log10 P"),
        ("ngram 2=2", "ngram 2=1", r"line 16: expected \\end"),
        ("\n\\end\\\n", "", "line 16: expected"),
        ("a b\n\n\\end\\\n", "", "line 16: expected"),
    ],
)
def test_malformed_arpa_is_reported_by_line(tmp_path, before, after, message):
    path = tmp_path / "bad.arpa"
    assert before in SMALL
    path.write_text(SMALL.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        read_arpa(path)
    assert "bad.arpa" in str(error.value)


def test_missing_context_is_reported_by_line(tmp_path):
    path = tmp_path / "bad.arpa"
    text = SMALL.replace("ngram 2=2\n", "ngram 2=2\nngram 3=1\n")
    path.write_text(text.replace("\n\\end", "\n\\3-grams:\n-1\tb a b\n\n\\end"), encoding="utf-8")
    with pytest.raises(UserError, match="line 20: its first 2 words are not among the 2-grams"):
        read_arpa(path)


def test_non_utf8_word_is_reported_by_line(tmp_path):
    path = tmp_path / "bad.arpa"
    path.write_bytes(SMALL.encode().replace(b"\tb\t", b"\t\xff\t"))
    with pytest.raises(UserError, match="line 12: this word is not UTF-8"):
        read_arpa(path)


def test_unreadable_arpa_paths_are_reported(tmp_path):
    with pytest.raises(UserError, match="can't be read: No such file"):
        read_arpa(tmp_path / "absent.arpa")
    (tmp_path / "broken.arpa.gz").write_bytes(gzip.compress(SMALL.encode())[:-30])
    with pytest.raises(UserError, match=r"broken.arpa.gz can't be read"):
        read_arpa(tmp_path / "broken.arpa.gz")
    with pytest.raises(UserError, match="there is no folder"):
        write_arpa(tmp_path / "no" / "such.arpa", tables(2), WORDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*WORDS[:-1], "two words"], "white space"),
        ([*WORDS[:-1], ""], "empty"),
        ([*WORDS[:-1], "a"], "tokens 5 and 9"),
        (WORDS[:-1], "expected the strings of 10 tokens"),
    ],
)
def test_tokens_arpa_cannot_represent_are_refused(tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        write_arpa(tmp_path / "model.arpa", tables(2), words)
    assert list(tmp_path.iterdir()) == []


def test_special_tokens_get_the_standard_arpa_names(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[5:]]
    write_arpa(tmp_path / "model.arpa", tables(2), words)
    assert read_arpa(tmp_path / "model.arpa")[1] == WORDS
