"""Arguments as people write them: several values after one `--text` or `--set`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lmlab.core.errors import UserError

SEVERAL: dict[tuple[str, str], Callable[[str], bool]] = {
    # A file's name is what follows the texts, not one more of them.
    ("score", "--text"): lambda value: value != "-" and not Path(value).is_file(),
    ("inspect", "--text"): lambda value: not (Path(value) / "config.json").is_file(),
    **{
        (verb, "--set"): lambda value: "=" in value
        for verb in ("train", "finetune", "ablate", "show-objective")
    },
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


def positions_of(written: str) -> tuple[int, ...]:
    """1,3-5 as 1, 3, 4, 5: places of tokens, each once."""
    found: list[int] = []
    for part in written.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UserError(f"--positions takes numbers such as 1,3-5, and {written!r} came.")
        if dash and int(last) < int(first):
            raise UserError(
                f"a range of --positions goes up, as {last}-{first}, and {part.strip()!r} came."
            )
        found += range(int(first), int(last if dash else first) + 1)
    for position in found:
        if found.count(position) > 1:
            raise UserError(f"--positions names each token once, and {position} came twice.")
    return tuple(found)
