"""What a deduplication will take, foretold from a few thousand rows: time, memory, disk, and pairs to compare.

Rows are counted from the bytes of the files (exactly, where they are few or Parquet says so). A run of consecutive
rows from the middle of the input goes through the real stage, reading and writing included, at two sizes; the line
through both times gives the cost of a row, the rest is arithmetic over bytes. Duplicates may be neighbours or lie
anywhere, and a sample cannot tell which, so the pairs are said with the bounds of both cases: as many a row as in the
sample, or growing with the square of the rows.
"""

from __future__ import annotations

import math
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import fields, memory
from lpt_data.dedup.compare import BATCH, ROW
from lpt_data.dedup.lsh import BITMAP
from lpt_data.dedup.predict_meaning import EMBEDDED, Meaning, foretell
from lpt_data.dedup.rows import thread_count
from lpt_data.dedup.stage import decide
from lpt_data.io import chunks
from lpt_data.io.sources import SourceFile, format_of
from lpt_data.semantic.alike import Semantics
from lpt_data.stage import run_stage
from manifests.arrow import plain_rows
from manifests.catalog import Catalog

SAMPLE = 4096  # rows that go through the stage
PIECE = 1 << 20  # bytes of a file that are looked at to count its rows
SAMPLE_BYTES = 32 << 20  # of rows in the sample at most
DISK = 1e9  # bytes a second written to and read from the spill file, by the page cache of a common machine
LARGE = 4 * 10**9  # bytes of input from which half a second to foretell itself is a hundredth of a run
REPORTED = ("rows", "seconds", "peak_memory_bytes", "spilled_bytes", "candidates", "candidates_between")
LOADED = 60 << 20  # bytes of kernels and libraries that are loaded only once the stage works
WIDEST = 130  # bytes a row where common numbers of rows go
WRITER = 110 << 20  # bytes that the writers of tables hold
A_PAIR = 0.25  # pairs a row to expect at most, as in corpora with many copies
A_ROW_COMPARED = 12e-6  # seconds of a row whose shingle set is made and compared


@dataclass(frozen=True)
class Prediction:
    """What a run is expected to take."""

    rows: int
    rows_are_exact: bool
    sample_rows: int
    seconds: float
    peak_memory_bytes: int
    spilled_bytes: int
    candidates: int  # pairs whose shingle sets are compared
    candidates_between: tuple[int, int]  # duplicates near one another, duplicates anywhere
    cap_bytes: int
    cap_from: str
    needed_bytes: int  # the smallest cap that works
    meaning: Meaning | None = None  # None without the method semantic

    def to_json(self) -> dict[str, Any]:
        """The prediction as plain values."""
        return asdict(self) | {"candidates_between": list(self.candidates_between)}


@dataclass(frozen=True)
class _Trial:
    """One run of the stage over the first rows of the sample."""

    rows: int
    seconds: float
    text_bytes: int  # of those that a run holds
    shingle_bytes: int
    compared: int  # rows
    candidates: int
    bands: int


def predict(
    dataset: Dataset,
    config: DedupConfig,
    output: Path,
    reference: Dataset | None = None,
    semantics: Semantics | None = None,
) -> Prediction:
    """Foretell `decide` and the writing of its survivors; writes to a temporary folder alone.

    With the method `semantic`, ``semantics`` foretells the vectors, too; without it they are left out.

    Raises UsageError and BadInputError as the stage would for settings and rows that it refuses.
    """
    cap = memory.budget(config.memory, thread_count(config.workers))
    rows, exact = count_rows(dataset)
    beside, _ = count_rows(reference) if reference is not None else (0, True)
    free = replace(config, memory=f"{1 << 50}", keep="content", template_df=0.0, workers=config.workers)
    free = replace(free, engine="local", ray_address=None)  # a cluster would be started for a few thousand rows
    free = replace(free, method=tuple(m for m in free.method if m != "semantic") or ("exact",), semantic=None)
    with tempfile.TemporaryDirectory(prefix="lpt-plan-") as folder:
        sample = list(sample_rows(dataset, rows))
        if config.keep.startswith("quality:"):
            free = replace(free, keep=config.keep)
        small, large = _trials(dataset, free, sample, output, Path(folder))
        told = _extrapolated(cap, rows, beside, exact, small, large)
        if config.semantic is None or semantics is None:
            return told
        path = Path(folder) / "sample.jsonl"
        path.write_bytes(b"\n".join(sample[:EMBEDDED]) + b"\n")
        some = dataset_of(dataset, [SourceFile(str(path), "jsonl", "", path.stat().st_size)])
        key, _ = fields.parts(config.key, some)
        texts = [text for batch in some.texts(key) for text in batch.texts.to_pylist()]
        meant = foretell(texts, rows, beside, config.semantic, semantics, replace(cap, a_row=memory.MEANING))
    return replace(
        told,
        seconds=round(told.seconds + meant.embedding_seconds + meant.search_seconds, 2),
        peak_memory_bytes=min(max(told.peak_memory_bytes, meant.peak_memory_bytes), cap.cap),
        spilled_bytes=told.spilled_bytes + meant.spilled_bytes,
        needed_bytes=max(told.needed_bytes, meant.needed_bytes),
        meaning=meant,
    )


