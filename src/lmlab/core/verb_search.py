"""What a search knows of a command: the docstring of its verb and the help of each option.

Sources are parsed and not imported: a command's `@terminal(verb)` leads to the verb's function,
and its `@takes(Options)` or `@collects(stream)` to where the options are declared.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
OPTION_CALLS = ("Option", "Argument", "option", "settings_option")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _file(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def _imported(path: Path, name: str) -> tuple[Path, str] | None:
    """The file and the name there of what a file imports as `name`; a module has no name."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lmlab."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    as_module = _file(f"{node.module}.{alias.name}")
                    if as_module.exists():
                        return as_module, ""
                    return _file(str(node.module)), alias.name
    return None


def _resolved(path: Path, expression: ast.expr) -> tuple[Path, str]:
    """Where `name` or `module.name` is defined."""
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        found = _imported(path, expression.value.id)
        assert found is not None, f"{path.name} imports {expression.value.id}"
        return found[0], expression.attr
    assert isinstance(expression, ast.Name)
    return _imported(path, expression.id) or (path, expression.id)


def _definition(path: Path, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    for node in _tree(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
    return None


def verb_text(path: Path, command: ast.FunctionDef) -> str:
    """The text of a command: what it does, then a line for each option."""
    docstrings, helps = [], list(_own_helps(command))
    for verb_path, name in _decorator_arguments(path, command, "terminal"):
        function = _definition(verb_path, name)
        if isinstance(function, ast.FunctionDef):
            docstrings.append(ast.get_docstring(function) or "")
            helps += _verb_helps(verb_path, function)
    return "\n\n".join([*docstrings[:1], ast.get_docstring(command) or "", "\n".join(helps)])


def _decorator_arguments(
    path: Path, function: ast.FunctionDef, decorator: str
) -> Iterator[tuple[Path, str]]:
    for call in function.decorator_list:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        if call.func.id.startswith(decorator):
            yield from (_resolved(path, argument) for argument in call.args)


def _verb_helps(path: Path, function: ast.FunctionDef) -> Iterator[str]:
    for argument in (*function.args.args, *function.args.kwonlyargs):
        yield from _helps(argument.arg, argument)
    for stream_path, name in _decorator_arguments(path, function, "collects"):
        stream = _definition(stream_path, name)
        if isinstance(stream, ast.FunctionDef):
            yield from _verb_helps(stream_path, stream)
    for class_path, name in _decorator_arguments(path, function, "takes"):
        yield from _field_helps(class_path, name)


def _field_helps(path: Path, name: str) -> Iterator[str]:
    """The options of a dataclass and of its bases."""
    definition = _definition(path, name)
    if isinstance(definition, ast.ClassDef):
        for base in definition.bases:
            yield from _field_helps(*_resolved(path, base))
        for field in definition.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield from _helps(field.target.id, field.annotation)


def _helps(name: str, annotation: ast.AST) -> Iterator[str]:
    for call in ast.walk(annotation):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        if call.func.id in OPTION_CALLS and call.args:
            yield f"--{name.replace('_', '-')}: {' '.join(_strings(call.args[0]))}"


def _own_helps(command: ast.FunctionDef) -> Iterator[str]:
    """The help of the options that only a terminal has."""
    for argument in command.args.args:
        for inner in ast.walk(argument):
            if isinstance(inner, ast.keyword) and inner.arg == "help":
                yield f"--{argument.arg.replace('_', '-')}: {' '.join(_strings(inner.value))}"


def _strings(node: ast.AST) -> list[str]:
    values = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    return [value for value in values if isinstance(value, str)]
