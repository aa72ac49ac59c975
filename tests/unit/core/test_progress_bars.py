"""Progress bars on a terminal, in a notebook and elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lmlab.core.progress_bars import NotebookProgress, progress_bar, shows_bars


class Display:
    """Notes what a notebook would show in one output."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def update(self, value: Any) -> None:
        self.shown.append(value)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    shown = Display()

    def show(value: Any, *, display_id: bool) -> Display:
        assert display_id
        shown.update(value)
        return shown

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    vars(module).update(display=show, HTML=lambda text: f"html {text}")
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_bar_by_console() -> None:
    terminal, notebook = Console(force_terminal=True), Console(force_jupyter=True)
    file = Console(force_terminal=False, force_jupyter=False)
    assert [shows_bars(c) for c in (terminal, notebook, file)] == [True, True, False]
    assert type(progress_bar(console=terminal)) is Progress
    assert isinstance(progress_bar(console=notebook), NotebookProgress)
    assert progress_bar(console=file).disable
    assert not shows_bars(Console(force_jupyter=True, quiet=True))


@pytest.mark.parametrize("transient", [False, True])
def test_notebook_bar_is_updated_in_place_and_ends_as_it_was(
    display: Display, transient: bool
) -> None:
    console = Console(force_jupyter=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    bar = progress_bar(*columns, console=console, transient=transient)
    task = bar.add_task("training", total=10)
    with bar:
        for done in range(10):
            bar.update(task, completed=done + 1)
    assert display.shown[0] is bar
    assert len(display.shown) <= 4  # the first update, and no more in a moment
    assert display.shown[-1] == ("html " if transient else bar)
    assert "training" in bar._repr_mimebundle_([], [])["text/plain"]
    assert bar.finished
