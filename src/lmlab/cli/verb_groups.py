"""Groups of commands: names with suggestions, and what plug-ins and given files add."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.plugins import (
    Plugin,
    PluginNames,
    load_verb,
    plugin_summary,
    plugin_verbs,
    warn_problems,
)
from lmlab.core.system_files import register


class Verbs(TyperGroup):
    """The commands in listing order; a wrong name gets suggestions."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            raise unknown_name("verb", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; one that reads runs takes `--system-file` as well."""
        command = self.find_command(ctx, cmd_name)
        names = [] if command is None else [parameter.name for parameter in command.params]
        if command is not None and "no_verify" in names and SYSTEM_FILE not in names:
            command.params.append(system_file_option())
        return command

    def find_command(self, ctx: Any, name: str) -> Any:
        """The command of that name, or None."""
        return super().get_command(ctx, name)


class MainVerbs(Verbs):
    """The commands of lmlab, and after them those of plug-ins, which are imported when run."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [*names, *self._plugins(ctx).usable]

    def find_command(self, ctx: Any, name: str) -> Any:
        command = super().find_command(ctx, name)
        found = self._plugins(ctx)
        if name in found.problems:
            if command is None:
                raise UserError(found.problems[name])
            warn_problems([found.problems[name]])
        return PluginCommand(found.usable[name]) if name in found.usable else command

    def _plugins(self, ctx: Any) -> PluginNames:
        return plugin_verbs(super().list_commands(ctx))


class PluginCommand(TyperCommand):
    """The command of a plug-in: described from its source, imported when it is run."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(name=plugin.name, help=f"{plugin_summary(plugin)} ({plugin.label})")
        self.plugin = plugin

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """The context of the imported function's command."""
        from lmlab.cli.terminal import verb_command

        app = typer.Typer(
            add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
        )
        app.command(self.plugin.name)(verb_command(load_verb(self.plugin)))
        return typer.main.get_command(app).make_context(*arguments, **options)


SYSTEM_FILE = "system_file"


def _register_files(files: list[str] | None) -> None:
    for file in files or ():
        register(file)


def _template(
    system_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Give the Python file of a run's system again; repeatable.",
            show_default=False,
            callback=_register_files,
        ),
    ] = None,
) -> None:
    """Has the option that other commands are given."""


def system_file_option() -> Any:
    """The option that gives the system's file of a run again; it is no argument of the command."""
    template = typer.Typer(add_completion=False)
    template.command()(_template)
    [option] = [p for p in typer.main.get_command(template).params if p.name == SYSTEM_FILE]
    option.expose_value = False
    return option
