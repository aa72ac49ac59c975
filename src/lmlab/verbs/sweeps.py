"""The verb that trains many settings: sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lmlab.core.options import Argument, takes
from lmlab.core.tracking_options import check_tracker_names
from lmlab.core.untrusted_input import check_path
from lmlab.experiments.sweep_options import SweepOptions
from lmlab.verbs.diagnosis import check_style, file_style

if TYPE_CHECKING:
    from lmlab.experiments.sweep_results import Sweep


@takes(SweepOptions)
def sweep(
    spec: Annotated[
        str | Path | Mapping[str, Any],
        Argument("The specification: a YAML, TOML or JSON file.", metavar="SPEC"),
    ],
    options: SweepOptions,
) -> Sweep:
    """Search settings: train a system at many points of a space, over several seeds.

    Grid, random and TPE search, with pruning of hopeless trials. The trainings are ordinary runs in
    out/runs; finished ones are not repeated, and interrupted ones resume. In Python the spec may be
    a mapping. The results do not depend on `jobs`.

    >>> spec = {"system": "gru", "data": "grammar", "size": "tiny", "steps": 2, "search": "grid",
    ...         "space": {"width": [4, 8]}}
    >>> result = lmlab.sweep(spec, out="sweep", quiet=True)
    >>> result.finished, sorted(trial.point["width"] for trial in result.trials)
    (True, [4, 8])
    """
    check_path(options.out, "out")
    from lmlab.experiments.sweep_spec import read_spec

    track = check_tracker_names(options.track)
    checked = read_spec(spec)  # report a wrong spec before the slow import of torch
    check_style(options)
    from lmlab.experiments.executors import local_executor
    from lmlab.experiments.sweep_plan import plan_sweep
    from lmlab.experiments.sweep_progress import SweepBar
    from lmlab.experiments.sweep_runs import list_trials, run_sweep
    from lmlab.experiments.sweep_tables import write_sweep_tables
    from lmlab.training.distributed import lock_output

    plan, out = replace(plan_sweep(checked), track=track), Path(options.out)
    if options.dry_run:
        return list_trials(plan, out)
    executor = options.executor or local_executor(options.jobs, threads=checked.threads)
    bar = SweepBar(quiet=options.quiet, lower_is_better=plan.lower_is_better)
    with lock_output(out):
        with bar:
            result = run_sweep(
                plan, out, executor=executor, progress=bar, retry_failed=options.retry_failed
            )
        write_sweep_tables(result, file_style(options))
    return result
