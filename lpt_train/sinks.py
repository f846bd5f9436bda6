"""Where the metrics of a run go besides `metrics.jsonl`: TensorBoard, Weights & Biases, trackio.

One interface: a sink takes the metrics of a step, and is closed. It is opened before the first step, in the run's
folder where it keeps files. A sink that fails is left out from then on and noted; it never ends a run, and what it
prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from manifests.errors import UsageError

PROJECT = "lpt"  # where the environment names no other


class Sink(Protocol):
    """What takes the metrics of a run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, counted from 1; 0 is what was measured before the first."""

    def close(self) -> None:
        """Write what is left."""


@dataclass(frozen=True)
class _Opened:
    """A sink by the two calls that its library has for it."""

    log: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


def _tensorboard(out: Path, run_id: str, config: Mapping[str, Any], step: int) -> Sink:
    module = "torch.utils.tensorboard" if find_spec("tensorboard") else "tensorboardX"
    # What was written after the checkpoint of `step` is hidden: those steps come again. A file's name has but the
    # second in it.
    folder = out / "tensorboard"
    writer = import_module(module).SummaryWriter(
        str(folder), purge_step=step + 1 if step else 0, flush_secs=10,
        filename_suffix=f".{step}.{len(list(folder.glob('*')))}",
    )  # fmt: skip
    writer.add_text("config", f"{run_id}\n\n    {config}", step)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return _Opened(log, writer.close)


def _wandb(out: Path, run_id: str, config: Mapping[str, Any], step: int) -> Sink:
    wandb = import_module("wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT), id=run_id, name=run_id, dir=str(out), config=dict(config),
        resume="allow", settings=wandb.Settings(console="off"),
    )  # fmt: skip
    return _Opened(lambda step, metrics: run.log(dict(metrics), step=step), run.finish)


def _trackio(out: Path, run_id: str, config: Mapping[str, Any], step: int) -> Sink:
    trackio = import_module("trackio")
    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    run = trackio.init(project=project, name=run_id, config=dict(config), resume="allow")
    return _Opened(lambda step, metrics: run.log(dict(metrics), step=step), run.finish)


# Of each: the packages of which one must be there, the first to be asked for, and what opens it.
SINKS: dict[str, tuple[tuple[str, ...], Callable[[Path, str, Mapping[str, Any], int], Sink]]] = {
    "tensorboard": (("tensorboard", "tensorboardX"), _tensorboard),
    "wandb": (("wandb",), _wandb),
    "trackio": (("trackio",), _trackio),
}
_HIDES = ("tensorboard",)  # what, when it is opened again at a step, no longer shows the steps after it


def check_sinks(names: Sequence[str]) -> None:
    """Raise `UsageError` for a sink whose package is not installed."""
    for name in names:
        packages, _ = SINKS[name]
        if not any(find_spec(package) for package in packages):
            raise UsageError(
                f"report_to={name} needs a package that is not installed", seen=" or ".join(packages),
                next=f"pip install {packages[0]}, or leave {name} out of report_to",
            )  # fmt: skip


@dataclass
class Sinks:
    """The sinks of one run; `notes` says which failed."""

    names: Sequence[str]
    out: Path
    run_id: str
    config: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    _open: dict[str, Sink] = field(default_factory=dict)

    def begin(self, step: int) -> None:
        """Open each sink for a run that goes on from `step`; never raises."""
        for name in self.names:
            with self._kept_going(name):
                self._open[name] = SINKS[name][1](self.out, self.run_id, self.config, step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics of a step to each sink; never raises."""
        for name in list(self._open):
            with self._kept_going(name):
                self._open[name].log(step, metrics)

    def went_back(self, step: int) -> None:
        """Hide what was logged after `step`, where a sink can; where it cannot, say so; never raises."""
        for name in list(self._open):
            if name in _HIDES:
                with self._kept_going(name):
                    self._open.pop(name).close()
                    self._open[name] = SINKS[name][1](self.out, self.run_id, self.config, step)
            else:
                self.notes.append(
                    f"{name} may show for the steps after {step} what was undone; metrics.jsonl has what holds"
                )

    def close(self) -> None:
        """Close each sink; never raises."""
        for name in list(self._open):
            with self._kept_going(name):
                self._open.pop(name).close()

    @contextlib.contextmanager
    def _kept_going(self, name: str) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            self._open.pop(name, None)
            first = (str(error).splitlines() or [""])[0][:200]
            self.notes.append(
                f"{name} failed and was left out from then on ({type(error).__name__}: {first}); metrics.jsonl has all"
            )
