"""Every option of the command line is a parameter of the verb's Python function."""

from __future__ import annotations

import inspect
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
import typer

import lmlab
from lmlab.cli.main import app
from lmlab.core.options import declared_options

EVERYWHERE = {
    "help": "the help itself",
    "json": "in Python a verb returns records",
    "raw": "Python prints nothing",
    "no_verify": "lmlab.load(run, verify=False)",
    "language": "lmlab.load(run, language=name)",
    "system_file": "lmlab.register(file)",
    "device": "lmlab.load(run, device=…)",
    "precision": "lmlab.load(run, precision=…)",
    "threads": "lmlab.load(run, threads=…)",
    "run": "the model whose method it is",
    "arguments": "texts, a list or any iterable",
    "texts": "the same",
    "questions": "the same",
    "text": "the same",
    "file": "the same, read by the caller",
}
"""Options and arguments of the terminal alone, in all commands, and what Python has instead."""
FILES = {"config": "lmlab.read_config(file)", "print_config": "lmlab.settings(system)"}
"""Options of commands that read options from a file."""
TERMINAL_ONLY = {
    "train": {"compile": "settings={'compile': True}"} | FILES,
    "finetune": FILES,
    "ablate": FILES,
    "runs rm": {"yes": "Python does not ask"},
    "score": {
        "per_token": "prints what every record has",
        "csv": "ScoreTable.write_csv",
        "wide": "ScoreTable.write_csv(wide=True)",
        "given": "score_given(pairs)",
        "conditional": "score_given(pairs)",
        "out": "score_file(runs, file, out)",
    },
    "sample": {"draw": "lmlab.inspection.mcmc_traces.write_mcmc_traces"},
    "fill": {"out": "fill_file(run, file, out)"},
    "translate": {
        "draw": "lmlab.inspection.source_attention",
        "out": "translate_file(run, file, out)",
    },
    "ask": {
        "index": "documents=lmlab.open_index(…)",
        "show_evidence": "prints what every answer has",
        "errors": "how FILE is decoded",
    },
    "link": {"draw": "lmlab.inspection.entity_links", "errors": "how FILE is decoded"},
    "encode": {"out": "encode_file(run, file, out), lmlab.interop.vector_files.VectorWriter"},
    "detect": {"threshold": "DetectedText.replaced(threshold)", "errors": "how FILE is decoded"},
    "evaluate": {"out": "TranslationEvaluation.translations"},
    "pairs": {"csv": "MinimalPairsComparison.write_csv"},
    "cloze": {"errors": "how FILE is decoded"},
    "doctor": {"strict": "an exit code"},
    "predict": {
        "graph": "lmlab.inspection.cognitive_graph_figure",
        "errors": "how FILE is decoded",
    },
    "words": {
        "source": "a parameter without an option",
        "question": "the methods of WordVectors",
        "given": "the methods of WordVectors",
        "k": "nearest(word, count)",
        "count": "nearest(word, count)",
    },
    "index search": {"errors": "how FILE is decoded"},
    "conformance": {"systems": "several calls", "list": "lmlab.conformance.suite.find_checks"},
}
"""Options of the terminal alone in one command, and what Python has instead."""
RENAMED = {
    "set": "settings",
    "source": "sources",
    "n_best": "best",
    "require": "required",
    "ban": "banned",
    "fact": "facts",
    "metric": "metrics",
    "check": "checks",
    "format": "formats",
    "allowed_host": "allowed_hosts",
}
"""Flags in the singular or shorter than the parameter, which takes several values."""
DEFAULT_COMMANDS = {"runs list": "runs"}
"""Commands that a group runs if it gets no name of one."""
IN_ONE_COMMAND = {
    ("ask", "n"): "answers",
    ("cloze", "texts"): "max_texts",
    ("inspect", "text"): "texts",
}


