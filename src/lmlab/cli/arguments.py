"""Command-line arguments: models and data, and several values after one `--text` or `--set`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lmlab.core.errors import UserError, nearest_names


def is_model(argument: str) -> bool:
    """Whether an argument is the folder of a run or of a Hub checkpoint."""
    return (Path(argument) / "config.json").is_file()


def split_models_and_data(
    arguments: Sequence[str], corpora: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Split arguments into models (runs and Hub folders), which come first, and data files.

    `corpora` are names that count as data as well; if there are any, so does a name with a colon
    (`parallel:FILE,FILE`).
    """
    models: list[str] = []
    data: list[str] = []
    for argument in arguments:
        if is_model(argument):
            if data:
                raise UserError(
                    f"models come before data, and the model {argument} follows {data[-1]}; put "
                    "it first."
                )
            models.append(argument)
        elif _exists(argument) or argument in corpora or (corpora and ":" in argument):
            data.append(argument)
        else:
            raise _missing_error(argument, corpora, first=not models)
    if not models:
        raise UserError(
            f"no model given: {', '.join(data)} is no folder of a run or of a Hub checkpoint (with "
            "config.json); name one first."
        )
    return models, data


def split_leading_models(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into models, which come first, and what follows: a file, or texts."""
    count = next((n for n, a in enumerate(arguments) if not is_model(a)), len(arguments))
    models, others = list(arguments[:count]), list(arguments[count:])
    late = next(filter(is_model, others), None)
    if late is not None:
        raise UserError(
            f"models come before the file or the texts, and the model {late} follows {others[0]}; "
            "put it first."
        )
    a_path = others and not any(map(str.isspace, others[0])) and not _exists(others[0])
    if len(others) == 2 and a_path and is_file(others[1]):
        raise _missing_error(others[0], (), first=True)
    return models, others


def _exists(argument: str) -> bool:
    try:
        return Path(argument).exists()
    except (OSError, ValueError):
        return False


def _missing_error(argument: str, corpora: Sequence[str], *, first: bool) -> UserError:
    """The error for a missing path, with similar names; the first argument must be a model."""
    path = Path(argument)
    try:
        siblings = [sibling.name for sibling in path.parent.iterdir()]
    except (OSError, ValueError):
        siblings = []
    close = [str(path.parent / name) for name in nearest_names(path.name, siblings)]
    close += [] if first else nearest_names(argument, corpora)
    hint = "did you mean " + " or ".join(close[:3]) + "?" if close else "check the path."
    noun = "run at" if first else "file, folder or run"
    return UserError(f"there is no {noun} {argument}; {hint}")


def split_models_and_corpus(
    arguments: Sequence[str], option: str | None, verb: str
) -> tuple[list[str], str | None]:
    """Models, and the corpus named after them or by --data; None without one."""
    from lmlab.data.builtin_corpora import builtin_descriptions

    models, data = split_models_and_data(arguments, tuple(builtin_descriptions()))
    if data and option is not None:
        raise UserError(f"--data {option} and {data[0]} both name data; give one of them.")
    if len(data) > 1:
        raise UserError(f"{verb} takes one corpus, got {len(data)}: {', '.join(data)}.")
    return models, data[0] if data else option


TAKE_TEXTS = ("score", "fill", "ask", "link", "detect", "encode", "translate", "predict", "cloze")
"""Commands that take [FILE | - | TEXT...], --text and --file."""
MULTI_VALUE_OPTIONS: dict[tuple[str, str], Callable[[str], bool]] = {
    # A file name after the texts is not one of them.
    **{(verb, "--text"): lambda value: value != "-" and not is_file(value) for verb in TAKE_TEXTS},
    ("inspect", "--text"): lambda value: not is_model(value),
    **{
        (verb, "--set"): lambda value: "=" in value
        for verb in ("train", "finetune", "ablate", "show-objective")
    },
}
"""Options that take several arguments, and which arguments still belong to them."""


def is_file(name: str) -> bool:
    """Whether a file of this name exists; a text may be too long for a name or contain NUL."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def repeat_options(arguments: Sequence[str]) -> list[str]:
    """Rewrite `--set a=1 b=2` as `--set a=1 --set b=2`, as the parser requires."""
    repeated: list[str] = []
    while len(arguments) > 1 and arguments[0] == "--limit":  # before the command
        repeated += arguments[:2]
        arguments = arguments[2:]
    verb = arguments[0] if arguments else ""
    option: str | None = None
    positionals = 0
    value_follows = False
    for argument in arguments:
        if value_follows:
            value_follows = False
        elif option is not None and not argument.startswith("-"):
            if MULTI_VALUE_OPTIONS[verb, option](argument):
                repeated.append(option)
            else:
                option = None
        elif argument.startswith("-") and argument != "-":
            # Before the run is named, what follows a text may be the run.
            option = (
                argument if (verb, argument) in MULTI_VALUE_OPTIONS and positionals > 1 else None
            )
            value_follows = (verb, argument) in MULTI_VALUE_OPTIONS
        else:
            option = None
            positionals += 1
        repeated.append(argument)
    return repeated
