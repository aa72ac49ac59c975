"""Token ids of external tokenizers: an id far out of range is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import SPARE, Tokenizer, check_ids, check_tokenizer_json, train_tokenizer
from lmlab.interop.hf.tokenizer_files import read_tokenizer


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("invalid", [2**31, 10**12, -1, 1.5, None, "x", True])
def test_invalid_token_id_is_reported(tmp_path: Path, kind: str, invalid: Any) -> None:
    path = tmp_path / "tokenizer.json"
    train_tokenizer(kind, ["the cat sees the dog"] * 3).save(path)
    document = json.loads(path.read_text())
    last = list(document["model"]["vocab"])[-1]
    document["model"]["vocab"][last] = invalid
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"can't be the id of one of \d+ tokens"):
        Tokenizer.load(path)


def test_added_token_ids_are_checked() -> None:
    document = {"model": {"vocab": [["a", -1.0]] * 5}, "added_tokens": [{"id": 5, "content": "x"}]}
    check_tokenizer_json(document)
    document["added_tokens"] = [{"id": 10**9, "content": "x"}]
    with pytest.raises(ValueError, match="1000000000"):
        check_tokenizer_json(document)


def test_vocabulary_may_skip_some_ids() -> None:
    check_ids([0, 1, 2, SPARE])
    with pytest.raises(ValueError, match="of 4 tokens"):
        check_ids([0, 1, 2, SPARE + 8])


def test_vocab_json_ids_are_checked(tmp_path: Path) -> None:
    vocabulary = {"<|endoftext|>": 0, "a": 1, "b": 2**31}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(UserError, match="can't be the id"):
        read_tokenizer(tmp_path)
