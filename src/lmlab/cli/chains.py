"""What `lmlab sample` does by Markov chains: options as people write them, a bar, a summary."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.cli.output import console, print, print_json
from lmlab.core.errors import UserError
from lmlab.core.whole_numbers import whole_number

if TYPE_CHECKING:
    from lmlab.api import LanguageModel
    from lmlab.sampling.chain_report import Chains, Mixing

INTERRUPTED = 130
"""Exit code after Ctrl-C, as `lmlab.cli.main` knows it."""


def ends(written: str) -> tuple[int, int]:
    """5-12 as (5, 12)."""
    least, most = (whole_number(part.strip()) for part in written.partition("-")[::2])
    if least is None or most is None:
        raise UserError(f"--lengths takes the least and the most, such as 5-12; {written!r} came.")
    return least, most


def run_chains(model: LanguageModel, as_json: bool, **options: Any) -> int:
    """Run the chains under a bar, tell of them on standard error, and print their texts."""
    picture: Path | None = options.pop("draw", None)
    if picture is not None:
        from lmlab.diagnostics.chain_picture import check_form, write_picture

        check_form(picture)
    with steps_bar(str(options["method"])) as told:
        found = model.chains(progress=told, **options)
    if picture is not None:
        write_picture(found, picture)
    tell_of(found)
    if as_json:
        print_json(found.as_dict())
    else:
        for each in found.texts:
            print(each.text.replace("\n", "\\n"))
    return INTERRUPTED if found.interrupted else 0


def tell_of(found: Chains) -> None:
    """A line of figures, and the warnings, on standard error."""
    mixing = found.mixing
    read = "no energy was read after the burn-in"
    if not math.isnan(mixing.energy_mean):
        read = (
            f"energy ({found.energy}) {mixing.energy_mean:.2f} ± {mixing.energy_deviation:.2f}, "
            f"{_mixed(mixing)}"
        )
    print(
        f"{found.chains} chains of {found.steps} steps in {found.seconds:.1f} s: accepted "
        f"{mixing.acceptance:.3f}, changed {mixing.changed:.3f}; {read}.",
        file=sys.stderr,
    )
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _mixed(mixing: Mixing) -> str:
    """R-hat and effective size, or that they are unknown."""
    if math.isnan(mixing.r_hat) or math.isnan(mixing.effective_size):
        return f"R-hat unknown after {mixing.readings} readings"
    size = f"effective size {mixing.effective_size:.0f} of {mixing.readings} readings"
    return f"R-hat {mixing.r_hat:.3f}, {size}"


@contextmanager
def steps_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while chains run; gives what is told of each step. Silent where
    nobody looks."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}, step"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
