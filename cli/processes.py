"""A command in several processes, as torchrun starts them: one voice, one error."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manifests.errors import LptError


@contextlib.contextmanager
def one_voice() -> Iterator[bool]:
    """The first process talks, which is what this gives; the others are silent. An error leaves here as it is."""
    if _alone():
        yield True
        return
    from lpt_train.ranks import leave

    if os.environ["RANK"] == "0":
        yield True
    else:
        with (
            open(os.devnull, "w", encoding="utf-8") as nothing,
            contextlib.redirect_stdout(nothing),
            contextlib.redirect_stderr(nothing),
        ):
            yield False
    leave()


def first_to_tell(problem: LptError) -> bool:
    """Whether nobody told what went wrong yet: of several processes the first that fails does."""
    if _alone():
        return True
    from lpt_train.ranks import first_to_fail

    return first_to_fail(problem)


def _alone() -> bool:
    """Asked by commands that never load torch, so it does not ask `lpt_train.ranks`."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or "MASTER_PORT" not in os.environ or "RANK" not in os.environ
