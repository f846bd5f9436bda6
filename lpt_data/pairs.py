"""Preference splits that share no prompt, directly or through others: train, calibration and hidden test.

Rows are joined into groups of connected prompts (`lpt_data.prompt_groups`); groups are assigned to splits by hash as
`lpt_data.split` assigns keys, under the smallest link of their rows, and every row follows its group. So the order of
the rows changes nothing. What is written is read back and joined anew, over all splits together; no group, no key and
no record may then lie in two of them.

    rows_in == rows of train, calibration and hidden_test + removed + quarantined

With references (`against`), rows whose group holds a row of theirs are removed with the reason `prompt_in_reference`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lpt_data.config import PairsConfig, SplitConfig
from lpt_data.contracts.reference import open_any, sources
from lpt_data.dataset import Dataset
from lpt_data.keys import NORMALISERS
from lpt_data.places import file_entry
from lpt_data.progress import Progress, silent
from lpt_data.prompt_groups import Groups, Links, links, read_links
from lpt_data.split import assign, check_folder, check_sizes, disjoint, distinct, without_key, write_record
from lpt_data.stage import StageReport, StageResult, Work
from manifests import decisions
from manifests.digests import content_root, key_root
from manifests.errors import BadInputError, LptError, RecordError, UsageError
from manifests.files import make_folder

if TYPE_CHECKING:
    from manifests.catalog import Catalog

NAMES = ("train", "calibration", "hidden_test")  # in the order of `split.NAMES`
IN_REFERENCE = "prompt_in_reference"


def split_pairs(
    dataset: Dataset,
    config: PairsConfig,
    *,
    out: Path,
    catalog: Catalog,
    against: Sequence[str] = (),
    progress: Progress | None = None,
) -> StageReport:
    """Write train, calibration and hidden_test in the format of the input, and split.json, into `out`; record it.

    Raises UsageError for sizes or columns that make no sense, BadInputError when there are too few groups.
    """
    work = pairs_work(dataset, config, Path(out), against)
    make_folder(out)
    return work.run(catalog, progress or silent, dry_run=False, wait=5.0)


def pairs_work(dataset: Dataset, config: PairsConfig, folder: Path, against: Sequence[str] = ()) -> Work:
    """Return the work of such a split into `folder`, which need not be there yet; raises what `split_pairs` does."""
    _check(config, dataset)
    references = open_any(against, dataset.kind) if against else ()
    config = replace(config, against=tuple(f["sha256"] for reference in references for f in sources(reference)))
    extension = dataset.files[0].format
    outputs = tuple(folder / f"{name}.{extension}" for name in NAMES if name == "train" or getattr(config, name))
    check_folder(folder, outputs, NAMES)
    names = tuple(path.stem for path in outputs)
    return Work(
        "pairs",
        dataset,
        config,
        lambda data, _, tell: _decide(data, config, names, references, tell),
        outputs,
        output=str(folder),
        finish=lambda written, result: _finish(dataset, config, folder, written, result),
    )


def _check(config: PairsConfig, dataset: Dataset) -> None:
    sizes = [value for value in (config.calibration, config.hidden_test) if value]
    if not sizes or any(value < 0 for value in sizes):
        raise UsageError("nothing is held out", seen=f"hidden test {config.hidden_test}", next="--hidden-test 0.1")
    if len({type(value) for value in sizes}) > 1:
        raise UsageError(
            "calibration and hidden test must both be counts or both be shares",
            seen=f"calibration {config.calibration}, hidden test {config.hidden_test}",
            next="for example --calibration 0.1 --hidden-test 0.1",
        )
    if isinstance(sizes[0], float) and sum(sizes) >= 1:
        raise UsageError("the shares leave nothing to train on", seen=sum(sizes), next="--hidden-test 0.1")
    if config.near and not 0 < config.near <= 1:
        raise UsageError("a similarity lies between 0 and 1", seen=config.near, next="--near 0.8, or 0 to join none")
    for name in (*config.group, *(() if config.key in NORMALISERS else (config.key,))):
        if name not in dataset.columns or name in dataset.consumed:
            raise UsageError(
                "no column beside the record has that name",
                seen=f"{name}; columns: {', '.join(c for c in dataset.columns if c not in dataset.consumed)}",
                next=f"--key {', '.join(NORMALISERS)}, or a column",
            )


# -- what goes where


@dataclass(frozen=True)
class _Joined:
    """Rows with the group of each: `group` is 32 bytes that follow from the links of its rows alone."""

    rows: np.ndarray  # int64 [n]
    ids: np.ndarray  # uint8 [n, 32]
    keys: list[bytes]  # own key, b"" where the prompt says nothing
    groups: np.ndarray  # uint8 [n, 32]
    keyless: list[tuple[int, str, str]]
    outside: np.ndarray  # bool [n]: the group holds a row of a reference


def _join(datasets: Sequence[Dataset], config: PairsConfig, references: Sequence[Dataset] = ()) -> _Joined:
    """Join the rows of `datasets` (numbered through) and of the references into groups."""
    joined = Groups()
    for reference in references:
        for row, record, extra in reference.records():
            joined.add(_reference_links(reference, row, record, extra, config.key))
    theirs = len(joined)
    rows, ids, every, keyless = [], [], [], []
    start = 0
    for dataset in datasets:
        for row, name, made, fault in read_links(dataset, config.key, config.group):
            joined.add(made)
            rows.append(start + row)
            ids.append(name)
            every.append(made)
            if fault:
                keyless.append((start + row, "no_key", fault))
        start += dataset.rows_in
    if config.near:
        joined.join_near([*references, *datasets], config.near)
    roots = joined.roots()[theirs:]
    names = _names(roots.tolist(), every)
    packed = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)
    return _Joined(np.array(rows, np.int64), packed, [made.own for made in every], names, keyless, roots < theirs)


def _reference_links(
    dataset: Dataset, row: int, record: Mapping[str, Any], extra: Mapping[str, Any], key: str
) -> Links:
    try:
        return links(dataset.kind, record, extra, key)
    except RecordError as error:
        raise UsageError(
            f"a row of the reference has no key {key}",
            seen=f"{dataset.files[0].path} row {row}: {error.what}",
            next=f"--key {', '.join(NORMALISERS)}, or a column that it has too",
        ) from error


def _names(roots: list[int], every: Sequence[Links]) -> np.ndarray:
    smallest: dict[int, bytes] = {}
    for root, made in zip(roots, every, strict=True):
        for hashed in made.same:
            smallest[root] = min(smallest.get(root, hashed), hashed)
    named = {root: hashlib.sha256(b"lpt-prompt-group/1\0" + hashed).digest() for root, hashed in smallest.items()}
    return np.frombuffer(b"".join(named.get(root, bytes(32)) for root in roots), np.uint8).reshape(-1, 32)


def _decide(
    dataset: Dataset, config: PairsConfig, names: tuple[str, ...], references: Sequence[Dataset], progress: Progress
) -> StageResult:
    progress(0, None, "joining prompts")
    read = _join([dataset], config, references)
    keyless = np.isin(read.rows, [row for row, _, _ in read.keyless])
    stays = ~keyless & ~read.outside
    if not stays.any():
        raise BadInputError(
            "no row is left to split",
            seen=f"{int(read.outside.sum())} rows share a prompt with a reference, {len(read.keyless)} have no key",
            next="leave out --against, or bring pairs of other prompts",
        )
    groups, group_of_row = np.unique(read.groups[stays].view("V32").ravel(), return_inverse=True)
    sizes = SplitConfig(key=config.key, test=config.hidden_test, validation=config.calibration, seed=config.seed)
    assigned = assign(groups.view(np.uint8).reshape(-1, 32), sizes)
    check_sizes(assigned, sizes)
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[read.rows] = read.ids
    part = np.zeros(dataset.rows_in, np.uint8)
    outputs = np.array([names.index(name) if name in names else 0 for name in NAMES], np.uint8)
    part[read.rows[stays]] = outputs[assigned[group_of_row]]
    counts = np.bincount(assigned, minlength=3)
    extra = {
        "groups": {name: int(counts[NAMES.index(name)]) for name in names},
        "keys": len({key for key, stay in zip(read.keys, stays.tolist(), strict=True) if stay}),
        "largest_group": int(np.bincount(group_of_row).max(initial=0)),
        "joined_by": _joined_by(config),
    }
    gone = read.rows[read.outside & ~keyless]
    every = decisions.concat([_removed(gone, record_ids), without_key(read.keyless)])
    return StageResult(every, record_ids, extra, part)


def _joined_by(config: PairsConfig) -> list[str]:
    near = [f"near-duplicate prompts at {config.near:g}"] if config.near else []
    return [f"equal key {config.key}", "histories", *near, *(f"column {name}" for name in config.group)]


def _removed(rows: np.ndarray, record_ids: np.ndarray) -> pa.Table:
    return decisions.table(
        {
            "row": pa.array(rows, pa.int64()),
            "record_id": decisions.hex_ids(record_ids[rows]),
            "action": pa.array(["remove"] * len(rows), pa.string()),
            "reason": pa.array([IN_REFERENCE] * len(rows), pa.string()),
        }
    )


# -- after the files are written


def _finish(
    dataset: Dataset, config: PairsConfig, folder: Path, written: list[dict[str, Any]], result: StageResult
) -> Mapping[str, Any]:
    """Read every split back, join all of their rows anew, prove that no two share a group, a key or a record."""
    opened = [Dataset.open([file["path"]], kind=dataset.kind, layout=dataset.layout) for file in written]
    again = _join(opened, config)
    starts = np.cumsum([0, *(part.rows_in for part in opened)])
    names = [Path(file["path"]).stem for file in written]
    of_split = {name: (again.rows >= starts[i]) & (again.rows < starts[i + 1]) for i, name in enumerate(names)}
    keys = {name: _packed(again.keys, mine) for name, mine in of_split.items()}
    splits = {}
    for file, name in zip(written, names, strict=True):
        mine, root = of_split[name], key_root(distinct(keys[name]))
        splits[name] = {
            "rows": int(mine.sum()),
            "groups": len(distinct(again.groups[mine])),
            "keys": root.count,
            "key_root": root.root,
            "content_root": content_root(again.ids[mine]).root,
            "file": Path(file["path"]).name,
            "sha256": file["sha256"],
        }
        if splits[name]["rows"] != file["rows"] or again.keyless:
            raise LptError("a split read back has other rows than were written", seen=splits[name], next="report it")
    proof = list(_proof(names, of_split, again, keys))
    extra: dict[str, Any] = {"splits": splits, "disjoint": proof}
    write_record(folder, dataset, config, result, {**extra, "joined_by": result.extra["joined_by"]})
    return {"outputs": [file_entry(folder / "split.json", 0)], "extra": extra}


def _proof(
    names: Sequence[str], of_split: Mapping[str, np.ndarray], again: _Joined, keys: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    for a, b in itertools.combinations(names, 2):
        yield disjoint(a, b, "group", again.groups[of_split[a]], again.groups[of_split[b]])
        yield disjoint(a, b, "key", keys[a], keys[b])
        yield disjoint(a, b, "record", again.ids[of_split[a]], again.ids[of_split[b]])


def _packed(keys: Sequence[bytes], mine: np.ndarray) -> np.ndarray:
    own = b"".join(key for key, here in zip(keys, mine.tolist(), strict=True) if here)
    return np.frombuffer(own, np.uint8).reshape(-1, 32)
