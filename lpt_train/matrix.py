"""A matrix of runs: variants under shared seeds, each cell an ordinary run in its own folder, and the choice of one.

    OUT/VARIANT-seedN/   a run; `matrix.json` in it what was measured of it afterwards
    OUT/matrix.md        the tables
    OUT/matrix.json      the record, as the catalog has it

A matrix that was killed goes on when it is started again: finished cells stand, a begun one is resumed. A cell that
failed stays failed and is named, until it is asked for again (`retry`), and its first try is kept beside it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lpt_train.admitted import AdmittedSplit, check_contract, check_trains, kinds_beside, load_split, load_unadmitted
from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.config import flattened, to_mapping
from lpt_train.early_stop import check_patience
from lpt_train.evaluate import check_options
from lpt_train.matrix_cell import CellProcess, CellTask, keep_values, kept_values, probe_options
from lpt_train.matrix_choice import CellResult, Choice, choose
from lpt_train.matrix_page import page
from lpt_train.matrix_spec import Cell, MatrixSpec
from lpt_train.resume import measured_on
from lpt_train.run_folder import MATRIX_LOCK
from lpt_train.runs import env, now, read_record
from lpt_train.stop import StopRequest
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError
from manifests.files import exclusive_lock, make_folder, write_atomic

# progress(cell, number of the cell, cells, step, total steps, metrics)
MatrixProgress = Callable[[Cell, int, int, int, int, Mapping[str, float]], None]
_LOOK = 0.5  # seconds between two looks for a request to stop


@dataclass(frozen=True)
class _Splits:
    """The rows that the cells train on, are evaluated on and are probed on, as their names are admitted now."""

    train: AdmittedSplit
    eval: AdmittedSplit | None
    probe: AdmittedSplit | None


@dataclass(frozen=True)
class MatrixResult:
    """How a matrix ended: `choice` and `object_id` are None when it was stopped before the last cell."""

    spec: MatrixSpec
    cells: tuple[CellResult, ...]
    choice: Choice | None
    body: dict[str, Any]
    path: Path
    stopped_by: str | None = None
    object_id: str | None = None
    notes: list[str] = field(default_factory=list)


def run_matrix(
    spec: MatrixSpec,
    *,
    out: Path,
    catalog: Catalog,
    retry: bool = False,
    progress: MatrixProgress | None = None,
) -> MatrixResult:
    """Run every cell that is not finished, choose, and record (`lpt.matrix/1`, its parents the runs).

    Raises `RefusedError` when a folder holds a run of other options or rows, and what a split raises that cannot be
    trained on; what a cell raises makes that cell a failed one.
    """
    if spec.largest_batch is not None and not torch.cuda.is_available():
        raise UsageError(
            "the largest batch is found by running out of memory on a CUDA device", seen="there is none here",
            next="leave largest_batch and its gate out",
        )  # fmt: skip
    if (out / "run.json").exists():
        raise UsageError("the folder holds a run", seen=str(out), next="choose another --out, one for the matrix alone")
    splits = _splits(spec, catalog)
    spec = _with_admitted_length(spec, splits.train)
    make_folder(out)
    results: list[CellResult] = []
    with exclusive_lock(out / MATRIX_LOCK, wait=0.5, what=f"the matrix in {out}"), StopRequest() as stop:
        for number, cell in enumerate(spec.cells, 1):
            found = _cell(spec, cell, number, out, catalog, splits, retry, progress, stop)
            if found is None:
                return MatrixResult(spec, tuple(results), None, {}, out, stop.signal or "SIGINT")
            results.append(found)
    choice = choose(spec, results)
    notes = shared_starts(spec, results)
    body = _as_recorded(out, {**_body(spec, results, choice, notes, catalog), "folder": str(out)})
    object_id = catalog.put(body)
    write_atomic(out / "matrix.json", json.dumps(body, indent=1, default=str).encode() + b"\n")
    write_atomic(out / "matrix.md", page(spec, results, choice, notes, object_id).encode())
    return MatrixResult(spec, tuple(results), choice, body, out, object_id=object_id, notes=notes)


def _cell(
    spec: MatrixSpec,
    cell: Cell,
    number: int,
    out: Path,
    catalog: Catalog,
    splits: _Splits,
    retry: bool,
    progress: MatrixProgress | None,
    stop: StopRequest,
) -> CellResult | None:
    """The result of a cell, from its folder or from its process; None when the matrix was asked to stop."""
    folder = out / cell.name
    probed = {"content_root": splits.probe.content_root} if splits.probe is not None else {}
    asked = {
        "probe": {**spec.probe, **probed}, "largest_batch": vars(spec.largest_batch) if spec.largest_batch else None,
    }  # fmt: skip
    if retry and _failures(folder):
        _set_aside(folder)
    if known := _failures(folder):
        return _result(cell, folder, catalog, {}, known)
    record = _record(folder)
    if record:
        _check_same(spec, cell, folder, record, splits)
    trained = record.get("status") == "done"
    values = kept_values(folder, asked) if trained else None
    if values is None:
        if stop:
            return None
        first = cell.seed == spec.seeds[0]  # memory does not depend on the seed
        task = CellTask(
            spec.algorithm, dict(cell.options), spec.admitted, spec.unadmitted, spec.eval, str(folder),
            str(catalog.directory), resume=bool(record), train=not trained, probe=spec.probe,
            largest_batch=spec.largest_batch if first else None,
        )  # fmt: skip
        values, failure = _run(task, stop, lambda *told: progress and progress(cell, number, len(spec.cells), *told))
        if failure is not None:
            write_atomic(make_folder(folder) / "failed.json", json.dumps({"failures": [failure]}).encode() + b"\n")
            return _result(cell, folder, catalog, {}, [failure])
        if values is None:
            return None
        if spec.largest_batch is not None and not first:
            values["largest_batch"] = _of_first_seed(spec, cell, out)
        keep_values(folder, asked, values)
    return _result(cell, folder, catalog, values, [])


def _run(task: CellTask, stop: StopRequest, tell: Callable[..., Any]) -> tuple[dict[str, Any] | None, str | None]:
    """Wait for a cell's process: its values, or why it failed; neither when it stopped because it was asked to."""
    process, asked = CellProcess(task), False
    while True:
        if stop and not asked:
            process.stop()
            asked = True
        message = process.next(_LOOK)
        if message is None:
            continue
        kind, *told = message
        if kind == "step":
            tell(*told)
        elif kind == "failed":
            return (None, None) if asked else (None, str(told[0]))
        else:
            whole = _record(Path(task.out)).get("status") == "done" and not (asked and kind == "stopped")
            return (dict(told[0]), None) if whole and kind == "done" else (None, None)


