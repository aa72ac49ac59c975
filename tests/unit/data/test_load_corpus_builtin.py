"""Built-in corpora: discovered by module, opened by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmlab.core.errors import UserError
from lmlab.data.builtin_corpora import _description, builtin_descriptions, open_builtin
from lmlab.data.corpus import open_corpus


def test_builtin_corpora_have_one_line_descriptions() -> None:
    descriptions = builtin_descriptions()
    expected = {"capitals", "capitals-en", "grammar", "markov", "copy", "recall", "hops", "wordnet"}
    assert expected <= set(descriptions)
    assert all(line and "\n" not in line for line in descriptions.values())


@pytest.mark.parametrize("name", sorted(builtin_descriptions()))
def test_builtin_corpora_open_by_name(name: str) -> None:
    corpus = open_corpus(name)
    assert corpus.name == name
    assert corpus.split("train").first()[0].text
    assert corpus.fingerprint() == open_builtin(name).fingerprint()


def test_seed_changes_sampled_builtin_corpora() -> None:
    assert open_corpus("grammar", seed=1).fingerprint() != open_corpus("grammar").fingerprint()


def test_unknown_builtin_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'grammar'"):
        open_builtin("grammer")


def test_helper_modules_are_not_listed_as_corpora() -> None:
    assert _description("def corpus(): ...") is None
    assert _description("DESCRIPTION = 'x'") is None
    assert _description("DESCRIPTION: str = 'x'\ndef corpus(): ...") == "x"
    assert _description("from a import corpus\nDESCRIPTION = 'x'") == "x"


def test_data_modules_import_without_torch() -> None:
    program = (
        "import sys, lmlab.data.corpus_summary, lmlab.data.load_corpus, lmlab.data.dataset; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
