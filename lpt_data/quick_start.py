"""A start without the libraries that others would import on the chance that they are wanted.

pyarrow imports pandas at the first array that is made of Python values, to see whether they are a Series; numba imports
scipy at the first kernel, for matrix products. Where the trainer is installed both are there, and cost a short command
0.7 s. Nothing here hands a Series to pyarrow or multiplies matrices in a kernel.

This is for the start of a command, before it has any thread: meanwhile an import of either package fails anywhere in
the process. No library may call it, whose caller may want them and have threads of its own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


def leave_out_unused(*, kernels: bool = True) -> None:
    """Let pyarrow and numba settle without pandas and scipy. `to_pandas` looks again, and works as before.

    Without `kernels`, numba is not loaded.
    """
    with _absent("pandas"):
        import pyarrow

        pyarrow.array([0])
    if not kernels:
        return
    with _absent("scipy"):
        import numba.np.arraymath  # noqa: F401


class _Absent:
    """A finder that says of one package that it is not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"{name} is left out", name=name)


@contextlib.contextmanager
def _absent(package: str) -> Iterator[None]:
    finder = _Absent(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
