"""Corpus specifications: files, folders, parallel files, protocols and invalid names."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, Layout, Split, open_corpus

WriteFile = Callable[[str, str | bytes], Path]


def texts(corpus: Corpus, split: str) -> list[str]:
    return [example.text for example in corpus.splits[split]]


def test_single_file_is_partitioned_90_5_5(write_file: WriteFile) -> None:
    lines = [f"line {i}" for i in range(1000)]
    corpus = open_corpus(write_file("a.txt", "\n".join(lines)))
    parts = {name: texts(corpus, name) for name in ("train", "validation", "test")}
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 900,
        "validation": 50,
        "test": 50,
    }
    assert Counter(line for part in parts.values() for line in part) == Counter(lines)
    assert "90/5/5 by seed 0" in corpus.description
    assert texts(corpus, "train") == parts["train"]  # deterministic


def test_split_depends_on_the_seed(write_file: WriteFile) -> None:
    path = write_file("a.txt", "\n".join(f"line {i}" for i in range(400)))
    first, again, other = (open_corpus(path, seed=seed) for seed in (1, 1, 2))
    assert texts(first, "test") == texts(again, "test")
    assert texts(first, "test") != texts(other, "test")
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def test_file_too_small_to_split_is_all_train(write_file: WriteFile) -> None:
    corpus = open_corpus(write_file("a.txt", "one\ntwo\n"))
    assert set(corpus.splits) == {"train"}
    assert "nothing is held out" in corpus.description
    assert corpus.split("validation") is corpus.splits["train"]
    with pytest.raises(UserError, match="has no test split, only train"):
        corpus.split("test")


def test_contiguous_text_is_split_by_position(write_file: WriteFile) -> None:
    path = write_file("a.txt", "\n".join(f"{i}" for i in range(100)))
    corpus = open_corpus(f"contiguous:{path}")
    assert corpus.layout == Layout(kind="contiguous")
    assert texts(corpus, "train") == [str(i) for i in range(90)]
    assert texts(corpus, "validation") == [str(i) for i in range(90, 95)]
    assert texts(corpus, "test") == [str(i) for i in range(95, 100)]


@pytest.mark.parametrize("validation", ["val.txt", "valid.txt", "dev.txt", "validation.txt"])
def test_folder_with_split_files(write_file: WriteFile, validation: str) -> None:
    write_file("c/train.txt", "a\nb\n")
    write_file("c/test.txt", "t\n")
    corpus = open_corpus(write_file(f"c/{validation}", "v\n").parent)
    assert [texts(corpus, name) for name in corpus.splits] == [["a", "b"], ["v"], ["t"]]
    assert list(corpus.splits) == ["train", "validation", "test"]


def test_shards_folders_and_gzip_inside_a_folder(write_file: WriteFile) -> None:
    write_file("c/train-01.txt.gz", gzip.compress(b"b\n"))
    write_file("c/train-00.txt", "a\n")
    write_file("c/test/deep/x.txt", "t\n")
    write_file("c/test/.hidden", "no\n")
    corpus = open_corpus(write_file("c/test/y.txt", "u\n").parents[1])
    assert texts(corpus, "train") == ["a", "b"]
    assert texts(corpus, "test") == ["t", "u"]
    assert "test is used for validation" in corpus.description
    assert corpus.split("validation") is corpus.splits["test"]


def test_file_and_its_gzip_copy_are_read_once(write_file: WriteFile) -> None:
    write_file("c/train.txt.gz", gzip.compress(b"a\n"))
    assert texts(open_corpus(write_file("c/train.txt", "a\n").parent), "train") == ["a"]


def test_formats_are_detected_by_file_name(write_file: WriteFile) -> None:
    rows = "".join(f'{{"text": "t{i}"}}\n' for i in range(30))
    assert texts(open_corpus(write_file("a.jsonl", rows)), "train")[0].startswith("t")
    packed = write_file("a.fasta.gz", gzip.compress(b">x\nACD\n"))
    proteins = open_corpus(packed)
    assert (texts(proteins, "train"), proteins.tokenizer) == (["ACD"], "char")
    pairs = open_corpus(write_file("a.tsv", "eins\tone\n"))
    assert pairs.layout.kind == "pairs"
    assert pairs.split("train").first()[0].condition == "eins"
    assert list(pairs.vocabulary_texts()) == ["eins", "one"]


def test_parallel_corpus_from_a_folder(write_file: WriteFile) -> None:
    for name, lines in {"train.de": "eins\nzwei", "train.en": "one\ntwo", "val.de": "drei"}.items():
        write_file(f"c/{name}", lines)
    folder = write_file("c/val.en", "three").parent
    corpus = open_corpus(f"parallel:de-en:{folder}")
    assert [e.condition for e in corpus.split("train")] == ["eins", "zwei"]
    assert texts(corpus, "validation") == ["three"]
    with pytest.raises(UserError, match=r"several kinds \(\.de, \.en\).*parallel:SOURCE-TARGET"):
        open_corpus(folder)
    with pytest.raises(UserError, match=r"expected train\*\.fr and train\*\.cs"):
        open_corpus(f"parallel:fr-cs:{folder}")
    with pytest.raises(UserError, match="expected parallel:SOURCE-TARGET:FOLDER"):
        open_corpus(f"parallel:{folder}")


def test_parallel_files_are_split_like_a_single_file(write_file: WriteFile) -> None:
    """The pairs and splits equal those of a TSV file, whatever the file names."""
    pairs = [(f"quelle {i}", f"target {i}") for i in range(100)]
    source = write_file("train.de", "\n".join(one for one, _ in pairs))
    target = write_file("other.en", "\n".join(two for _, two in pairs))
    tsv = write_file("pairs.tsv", "\n".join("\t".join(pair) for pair in pairs))
    corpus, same = (open_corpus(spec, seed=3) for spec in (f"parallel:{source},{target}", str(tsv)))
    assert corpus.layout.kind == "pairs" and "train.de and other.en" in corpus.description
    for name in ("train", "validation", "test"):
        assert list(corpus.split(name)) == list(same.split(name))
    with pytest.raises(UserError, match="there is no file missing"):
        open_corpus(f"parallel:{source},missing")
    with pytest.raises(UserError, match="got 3 files"):
        open_corpus(f"parallel:{source},{target},{target}")


@pytest.mark.parametrize("content", ["", "\n \n\t\n"])
def test_empty_corpus_is_refused_on_opening(write_file: WriteFile, content: str) -> None:
    with pytest.raises(UserError, match=r"a\.txt holds no example for the train split"):
        open_corpus(write_file("a.txt", content))


def test_empty_split_file_is_refused_on_opening(write_file: WriteFile) -> None:
    write_file("c/train.txt", "a\n")
    with pytest.raises(UserError, match=r"test\.txt holds no example for the test split"):
        open_corpus(write_file("c/test.txt", "\n").parent)


def test_folder_without_train_split_lists_its_files(write_file: WriteFile) -> None:
    folder = write_file("c/novel.txt", "a\n").parent
    with pytest.raises(UserError, match=r"no name there begins with 'train' \(found novel\.txt\)"):
        open_corpus(folder)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("missing/folder", "there is no file or folder missing/folder"),
        ("missing.txt", "there is no file or folder missing.txt"),
        ("contiguous:missing.txt", "there is no file or folder missing.txt"),
        ("parallel:de-en:missing", "there is no folder missing"),
        ("capitols", "did you mean 'capitals'"),
        ("multi30k-l2:x", "no protocol called 'multi30k-l2'; did you mean 'multi30k-l20'"),
        ("ptb-contiguous:missing", "no folder missing for the protocol ptb-contiguous"),
        ("x" * 5000, "there is no corpus, file or folder"),
        ("", "there is no corpus, file or folder"),
    ],
)
def test_unknown_corpus_names_are_refused(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_corpus(spec)


def test_protocol_without_data_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMLAB_DATA", raising=False)
    with pytest.raises(UserError, match="write multi30k:PATH, or set LMLAB_DATA"):
        open_corpus("multi30k")
    monkeypatch.setenv("LMLAB_DATA", "nowhere-at-all")
    with pytest.raises(UserError, match=r"no folder nowhere-at-all \(from LMLAB_DATA\)"):
        open_corpus("multi30k")


def test_invalid_bytes_can_be_replaced(write_file: WriteFile) -> None:
    path = write_file("a.txt", b"caf\xe9\n" * 25)
    with pytest.raises(UserError, match="line 1"):
        open_corpus(path)
    split = open_corpus(path, errors="replace").split("train")
    assert {example.text for example in split} == {"caf\ufffd"}
    assert split.report.replaced_bytes == 25  # a pass reads the whole file to pick its lines


def test_invalid_seeds_and_split_names_are_refused(write_file: WriteFile) -> None:
    path = write_file("a.txt", "a\n")
    with pytest.raises(UserError, match="seed must be 0 or more"):
        open_corpus(path, seed=-1)
    with pytest.raises(UserError, match="no split called 'dev'; choose from train, validation"):
        open_corpus(path).split("dev")


def test_invalid_layouts_are_refused() -> None:
    with pytest.raises(UserError, match="at least <s> and one token"):
        Layout(cut=1)
    with pytest.raises(UserError, match="takes no cut"):
        Layout(kind="contiguous", cut=10)


def test_split_report_counts_the_latest_pass(make_split: Callable[..., Split]) -> None:
    split = make_split("a", "b", "c")
    assert len(list(split)) == len(list(split)) == 3
    assert split.report.examples == 3
    assert [example.text for example in split.first(2)] == ["a", "b"]
