"""Parquet output of large files, by pyarrow (extra `tables`)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pyarrow.parquet
import pytest

import lmlab


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "gru"
    lmlab.train("gru", data="grammar", out=run, size="tiny", steps=2, quiet=True)
    return run


def test_parquet_holds_the_rows_of_json_lines_by_any_number_of_processes(run, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the dog sleeps\n\nmary sees a cat\n" * 40)
    for verb, subject in ((lmlab.score_file, [run]), (lmlab.encode_file, run)):
        for jobs in (1, 2):
            out = tmp_path / f"{verb.__name__}-{jobs}.parquet"
            result = verb(subject, text, out, jobs=jobs, chunk_bytes=300)
            assert result.chunks > 3
        first, second = (tmp_path / f"{verb.__name__}-{jobs}.parquet" for jobs in (1, 2))
        assert first.read_bytes() == second.read_bytes()
        lmlab_rows = tmp_path / f"{verb.__name__}.jsonl"
        verb(subject, text, lmlab_rows, chunk_bytes=300)
        rows = [json.loads(line) for line in lmlab_rows.open()]
        assert len(rows) == 80
        assert pyarrow.parquet.read_table(first).to_pylist() == rows
    table = pandas.read_parquet(tmp_path / "encode_file-1.parquet")
    assert table["vector"][0].dtype == np.float32 and list(table["line"][:3]) == [1, 3, 4]
