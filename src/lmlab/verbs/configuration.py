"""Options from a file: `lmlab.read_config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmlab.core.errors import unknown_name
from lmlab.core.untrusted_input import check_path


def read_config(file: str | Path, verb: str = "train", **overrides: Any) -> dict[str, Any]:
    """The keywords of a verb from a file, as `--config` reads it: YAML, TOML, JSON or config.json.

    `overrides` are options that replace those of the file, as on the command line: of `settings`
    each by itself, and a budget all budgets of the file.

    >>> _ = open("train.yaml", "w").write("system: ngram\\ndata: grammar\\nsettings: {order: 2}")
    >>> lmlab.read_config("train.yaml", out="runs/bigram")
    {'system': 'ngram', 'data': 'grammar', 'settings': {'order': 2}, 'out': 'runs/bigram'}
    >>> lmlab.train(**lmlab.read_config("train.yaml", out="runs/bigram", quiet=True)).reason
    'budget'
    """
    check_path(file, "file")
    import lmlab
    from lmlab.core.option_files import merge_options, options_from_file

    verbs = {name: getattr(lmlab, name) for name in ("train", "finetune", "ablate")}
    if verb not in verbs:
        raise unknown_name("verb with a --config", verb, verbs)
    return merge_options(verbs[verb], options_from_file(Path(file), verbs[verb]), overrides)
