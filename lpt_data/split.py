"""Splits that share no canonical key, so that no problem is trained on and tested.

Every row has a key (`lpt_data.keys`); keys are assigned to splits, and all rows of a key follow it. How keys are held
out:

- hash, with a share (0.1): the keys whose salted hash lies below the share. New data moves no old row, ever. - hash,
with a count (500): the keys with the smallest salted hashes. A new key with a smaller hash takes the place of the
  held-out key with the largest one, which goes on to the next split (test, validation, train); nothing else moves.
- draw: a sample of the sorted keys, drawn with the seed, as published Countdown splits are made. New data draws anew.

Neither depends on the order of the rows. Of a Countdown problem that is held out, one order of its numbers is kept as
the test row (the smallest record id); its other orders are removed with the reason `other_permutation_of_held_out_key`,
and an order-robustness file asks some of the test problems in several orders.

    rows_in == rows of train, validation and test + removed + quarantined
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data.config import PairsConfig, SplitConfig
from lpt_data.dataset import Dataset
from lpt_data.keys import KEY_VERSION, NORMALISERS, canonical_key, key_hash
from lpt_data.layouts import countdown_problem
from lpt_data.places import file_entry
from lpt_data.progress import Progress, silent
from lpt_data.stage import StageReport, StageResult, Work
from lpt_data.write import write_jsonl
from manifests import decisions
from manifests.digests import content_root, key_root
from manifests.errors import BadInputError, LptError, RecordError, UsageError
from manifests.files import make_folder, write_atomic

if TYPE_CHECKING:
    from manifests.catalog import Catalog

NAMES = ("train", "validation", "test")
_TRAIN, _VALIDATION, _TEST = range(3)
OTHER_ORDER = "other_permutation_of_held_out_key"


def split(
    dataset: Dataset,
    config: SplitConfig,
    *,
    out: Path,
    catalog: Catalog,
    progress: Progress | None = None,
    wait: float = 5.0,
) -> StageReport:
    """Write train, validation and test in the format of the input, and split.json, into the folder `out`; record the
    stage.

    Raises UsageError for counts that make no sense, BadInputError when there are fewer keys than are to be held out.
    """
    work = split_work(dataset, config, Path(out))
    make_folder(out)
    return work.run(catalog, progress or silent, dry_run=False, wait=wait)


def split_work(dataset: Dataset, config: SplitConfig, folder: Path) -> Work:
    """Return the work of a split into `folder`, which need not be there yet; raises what `split` does."""
    _check(config, dataset)
    extension = dataset.files[0].format
    outputs = tuple(folder / f"{name}.{extension}" for name in NAMES if name == "train" or getattr(config, name))
    names = tuple(path.stem for path in outputs)
    check_folder(folder, outputs)
    return Work(
        "split",
        dataset,
        config,
        lambda data, _, tell: _decide(data, config, names, tell),
        outputs,
        output=str(folder),
        finish=lambda written, result: _finish(dataset, config, folder, written, result),
    )


def count_or_share(value: float) -> int | float:
    """Return a size as the configs want it: a whole number is a count, what lies below 1 a share."""
    if value >= 1 and not float(value).is_integer():  # inf, too
        raise UsageError("a count of keys is whole", seen=value, next="--test 500, or a share below 1: --test 0.1")
    return int(value) if value >= 1 or value == 0 else value


def assign(keys: np.ndarray, config: SplitConfig) -> np.ndarray:
    """Return the split of each distinct key hash: uint8 [n], an index into NAMES; `keys` is uint8 [n, 32], in any
    order.
    """
    hashed = [key.tobytes() for key in keys]
    if config.method == "draw":
        ordered = sorted(range(len(hashed)), key=hashed.__getitem__)
        random.Random(config.seed).shuffle(ordered)
    else:
        salt = f"lpt-split/1\0{config.seed}\0".encode()
        salted = [hashlib.sha256(salt + key).digest() for key in hashed]
        ordered = sorted(range(len(hashed)), key=salted.__getitem__)
        if isinstance(config.test or config.validation, float):
            return _by_share(salted, config)
    test, validation = (_number(share, len(keys)) for share in (config.test, config.validation))
    assigned = np.full(len(keys), _TRAIN, np.uint8)
    assigned[ordered[:test]] = _TEST
    assigned[ordered[test : test + validation]] = _VALIDATION
    return assigned


def _by_share(salted: list[bytes], config: SplitConfig) -> np.ndarray:
    """By the place of the salted hash between 0 and 1, which no other key can change."""
    place = np.array([int.from_bytes(digest[:8], "big") for digest in salted], np.float64) / 2.0**64
    assigned = np.full(len(salted), _TRAIN, np.uint8)
    assigned[place < config.test + config.validation] = _VALIDATION
    assigned[place < config.test] = _TEST
    return assigned


def _number(held_out: float, keys: int) -> int:
    return round(held_out * keys) if isinstance(held_out, float) else held_out


def check_folder(folder: Path, outputs: tuple[Path, ...], names: tuple[str, ...] = NAMES) -> None:
    """Refuse a folder with a file of another split, which would be taken for part of this one."""
    written = {path.name for path in outputs}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.split(".")[0] in names and path.suffix and path.name not in written:
            raise BadInputError(
                "the output folder holds a file of another split",
                seen=str(path),
                next="remove it, or choose another --out",
            )


def _check(config: SplitConfig, dataset: Dataset) -> None:
    shares = [value for value in (config.test, config.validation) if value]
    if config.method not in ("hash", "draw"):
        raise UsageError("no such way to choose keys", seen=config.method, next="--method hash or draw")
    if not shares or any(value < 0 for value in shares):
        raise UsageError("nothing is held out", seen=f"test {config.test}", next="--test 500, or --test 0.1")
    if len({type(value) for value in shares}) > 1:
        raise UsageError(
            "test and validation must both be counts or both be shares",
            seen=f"test {config.test}, validation {config.validation}",
            next="for example --test 500 --validation 200, or --test 0.1 --validation 0.05",
        )
    if isinstance(shares[0], float) and sum(shares) >= 1:
        raise UsageError("the shares leave nothing to train on", seen=sum(shares), next="--test 0.1 --validation 0.05")
    if config.key not in NORMALISERS and config.key not in dataset.columns:
        raise UsageError(
            "no normaliser and no column has that name",
            seen=f"{config.key}; columns: {', '.join(dataset.columns)}",
            next=f"--key {', '.join(NORMALISERS)} or a column",
        )
    if config.key not in NORMALISERS and config.key in dataset.consumed:
        raise UsageError(
            f"the column {config.key} becomes part of the record, so it is no column beside it",
            seen=f"layout {dataset.layout}",
            next="--key text, math or code, which read what the record asks",
        )


# -- what goes where


@dataclass(frozen=True)
class _Rows:
    """Row index, record id and key hash of each row that has a key, and (row, reason, detail) of those that have
    none.
    """

    rows: np.ndarray  # int64 [n]
    ids: np.ndarray  # uint8 [n, 32]
    keys: np.ndarray  # uint8 [n, 32]
    keyless: list[tuple[int, str, str]]


def _decide(dataset: Dataset, config: SplitConfig, names: tuple[str, ...], progress: Progress) -> StageResult:
    read = _read(dataset, config.key, progress)
    distinct, key_of_row = np.unique(read.keys.view("V32").ravel(), return_inverse=True)
    assigned = assign(distinct.view(np.uint8).reshape(-1, 32), config)
    check_sizes(assigned, config)
    split_of_row = assigned[key_of_row]
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[read.rows] = read.ids
    part = np.zeros(dataset.rows_in, np.uint8)
    part[read.rows] = np.array([names.index(name) if name in names else 0 for name in NAMES], np.uint8)[split_of_row]
    gone = _other_orders(read, key_of_row, split_of_row) if config.key == "countdown" else []
    counts = np.bincount(assigned, minlength=3)
    extra = {"keys": {name: int(counts[NAMES.index(name)]) for name in names}}
    every = decisions.concat([_removed(gone, record_ids), without_key(read.keyless)])
    return StageResult(every, record_ids, extra, part)


def _read(dataset: Dataset, key: str, progress: Progress) -> _Rows:
    rows, ids, keys, keyless = [], [], [], []
    for row, record, extra, name in dataset.identified():
        try:
            made = key_hash(canonical_key(dataset.kind, record, extra, key), key)
        except RecordError as error:
            keyless.append((row, error.reason, f"no key {key}: {error.what}"))
            continue
        rows.append(row)
        ids.append(name)
        keys.append(made)
        if not len(rows) % 8192:
            progress(row, None, "rows read")
    if not rows:
        raise BadInputError(
            f"no row has a key {key}",
            seen="; ".join(f"row {row}: {detail}" for row, _, detail in keyless[:3]),
            next=f"choose another --key: {', '.join(NORMALISERS)} or a column",
        )
    return _Rows(np.array(rows, np.int64), _packed(ids), _packed(keys), keyless)


def _packed(hashes: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)


def check_sizes(assigned: np.ndarray, config: SplitConfig) -> None:
    """Raise BadInputError when a split that was asked for has no key."""
    counts = np.bincount(assigned, minlength=3)
    if counts[_TRAIN] and counts[_TEST] >= (config.test > 0) and counts[_VALIDATION] >= (config.validation > 0):
        return
    raise BadInputError(
        "there are too few distinct keys to hold out that many",
        seen=f"{len(assigned)} keys under {config.key}; test {config.test}, validation {config.validation}",
        next="hold out fewer, or bring more data",
    )


def _other_orders(read: _Rows, key_of_row: np.ndarray, split_of_row: np.ndarray) -> list[tuple[int, int]]:
    """Return (removed row, kept row) of the held-out keys: the row with the smallest record id is kept, then the
    first.
    """
    best: dict[int, int] = {}
    held_out = np.flatnonzero(split_of_row != _TRAIN).tolist()
    names = {i: (read.ids[i].tobytes(), int(read.rows[i])) for i in held_out}
    for i in held_out:
        key = int(key_of_row[i])
        if key not in best or names[i] < names[best[key]]:
            best[key] = i
    pairs = ((i, best[int(key_of_row[i])]) for i in held_out)
    return [(int(read.rows[i]), int(read.rows[kept])) for i, kept in pairs if i != kept]


def _removed(gone: list[tuple[int, int]], record_ids: np.ndarray) -> pa.Table:
    rows, witnesses = [row for row, _ in gone], [witness for _, witness in gone]
    return decisions.table(
        {
            "row": pa.array(rows, pa.int64()),
            "record_id": decisions.hex_ids(record_ids[rows]),
            "action": pa.array(["remove"] * len(rows), pa.string()),
            "reason": pa.array([OTHER_ORDER] * len(rows), pa.string()),
            "witness_row": pa.array(witnesses, pa.int64()),
            "witness_id": decisions.hex_ids(record_ids[witnesses]),
        }
    )


def without_key(keyless: list[tuple[int, str, str]]) -> pa.Table:
    """Return the decisions on rows without a key: (row, reason, detail) each."""
    return decisions.table(
        {
            "row": pa.array([row for row, _, _ in keyless], pa.int64()),
            "action": pa.array(["quarantine"] * len(keyless), pa.string()),
            "reason": pa.array([reason for _, reason, _ in keyless], pa.string()),
            "detail": pa.array([detail for _, _, detail in keyless], pa.string()),
        }
    )


# -- after the files are written


def _finish(
    dataset: Dataset, config: SplitConfig, folder: Path, written: list[dict[str, Any]], result: StageResult
) -> Mapping[str, Any]:
    """Read every split back, prove that no two share a key, write the order-robustness set and split.json."""
    again = {Path(file["path"]).stem: _reread(file, dataset, config.key) for file in written}
    splits = {}
    for file in written:
        name = Path(file["path"]).stem
        root = key_root(distinct(again[name].keys))
        splits[name] = {
            "rows": len(again[name].rows),
            "keys": root.count,
            "key_root": root.root,
            "content_root": content_root(again[name].ids).root,
            "file": Path(file["path"]).name,
            "sha256": file["sha256"],
        }
        if splits[name]["rows"] != file["rows"] or splits[name]["keys"] != result.extra["keys"][name]:
            raise LptError(
                "a split read back has other rows or keys than were written", seen=splits[name], next="report it"
            )
    proof = [_intersection(a, b, again) for a, b in itertools.combinations(again, 2)]
    extra: dict[str, Any] = {"splits": splits, "disjoint": proof}
    more = []
    if config.key == "countdown" and "test" in again:
        path = folder / "order_robustness.jsonl"
        rows = write_jsonl(path, order_robustness(_problems(written, dataset), config))
        more = [file_entry(path, rows)]
        extra["order_robustness"] = {"file": path.name, "rows": rows, "sha256": more[0]["sha256"]}
    write_record(folder, dataset, config, result, extra)
    return {"outputs": [*more, file_entry(folder / "split.json", 0)], "extra": extra}


def write_record(
    folder: Path, dataset: Dataset, config: SplitConfig | PairsConfig, result: StageResult, extra: Mapping[str, Any]
) -> None:
    """Write split.json: how keys were assigned, what each split holds, and the proof that they share none."""
    body = {
        "type": "lpt.split/1",
        "key": {"normaliser": config.key, "version": KEY_VERSION},
        "config": asdict(config),
        "rows_in": dataset.rows_in,
        "removed": decisions.reasons(result.decisions, "remove"),
        "quarantined": len(dataset.quarantined()) + sum(decisions.reasons(result.decisions, "quarantine").values()),
        **extra,
    }
    data = orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
    write_atomic(folder / "split.json", data)


def _reread(file: Mapping[str, Any], dataset: Dataset, key: str) -> _Rows:
    opened = Dataset.open(
        [file["path"]],
        kind=dataset.kind,
        layout=None if dataset.text_column != "text" else dataset.layout,
        text_column=dataset.text_column,
    )
    return _read(opened, key, silent)


def distinct(keys: np.ndarray) -> np.ndarray:
    """Return the distinct rows of uint8 [n, 32], sorted."""
    return np.unique(keys.view("V32").ravel()).view(np.uint8).reshape(-1, 32)


def _intersection(a: str, b: str, read: Mapping[str, _Rows]) -> dict[str, Any]:
    return disjoint(a, b, "key", read[a].keys, read[b].keys)


def disjoint(a: str, b: str, by: str, left: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Return the proof that two splits share none of the hashes uint8 [n, 32]; LptError where they do."""
    one, other = (distinct(hashes).view("V32").ravel() for hashes in (left, right))
    shared = int(np.intersect1d(one, other).size)
    if shared:
        raise LptError(f"two splits share a {by}", seen=f"{a} and {b}: {shared}", next="this is a defect: report it")
    return {"a": a, "b": b, "by": by, "n_a": len(one), "n_b": len(other), "intersection": 0}


