"""`lmlab ablate SYSTEM`: train a system whole and with terms switched off."""

from __future__ import annotations

import sys
from typing import Any

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, show_table
from lmlab.cli.terminal import terminal
from lmlab.verbs.diagnosis import ablate as ablate_system


@terminal(ablate_system, config=True)
def ablate(as_json: JsonOption = False, *, system: str, out: str, **options: Any) -> None:
    """Interrupted at any time, the same command resumes."""
    ablation = ablate_system(system, out=out, **options)
    if as_json:
        print_json(ablation.as_dict())
    elif ablation.rows:
        from lmlab.experiments.ablation_tables import ablation_table

        show_table(ablation_table(ablation).rich())
        for note in ablation.notes:
            print(f"- {note}")
    if not ablation.finished:
        print(f"lmlab: stopped; run the same command again to resume in {out}.", file=sys.stderr)
        sys.exit(130)
    print(f"written: {out}/ablation.json, .md, .tex, and the figure", file=sys.stderr)