def _result(cell: Cell, folder: Path, catalog: Catalog, measured: Mapping[str, Any], failures: list[str]) -> CellResult:
    record = _record(folder)
    run_id = record.get("run_id")
    object_id = next((name for name, _ in catalog.find("lpt.run/1", run_id=run_id)), None) if run_id else None
    ends = {name: ends[1] for name, ends in record.get("metrics", {}).items()}
    names = ("trainable_parameters", "peak_memory_bytes", "seconds", "tokens_per_second", "steps")
    values = {**ends, **{name: record[name] for name in names if name in record}, **measured}
    data = record.get("data", {})
    identity = {
        "model": record.get("model", {}).get("digest"), "start": record.get("proof", {}).get("start"),
        "rows": record.get("tokenized_id"), "order": data.get("epoch_order_sha256") or data.get("mix_schedule"),
        "trainable_parameters": record.get("trainable_parameters"),
    }  # fmt: skip
    status = "failed" if failures else "done"
    plain = {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
    return CellResult(cell.variant, cell.seed, status, run_id, object_id, plain, tuple(failures), identity)


def shared_starts(spec: MatrixSpec, cells: list[CellResult]) -> list[str]:
    """What the variants of a seed do not share although a comparison takes it to be shared, one note each.

    The model, the rows and their order; the first values of what trains where as many parameters train.
    """
    notes = []
    for seed in spec.seeds:
        mine = [cell for cell in cells if cell.seed == seed and cell.status == "done"]
        for what, name in (("model", "start from different models"), ("rows", "read different rows"),
                           ("order", "read their rows in different orders")):  # fmt: skip
            if len({json.dumps(cell.identity.get(what), sort_keys=True) for cell in mine}) > 1:
                notes.append(f"seed {seed}: the variants {name}, so that their difference is not the settings' alone")
        by_size: dict[Any, set[Any]] = {}
        for cell in mine:
            by_size.setdefault(cell.identity.get("trainable_parameters"), set()).add(cell.identity.get("start"))
        if any(len(starts) > 1 for starts in by_size.values()):
            notes.append(f"seed {seed}: variants with as many trained parameters start from different values of them")
    return notes


def _body(
    spec: MatrixSpec, cells: list[CellResult], choice: Choice, notes: list[str], catalog: Catalog
) -> dict[str, Any]:
    objects = [cell.object_id for cell in cells if cell.object_id]
    runs = [catalog.get(name) for name in objects]
    return {
        "type": "lpt.matrix/1", "name": spec.name, "algorithm": spec.algorithm,
        "split": spec.admitted or spec.unadmitted, "eval": spec.eval, "metric": spec.metric,
        "better": "higher" if spec.more else "lower", "seeds": list(spec.seeds),
        "band": {"size": spec.band.size, "relative": spec.band.relative}, "gates": spec.gates.source,
        "cheapest": list(spec.cheapest), "probe": dict(spec.probe), "spec": spec.source,
        "variants": [variant.to_json() for variant in choice.variants],
        "cells": [
            {
                "variant": cell.variant, "seed": cell.seed, "status": cell.status, "run_id": cell.run_id,
                "object": cell.object_id, "value": cell.values.get(spec.metric), "failures": list(cell.failures),
            }
            for cell in cells
        ],
        "best": choice.best, "winner": choice.winner, "reason": choice.reason, "notes": notes,
        "tainted": any(run.get("tainted") for run in runs), "created": now(), "env": env(), "parents": objects,
    }  # fmt: skip


def _as_recorded(out: Path, body: dict[str, Any]) -> dict[str, Any]:
    """The record as it lies in the folder, where this one says nothing new: so it is not recorded twice."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # none, or a damaged one
        there, new = json.loads((out / "matrix.json").read_bytes()), json.loads(json.dumps(body, default=str))
        if there == {**new, "created": there.get("created"), "env": there.get("env")}:
            return dict(there)
    return body


def _check_same(spec: MatrixSpec, cell: Cell, folder: Path, record: Mapping[str, Any], splits: _Splits) -> None:
    """Raise `RefusedError` when the folder of a cell holds another run than the cell's."""
    wanted = json.loads(json.dumps(to_mapping(config_of(spec.algorithm, cell.options))))
    here = {
        "algorithm": record.get("algorithm"), "content_root": record.get("content_root"),
        "eval.content_root": measured_on(record, evaluated=splits.eval is not None).get("content_root"),
        **flattened(record["config"]),
    }  # fmt: skip
    asked = {
        "algorithm": spec.algorithm, "content_root": splits.train.content_root,
        "eval.content_root": splits.eval.content_root if splits.eval is not None else None, **flattened(wanted),
    }  # fmt: skip
    differ = sorted(name for name in here.keys() | asked.keys() if here.get(name) != asked.get(name))
    if differ:
        raise RefusedError(
            f"{folder} holds a run of other options or rows than the cell's",
            seen="; ".join(f"{name}: {here.get(name)} there, {asked.get(name)} asked" for name in differ[:5]),
            next="give another --out, or the specification that the matrix was started with",
        )  # fmt: skip


def _splits(spec: MatrixSpec, catalog: Catalog) -> _Splits:
    """The rows of the matrix, looked at once before anything runs: what would fail each cell is raised here."""
    train = (
        load_split(spec.admitted, catalog=catalog) if spec.admitted is not None
        else load_unadmitted(str(spec.unadmitted), *kinds_beside(ALGORITHMS[spec.algorithm].contract))
    )  # fmt: skip
    splits = _Splits(
        train, load_split(spec.eval, catalog=catalog) if spec.eval is not None else None,
        load_split(str(spec.probe["admitted"]), catalog=catalog) if spec.probe else None,
    )  # fmt: skip
    check_trains(train, spec.algorithm)
    if splits.eval is not None:
        check_contract(splits.eval, spec.algorithm)
    if splits.probe is not None:
        check_options([splits.probe], probe_options(spec.probe, splits.probe), block="probe")
    for cell in spec.cells:
        check_patience(config_of(spec.algorithm, cell.options).run, splits.eval)
    return splits


def _with_admitted_length(spec: MatrixSpec, split: AdmittedSplit) -> MatrixSpec:
    """Cells that name no max_length have the one that their split was admitted for, as `lpt train` has it."""
    if split.max_length is None or not hasattr(config_of(spec.algorithm, spec.cells[0].options), "max_length"):
        return spec
    cells = (replace(cell, options={"max_length": split.max_length, **cell.options}) for cell in spec.cells)
    return replace(spec, cells=tuple(cells))


def _of_first_seed(spec: MatrixSpec, cell: Cell, out: Path) -> Any:
    first = out / Cell(cell.variant, spec.seeds[0], {}).name / "matrix.json"
    return json.loads(first.read_bytes())["values"].get("largest_batch") if first.exists() else None


def _record(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    return read_record(path) if path.exists() else {}


def _failures(folder: Path) -> list[str]:
    """Why a cell is a failed one: what its matrix wrote down, or what its own record says."""
    if (path := folder / "failed.json").exists():
        try:
            return [str(failure) for failure in json.loads(path.read_bytes())["failures"]]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInputError(
                "the note of why a cell failed is damaged", seen=f"{path}: {error!r}",
                next="remove that file, and the cell goes on when the matrix is started again",
            ) from error  # fmt: skip
    record = _record(folder)
    return list(record.get("failures") or ["it failed"]) if record.get("status") == "failed" else []


def _set_aside(folder: Path) -> None:
    """Keep a failed try under another name."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.failed-{number}")).exists():
        number += 1
    folder.rename(aside)
