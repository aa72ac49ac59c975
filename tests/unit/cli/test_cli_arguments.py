"""Several values after one option."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.cli.arguments import repeat_options


@pytest.mark.parametrize(
    ("written", "understood"),
    [
        ("score RUN --text a b", "score RUN --text a --text b"),
        ("score RUN --text a b --json", "score RUN --text a --text b --json"),
        ("score RUN --text a --text b", "score RUN --text a --text b"),
        ("score --text a RUN", "score --text a RUN"),
        ("score RUN --text -a b", "score RUN --text -a --text b"),
        ("score RUN --text a -", "score RUN --text a -"),
        ("train lstm --set a=1 b=2 --seed 3", "train lstm --set a=1 --set b=2 --seed 3"),
        ("train lstm --set a=1 more", "train lstm --set a=1 more"),
        ("finetune RUN --set a=1 b=2 --json", "finetune RUN --set a=1 --set b=2 --json"),
        ("sample RUN -n 3", "sample RUN -n 3"),
        ("", ""),
    ],
)
def test_values_that_follow_belong_to_the_option_before_them(written, understood) -> None:
    assert repeat_options(written.split()) == understood.split()


def test_a_file_is_not_one_more_text(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a\n")
    assert repeat_options(["score", "RUN", "--text", "a", str(file)])[3:] == ["a", str(file)]
