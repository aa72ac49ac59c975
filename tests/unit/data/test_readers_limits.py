"""Size limits of the readers: records of many lines and decompressed data are limited too."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.limits import set_limit
from lmlab.data.babi import Babi
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Fasta
from lmlab.interop.arpa import read_arpa
from lmlab.retrieval.documents import load_documents


@pytest.fixture
def limits() -> Iterator[None]:
    set_limit("line", 1000)
    set_limit("unpacked", 1000)
    yield
    set_limit("line", None)
    set_limit("unpacked", None)


def test_fasta_sequence_length_is_limited(tmp_path: Path, limits: None) -> None:
    path = tmp_path / "x.fa"
    path.write_text(">a\n" + "ACD E\n" * 250)
    [example] = Fasta(path=path).read(ReadingReport())
    assert example.text == "ACDE" * 250
    path.write_text(">a\n" + "ACDE\n" * 251)
    with pytest.raises(UserError, match=r"line 1: the letters of a sequence must be at most 1,000"):
        list(Fasta(path=path).read(ReadingReport()))


def test_babi_story_length_is_limited(tmp_path: Path, limits: None) -> None:
    path = tmp_path / "qa.txt"
    path.write_text("1 Mary left.\n" + "2 John left.\n" * 100)
    with pytest.raises(UserError, match="characters of a story must be at most 1,000"):
        list(Babi(path=path).stories())


def test_decompressed_document_size_is_limited(tmp_path: Path, limits: None) -> None:
    content = b"a document\n" * 200
    (tmp_path / "plain.txt").write_bytes(content)
    assert len(load_documents(tmp_path / "plain.txt")) == 200
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=r"packed\.txt\.gz must be at most 1,000.*unpacked=NUMBER"):
        load_documents(tmp_path / "packed.txt.gz")


def test_arpa_line_length_is_limited(tmp_path: Path, limits: None) -> None:
    (tmp_path / "x.arpa.gz").write_bytes(gzip.compress(b"\\data\\" + b" " * 2000))
    with pytest.raises(UserError, match="bytes of a line must be at most 1,000"):
        read_arpa(tmp_path / "x.arpa.gz")
