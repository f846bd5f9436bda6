"""One cell of a matrix: an ordinary run in a process of its own, and what is measured of it afterwards.

A process a cell, because the peak of memory is a process's and what one cell breaks must not reach the next. Without a
GPU all of them are forked from one that has loaded the libraries and nothing else; with one each is begun afresh, since
some libraries ask CUDA for its devices while they are imported, and CUDA does not survive a fork. A cell whose matrix
is gone stops as if it had been asked to.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson
import torch

from lpt_train.admitted import AdmittedSplit, kinds_beside, load_split, load_unadmitted
from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.drift import prompts_of
from lpt_train.evaluate import EvalOptions, evaluate_splits
from lpt_train.matrix_spec import LargestBatch
from lpt_train.measured import load_subject
from lpt_train.sampler.generate import Sampling, sample
from manifests.catalog import Catalog
from manifests.errors import LptError
from manifests.files import write_atomic

TIMED = 8  # prompts that the latency is the median over
# Told to whoever waits: ("step", step, total, metrics), at the end ("done", values) or ("failed", message).
Tell = Callable[[tuple[Any, ...]], None]


@dataclass(frozen=True)
class CellTask:
    """What a cell's process does: train in `out` (or go on there), then probe, each where asked."""

    algorithm: str
    options: Mapping[str, Any]
    admitted: str | None
    unadmitted: str | None
    eval: str | None
    out: str
    catalog: str
    resume: bool
    train: bool
    probe: Mapping[str, Any]
    largest_batch: LargestBatch | None


class CellProcess:
    """A running cell; `messages` yields what it tells until it ends, `stop` asks it to stop after its step."""

    def __init__(self, task: CellTask) -> None:
        context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "forkserver")
        context.set_forkserver_preload([__name__, *sorted({known.module for known in ALGORITHMS.values()})])
        self._here, there = context.Pipe(duplex=False)
        self._process = context.Process(target=_main, args=(task, there), name=f"lpt cell {Path(task.out).name}")
        self._process.start()
        there.close()

    def next(self, seconds: float) -> tuple[Any, ...] | None:
        """The next message, None when there is none yet; ("failed", why) once when the process is gone without a
        word."""
        try:
            if not self._here.poll(seconds):
                return None
            message = self._here.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            message = ("failed", f"the process {how}")
        if message[0] != "step":
            self._process.join()
        return message

    def stop(self) -> None:
        """Ask the cell to stop, as SIGTERM asks a run."""
        if self._process.is_alive():
            self._process.terminate()


def _main(task: CellTask, connection: Connection) -> None:
    def tell(message: tuple[Any, ...]) -> None:
        try:
            connection.send(message)
        except (BrokenPipeError, OSError):  # nobody waits any more: stop as if asked
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        tell(("done", run_cell(task, tell)))
    except LptError as error:
        seen = f" ({error.seen})" if error.seen not in ("", None) else ""
        tell(("failed", f"{error.what}{seen}"))
    except KeyboardInterrupt:
        tell(("stopped", {}))
    except Exception as error:
        tell(("failed", f"{type(error).__name__}: {error}"[:500]))


def run_cell(task: CellTask, tell: Tell) -> dict[str, Any]:
    """Train and measure one cell here; the values that were measured after the training, by name."""
    catalog, out = Catalog.open(task.catalog), Path(task.out)
    known = ALGORITHMS[task.algorithm]
    config = config_of(task.algorithm, task.options)
    split = (
        load_split(task.admitted, catalog=catalog) if task.admitted
        else load_unadmitted(str(task.unadmitted), *kinds_beside(known.contract))
    )  # fmt: skip
    if task.train:
        extra = {"eval_split": load_split(task.eval, catalog=catalog)} if task.eval else {}
        result = known.train(
            config, split=split, out=out, catalog=catalog, resume=task.resume,
            progress=lambda step, total, metrics: tell(("step", step, total, dict(metrics))), **extra,
        )  # fmt: skip
        if result.status != "done":
            return {}
        if torch.cuda.is_available():  # what follows begins with the whole device
            gc.collect()
            torch.cuda.empty_cache()
    values: dict[str, Any] = {}
    if task.probe:
        values |= probe(out, task.probe, catalog)
    if task.largest_batch is not None:
        values["largest_batch"] = largest_batch(task.algorithm, task.options, split, task.largest_batch)
    return values


