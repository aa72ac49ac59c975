"""Verbs that look into models and trainings: inspect, show-objective, doctor, ablate."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from lmlab.core.errors import UserError
from lmlab.core.figure_style import FigureFileStyle, FigureStyle
from lmlab.core.options import Argument, Option, as_keywords, takes
from lmlab.core.shared_options import Settings, no_progress, settings_option
from lmlab.core.untrusted_input import MAX_SEED, check_path, check_whole_number
from lmlab.experiments.ablation_options import AblateOptions, AblationPlanOptions

if TYPE_CHECKING:
    from lmlab.data.corpus import Corpus
    from lmlab.diagnosis.findings import Examination
    from lmlab.experiments.ablation import Ablation
    from lmlab.inspection.inspect_model import Inspection
    from lmlab.objective_figures.objective_figure import ObjectiveFigure
    from lmlab.training.run_folder import TrainedModel
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import GivenModel


def parse_words(text: str) -> list[str]:
    """Parse words separated by commas, Chinese ones too."""
    return [word.strip() for word in re.split("[,，]", text) if word.strip()]


@dataclass(frozen=True, kw_only=True)
class InspectOptions(FigureFileStyle):
    """What is inspected, and how its figures look."""

    texts: Annotated[
        Sequence[str],
        Option(
            "A sentence to show; repeatable.", flag="--text", metavar="T", show_default="the run's"
        ),
    ] = ()
    words: Annotated[
        Sequence[str],
        Option(
            "Words to show nearest neighbours of.",
            metavar="A,B,C",
            parse=parse_words,
            show_default="frequent ones",
        ),
    ] = ()
    out: Annotated[
        str | Path | None,
        Option("Output folder.", metavar="DIR", show_default="the run's own figures folder"),
    ] = None
    progress: Callable[[str], None] = no_progress


@takes(InspectOptions)
def inspect(runs: Sequence[GivenModel], options: InspectOptions) -> Inspection:
    """Inspect trained models: attention, activations, gradients and more, as SVG, PNG and HTML.

    Several models are compared. Figures in a style of their own (`figure_size`, `font`, `formats`
    …) are written to `out` alone, and not to the runs, where reports find them.

    >>> inspection = lmlab.inspect(["runs/window"], texts=["the cat sleeps"], out="figures")
    >>> [figure.name for figure in inspection.figures if figure.text]
    ['surprisal', 'view']
    """
    from lmlab.inspection.inspect_model import inspect_models
    from lmlab.verbs.loading import check_list, trained_models

    check_list(runs, "inspect")
    if isinstance(options.texts, str) or isinstance(options.words, str):
        raise UserError("inspect takes lists of texts and words; put a single one in a list.")
    check_style(options)
    return inspect_models(
        trained_models(runs),
        out=None if options.out is None else Path(options.out),
        texts=options.texts,
        words=options.words,
        progress=options.progress,
        style=file_style(options),
    )


def check_style(style: FigureStyle) -> None:
    """A UserError for an unknown font, before anything is computed."""
    if style.font is not None:
        from lmlab.plotting.fonts import check_font

        check_font(style.font)


def file_style(options: FigureFileStyle) -> FigureFileStyle:
    """The figure style of a verb's options."""
    return FigureFileStyle(**as_keywords(options, FigureFileStyle))


@dataclass(frozen=True, kw_only=True)
class ShowObjectiveOptions(FigureStyle):
    """What a figure of an objective shows, and how it looks."""

    text: Annotated[
        str | None,
        Option(
            "Text to show; words separated by spaces (un ##happy is one of two), Chinese "
            "characters each by itself.",
            metavar="T",
        ),
    ] = None
    condition: Annotated[
        str | None, Option("Text to condition on: the source of a translation model.", metavar="C")
    ] = None
    seed: Annotated[
        int | None,
        Option(
            "Random seed of the masking.",
            minimum=0,
            maximum=MAX_SEED,
            show_default="one that masks something",
        ),
    ] = None
    settings: Annotated[
        Settings,
        settings_option("Set a setting of the system; repeatable. See lmlab settings SYSTEM."),
    ] = None
    out: Annotated[
        str | Path | None,
        Option("FILE.svg, FILE.png or FILE.pdf.", metavar="FILE", show_default="SYSTEM.svg"),
    ] = None


