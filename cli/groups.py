"""The groups of commands: a command that is elsewhere in the tree is named, and `help` is `--help`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from cli.output import data
from manifests.errors import UsageError


class Group(TyperGroup):
    """A group that answers ``lpt audit x`` with ``lpt data audit x``, and ``lpt train help sft`` as ``--help``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As every group does, after a look for `help` and for a command that is in another group."""
        if ctx.resilient_parsing:  # the shell completes what is not typed to the end
            return super().resolve_command(ctx, args)
        name, rest = args[0], args[1:]
        if name in self.commands:
            if not isinstance(self.commands[name], TyperGroup):
                _check_required(self.commands[name], ctx, rest)
            return super().resolve_command(ctx, args)
        if name == "help":
            if rest:
                return self.resolve_command(ctx, [*rest, "--help"])
            data(ctx.get_help())
            raise typer.Exit
        here = " ".join(["lpt", *_typed(ctx)])
        if elsewhere := [path for path in _paths(ctx.find_root().command, "lpt") if path.split()[-1] == name]:
            raise UsageError(
                f"`{here}` has no command {name}", seen=shlex.join([*here.split(), *args]),
                next=" or ".join(shlex.join([*path.split(), *rest]) for path in elsewhere),
            )  # fmt: skip
        return super().resolve_command(ctx, args)


def _check_required(command: Any, ctx: Any, rest: list[str]) -> None:
    """Raise `UsageError` that names everything that a command needs and was not given, and what each may be."""
    inner = command.context_class(command, info_name=command.name, parent=ctx, **command.context_settings)
    try:
        given, _, _ = command.make_parser(inner).parse_args(list(rest))
    except Exception:  # what is wrong with what was typed, the command says itself
        return
    if any(given.get(parameter.name) for parameter in command.get_params(inner) if parameter.is_eager):
        return  # --help and its like
    missing = {
        parameter.opts[0]
        if parameter.param_type_name == "option"
        else parameter.metavar or parameter.name.upper(): parameter.help
        for parameter in command.params
        if parameter.required and not isinstance(given.get(parameter.name), str | list | tuple)
    }
    if missing:
        name = " ".join(["lpt", *_typed(inner)])
        raise UsageError(
            f"`{name}` needs {', '.join(missing)}", seen=shlex.join([*name.split(), *rest]),
            next="; ".join(f"{option}: {(text or '').rstrip('.')}" for option, text in missing.items()),
        )  # fmt: skip


def _typed(ctx: Any) -> list[str]:
    """The names of the groups down to this one; the name of the program is what started it."""
    return [] if ctx.parent is None else [*_typed(ctx.parent), str(ctx.info_name)]


def _paths(group: TyperGroup, path: str) -> Iterator[str]:
    """Every command and group under a group, as it is typed."""
    for name, command in group.commands.items():
        yield f"{path} {name}"
        if isinstance(command, TyperGroup):
            yield from _paths(command, f"{path} {name}")
