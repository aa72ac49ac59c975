"""Help of settings: the docstring under each field of a config class."""

from __future__ import annotations

import ast
import inspect
import textwrap


def field_help(config: type) -> dict[str, str]:
    """The docstring under each field of a config, those it inherits included."""
    helped: dict[str, str] = {}
    for owner in reversed(config.__mro__[:-1]):
        definition = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, below in zip(definition.body, definition.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    helped[name] = " ".join(text.split())
    return helped
