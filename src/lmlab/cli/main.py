"""The console script `lmlab`: its verbs, and every mistake told in one sentence.

Nothing here imports torch, so that `lmlab --help` is quick; each verb imports what it needs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import lmlab
from lmlab.cli import (
    ablate,
    arpa,
    ask,
    cloze,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export_hf,
    fill,
    find,
    finetune,
    import_hf,
    index,
    inspect,
    link,
    pairs,
    sample,
    score,
    show_objective,
    systems,
    train,
    translate,
    words,
)
from lmlab.cli.arguments import spread
from lmlab.core.errors import LmlabWarning, UserError, nearest, unknown_name

MISTAKE = 2
"""Exit code of everything that the user can mend."""
INTERRUPTED = 130


class Verbs(TyperGroup):
    """The verbs in the order they are listed; a wrong name gets the nearest right ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            raise unknown_name("verb", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
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

app.command("systems")(systems.systems)
app.command("find")(find.find)
app.add_typer(data_app, name="data")
app.command("train")(train.train)
app.command("score")(score.score)
app.command("sample")(sample.sample)
app.command("fill")(fill.fill)
app.command("translate")(translate.translate)
app.command("ask")(ask.ask)
app.command("link")(link.link)
app.command("evaluate")(evaluate.evaluate)
app.command("pairs")(pairs.pairs)
app.command("cloze")(cloze.cloze)
app.command("compare")(compare.compare)
app.command("inspect")(inspect.inspect)
app.command("show-objective")(show_objective.show_objective)
app.command("doctor")(doctor.doctor)
app.command("ablate")(ablate.ablate)
app.command("finetune")(finetune.finetune)
app.command("predict")(finetune.predict)
app.command("prompt")(finetune.prompt)
app.command("export-arpa")(arpa.export_arpa)
app.command("import-arpa")(arpa.import_arpa)
app.command("export-hf")(export_hf.export_hf)
app.command("import-hf")(import_hf.import_hf)
app.add_typer(index_app, name="index")
app.command("words")(words.words)
app.command("demo")(demo.demo)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train, score, sample, diagnose and compare language models on one honest yardstick."""
    if version:
        typer.echo(f"lmlab {lmlab.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run() -> None:
    """What the console script calls."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Texts are UTF-8 whatever the terminal's locale says, and no output may fail on one.
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
    """A warning of ours as a sentence; of others with the place in the code that gave it."""
    if issubclass(category, LmlabWarning):
        return f"lmlab: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def main(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; a mistake is one sentence on standard error."""
    try:
        outcome = app(args=spread(arguments), prog_name="lmlab", standalone_mode=False)
        sys.stdout.flush()
        return _interrupted() if outcome == INTERRUPTED else int(outcome or 0)
    except UserError as error:
        return _mistake(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except OSError as error:
        return _disk_mistake(error)
    except Exception as error:
        # The parser's own errors; their class has moved between versions of typer, this has not.
        if not hasattr(error, "format_message"):
            raise
        return _mistake(usage_sentence(error))


def usage_sentence(error: Any) -> str:
    """An error of the argument parser as one sentence that says where help is."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "lmlab")
    option = getattr(error, "option_name", None)
    known = [name for p in context.command.params for name in p.opts] if context else []
    if option is not None and option not in known:
        close = nearest(str(option), [name for name in known if name.startswith("--")])
        guess = f"did you mean {' or '.join(close)}?" if close else f"see {command} --help."
        return f"{command} has no option {option}; {guess}"
    said = " ".join(str(error.format_message()).split()).rstrip(".")
    return f"{said[:1].lower()}{said[1:]}; see {command} --help."


def _disk_mistake(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has closed it: nothing is wrong, and nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    where = f"{error.filename}: " if error.filename else ""
    return _mistake(f"{where}{error.strerror or error}.")


def _mistake(sentence: str) -> int:
    print(f"lmlab: {' '.join(sentence.split())}", file=sys.stderr)
    return MISTAKE


def _interrupted() -> int:
    print("lmlab: stopped by Ctrl-C.", file=sys.stderr)
    return INTERRUPTED