def _problems(written: list[dict[str, Any]], dataset: Dataset) -> list[tuple[list[int], int]]:
    path = next(file["path"] for file in written if Path(file["path"]).stem == "test")
    opened = Dataset.open([path], kind=dataset.kind, layout=dataset.layout)
    found = []
    for _, record, extra in opened.records():
        answer = record.get("answer", "")
        found.append(countdown_problem(orjson.loads(answer) if answer.startswith("{") else extra))
    return found


def order_robustness(problems: list[tuple[list[int], int]], config: SplitConfig) -> Iterator[dict[str, Any]]:
    """Yield {problem, order, nums, target}: chosen problems in several orders, order 0 being the one of the test row.

    Which problems and which orders follows from the seed and the problems alone, not from their order.
    """
    keyed = sorted((_chosen_by(numbers, target, config.seed), numbers, target) for numbers, target in problems)
    for number, (name, numbers, target) in enumerate(keyed[: config.robustness_problems]):
        for order, nums in enumerate(_orders(numbers, config.robustness_orders, f"{config.seed}:{name}")):
            yield {"problem": number, "order": order, "nums": nums, "target": target}


def _chosen_by(numbers: list[int], target: int, seed: int) -> str:
    return hashlib.sha256(orjson.dumps([seed, target, sorted(numbers)])).hexdigest()


def _orders(numbers: list[int], most: int, seed: str) -> list[list[int]]:
    """The numbers as given and other orders of them, all different, at most `most`."""
    if len(numbers) <= 7:
        others = sorted({order for order in itertools.permutations(numbers)} - {tuple(numbers)})
        random.Random(seed).shuffle(others)
        return [numbers, *(list(order) for order in others[: most - 1])]
    rng = random.Random(seed)
    found = {tuple(numbers): None}
    for _ in range(most * 20):
        if len(found) == most:
            break
        found.setdefault(tuple(rng.sample(numbers, len(numbers))))
    return [list(order) for order in found]
