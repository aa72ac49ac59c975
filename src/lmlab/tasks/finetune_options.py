"""The options of `lmlab finetune` and of prompting; importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lmlab.core.compute_options import TrainingComputeOptions
from lmlab.core.options import Option
from lmlab.core.shared_options import (
    BUDGET,
    Errors,
    Minutes,
    Resume,
    Seed,
    Settings,
    Steps,
    settings_option,
)
from lmlab.core.tracking_options import Track

FINETUNE_EPOCHS = 10
TaskName = Annotated[
    str,
    Option(
        "Task: classify, pair, cloze, tag, span, generate or hops; docs/tasks.md says what a row "
        "of each holds.",
        metavar="TASK",
    ),
]
TaskData = Annotated[
    str | Path,
    Option(
        "Rows: a file of JSON lines, a folder with train, valid and test files, or a built-in set: "
        "gloss-part-of-speech, gloss-hypernym, capitals-mentions, capitals-span, capitals-long, "
        "gloss-word, wordnet-hops, babi-long:FOLDER/qa2; for generate any corpus of pairs too.",
        metavar="ROWS",
    ),
]


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(TrainingComputeOptions):
    """On which task and rows a run is fine-tuned, how, and into which folder."""

    task: TaskName
    data: TaskData
    out: Annotated[str | Path, Option("Output folder.", metavar="RUN")]
    frozen: Annotated[bool, Option("Train the head alone (feature transfer).")] = False
    long: Annotated[
        Literal["head", "tail", "head-tail", "windows", "pooling", "memrecall"] | None,
        Option(
            "Strategy for texts longer than the window; pooling is for classify, memrecall is "
            "CogLTX.",
            metavar="WAY",
            show_default="memrecall for a system built for it, else head",
        ),
    ] = None
    judge: Annotated[
        Literal["labels", "interventions"] | None,
        Option(
            "Supervision of memrecall's scorer: labels are the rows' relevant.",
            show_default="labels if the rows have them",
        ),
    ] = None
    examples: Annotated[int | None, Option("Train on the first N rows only.", metavar="N")] = None
    settings: Annotated[
        Settings,
        settings_option(
            "Set a setting of the training or of --long; repeatable. See lmlab settings --task "
            "TASK."
        ),
    ] = None
    epochs: Annotated[
        int | None, Option("Budget: epochs.", show_default=str(FINETUNE_EPOCHS), family=BUDGET)
    ] = None
    steps: Steps = None
    minutes: Minutes = None
    seed: Seed = 0
    resume: Resume = False
    track: Track = ()
    errors: Errors = "strict"
    quiet: bool = False
