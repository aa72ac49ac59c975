"""Arguments as people write them: several values after one `--text` or `--set`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

SEVERAL: dict[tuple[str, str], Callable[[str], bool]] = {
    # A file's name is what follows the texts, not one more of them.
    ("score", "--text"): lambda value: value != "-" and not Path(value).is_file(),
    ("inspect", "--text"): lambda value: not (Path(value) / "config.json").is_file(),
    ("train", "--set"): lambda value: "=" in value,
    ("show-objective", "--set"): lambda value: "=" in value,
}
"""Options that go on to the next arguments, and which of those still belong to them."""


def spread(arguments: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`, which is what the parser understands."""
    verb = arguments[0] if arguments else ""
    given: list[str] = []
    option: str | None = None
    places = 0
    waiting = False
    for argument in arguments:
        if waiting:
            waiting = False
        elif option is not None and not argument.startswith("-"):
            if SEVERAL[verb, option](argument):
                given.append(option)
            else:
                option = None
        elif argument.startswith("-") and argument != "-":
            # Before the run has been named, what follows a text may be the run.
            option = argument if (verb, argument) in SEVERAL and places > 1 else None
            waiting = (verb, argument) in SEVERAL
        else:
            option = None
            places += 1
        given.append(argument)
    return given
