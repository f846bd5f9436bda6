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
        name, rest = args[0], args[1:]
        if name in self.commands:
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


def _typed(ctx: Any) -> list[str]:
    """The names of the groups down to this one; the name of the program is what started it."""
    return [] if ctx.parent is None else [*_typed(ctx.parent), str(ctx.info_name)]


def _paths(group: TyperGroup, path: str) -> Iterator[str]:
    """Every command and group under a group, as it is typed."""
    for name, command in group.commands.items():
        yield f"{path} {name}"
        if isinstance(command, TyperGroup):
            yield from _paths(command, f"{path} {name}")