@takes(ShowObjectiveOptions)
def show_objective(
    system: Annotated[
        str | Path | ModuleType | LanguageModel,
        Argument(
            "A system of the zoo, a Python file, or a run's folder (./NAME where a system has its "
            "name).",
            metavar="SYSTEM",
        ),
    ],
    options: ShowObjectiveOptions,
) -> ObjectiveFigure:
    """Plot a training objective on one text: masked and input tokens, targets, attention mask.

    A zoo system is built small over the words of the text, with `settings`. In Python nothing is
    written without `out`.

    >>> figure = lmlab.show_objective("bert", text="the cat sat on the mat", seed=0, out="bert.svg")
    >>> [matrix.name for matrix in figure.contents.matrices]
    ['attention mask']
    """
    from lmlab.objective_figures.objective_figure import show_objective as show
    from lmlab.plotting.figure import check_figure_path

    check_style(options)
    if options.out is not None:
        check_figure_path(Path(options.out))
    figure = show(
        _shown_subject(system),
        text=options.text,
        condition=options.condition,
        seed=options.seed,
        settings=options.settings,
        style=FigureStyle(**as_keywords(options, FigureStyle)),
    )
    if options.out is not None:
        figure.write(Path(options.out))
    return figure


def _shown_subject(
    system: str | Path | ModuleType | LanguageModel,
) -> str | Path | ModuleType | TrainedModel:
    """What a figure of an objective is of: a name, file, module or run, or a model in memory."""
    from lmlab.interop.load_model import is_hub_checkpoint, load_model

    if isinstance(system, (str, Path)):
        return load_model(system) if is_hub_checkpoint(Path(system)) else system
    return system if isinstance(system, ModuleType) else system.model


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(FigureFileStyle):
    """What an examination needs besides the run, and how its figures look."""

    data: Annotated[
        str | Path | Corpus | None,
        Option(
            "Path of the training corpus.",
            metavar="CORPUS",
            show_default="where it was in training",
        ),
    ] = None
    out: Annotated[
        str | Path | None,
        Option("Folder of the figures.", metavar="DIR", show_default="RUN/figures"),
    ] = None
    text: Annotated[
        str | None,
        Option(
            "Text on which causality is examined.", metavar="TEXT", show_default="random tokens"
        ),
    ] = None


@takes(DoctorOptions)
def doctor(
    run: Annotated[
        str | Path | LanguageModel, Argument("The folder of a trained run.", metavar="RUN")
    ],
    options: DoctorOptions,
) -> Examination:
    """Diagnose a training run: each finding with its number, why it matters and what to try.

    Its `causality` says what each prediction depends on, measured on `text`; a wrapped module or a
    Hugging Face checkpoint has no more to examine. In Python no figure is written without `out`.

    >>> examination = lmlab.doctor("runs/ngram")
    >>> examination.healthy, examination.causality.verdict
    (True, 'causal')
    >>> [level.name for level in examination.levels]
    ['uniform', 'unigram', 'bigram', 'trigram', 'entropy']
    """
    from lmlab.diagnosis.examination import examine
    from lmlab.verbs.language_model import LanguageModel

    if isinstance(run, LanguageModel):
        examined: TrainedModel | str | Path = run.model
    else:
        check_path(run, "a run")
        examined = run
    check_style(options)
    examination = examine(examined, data=options.data, text=options.text)
    if options.out is not None:
        from lmlab.diagnosis.examination_figures import write_examination_figures

        write_examination_figures(examination, Path(options.out), file_style(options))
    return examination


@takes(AblateOptions)
def ablate(
    system: Annotated[
        str | Path | ModuleType, Argument("A system with switches.", metavar="SYSTEM")
    ],
    options: AblateOptions,
) -> Ablation:
    """Ablate a system: train it whole and with terms switched off, over several seeds.

    `switches` are sets of numbers or names, "4;0,4,5" or [[4], [0, 4, 5]]. Trainings are runs in
    out/runs; finished ones are not repeated, and interrupted ones resume.

    >>> ablation = lmlab.ablate("gru-minimal", data="grammar", out="terms", switches="4;0,4",
    ...                         size="tiny", seeds=1, epochs=1, quiet=True)
    >>> sorted(row.terms for row in ablation.rows)
    ['0 gate-input, 4 candidate-hidden', '4 candidate-hidden', 'intact']
    """
    from lmlab.core.system_files import resolve_system

    resolve_system(system)  # report a wrong name before the slow import of torch
    from lmlab.experiments.ablation import plan_ablation
    from lmlab.experiments.ablation_runs import run_ablation
    from lmlab.experiments.ablation_tables import write_ablation_tables
    from lmlab.experiments.executors import local_executor
    from lmlab.training.distributed import lock_output

    check_style(options)
    plan = plan_ablation(system, **as_keywords(options, AblationPlanOptions))
    check_whole_number("threads", options.threads)
    executor = local_executor(options.jobs, threads=options.threads, quiet=options.quiet)

    def report(sentence: str) -> None:
        if not options.quiet:
            print(sentence, file=sys.stderr, flush=True)

    out = Path(options.out)
    with lock_output(out):
        ablation = run_ablation(
            plan, out, executor=executor, threads=options.threads, report=report
        )
        write_ablation_tables(ablation, file_style(options))
    return ablation
