"""Resource limits: values beyond which a request is refused, unless the user raises the limit.

`lmlab --limit beam=5000 translate …` raises one for a command, `set_limit("beam", 5000)` in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.errors import UserError, unknown_name

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Limit:
    """The maximum of a quantity, and its name in an error."""

    default: int
    what: str
    hint: str
    """What to do instead, in a few words."""


LIMITS: dict[str, Limit] = {
    "beam": Limit(1_000, "a beam width", "use a smaller beam"),
    "texts": Limit(1_000_000, "a number of texts", "generate them in several runs"),
    "samples": Limit(10_000, "a number of samples per source", "draw fewer samples"),
    "length": Limit(100_000, "a maximum length in tokens", "ask for shorter texts"),
    "seeds": Limit(1_000, "a number of seeds", "use fewer seeds"),
    "trials": Limit(100_000, "a number of trials", "search a smaller space, or use fewer trials"),
    "steps": Limit(10_000_000, "a number of MCMC steps", "run fewer steps"),
    "positions": Limit(1_000_000, "a token position", "name positions inside the text"),
    "line": Limit(64 * MEGABYTE, "a line in bytes", "split the text into lines"),
    "json": Limit(256 * MEGABYTE, "a JSON file in bytes", "check that it is the file you mean"),
    "unpacked": Limit(1 << 30, "an unpacked file in bytes", "check that it is the file you mean"),
    "vocabulary": Limit(
        1_000_000,
        "a vocabulary",
        "use --set min_count=2, a smaller --set vocabulary_size, or --tokenizer bpe",
    ),
    "words": Limit(20_000_000, "the number of different words", "use --tokenizer bpe"),
    "parameters": Limit(100_000, "the number of parameter tensors of a model", "use fewer layers"),
}
"""Every limit by name; docs/reliability.md lists them."""

_raised: dict[str, int] = {}


def limit(name: str) -> int:
    """The current limit of that name."""
    return _raised.get(name, LIMITS[name].default)


def raised_limits() -> list[str]:
    """The limits that were set in this process, as `set_limits` takes them, for another."""
    return [f"{name}={value}" for name, value in _raised.items()]


def set_limit(name: str, value: int | None) -> None:
    """Raise or lower a limit for this process; None restores its default."""
    if name not in LIMITS:
        raise unknown_name("limit", name, LIMITS)
    if value is None:
        _raised.pop(name, None)
        return
    if value < 1:
        raise UserError(f"the limit {name} must be 1 or more, got {value}.")
    _raised[name] = value


def set_limits(assignments: list[str]) -> None:
    """Set limits given as on the command line: beam=5000."""
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not value.isascii() or not value.isdigit() or len(value) > 18:
            raise UserError(
                f"--limit must be NAME=NUMBER, got {assignment!r}; try --limit beam=5000. "
                f"Names: {', '.join(LIMITS)}."
            )
        set_limit(name, int(value))


def check_limit(name: str, value: int, *, called: str = "") -> None:
    """Raise a UserError if a value exceeds its limit; `called` is the user's name for it."""
    if value > limit(name):
        raise limit_exceeded_error(name, f"{called or LIMITS[name].what} must be", f"got {value:,}")


def limit_exceeded_error(name: str, subject: str, got: str = "") -> UserError:
    """The error for something beyond a limit: `subject` at most the limit, and how to raise it."""
    suffix = f", {got}" if got else ""
    return UserError(
        f"{subject} at most {limit(name):,}{suffix}; {LIMITS[name].hint}, or raise the limit with "
        f"lmlab --limit {name}=NUMBER."
    )
