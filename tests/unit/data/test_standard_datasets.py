"""Corpus protocols: rule by rule on small files, and published sizes on the research corpora."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.babi import Babi
from lmlab.data.corpus import open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.data.standard_datasets import CORPUS_PROTOCOLS
from lmlab.data.tokenizers import Tokenizer, tokenizer_for

WriteFile = Callable[[str, str | bytes], Path]


def dataset(spec: str, split: str) -> tuple[TokenDataset, Tokenizer]:
    corpus = open_corpus(spec)
    tokenizer = tokenizer_for(corpus)
    built = TokenDataset.build(corpus.split(split), tokenizer, corpus.layout, progress=False)
    return built, tokenizer


def captions(count: int) -> str:
    return "".join(f"word{i} {'and ' * (i % 30)}end\n" for i in range(count))


def test_multi30k_l20_truncates_at_20_and_splits_80_20(write_file: WriteFile) -> None:
    root = write_file("multi30k/train.en", captions(100)).parents[1]
    corpus = open_corpus(f"multi30k-l20:{root}")
    texts = {name: [e.text for e in split] for name, split in corpus.splits.items()}
    assert {name: len(part) for name, part in texts.items()} == {"train": 80, "test": 20}
    assert sorted(texts["train"] + texts["test"]) == sorted(captions(100).splitlines())
    assert "the test split is used for validation" in corpus.description
    test, tokenizer = dataset(f"multi30k-l20:{root}", "test")
    # 5 special tokens, word0 to word99, "and", "end": no word of the test part is unknown.
    assert (tokenizer.vocabulary.size, test.unknown) == (107, 0)
    assert test.lengths.max() == 20
    for i, text in enumerate(texts["test"]):
        ids = tokenizer.encode(text)
        assert test[i].tolist() == [2, *ids, 3][:20]


def test_multi30k_l20_is_shuffled_by_seed(write_file: WriteFile) -> None:
    root = write_file("multi30k/train.en", captions(100)).parents[1]
    first, other = (open_corpus(f"multi30k-l20:{root}", seed=seed) for seed in (0, 1))
    assert {e.text for e in first.split("test")} != {e.text for e in other.split("test")}
    order = [e.text for e in first.split("train")]
    assert order != sorted(order, key=captions(100).splitlines().index)


@pytest.mark.parametrize("inside", [False, True])
def test_protocol_path_is_the_folder_or_its_parent(write_file: WriteFile, inside: bool) -> None:
    path = write_file("ptb/train.txt", "a\n")
    write_file("ptb/valid.txt", "b\n")
    write_file("ptb/test.txt", "c\n")
    corpus = open_corpus(f"ptb-sentence:{path.parent if inside else path.parents[1]}")
    assert [e.text for e in corpus.split("test")] == ["c"]


def test_protocol_data_is_located_by_environment_variable(
    write_file: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_file(
        "cath/cath-domain-seqs-S35.fa", ">a\nACDE\n>b\nA\n>c\nA\n>d\nA\n>e\nK\n"
    ).parents[1]
    monkeypatch.setenv("LMLAB_DATA", str(root))
    assert [e.text for e in open_corpus("cath-l20").split("test")] == ["K"]


def test_cath_l20_holds_out_every_fifth_and_truncates(write_file: WriteFile) -> None:
    proteins = [chr(65 + i) * 30 for i in range(10)]
    fasta = "".join(f">{i}\n{letters}\n" for i, letters in enumerate(proteins))
    root = write_file("cath/cath-domain-seqs-S35.fa", fasta).parents[1]
    corpus = open_corpus(f"cath-l20:{root}")
    assert [e.text[0] for e in corpus.split("test")] == ["E", "J"]  # the fifth and the tenth
    train, tokenizer = dataset(f"cath-l20:{root}", "train")
    assert train[0].tolist() == [2] + [tokenizer.id("A")] * 19
    assert train.characters.tolist() == [19] * 8


def test_multi30k_maps_singleton_words_to_unknown(write_file: WriteFile) -> None:
    write_file("multi30k/train.en", "a a b\n")
    write_file("multi30k/val.en", "a b c\n")
    root = write_file("multi30k/test_2016_flickr.en", "a\n").parents[1]
    validation, tokenizer = dataset(f"multi30k:{root}", "validation")
    assert tokenizer.vocabulary.size == 6
    assert validation[0].tolist() == [2, 5, 1, 1, 3]
    assert validation.unknown == 2


def test_missing_protocol_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the protocol ptb-sentence needs train\.txt, which is"):
        open_corpus(f"ptb-sentence:{tmp_path}")


STORY = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary got the milk.
5 Where is the milk?\tbathroom\t4 1
1 Sandra sat.
2 Who sat? \tSandra\t1
"""


