"""Hugging Face tokenizer files: every input format, and the files written."""

from __future__ import annotations

import json

import pytest

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.interop.hf.tokenizer_files import (
    read_special_tokens,
    read_tokenizer,
    with_swapped_ids,
    write_tokenizer,
)
from lmlab.sampling.prompts import parse_masked_text

TEXTS = ["The cat sat on the mat.", "Café no. 12: über-cats, naïvely!", "北京 is a city"]
PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on ma ##t . , : ! - cafe no 1 ##2 uber cats nai "
    "##vely is a city 北 京"
).split()


def test_vocab_txt_wordpiece_equals_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    ours = read_tokenizer(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    special_tokens = ours.vocabulary
    assert (special_tokens.pad, special_tokens.unknown, special_tokens.start) == (0, 1, 2)
    assert (special_tokens.end, special_tokens.mask, special_tokens.size) == (3, 4, len(PIECES))
    assert ours.encode("the [MASK] sat") == [5, 4, 7]
    write_tokenizer(tmp_path, ours, extra=(), template="", settings={})
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS[0], TEXTS[2])["input_ids"] == theirs(TEXTS[0], TEXTS[2])["input_ids"]


def test_wordpiece_respects_do_lower_case(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "The"]), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert read_tokenizer(tmp_path).encode("The the") == [len(PIECES), 5]


@pytest.fixture
def bpe_folder(tmp_path):
    """vocab.json and merges.txt in the format of GPT-2, from a small trained BPE."""
    trained = train_tokenizer("bpe", TEXTS * 5, size=300)
    trained.save(tmp_path / "whole.json")
    model = json.loads((tmp_path / "whole.json").read_text(encoding="utf-8"))["model"]
    vocabulary = {t: i - 4 for t, i in model["vocab"].items() if i > 4} | {"<|endoftext|>": 0}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    text = "#version: 0.2\n" + "\n".join(merges) + "\n"
    (folder / "merges.txt").write_text(text, encoding="utf-8")
    return folder


