"""Every system of the zoo passes the conformance suite."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lmlab.conformance.check import DoesNotApply
from lmlab.conformance.suite import CHECKS, applicable_checks, run_check, run_isolated
from lmlab.conformance.system_under_test import Workspace
from lmlab.core.registry import catalogue

QUICK_CORPORA = ("grammar", "capitals", "capitals-annotated", "capitals-questions", "wordnet")
NO_HIDDEN_STATES = {
    *("cbow", "ebm", "hmm", "independent", "local-crf", "local-crf-2", "local-hmm", "mix", "ngram"),
    *("glove", "gru-mixture", "lstm-mixture", "rnn-mixture"),
    *("parent", "parent-permuted", "parent-prior", "parent-typed", "pcfg", "remix-aligned"),
    *("renewal", "renewal-typed", "residual-ebm", "skipgram", "two-parents", "window-mixture"),
}
"""Counting, states of a chain or a tree, mixtures of several hidden states, energies, words."""
HAS_NO_LAYERS = {
    *("product-bound", "remix", "remix-rotated", "seq2seq", "seq2seq-attention", "slots"),
    *("slots-chain", "window", "window-remix", "window-remix-free", "window-remix-sphere"),
}
NO_TEXT_ALONE = {"vit"}
DO_NOT_APPLY = {
    "text-vectors": NO_HIDDEN_STATES | NO_TEXT_ALONE,
    "layer-vectors": NO_HIDDEN_STATES | NO_TEXT_ALONE | HAS_NO_LAYERS,
    "card-corpus": {name for name, card in catalogue().items() if card.base},
}
"""Systems to which a check does not apply, of the checks for which this is known."""


def cases() -> Iterator[object]:
    """Each check of each system, and all of one system on one worker, which trains it."""
    for name, card in catalogue().items():
        for check in applicable_checks(card):
            marks = [pytest.mark.xdist_group(name)]
            if check.name == "card-corpus" and card.corpus not in QUICK_CORPORA and not card.base:
                marks.append(pytest.mark.slow)
            yield pytest.param(name, check.name, id=f"{name}:{check.name}", marks=marks)


@pytest.mark.parametrize(("name", "check"), cases())
def test_zoo(workspace: Workspace, name: str, check: str) -> None:
    tested = workspace.system(name)
    if check not in DO_NOT_APPLY:
        try:
            run_isolated(CHECKS[check], tested)
        except DoesNotApply as reason:
            pytest.skip(str(reason))
        return
    result = run_check(CHECKS[check], tested)
    expected = "does not apply" if name in DO_NOT_APPLY[check] else "passed"
    assert result.outcome == expected, result.message


def test_names_of_checks_hold_no_names_of_systems() -> None:
    """So that `-k lstm` chooses the tests of systems and no check of all systems."""
    systems = "|".join(map(re.escape, catalogue()))
    assert [name for name in CHECKS if re.search(systems, name)] == []
