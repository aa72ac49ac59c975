"""What `import lmlab` does in IPython and notebooks: warnings in one line."""

from __future__ import annotations

import sys
import warnings

from lmlab.core.errors import LmlabWarning, escape_control_characters


def shorten_warnings() -> None:
    """Show lmlab's warnings as one line, without the code that they come from.

    That of tqdm, which accelerate imports, about a missing ipywidgets is not shown: no bar of ours
    needs it.
    """
    warnings.filterwarnings("ignore", message="IProgress not found")
    others = warnings.formatwarning

    def one_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, LmlabWarning):
            return f"{warning_line(message)}\n"
        return others(message, category, filename, lineno, line)

    warnings.formatwarning = one_line


def warning_line(message: Warning | str) -> str:
    """A warning of lmlab on a terminal or in a notebook."""
    return escape_control_characters(f"lmlab: {message}")


def in_ipython() -> bool:
    """Whether this process is an IPython session or a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None
