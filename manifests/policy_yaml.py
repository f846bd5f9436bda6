"""The YAML under a policy: where its text comes from, and a parser that refuses what YAML would resolve in silence."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from manifests.errors import BadInputError, UsageError

_MAX_BYTES, _MOST_DEEP = 1 << 20, 64


class StrictLoader(yaml.SafeLoader):
    """YAML without repeated keys, which the plain loader resolves to the last one in silence, without aliases, and
    not so deep that the loader runs out of stack."""

    depth = 0

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; a key twice, or one that is no text, is an error."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"repeated or odd key {key!r}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return a node; an alias, which can unfold to any size, is an error."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not used here", self.peek_event().start_mark)
        if self.depth >= _MOST_DEEP:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f"more than {_MOST_DEEP} levels", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def shipped() -> list[str]:
    """Return the names of the policies that come with lpt."""
    return sorted(_shipped())


def fetch(ref: str, beside: Path) -> tuple[str, str, Path | None]:
    """Return the text of `lpt:NAME` or of a path, a name for it in errors, and its folder (None for a shipped one)."""
    if ref.startswith("lpt:"):
        found = _shipped()
        if ref not in found:
            raise UsageError("no such policy", seen=ref, next=f"one of: {', '.join(sorted(found))}, or a path")
        return found[ref].read_text("utf-8"), ref, None
    path = beside / ref
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever, /dev/zero has no end
            raise BadInputError("a policy is a file", seen=str(path), next="name a YAML file, or lpt:NAME")
        if path.stat().st_size > _MAX_BYTES:
            raise BadInputError("a policy of more than 1 MiB is no policy", seen=str(path), next="check the path")
        return path.read_text("utf-8"), str(path.resolve()), path.parent
    except (OSError, ValueError) as error:  # of the second kind: no UTF-8, NUL in the path
        known = ", ".join(shipped())
        raise BadInputError(
            "the policy cannot be read", seen=f"{path}: {error}", next=f"one of: {known}, or a path"
        ) from error


def parse(text: str, origin: str, known: Iterable[str]) -> dict[str, Any]:
    """Return the mapping that a YAML text is, with no key outside `known`."""
    try:
        body = yaml.load(text, Loader=StrictLoader)
    except (yaml.YAMLError, ValueError) as error:  # of the second kind: a date that is none
        raise BadInputError("the policy is not YAML", seen=f"{origin}: {error}", next="correct that line") from error
    if not isinstance(body, dict):
        raise BadInputError("the policy is not a mapping", seen=origin, next="it needs name, contract and checks")
    refuse_unknown(body, known, origin)
    return body


def refuse_unknown(body: dict[str, Any], known: Iterable[str], origin: str) -> None:
    """Raise BadInputError naming the keys of `body` that are not in `known`."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        names = ", ".join(sorted(known))
        raise BadInputError(
            "the policy has a key that means nothing", seen=f"{origin}: {unknown}", next=f"known: {names}"
        )


def _shipped() -> dict[str, Any]:
    folder = files("manifests").joinpath("policies")
    return {f"lpt:{p.name.removesuffix('.yaml')}": p for p in folder.iterdir() if p.name.endswith(".yaml")}
