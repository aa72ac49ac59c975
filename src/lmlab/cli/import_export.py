"""`lmlab import-hf`, `export-hf`, `import-arpa` and `export-arpa`: formats of other tools."""

from __future__ import annotations

from typing import Any

from lmlab.cli.options import NoVerify
from lmlab.cli.output import print
from lmlab.cli.terminal import terminal
from lmlab.verbs import resources as verbs


@terminal(verbs.import_hf)
def import_hf(*, out: str, **options: Any) -> None:
    model = verbs.import_hf(out=out, **options)
    parameters = model.system.parameter_count
    size = model.tokenizer.vocabulary.size
    print(f"{out}: {model.card.name}, {parameters:,} parameters over {size:,} tokens")
    assert model.config.imported is not None, "it was imported"
    for note in model.config.imported.notes:
        print(f"note: {note}")


@terminal(verbs.export_hf)
def export_hf(no_verify: NoVerify = False, **options: Any) -> None:
    export = verbs.export_hf(**options)
    print(f"{export.folder}: model type {export.model_type}")
    if export.note is not None:
        print(f"note: {export.note}")


@terminal(verbs.export_arpa)
def export_arpa(no_verify: NoVerify = False, **options: Any) -> None:
    print(f"wrote {verbs.export_arpa(**options)}")


@terminal(verbs.import_arpa)
def import_arpa(*, out: str, **options: Any) -> None:
    model = verbs.import_arpa(out=out, **options)
    size = model.tokenizer.vocabulary.size
    print(f"{out}: an n-gram of order {model.config.system_config['order']} over {size} tokens")