def foretold(dataset: Dataset, config: DedupConfig, output: Path, reference: Dataset | None) -> dict[str, Any]:
    """The prediction for the report of a run so large that a second more is nothing to it, else nothing."""
    if sum(source.bytes for source in dataset.files) < LARGE:
        return {}
    told = predict(dataset, config, output, reference).to_json()
    return {"foretold": {name: told[name] for name in REPORTED}}


def count_rows(dataset: Dataset) -> tuple[int, bool]:
    """The number of rows, and whether it is exact: from Parquet's own count, else from bytes a line."""
    counts = [_rows_of(source, dataset) for source in dataset.files]
    return sum(count for count, _ in counts), all(exact for _, exact in counts)


def _rows_of(source: SourceFile, dataset: Dataset) -> tuple[int, bool]:
    if source.format == "parquet":
        return pq.ParquetFile(source.path).metadata.num_rows, True
    if source.format == "json":  # an array is read whole in any case
        batch = next(dataset_of(dataset, [source]).batches())
        records = batch.records
        size = sum(len(orjson.dumps(record)) + 2 for record in records if isinstance(record, dict))
        return max(1, round(source.bytes * len(records) / max(size, 1))), False
    head = 1 if source.format in ("csv", "tsv") else 0
    pieces = [_unpacked_head(source)] if source.compression else list(_pieces(source))
    packed = sum(size for _, size in pieces)
    text = b"".join(piece for piece, _ in pieces)
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    whole = packed >= source.bytes
    return max(1, (lines if whole else round(lines * source.bytes / packed)) - head), whole and not head


