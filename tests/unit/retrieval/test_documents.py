"""Documents: input formats, errors for invalid rows, unique names and fingerprints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.lines import ReadingReport
from lmlab.retrieval.documents import Document, Documents, load_documents


def write_lines(path: Path, *rows: object) -> Path:
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def test_json_lines_names_and_titles_are_optional(tmp_path: Path):
    rows = (
        {"text": " one "},
        "",
        {"text": "two", "name": "b", "title": "B"},
        {"text": "c", "name": 7},
    )
    documents = load_documents(write_lines(tmp_path / "d.jsonl", *rows))
    assert list(documents) == [
        Document(name="1", text="one"),
        Document(name="b", text="two", title="B"),
        Document(name="7", text="c"),
    ]
    assert documents.numbers == {"1": 0, "b": 1, "7": 2}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "expected an object with 'text', but it is not JSON"),
        ("[1]", "expected an object with 'text'"),
        ({"name": "x"}, "expected an object with 'text'"),
        ({"text": 3}, "expected an object with 'text', which must be a string"),
        ({"text": "  "}, "its text is empty"),
        ({"text": "t", "title": 1}, "name and title must be strings"),
        ({"text": "t", "name": True}, "name and title must be strings"),
        ({"text": "t", "name": "first"}, "its name 'first' is that of line 1 already"),
        (
            '{"text": "\\ud800"}',
            "expected an object with 'text', but it holds half of a surrogate pair",
        ),
    ],
)
def test_invalid_row_is_reported_by_line_or_skipped(tmp_path: Path, row: object, message: str):
    path = write_lines(
        tmp_path / "d.jsonl", {"text": "good", "name": "first"}, "", row, {"text": "z"}
    )
    with pytest.raises(UserError, match=f"line 3: {message}"):
        load_documents(path)
    loaded = load_documents(path, errors="replace", report=(report := ReadingReport()))
    assert report.bad_rows == 1
    assert [(document.name, document.text) for document in loaded] == [
        ("first", "good"),
        ("4", "z"),
    ]


def test_text_file_has_one_document_per_line(tmp_path: Path):
    path = tmp_path / "d.txt.gz"
    path.write_bytes(gzip.compress(b"eins\n\n drei \n"))
    assert [(document.name, document.text) for document in load_documents(path)] == [
        ("1", "eins"),
        ("3", "drei"),
    ]


def test_folder_has_one_document_per_file(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("second\ntext\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("first", encoding="utf-8")
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "other.md").write_text("not read", encoding="utf-8")
    assert list(load_documents(tmp_path)) == [
        Document(name="a.txt", title="a", text="first"),
        Document(name="deep/b.txt", title="b", text="second text"),
    ]


def test_folder_with_stored_documents_loads_only_those(tmp_path: Path):
    documents = Documents(
        [Document(name="n", title="t", text="中文"), Document(name="m", text="x")]
    )
    (tmp_path / "documents.jsonl.gz").write_bytes(documents.to_bytes())
    (tmp_path / "more.txt").write_text("not read", encoding="utf-8")
    loaded = load_documents(tmp_path)
    assert list(loaded) == list(documents) and loaded.fingerprint() == documents.fingerprint()
    assert documents.to_bytes() == loaded.to_bytes()


def test_empty_files_and_folders_are_refused(tmp_path: Path):
    folder, file = tmp_path / "none", tmp_path / "none.txt"
    folder.mkdir()
    file.write_text("\n\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"no text files \(\*\.txt\) with any text in .*none;"):
        load_documents(folder)
    with pytest.raises(UserError, match=r"no documents with any text in .*none\.txt;"):
        load_documents(file)
    with pytest.raises(UserError, match="no documents were given"):
        Documents([])


def test_unknown_document_set_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'wordnet'"):
        load_documents("wordnets")


def test_invalid_utf8_is_reported_by_line(tmp_path: Path):
    path = tmp_path / "d.txt"
    path.write_bytes(b"good\nb\xe9d\n")
    with pytest.raises(UserError, match="line 2: byte 0xe9"):
        load_documents(path)
    assert [document.text for document in load_documents(path, errors="replace")] == [
        "good",
        "b\ufffdd",
    ]


def test_duplicate_names_and_empty_texts_are_refused():
    a, b = Document(name="a", text="x"), Document(name="b", text="y")
    with pytest.raises(UserError, match="two documents are named 'a'"):
        Documents([a, b, a])
    with pytest.raises(UserError, match="'c' is empty"):
        Documents([a, Document(name="c", text="\t")])


def test_replacing_changes_one_document():
    documents = Documents(Document(name=name, text=name) for name in "abc")
    other = documents.replacing(Document(name="b", text="new"))
    assert [document.text for document in other] == ["a", "new", "c"]
    assert [document.text for document in documents] == ["a", "b", "c"]
    assert other.numbers == documents.numbers
    with pytest.raises(UserError, match="no document named 'd'"):
        documents.replacing(Document(name="d", text="x"))


def test_fingerprint_depends_on_every_field_and_order():
    a, b = Document(name="a", text="x", title="t"), Document(name="b", text="y")
    sets = [
        (a, b),
        (b, a),
        (a,),
        (Document(name="a", text="x", title="u"), b),
        (Document(name="a", text="z", title="t"), b),
        (Document(name="c", text="x", title="t"), b),
        # The same letters, distributed differently over the fields.
        (Document(name="a", text="xt"), b),
    ]
    assert len({Documents(documents).fingerprint() for documents in sets}) == len(sets)
    assert Documents([a, b]).fingerprint() == Documents([a, b]).fingerprint()


def test_builtin_document_sets():
    capitals = load_documents("capitals")
    assert capitals[capitals.numbers["Peru"]].text == "the capital of Peru is Lima"
    glosses = load_documents("wordnet")
    assert len(glosses) > 100_000
    [dog] = [document for document in glosses if document.title.startswith("dog , domestic dog")]
    assert "member of the genus canis" in dog.text.lower()