def test_vocab_and_merges_bpe_equals_transformers(bpe_folder):
    transformers = pytest.importorskip("transformers")
    vocabulary, merges = (str(bpe_folder / name) for name in ("vocab.json", "merges.txt"))
    theirs = transformers.GPT2Tokenizer(vocabulary, merges)
    ours = read_tokenizer(bpe_folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text
    # One special token is start and end, and padding has an id beyond the vocabulary.
    assert (ours.vocabulary.start, ours.vocabulary.end) == (None, 0)
    assert ours.vocabulary.pad == ours.vocabulary.size - 1 == 296


def test_roberta_bpe_special_tokens_equal_transformers(bpe_folder):
    transformers = pytest.importorskip("transformers")
    vocabulary = json.loads((bpe_folder / "vocab.json").read_text(encoding="utf-8"))
    del vocabulary["<|endoftext|>"]
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {token: i + 4 for token, i in vocabulary.items()} | {
        token: i for i, token in enumerate(special_tokens)
    }
    (bpe_folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    paths = (str(bpe_folder / name) for name in ("vocab.json", "merges.txt"))
    theirs, ours = transformers.RobertaTokenizer(*paths), read_tokenizer(bpe_folder)
    # In the published tokenizer.json the mask token absorbs the space before it.
    assert ours.encode("the <mask> sat") == [*ours.encode("the"), 4, *ours.encode(" sat")]
    write_tokenizer(bpe_folder, ours, extra=(), template="", settings={})
    again = transformers.AutoTokenizer.from_pretrained(bpe_folder)
    for text in TEXTS:
        assert again(text)["input_ids"] == theirs(text)["input_ids"]
        assert again(text, text)["input_ids"] == theirs(text, text)["input_ids"]


def test_mismatched_vocab_and_merges_are_refused(bpe_folder):
    (bpe_folder / "merges.txt").write_text("quux xyzzy\n", encoding="utf-8")
    with pytest.raises(UserError, match="do not belong together"):
        read_tokenizer(bpe_folder)


def test_unreadable_tokenizer_files_are_reported(tmp_path):
    with pytest.raises(UserError, match="has no tokenizer"):
        read_tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"\x0a\x0b")
    with pytest.raises(UserError, match=r"spiece\.model only.*save_pretrained"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("cat\ndog\n")
    with pytest.raises(UserError, match=r"lacks the token \[UNK\]"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"not a tokenizer\.json"):
        read_tokenizer(tmp_path)


def test_special_tokens_may_be_given_as_objects(tmp_path):
    config = {"mask_token": {"content": "<mask>", "lstrip": True}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<eos>"}')
    assert read_special_tokens(tmp_path) == {"mask": "<mask>", "eos": "<eos>"}


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_written_tokenizer_loads_in_transformers_with_equal_ids(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = train_tokenizer(kind, TEXTS * 3, size=320)
    write_tokenizer(
        tmp_path,
        ours,
        extra=("<extra_id_0>",),
        template="start text end",
        settings={"model_input_names": ["input_ids", "attention_mask"]},
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    start, end, size = ours.vocabulary.start, ours.vocabulary.end, ours.vocabulary.size
    for text in [*TEXTS, "an unseen zebra"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)
        assert theirs(text)["input_ids"] == [start, *ours.encode(text), end]
    assert theirs(TEXTS[:2], padding=True).keys() == {"input_ids", "attention_mask"}
    assert theirs.convert_tokens_to_ids("<extra_id_0>") == size
    assert (theirs.pad_token_id, theirs.mask_token_id) == (ours.vocabulary.pad, 4)
    pair = theirs("cat", "mat", return_token_type_ids=True)
    first, second = len(ours.encode("cat")) + 2, len(ours.encode("mat")) + 1
    assert pair["token_type_ids"] == [0] * first + [1] * second


MASKED = [
    "the <mask> on a mat",
    "the <mask>.",
    "<mask> sat, <mask>",
    "(<mask>)cat<mask>ly <mask><mask>!",
    " the   <mask>  cat\t<mask>",
    "a <unk> <mask>. <mask> <unk> .",
    "北<mask>京",
]


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_masked_text_ids_equal_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = train_tokenizer(kind, TEXTS * 3, size=320)
    write_tokenizer(tmp_path, ours, extra=(), template="start text end", settings={})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    for text in MASKED:
        expected = parse_masked_text(text, ours).with_mask(4)
        assert expected.count(4) == text.count("<mask>")
        assert theirs(text, add_special_tokens=False)["input_ids"] == expected
        assert parse_masked_text(text, again).with_mask(4) == expected
    for text in [*TEXTS, " a cat", "  a cat", "\ncat", "", "<unk> . cat"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)
        assert again.encode(text) == ours.encode(text)
        if kind == "bpe":  # whose normalizer adds the first space
            assert again.encode_with_offsets(text) == ours.encode_with_offsets(text)


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_with_swapped_ids_exchanges_two_tokens(kind, tmp_path):
    ours = train_tokenizer(kind, TEXTS * 3, size=320)
    ours.save(tmp_path / "tokenizer.json")
    swapped = with_swapped_ids(tmp_path / "tokenizer.json", 0, 1)
    assert (swapped.vocabulary.pad, swapped.vocabulary.unknown) == (1, 0)
    assert swapped.vocabulary.size == ours.vocabulary.size
    swap = {0: 1, 1: 0}
    for text in [*TEXTS, "an <unk> zebra"]:
        assert swapped.encode(text) == [swap.get(i, i) for i in ours.encode(text)]


def test_written_tokenizer_round_trip(tmp_path):
    ours = train_tokenizer("word", TEXTS)
    write_tokenizer(tmp_path, ours, extra=(), template="text end", settings={})
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.vocabulary == ours.vocabulary
    assert [again.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
    named = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert named["pad_token"] == "<pad>" and named["cls_token"] == named["bos_token"] == "<s>"
