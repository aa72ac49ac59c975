"""Typer commands from verbs: the signature of a verb's Python function gives the options.

`@terminal(verb)` gives a function of the command line the options of the verb, which it takes as
`**options`; what only a terminal needs (`--json`, files of texts) it declares itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Iterable as AnyIterable
from dataclasses import asdict, is_dataclass, replace
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from lmlab.cli.config_option import (
    CONFIG_OPTIONS,
    config_parameters,
    file_options,
    print_options,
    prints_config,
    with_file_options,
)
from lmlab.cli.options import JsonOption, NoVerify, RunArgument
from lmlab.cli.output import print, print_json
from lmlab.core.compute_options import ComputeOptions, computing_with
from lmlab.core.options import Argument, DeclaredOption, Option, declared_options, union_members

Body = Callable[..., Any]
Given = frozenset[str]
"""A command's parameter `given` of this type has the names of the options that were given."""
PLAIN_TYPES = (bool, str, int, float)
"""Types of the command line, in order of preference where Python takes several."""


def terminal(
    *verbs: Callable[..., Any],
    without: Sequence[str] = (),
    config: bool = False,
    loads: bool | None = None,
) -> Callable[[Body], Body]:
    """Give a command the options of verbs; it takes them as `**options`, parsed.

    The first verb's summary is the command's help, before the docstring of the command. `without`
    names options that this command does not have. With `config` its options can be read from a
    file (`--config`, `--print-config`), required ones too. A command that `loads` models, by
    default one that takes a RUN, has `--device`, `--precision` and `--threads`, which are those of
    `lmlab.load`.
    """
    declared: dict[str, DeclaredOption] = {}
    for verb in verbs:
        for option in declared_options(verb):
            if option.name in declared:
                first = declared[option.name]
                declared[option.name] = replace(first, hint=first.hint | option.hint)
            elif option.name not in without:
                declared[option.name] = option

    def decorate(body: Body) -> Body:
        own = signature(body, eval_str=True).parameters.values()
        computes = any(p.annotation == RunArgument for p in own) if loads is None else loads
        computing = declared_options(ComputeOptions) if computes else []
        computing = [option for option in computing if option.name not in without]
        for option in computing:  # of a verb that takes them itself as well
            declared.pop(option.name, None)
        of_verb = [_parameter(option) for option in declared.values()]
        of_body = [
            _own_parameter(parameter)
            for parameter in own
            if parameter.kind is not Parameter.VAR_KEYWORD
            and parameter.name not in declared
            and parameter.annotation is not Given
        ]
        arguments = [p for p in [*of_verb, *of_body] if _is_argument(p)]
        options = [p for p in of_verb if not _is_argument(p)]
        options += [p for p in of_body if not _is_argument(p)]
        options += [_parameter(option) for option in computing]

        wants_given = any(p.name == "given" and p.annotation is Given for p in own)

        def command(**values: Any) -> Any:
            context = values.pop("_context", None)
            for name in values.keys() & declared.keys():
                values[name] = _parsed(declared[name], values[name])
            given = [name for name in declared if context and _is_given(context, name)]
            if config:
                values = with_file_options(verbs[0], context, _without_config(values), given)
                if prints_config(context):
                    print_options(verbs[0], context, values, given)
                    return None
            if wants_given:
                values["given"] = frozenset({*given, *file_options(context)})
            chosen = ComputeOptions(**{o.name: values.pop(o.name) for o in computing})
            with computing_with(chosen):
                return body(**values)

        parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in [*arguments, *options]]
        parameters += config_parameters(verbs[0]) if config else []
        if wants_given or config:
            parameters.append(
                Parameter("_context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
            )
        vars(command)["__signature__"] = Signature(parameters)
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__name__, command.__module__ = body.__name__, body.__module__
        command.__doc__ = "\n\n".join(filter(None, [*map(summary, verbs[:1]), getdoc(body)]))
        return command

    return decorate


def _without_config(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command without the options that name its file."""
    return {name: value for name, value in values.items() if name not in CONFIG_OPTIONS}


def summary(verb: Callable[..., Any]) -> str:
    """The first paragraph of a verb's docstring."""
    return (getdoc(verb) or "").partition("\n\n")[0]


def _own_parameter(parameter: Parameter) -> Parameter:
    """A parameter of a command's own, declared for typer or as those of verbs are."""
    plain, *metadata = get_args(parameter.annotation)
    for item in metadata:
        if isinstance(item, Option):
            return _parameter(DeclaredOption(parameter.name, plain, parameter.default, item))
    return parameter


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_argument(parameter: Parameter) -> bool:
    # Typer's class of arguments has moved between versions.
    return any(type(item).__name__ == "ArgumentInfo" for item in get_args(parameter.annotation)[1:])


def _parameter(declared: DeclaredOption) -> Parameter:
    """A typer parameter of a declared option."""
    option, default = declared.option, declared.default
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.metavar is None and declared.choices:
        settings["metavar"] = "|".join(declared.choices)
    settings |= {"min": option.minimum, "max": option.maximum}
    if option.show_default is not None:
        settings["show_default"] = option.show_default
    if option.panel is not None:
        settings["rich_help_panel"] = option.panel
    hint = terminal_type(declared)
    if isinstance(option, Argument):
        info = typer.Argument(**settings)
    else:
        info = typer.Option(*declared.flag.split(), **settings)
    if default is not Parameter.empty and (default is None or default == () or option.parse):
        hint, default = hint | None, None
    return Parameter(
        declared.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )


def terminal_type(declared: DeclaredOption) -> Any:
    """The type that typer parses for a declared option."""
    members = union_members(declared.hint)
    sequence = str not in members and any(
        isinstance(get_origin(member), type) and issubclass(get_origin(member), AnyIterable)
        for member in members
    )
    if declared.option.repeats or (sequence and declared.option.parse is None):
        return list[str]
    if declared.option.parse is not None:
        return str
    plain = [kind for kind in PLAIN_TYPES if kind in members]
    if plain:
        return plain[0]
    assert declared.choices or Path in members, f"{declared.name}: {declared.hint} has no type"
    return str


def _parsed(declared: DeclaredOption, value: Any) -> Any:
    """The value for Python: the default if nothing was given, else parsed."""
    if value is None or value == []:
        return declared.default
    return value if declared.option.parse is None else declared.option.parse(value)


def verb_command(verb: Callable[..., Any]) -> Body:
    """The command of a verb that needs nothing else of a terminal: its record is printed.

    A first parameter `model` without an `Argument` is the run that the command names.
    """
    names = list(signature(verb).parameters)
    takes_model = names[:1] == ["model"]

    def body(as_json: JsonOption = False, no_verify: NoVerify = False, **options: Any) -> None:
        if takes_model:
            from lmlab.verbs.loading import load

            options["model"] = load(options.pop("run"))
        print_record(verb(**options), as_json=as_json)

    def body_of_model(
        run: RunArgument, as_json: JsonOption = False, no_verify: NoVerify = False, **options: Any
    ) -> None:
        body(as_json, no_verify, run=run, **options)

    chosen = body_of_model if takes_model else body
    chosen.__name__ = verb.__name__
    return terminal(verb)(chosen)


def print_record(result: Any, *, as_json: bool) -> None:
    """Print what a verb returns: records as JSON, or a line for each field; texts as they are."""
    if as_json:
        print_json(_plain(result))
        return
    for item in result if isinstance(result, (list, tuple)) else [result]:
        record = _plain(item)
        if isinstance(record, dict):
            for name, value in record.items():
                print(f"{name}: {value}")
        elif record is not None:
            print(record)


def _plain(result: Any) -> Any:
    """A record as plain data: by its `as_dict`, or its fields."""
    if hasattr(result, "as_dict"):
        return result.as_dict()
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    if isinstance(result, (list, tuple)):
        return [_plain(item) for item in result]
    return str(result) if isinstance(result, Path) else result
