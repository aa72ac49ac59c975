"""The options of `lmlab ablate` and `lmlab.ablate`; importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lmlab.core.figure_style import FigureFileStyle
from lmlab.core.options import Option
from lmlab.core.shared_options import (
    BUDGET,
    Jobs,
    Recipe,
    Settings,
    Size,
    TextTokenizer,
    parse_epochs,
    settings_option,
)


@dataclass(frozen=True, kw_only=True)
class AblationPlanOptions:
    """What is trained in every row, and what is turned off."""

    data: Annotated[str | Path, Option("Training corpus.", metavar="CORPUS")]
    switches: Annotated[
        str | Sequence[Sequence[int | str]] | None,
        Option('Sets of switches to turn off, by number or name: "4;0,4,5;4,6".', metavar="SETS"),
    ] = None
    each: Annotated[
        bool, Option("Turn off every switch by itself; the default without --switches and --pairs.")
    ] = False
    pairs: Annotated[bool, Option("Turn off every pair of switches.")] = False
    seeds: Annotated[int, Option("Number of seeds, from 0.")] = 3
    epochs: Annotated[
        int | None, Option("Training epochs.", show_default="the recipe's", family=BUDGET)
    ] = None
    at: Annotated[
        Sequence[int],
        Option(
            "Epochs to report losses at.",
            metavar="10,20",
            parse=parse_epochs,
            show_default="the last",
        ),
    ] = ()
    size: Size = None
    settings: Annotated[
        Settings,
        settings_option(
            "Set a setting of the system or of the training, in every run; repeatable. See lmlab "
            "settings SYSTEM. Switches in --set off=… are off in every row."
        ),
    ] = None
    recipe: Recipe = None
    tokenizer: TextTokenizer = None


@dataclass(frozen=True, kw_only=True)
class AblateOptions(AblationPlanOptions, FigureFileStyle):
    """The plan of an ablation, and how it is run."""

    out: Annotated[str | Path, Option("Output folder.", metavar="DIR")]
    jobs: Jobs = 1
    threads: Annotated[int, Option("CPU threads of each training.")] = 1
    quiet: bool = False