def test_babi_stories_are_parsed(write_file: WriteFile) -> None:
    stories = list(Babi(path=write_file("qa1_train.txt", STORY)).stories())
    assert [story.answer for story in stories] == ["bathroom", "bathroom", "Sandra"]
    second = stories[1]
    assert second.numbers == (1, 2, 4)  # questions are numbered too, but are not part of the story
    assert second.question == "Where is the milk?"
    assert second.supporting == (4, 1)
    assert second.supporting_sentences() == ("Mary got the milk.", "Mary moved to the bathroom.")
    assert stories[2].as_text() == "Sandra sat . Who sat ? Sandra"


@pytest.mark.parametrize(
    "line", ["Mary moved.", "2 Where?\tbathroom", "2 Where?\tbathroom\tone", "2 Where?\there\t9"]
)
def test_malformed_babi_lines_are_reported(write_file: WriteFile, line: str) -> None:
    path = write_file("qa1_train.txt", f"1 Mary sat.\n{line}\n")
    with pytest.raises(UserError, match=r"qa1_train\.txt, line 2: expected"):
        list(Babi(path=path).stories())


@pytest.mark.parametrize("name", sorted(CORPUS_PROTOCOLS))
def test_every_protocol_reads_the_research_corpora(research_data: Path, name: str) -> None:
    corpus = open_corpus(f"{name}:{research_data}")
    counts = {part: sum(1 for _ in split) for part, split in corpus.splits.items()}
    # Published sizes; 80/20 of 29,000 captions, every fifth of 21,155 domains.
    multi30k = {"train": 29_000, "validation": 1_014, "test": 1_000}
    fifths = {"train": 23_200, "test": 5_800}
    cath = {"train": 16_924, "test": 4_231}
    babi = {"train": 9_000, "validation": 1_000, "test": 1_000}
    ptb = {"train": 42_068, "validation": 3_370, "test": 3_761}
    expected = {"multi30k": multi30k, "cath": cath, "babi": babi, "ptb": ptb}
    special = {"multi30k-l20": fifths, "multi30k-char-l100": fifths}
    assert counts == special.get(name, expected[CORPUS_PROTOCOLS[name].folder])


@pytest.mark.parametrize("name", ["ptb-contiguous", "ptb-sentence"])
def test_ptb_has_the_published_token_counts(research_data: Path, name: str) -> None:
    # 887,521 / 70,390 / 78,669 words and one </s> per line (Mikolov's split).
    sizes = {"train": 887_521 + 42_068, "validation": 70_390 + 3_370, "test": 78_669 + 3_761}
    corpus = open_corpus(f"{name}:{research_data}")
    tokenizer = tokenizer_for(corpus)
    assert len(tokenizer.vocabulary.unpredictable) == 3
    assert tokenizer.vocabulary.size - 3 == 10_000  # with <unk> and </s>
    for part, size in sizes.items():
        built = TokenDataset.build(corpus.split(part), tokenizer, corpus.layout, progress=False)
        assert built.total_tokens == size
