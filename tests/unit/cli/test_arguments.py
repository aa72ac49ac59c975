"""Several values after one option are expanded to repeated options."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.cli.arguments import repeat_options


@pytest.mark.parametrize(
    ("command", "expanded"),
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
def test_following_values_repeat_the_option(command, expanded) -> None:
    assert repeat_options(command.split()) == expanded.split()


def test_existing_file_is_not_another_text_value(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a\n")
    assert repeat_options(["score", "RUN", "--text", "a", str(file)])[3:] == ["a", str(file)]