def commands(group: Any, prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, command in group.commands.items():
        path = f"{prefix}{name}"
        if hasattr(command, "commands"):
            found |= commands(command, f"{path} ")
        else:
            found[path] = command
    return found


COMMANDS = commands(typer.main.get_command(app))


def python_verbs(command: str) -> list[Any]:
    """The function of `lmlab`, or the method of LanguageModel, of a command's name."""
    name = DEFAULT_COMMANDS.get(command, command).replace("-", "_").replace(" ", "_")
    found = getattr(lmlab, name, None) or getattr(lmlab.LanguageModel, name)
    extra = {
        "score": [lmlab.LanguageModel.score_given, lmlab.score_file],
        "sample": [lmlab.LanguageModel.chains],
        "encode": [lmlab.encode_file],
        "translate": [lmlab.translate_file],
        "fill": [lmlab.fill_file],
    }
    return [found, *extra.get(command, [])]


def parameters(command: str) -> dict[str, Any]:
    """The declared options and plain parameters of a command's functions, the first one's first."""
    found: dict[str, Any] = {}
    for verb in python_verbs(command):
        for option in declared_options(verb):
            found.setdefault(option.name, option)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_python_function_of_its_name(command: str) -> None:
    assert all(callable(verb) for verb in python_verbs(command))


def parsed_kind(parameter: Any) -> str:
    """What the parser takes: flag, int, float or text."""
    if getattr(parameter, "is_flag", False):
        return "flag"
    if hasattr(parameter, "type_descriptor"):
        kind = parameter.type_descriptor.annotation
        return kind.__name__ if kind in (int, float) else "text"
    kinds = {"integer": "int", "float": "float"}  # older versions of typer
    return kinds.get(parameter.type.name.split()[0], "text")


def declared_kind(hint: Any) -> str:
    """The same of an annotation of Python."""
    is_union = get_origin(hint) in (Union, UnionType)
    members = [part for part in (get_args(hint) if is_union else (hint,)) if part is not type(None)]
    plain = [kind for kind in (bool, int, float) if kind in members]
    if len(plain) < len(members):
        return "text"
    return "flag" if plain == [bool] else plain[-1].__name__


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_parameters_of_the_same_name_type_and_default(command: str) -> None:
    declared, terminal_only = parameters(command), TERMINAL_ONLY.get(command, {})
    wrong = []
    used = set()
    for parameter in COMMANDS[command].params:
        flags = [name for name in parameter.opts if name.startswith("--")] or parameter.opts
        name = flags[0].lstrip("-").replace("-", "_")
        name = parameter.name if not parameter.opts[0].startswith("-") else name
        renamed = name if name in declared else RENAMED.get(name, name)
        python = IN_ONE_COMMAND.get((command, name), renamed)
        if python not in declared:
            if name in terminal_only:
                used.add(name)
            elif name not in EVERYWHERE and parameter.name not in EVERYWHERE:
                wrong.append(f"--{name} is no parameter")
            continue
        option = declared[python]
        default = None if option.default is inspect.Parameter.empty else option.default
        missing = (None, (), [])
        given = None if type(parameter.default).__name__ == "Sentinel" else parameter.default
        if given != default and not (given in missing and default in missing):
            wrong.append(f"--{name} defaults to {given!r}, in Python to {default!r}")
        parsed = option.option.parse is not None
        if not parsed and parsed_kind(parameter) != declared_kind(option.hint):
            wrong.append(f"--{name} is {parsed_kind(parameter)}, in Python {option.hint}")
        if option.option.help not in (parameter.help or ""):
            wrong.append(f"--{name} has another help")
    assert wrong == []


def test_the_lists_of_exceptions_name_options_that_exist() -> None:
    """An exception for an option that is gone must go too."""
    for command, names in TERMINAL_ONLY.items():
        params = COMMANDS[command].params
        flags = {flag.lstrip("-").replace("-", "_") for p in params for flag in p.opts}
        assert names.keys() <= flags | {p.name for p in params}, command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_one_line_and_leaves_the_default_to_the_parser(command: str) -> None:
    for option in parameters(command).values():
        text = option.option.help
        assert text.endswith(".") and "\n" not in text
        assert "default:" not in text and not text[0].islower(), f"{command}: {text}"
