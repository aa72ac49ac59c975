"""Warnings in IPython and notebooks."""

from __future__ import annotations

import warnings

import pytest

from lmlab.core.errors import LmlabWarning
from lmlab.verbs.notebook_session import in_ipython, shorten_warnings


def test_warnings_of_lmlab_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(warnings, "filters", [*warnings.filters])
    others = warnings.formatwarning
    shorten_warnings()
    place = ("file.py", 3, "code()")
    assert warnings.formatwarning("few words", LmlabWarning, *place) == "lmlab: few words\n"
    other = warnings.formatwarning("old", DeprecationWarning, *place)
    assert other == others("old", DeprecationWarning, *place)


def test_tests_run_in_no_notebook() -> None:
    assert not in_ipython()