def probe_options(asked: Mapping[str, Any], split: AdmittedSplit) -> EvalOptions:
    """What an evaluation of the probed split is asked: without the length of answers where the latency alone has it."""
    answered = split.kind == "rlvr" or (split.kind == "sft" and asked.get("match") is not None)
    timed = () if answered or split.kind == "text" else ("max_completion_length",)
    return EvalOptions(**{name: value for name, value in asked.items() if name not in ("admitted", *timed)})


def probe(model: Path, asked: Mapping[str, Any], catalog: Catalog) -> dict[str, float]:
    """What `lpt eval` measures of the cell's model on the probed split, and the seconds that one answer takes.

    `probe.latency_seconds` is the median over `TIMED` prompts, one at a time, greedy, of at most
    `max_completion_length` tokens.
    """
    options = {name: value for name, value in asked.items() if name != "admitted"}
    split = load_split(str(asked["admitted"]), catalog=catalog)
    (report,) = evaluate_splits([str(model)], [split], probe_options(asked, split), catalog=catalog)
    found = {
        f"probe.{measure.name}": measure.value
        for evaluation in report.found[str(model)]
        for measure in evaluation.measures
        if not measure.domain
    }
    if split.kind == "text":
        return found
    subject = load_subject(str(model), merge=True)
    sampling = Sampling(int(options.get("max_completion_length", EvalOptions.max_completion_length)), 0.0)
    seconds = []
    prompts, _ = prompts_of(split, subject, EvalOptions.max_length)
    for prompt in [prompts[0], *prompts[:TIMED]]:  # the first one twice: its first time is a warm-up
        generator = torch.Generator(subject.place.device).manual_seed(0)
        began = time.perf_counter()
        sample(
            subject.model, [prompt], sampling, num_generations=1, stop_ids=subject.renderer.stop_ids,
            generator=generator, autocast=subject.place.autocast(),
        )  # fmt: skip
        seconds.append(time.perf_counter() - began)
    return found | {"probe.latency_seconds": statistics.median(seconds[1:])}


def largest_batch(algorithm: str, options: Mapping[str, Any], split: AdmittedSplit, asked: LargestBatch) -> int:
    """The largest power of two of rows a micro-batch, up to `asked.most`, that one step of training fits; 0: none.

    Tried by training on the longest rows of the split, within `asked.memory` bytes of the CUDA device; a run may save
    memory by its own ladder (`memory: off` in a variant forbids it).
    """
    if asked.memory is not None:
        options = {**options, "max_memory_gb": asked.memory / 1e9}
    total = torch.cuda.get_device_properties(0).total_memory
    if asked.memory is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, asked.memory / total))
    lengths = [len(orjson.dumps(row, default=str)) for row in split.rows()]
    order = sorted(range(len(split)), key=lambda at: -lengths[at])
    fits, size = 0, 1
    try:
        while size <= asked.most and _fits(algorithm, options, _rows_of(split, order, size), size):
            fits, size = size, size * 2
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return fits


def _fits(algorithm: str, options: Mapping[str, Any], split: AdmittedSplit, size: int) -> bool:
    folder = tempfile.mkdtemp(prefix="lpt-fits-")
    trial = {
        **options, "per_device_train_batch_size": size, "gradient_accumulation_steps": 1, "max_steps": 2,
        "save_steps": 0,
    }  # fmt: skip
    try:
        ALGORITHMS[algorithm].train(
            config_of(algorithm, trial), split=split, out=Path(folder) / "run", catalog=Catalog.open(Path(folder) / "c")
        )
    except torch.OutOfMemoryError:
        return False
    except LptError as error:
        if not isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()
        torch.cuda.empty_cache()
    return True


def _rows_of(split: AdmittedSplit, order: list[int], count: int) -> AdmittedSplit:
    """The first `count` rows in that order, from the start again where there are not so many."""
    return split.take([order[at % len(order)] for at in range(count)])


def kept_values(out: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was measured of a finished cell under the same questions; None when it was not."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):  # damaged: measured again
        body = json.loads((out / "matrix.json").read_bytes())
        if body.get("asked") == json.loads(json.dumps(key)):
            return body["values"]
    return None


def keep_values(out: Path, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Keep what was measured of a cell beside its run."""
    write_atomic(out / "matrix.json", json.dumps({"asked": key, "values": values}, indent=1).encode() + b"\n")
