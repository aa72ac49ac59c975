"""Built-in corpora: found by their files, opened by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.data.load_corpus import _description, builtin_descriptions, open_builtin


def test_the_promised_corpora_are_there_with_a_line_each() -> None:
    found = builtin_descriptions()
    promised = {"capitals", "capitals-en", "grammar", "markov", "copy", "recall", "hops", "wordnet"}
    assert promised <= set(found)
    assert all(line and "\n" not in line for line in found.values())


@pytest.mark.parametrize("name", sorted(builtin_descriptions()))
def test_each_opens_under_its_own_name(name: str) -> None:
    corpus = open_corpus(name)
    assert corpus.name == name
    assert corpus.split("train").first()[0].text
    assert corpus.fingerprint() == open_builtin(name).fingerprint()


def test_the_seed_reaches_those_that_are_drawn() -> None:
    assert open_corpus("grammar", seed=1).fingerprint() != open_corpus("grammar").fingerprint()


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'grammar'"):
        open_builtin("grammer")


def test_helper_modules_are_no_corpora() -> None:
    assert _description("def corpus(): ...") is None
    assert _description("DESCRIPTION = 'x'") is None
    assert _description("DESCRIPTION: str = 'x'\ndef corpus(): ...") == "x"
    assert _description("from a import corpus\nDESCRIPTION = 'x'") == "x"


def test_reading_and_describing_need_no_torch() -> None:
    program = (
        "import sys, lmlab.data.corpus_summary, lmlab.data.load_corpus, lmlab.data.dataset; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
