"""Token datasets: layouts, token counts and the cache on disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data import corpus_encoding
from lmlab.data.corpus import Layout, Split, open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.data.readers import Example, PlainText
from lmlab.data.tokenizers import Tokenizer, train_tokenizer

MakeSplit = Callable[..., Split]
TEXTS = ("a b c", "a", "b b a d")
WORDS = train_tokenizer("word", ["a a a b b c"])  # a 5, b 6, c 7; d is unknown


def build(split: Split, layout: Layout = Layout(), **options: object) -> TokenDataset:  # noqa: B008
    return TokenDataset.build(split, WORDS, layout, progress=False, **options)  # type: ignore[arg-type]


def rows(dataset: TokenDataset) -> list[list[int]]:
    return [dataset[i].tolist() for i in range(len(dataset))]


def test_sentences_get_start_and_end_tokens(make_split: MakeSplit) -> None:
    dataset = build(make_split(*TEXTS))
    assert rows(dataset) == [[2, 5, 6, 7, 3], [2, 5, 3], [2, 6, 6, 5, 1, 3]]
    assert dataset.lengths.tolist() == [5, 3, 6]
    assert dataset.total_tokens == 4 + 2 + 5
    assert dataset.characters.tolist() == [5, 1, 7]
    assert dataset.characters.sum() == 13
    assert dataset.unknown_counts.tolist() == [0, 0, 1]
    assert dataset.unknown == 1
    with pytest.raises(IndexError):
        dataset[3]


def test_cache_key_includes_the_special_tokens(make_split: MakeSplit, tmp_path: Path) -> None:
    """Another end token of the same tokenizer needs another cache entry."""
    other = WORDS.with_vocabulary(replace(WORDS.vocabulary, start=None, end=7))
    options = {"layout": Layout(), "cache": tmp_path, "progress": False, "in_memory": 0}
    first = TokenDataset.build(make_split("a b"), WORDS, **options)
    second = TokenDataset.build(make_split("a b"), other, **options)
    assert rows(first) == [[2, 5, 6, 3]]
    assert rows(second) == [[7, 5, 6, 7]]


def test_truncated_sequence_loses_end_token_and_characters(make_split: MakeSplit) -> None:
    dataset = build(make_split(*TEXTS), Layout(cut=4))
    # "a b c" keeps its three words and loses its end; "b b a d" keeps "b b a" as well.
    assert rows(dataset) == [[2, 5, 6, 7], [2, 5, 3], [2, 6, 6, 5]]
    assert dataset.characters.tolist() == [5, 1, 5]
    assert dataset.unknown == 0


def test_layout_without_end_token(make_split: MakeSplit) -> None:
    dataset = build(make_split(*TEXTS), Layout(end=False, cut=3))
    assert rows(dataset) == [[2, 5, 6], [2, 5], [2, 6, 6]]
    assert dataset.characters.tolist() == [3, 1, 3]


def test_contiguous_layout_is_one_token_stream(make_split: MakeSplit) -> None:
    dataset = build(make_split(*TEXTS), Layout(kind="contiguous"))
    assert dataset.stream.tolist() == [3, 5, 6, 7, 3, 5, 3, 6, 6, 5, 1, 3]
    assert dataset.total_tokens == 11
    # Each line is preceded by the end token, so that its first word has a context.
    assert rows(dataset) == [[3, 5, 6, 7, 3], [3, 5, 3], [3, 6, 6, 5, 1, 3]]
    assert dataset.lengths.tolist() == [5, 3, 6]
    assert sum(len(row) - 1 for row in rows(dataset)) == dataset.total_tokens
    assert dataset.unknown_counts.tolist() == [0, 0, 1]


def test_pair_datasets_store_their_conditions(make_split: MakeSplit) -> None:
    split = make_split(Example("a b", condition="c"), Example("b", condition="a a a"))
    dataset = build(split, Layout(kind="pairs"))
    assert rows(dataset) == [[2, 5, 6, 3], [2, 6, 3]]
    assert [dataset.condition(i).tolist() for i in range(2)] == [[2, 7, 3], [2, 5, 5, 5, 3]]
    assert dataset.condition_lengths_between(0, 2).tolist() == [3, 5]
    letters = train_tokenizer("char", ["ca"])
    other = build(split, Layout(kind="pairs"), condition_tokenizer=letters)
    assert other.condition(0).tolist() == [2, letters.id("c"), 3]


def test_unpaired_texts_have_no_condition(make_split: MakeSplit) -> None:
    with pytest.raises(UserError, match="only a corpus of pairs has conditions"):
        build(make_split("a")).condition(0)
    with pytest.raises(UserError, match="expected a pair, but the text 'a' has no source"):
        build(make_split("a"), Layout(kind="pairs"))


@pytest.mark.parametrize("kind", ["sentences", "contiguous", "pairs"])
def test_cached_dataset_equals_in_memory_for_any_chunk_size(
    make_split: MakeSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    layout = Layout(kind=kind)  # type: ignore[arg-type]
    split = make_split(*(Example(text, condition=text[::-1]) for text in TEXTS * 5))
    memory = build(split, layout)
    monkeypatch.setattr(corpus_encoding, "CHUNK_EXAMPLES", 4)
    files = build(split, layout, cache=tmp_path / "c", in_memory=10)
    assert len(list((tmp_path / "c").iterdir())) == 1
    assert rows(files) == rows(memory)
    for name in ("stream", "offsets", "lengths", "characters", "unknown_counts"):
        assert np.array_equal(getattr(files, name), getattr(memory, name)), name
    if kind == "pairs":
        assert all(np.array_equal(files.condition(i), memory.condition(i)) for i in range(15))
    assert files.report.examples == memory.report.examples == 15


def test_small_splits_are_not_cached_on_disk(make_split: MakeSplit, tmp_path: Path) -> None:
    build(make_split(*TEXTS), cache=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_cached_dataset_is_not_tokenised_again(
    make_split: MakeSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(make_split(*TEXTS), cache=tmp_path, in_memory=0)

    def never(*arguments: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(Tokenizer, "encode_batch", never)
    reopened = build(make_split(*TEXTS), cache=tmp_path, in_memory=0)
    assert rows(reopened) == rows(first)
    assert reopened.report == first.report


def test_cache_key_depends_on_content_tokenizer_and_layout(
    make_split: MakeSplit, tmp_path: Path
) -> None:
    build(make_split(*TEXTS), cache=tmp_path, in_memory=0)
    build(make_split(*TEXTS, "a"), cache=tmp_path, in_memory=0)
    build(make_split(*TEXTS), Layout(cut=3), cache=tmp_path, in_memory=0)
    other = train_tokenizer("word", ["b a"])
    options = {"cache": tmp_path, "in_memory": 0, "progress": False}
    TokenDataset.build(make_split(*TEXTS), other, Layout(), **options)  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 4


def test_changed_file_is_tokenised_again(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("a b\n")
    before = build(open_corpus(text).split("train"), cache=tmp_path / "c", in_memory=0)
    text.write_text("a b c\n")
    after = build(open_corpus(text).split("train"), cache=tmp_path / "c", in_memory=0)
    assert (rows(before), rows(after)) == ([[2, 5, 6, 3]], [[2, 5, 6, 7, 3]])


def test_incomplete_cache_is_rebuilt(make_split: MakeSplit, tmp_path: Path) -> None:
    whole = rows(build(make_split(*TEXTS), cache=tmp_path, in_memory=0))
    (folder,) = tmp_path.iterdir()
    (folder / "offsets.bin").write_bytes(b"")
    assert rows(build(make_split(*TEXTS), cache=tmp_path, in_memory=0)) == whole


def test_failed_build_leaves_no_cache(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(b"a b\n" * 5000 + b"\xff\n")
    with pytest.raises(UserError, match="line 5001"):
        build(Split(PlainText(path=text)), cache=tmp_path / "c", in_memory=0)
    assert list((tmp_path / "c").iterdir()) == []


def test_build_memory_does_not_grow_with_corpus_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_encoding, "CHUNK_EXAMPLES", 256)
    peaks = []
    for size in (2_000, 40_000):
        text = tmp_path / f"{size}.txt"
        text.write_text("a b c a b c\n" * size)
        tracemalloc.start()
        build(Split(PlainText(path=text)), cache=tmp_path / "c", in_memory=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]  # twenty times the text


def test_token_dtype_depends_on_vocabulary_size(make_split: MakeSplit) -> None:
    large = train_tokenizer("word", (f"w{i}" for i in range(2**16)))
    options = {"progress": False}
    dataset = TokenDataset.build(make_split("w65535"), large, Layout(), **options)  # type: ignore[arg-type]
    assert dataset.stream.dtype == np.uint32
    assert dataset[0].tolist() == [2, large.id("w65535"), 3]
    assert build(make_split("a")).stream.dtype == np.uint16


def test_line_of_ten_million_characters_is_one_sequence(tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_bytes(b"a b c d e " * 1_000_000 + b"\na\n")
    dataset = build(open_corpus(text).split("train"), cache=tmp_path / "c")
    assert dataset.lengths.tolist() == [5_000_002, 3]
    assert dataset.unknown == 2_000_000
    assert dataset.report.long_lines == 1


def test_special_tokens_of_external_vocabularies() -> None:
    gpt = Vocabulary(size=5, pad=4, unknown=None, start=None, end=3, mask=None)
    assert corpus_encoding.special_tokens_around(gpt, Layout()) == (
        [3],
        [3],
    )  # the end token also precedes a text
    bare = Vocabulary(size=5, unknown=None, start=None, end=None, mask=None)
    with pytest.raises(UserError, match="no start or end token"):
        corpus_encoding.special_tokens_around(bare, Layout())


def test_progress_goes_to_standard_error(
    make_split: MakeSplit, capsys: pytest.CaptureFixture[str]
) -> None:
    TokenDataset.build(make_split(*TEXTS), WORDS, Layout(), progress=True)
    assert capsys.readouterr().out == ""
