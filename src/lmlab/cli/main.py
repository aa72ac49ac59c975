"""The console script `lmlab`: its commands, and user errors as one sentence.

Nothing here imports torch, so that `lmlab --help` is quick; each command imports what it needs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

import lmlab
from lmlab.cli import (
    ablate,
    ask,
    bench,
    catalogue,
    cloze,
    compare,
    conformance,
    data,
    detect,
    doctor,
    encode,
    evaluate,
    fill,
    finetune,
    import_export,
    index,
    inspect,
    link,
    mix,
    pairs,
    runs,
    sample,
    score,
    serve,
    show_objective,
    sweep,
    train,
    translate,
    words,
)
from lmlab.cli.arguments import repeat_options
from lmlab.cli.output import keep_raw, print
from lmlab.cli.usage_errors import usage_error_sentence
from lmlab.cli.verb_groups import MainVerbs, Verbs
from lmlab.core.errors import LmlabWarning, UserError, escape_control_characters
from lmlab.core.limits import set_limits
from lmlab.core.manifest import set_verification
from lmlab.verbs.notebook_session import warning_line

USER_ERROR_CODE = 2
"""Exit code of user errors."""
INTERRUPTED_CODE = 130


app = typer.Typer(
    cls=MainVerbs,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(cls=Verbs, help="The corpora at hand, and what is in one.")
data_app.command("list")(data.list_corpora)
data_app.command("describe")(data.describe)

index_app = typer.Typer(cls=Verbs, help="Documents that are searched by texts.")
index_app.command("build")(index.build)
index_app.command("search")(index.search)
index_app.command("info")(index.info)

runs_app = typer.Typer(
    cls=runs.RunsVerbs,
    help="The runs below a folder: lmlab runs [FOLDER] lists them; its options are those of list.",
)
runs_app.command("list")(runs.list_runs)
runs_app.command("show")(runs.show)
runs_app.command("diff")(runs.diff)
runs_app.command("tag")(runs.tag)
runs_app.command("rm")(runs.rm)

app.command("systems")(catalogue.systems)
app.command("find")(catalogue.find)
app.command("settings")(catalogue.settings)
app.add_typer(data_app, name="data")
app.command("train")(train.train)
app.add_typer(runs_app, name="runs")
app.command("score")(score.score)
app.command("sample")(sample.sample)
app.command("fill")(fill.fill)
app.command("translate")(translate.translate)
app.command("ask")(ask.ask)
app.command("link")(link.link)
app.command("encode")(encode.encode)
app.command("detect")(detect.detect)
app.command("evaluate")(evaluate.evaluate)
app.command("pairs")(pairs.pairs)
app.command("bench")(bench.bench)
app.command("cloze")(cloze.cloze)
app.command("compare")(compare.compare)
app.command("mix")(mix.mix)
app.command("inspect")(inspect.inspect)
app.command("show-objective")(show_objective.show_objective)
app.command("doctor")(doctor.doctor)
app.command("conformance")(conformance.conformance)
app.command("ablate")(ablate.ablate)
app.command("sweep")(sweep.sweep)
app.command("finetune")(finetune.finetune)
app.command("predict")(finetune.predict)
app.command("prompt")(finetune.prompt)
app.command("export-arpa")(import_export.export_arpa)
app.command("import-arpa")(import_export.import_arpa)
app.command("export-hf")(import_export.export_hf)
app.command("import-hf")(import_export.import_hf)
app.add_typer(index_app, name="index")
app.command("words")(words.words)
app.command("serve")(serve.serve)
app.command("demo")(train.demo)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=NUMBER",
            help="Raise a resource limit, as in --limit beam=5000; see docs/reliability.md.",
        ),
    ] = None,
) -> None:
    """Train, score, sample, diagnose and compare language models under the same conventions."""
    set_limits(limits or [])
    if version:
        typer.echo(f"lmlab {lmlab.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # UTF-8 whatever the terminal's locale, and no output may fail to encode.
            stream.reconfigure(encoding="utf-8", errors="replace")
    warnings.formatwarning = warning_sentence
    sys.exit(main(sys.argv[1:]))


def warning_sentence(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """lmlab's warnings as a sentence; others with their code location."""
    if issubclass(category, LmlabWarning):
        return f"{warning_line(message)}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a user error is one sentence on standard error."""
    keep_raw(False)
    set_verification(True)
    try:
        outcome = app(args=repeat_options(arguments), prog_name="lmlab", standalone_mode=False)
        sys.stdout.flush()
        return _print_interrupted() if outcome == INTERRUPTED_CODE else int(outcome or 0)
    except UserError as error:
        return _print_error(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _print_interrupted()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except OSError as error:
        return _print_disk_error(error)
    except MemoryError as error:
        return _print_error(memory_sentence(error))
    except Exception as error:
        if is_out_of_memory(error):
            return _print_error(memory_sentence(error))
        # The parser's own errors, caught by attribute: their class has moved between typer
        # versions.
        if not hasattr(error, "format_message"):
            raise
        return _print_error(usage_error_sentence(error, arguments))


def is_out_of_memory(error: Exception) -> bool:
    """Whether a torch allocation failed, which is a plain RuntimeError on the CPU."""
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in str(error) or "out of memory" in str(error)
    )


def memory_sentence(error: BaseException) -> str:
    """Advice when memory runs out."""
    reason = " ".join(str(error).split())[:160]
    details = f" ({reason})" if reason else ""
    return f"there is not enough memory{details}; use smaller sizes, batches or inputs."


def _print_disk_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output has closed the pipe: no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    where = f"{error.filename}: " if error.filename else ""
    return _print_error(f"{where}{error.strerror or error}.")


def _print_error(sentence: str) -> int:
    print(escape_control_characters(f"lmlab: {' '.join(sentence.split())}"), file=sys.stderr)
    return USER_ERROR_CODE


def _print_interrupted() -> int:
    print("lmlab: stopped by Ctrl-C.", file=sys.stderr)
    return INTERRUPTED_CODE
