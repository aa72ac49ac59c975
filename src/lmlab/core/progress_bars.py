"""Progress bars of rich that also work in notebooks, without widgets."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

SECONDS_BETWEEN_UPDATES = 0.2


def shows_bars(console: Console) -> bool:
    """Whether a bar can be drawn: on a terminal or in a notebook."""
    return not console.quiet and (console.is_terminal or console.is_jupyter)


def progress_bar(*columns: ProgressColumn, console: Console, **options: Any) -> Progress:
    """A bar of these columns; `options` are those of rich's `Progress`."""
    kind = NotebookProgress if console.is_jupyter else Progress
    return kind(*columns, console=console, **{"disable": not shows_bars(console), **options})


class NotebookProgress(Progress):
    """A bar in a notebook's output, updated in place.

    Rich's own needs ipywidgets and a thread; this one is HTML in a display with an id, which every
    notebook has.
    """

    _display: Any = None
    _shown_at = 0.0

    def start(self) -> None:
        """Show the bar."""
        from IPython.display import display

        if not self.disable:
            self._display = display(self, display_id=True)

    def stop(self) -> None:
        """Show it as it ended; a transient one vanishes."""
        if self._display is None:
            return
        if self.live.transient:
            from IPython.display import HTML

            self._display.update(HTML(""))
        else:
            self._display.update(self)
        self._display = None

    def update(self, task_id: TaskID, **values: Any) -> None:
        """Change a task, and now and then what is shown of it."""
        super().update(task_id, **values)
        now = time.perf_counter()
        if self._display is not None and now - self._shown_at > SECONDS_BETWEEN_UPDATES:
            self._shown_at = now
            self._display.update(self)
