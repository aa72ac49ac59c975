"""A corpus of a few sentences, on which a training takes a fraction of a second."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of a few sentences."""
    folder = tmp_path_factory.mktemp("corpus")
    sentences = [f"{who} {what}s the {whom}" for who in "abc" for what in "de" for whom in "fghi"]
    for name in ("train.txt", "valid.txt"):
        (folder / name).write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return str(folder)