def _pieces(source: SourceFile) -> Iterator[tuple[bytes, int]]:
    """Pieces of an uncompressed file from its beginning, middle and end, or all of a small one."""
    with open(source.path, "rb") as file:
        if source.bytes <= 3 * PIECE:
            yield file.read(), source.bytes
            return
        for start in (0, (source.bytes - PIECE) // 2, source.bytes - PIECE):
            file.seek(start)
            yield file.read(PIECE), PIECE


def _unpacked_head(source: SourceFile) -> tuple[bytes, int]:
    """The text in the first compressed bytes of a file, and how many those are."""
    with open(source.path, "rb") as file:
        packed = file.read(PIECE)
    one = zlib.decompressobj(31) if source.compression == "gz" else zstandard.ZstdDecompressor().decompressobj()
    text = bytearray()
    for start in range(0, len(packed), 1 << 14):
        try:
            text += one.decompress(packed[start : start + (1 << 14)])
        except (zlib.error, zstandard.ZstdError):
            break  # the stage itself says what is wrong with the file
        if len(text) > 64 * PIECE or one.unused_data:
            return bytes(text), start + (1 << 14) - len(one.unused_data)
    return bytes(text), len(packed)


def dataset_of(dataset: Dataset, files: list[SourceFile]) -> Dataset:
    """Some files as a data set of the same kind and layout."""
    return Dataset.open(
        [file.path for file in files],
        kind=None if dataset.text_column != "text" else dataset.kind,
        layout=None if dataset.text_column != "text" else dataset.layout,
        text_column=dataset.text_column,
    )


def sample_rows(dataset: Dataset, rows: int) -> Iterator[bytes]:
    """Consecutive rows as JSON lines, from the middle of the largest file where that can be reached without reading."""
    source = max(dataset.files, key=lambda file: file.bytes)
    count = size = 0
    if source.format == "jsonl" and not source.compression and rows > SAMPLE and len(dataset.files) == 1:
        with open(source.path, "rb") as file:
            file.seek(source.bytes // 2)
            file.readline(SAMPLE_BYTES)
            for line in file:
                if line.strip() and len(line) < SAMPLE_BYTES:
                    yield line.rstrip(b"\r\n")
                    count, size = count + 1, size + len(line)
                if count >= SAMPLE or size >= SAMPLE_BYTES:
                    return
        return
    for batch in dataset.batches():
        records = batch.records
        if batch.raw is None:
            listed = plain_rows(records) if isinstance(records, pa.Table) else records
            lines = [orjson.dumps(record, default=str) for record in listed]
        else:
            lines = batch.raw
        for line in lines:
            yield line
            count, size = count + 1, size + len(line)
            if count >= SAMPLE or size >= SAMPLE_BYTES:
                return


def _trials(
    dataset: Dataset, config: DedupConfig, sample: list[bytes], output: Path, folder: Path
) -> tuple[_Trial, _Trial]:
    """The stage over a quarter of the sample and over all of it, in the format of the output."""
    format_of(output)
    made = []
    few, all_of_it = sample[:64], sample
    catalog = Catalog.open(folder / "lpt")
    held = _share_held(dataset)
    # The sample is a file of JSON lines in any case. Blanks make it one that is scanned, as those that it stands for.
    least = chunks.LARGE if held < 1 else 0
    for number, part in enumerate((few, sample[: max(1, len(sample) // 4)], all_of_it)):
        path = folder / f"in{number}.jsonl"
        path.write_bytes((b"\n".join(part) + b"\n").ljust(least))
        rows = dataset_of(dataset, [SourceFile(str(path), "jsonl", "", path.stat().st_size)])
        out = folder / f"out{number}{''.join(output.suffixes[-2:])}"
        start = time.perf_counter()
        report = run_stage("dedup", rows, config, decide, output=out, catalog=catalog)
        seconds = time.perf_counter() - start
        near = report.extra.get("minhash", {})
        made.append(
            _Trial(
                len(part),
                seconds,
                round(held * report.extra["text_bytes"] + (1 - held) * report.extra["text_bytes_held"]),
                8 * near.get("shingles", 0),
                near.get("rows_compared", 0),
                near.get("candidates", 0),
                near.get("bands", 0),
            )
        )
    return made[1], made[2]  # the first one loads and warms what the others use


def _share_held(dataset: Dataset) -> float:
    """The share of the input, by bytes, in files whose texts cannot be read again in place and are held."""
    in_place = [
        source.bytes
        for source in dataset.files
        if source.format == "jsonl" and not source.compression and source.bytes >= chunks.LARGE
    ]
    return 1 - sum(in_place) / sum(source.bytes for source in dataset.files)


def _extrapolated(cap: memory.Budget, rows: int, beside: int, exact: bool, small: _Trial, large: _Trial) -> Prediction:
    times = rows / large.rows
    exact = exact and large.rows >= rows
    low, high = _bounds(large.candidates, times, rows)
    most = max(round(A_PAIR * rows), low)
    pairs = large.candidates if exact else min(round(large.candidates * times * times), most, high)
    compared = min(rows, max(round(large.compared * times), 3 * pairs // 2)) if not exact else large.compared
    every = rows + beside
    a_text = large.text_bytes / large.rows + (8 if large.text_bytes else 0)
    signature = 8 * (large.bands + BITMAP) if large.bands else 0
    kept = round(every * (a_text + signature))
    again = compared * signature  # those of the rows compared, by batch
    batch = min(round(compared * (large.shingle_bytes / large.rows + signature + ROW)), 2 * BATCH)
    free = max(cap.room(every), 0)
    hold = max(min(free // 2, cap.cap - cap.resident - memory.RESERVE - every * memory.BOOKS), 0)
    spills = kept > hold
    left = free - (0 if spills else kept)
    spilled = (kept if spills else 0) + (again if again > left // 16 else 0)
    widest = (hold if spills else kept) + min(again, left // 16) + batch
    columns = WIDEST * every
    peak = cap.resident + LOADED + columns + max(widest, WRITER)
    cost = (large.seconds - small.seconds) / max(large.rows - small.rows, 1)
    cost = max(cost, large.seconds / large.rows / 2)  # other work on the machine may have slowed the small trial
    seconds = large.seconds if exact else large.seconds + cost * (rows - large.rows + 0.6 * beside)
    seconds += 0 if exact else A_ROW_COMPARED * compared + 2 * spilled / DISK
    return Prediction(
        rows, exact, large.rows, round(seconds, 2), min(int(peak), cap.cap), spilled, pairs, (low, high), cap.cap,
        cap.source, cap.needed(every),
    )  # fmt: skip


def _bounds(found: int, times: float, rows: int) -> tuple[int, int]:
    """How many pairs there may be where a sample of one ``times``-th of the rows holds ``found``."""
    if times <= 1:
        return found, found
    spread = 2 * math.sqrt(found)
    low = max(found - spread, 0) * times
    high = (found + spread + 3) * times * times
    return round(low), round(min(high, max(4.0 * rows, 4 * low)))
