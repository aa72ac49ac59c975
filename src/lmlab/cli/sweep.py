"""`lmlab sweep SPEC`: search settings by training a system at many points of a space."""

from __future__ import annotations

import sys
from typing import Any

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, show_table
from lmlab.cli.terminal import terminal
from lmlab.verbs.sweeps import sweep as run_sweep

SHOWN_TRIALS = 20
"""Trials that the terminal shows; the files have all."""


@terminal(run_sweep)
def sweep(as_json: JsonOption = False, *, spec: str, out: str, **options: Any) -> None:
    """Interrupted at any time, the same command resumes. See docs/sweeps.md for the spec."""
    from lmlab.experiments.sweep_tables import sweep_table

    result = run_sweep(spec, out=out, **options)
    if as_json:
        print_json(result.as_dict())
    else:
        dry = options["dry_run"]
        table = sweep_table(result)
        show_table(table.rich(most=None if dry else SHOWN_TRIALS))
        if len(table.rows) > SHOWN_TRIALS and not dry:
            print(f"… and {len(table.rows) - SHOWN_TRIALS} more in {out}/sweep.csv")
        for note in table.notes:
            print(f"- {note}")
    if options["dry_run"]:
        return
    if not result.finished:
        print(f"lmlab: stopped; run the same command again to resume in {out}.", file=sys.stderr)
        sys.exit(130)
    print(f"written: {out}/sweep.json, .md, .tex, .csv, and figures", file=sys.stderr)
