"""What --dry-run foretells, against what then happens."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from test_dedup import corpus, edited

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide
from lpt_data.dedup.memory import Budget
from lpt_data.dedup.predict import (
    SAMPLE,
    Prediction,
    _bounds,
    _extrapolated,
    _Trial,
    _trials,
    count_rows,
    predict,
    sample_rows,
)
from lpt_data.io.chunks import LARGE
from lpt_data.stage import run_stage
from manifests.catalog import Catalog
from manifests.errors import UsageError


def lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def large(rows: int = 20_000) -> list[str]:
    rng = random.Random(5)
    texts = [" ".join(f"w{rng.randrange(9000)}" for _ in range(rng.randrange(30, 50))) for _ in range(rows)]
    for _ in range(rows // 5):
        texts[rng.randrange(rows)] = edited(rng.choice(texts), 1, rng)
    return texts


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "in.jsonl"
    path.write_text(lines(large()))
    return path


def foretell(path: Path, **changes: object) -> Prediction:
    config = DedupConfig(**{"workers": 1, **changes})
    return predict(Dataset.open([str(path)]), config, path.with_name("out.jsonl"))


def test_meanings_are_left_out_of_what_is_foretold(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(lines([text for text in corpus() if text.strip()]))
    assert foretell(path, method=("minhash", "semantic")).candidates == foretell(path, method=("minhash",)).candidates


def test_a_small_input_is_counted_and_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(lines([text for text in corpus() if text.strip()]))
    told = foretell(path)
    catalog, out = Catalog.open(tmp_path / "lpt"), tmp_path / "out.jsonl"
    done = run_stage("dedup", Dataset.open([str(path)]), DedupConfig(workers=1), decide, output=out, catalog=catalog)
    assert told.rows_are_exact
    assert told.rows == done.body["rows_in"] == told.sample_rows
    assert told.candidates == done.extra["minhash"]["candidates"] == told.candidates_between[0]
    assert told.spilled_bytes == done.extra["memory"]["spilled_bytes"] == 0
    assert "foretold" not in done.extra


def test_a_large_input_is_foretold_from_a_few_rows_and_nothing_is_written(big: Path) -> None:
    before = sorted(big.parent.iterdir())
    told = foretell(big)
    assert sorted(big.parent.iterdir()) == before
    assert told.sample_rows == SAMPLE
    assert not told.rows_are_exact
    assert told.rows == pytest.approx(20_000, rel=0.05)
    catalog, out = Catalog.open(big.parent / "lpt"), big.parent / "out.jsonl"
    decided = partial(decide, output=out)
    done = run_stage("dedup", Dataset.open([str(big)]), DedupConfig(workers=1), decided, output=out, catalog=catalog)
    low, high = told.candidates_between
    assert low <= done.extra["minhash"]["candidates"] <= high
    assert low <= told.candidates <= high
    assert told.seconds > 0
    assert told.peak_memory_bytes < told.cap_bytes


def test_texts_that_a_run_does_not_hold_are_not_foretold(tmp_path: Path) -> None:
    """Short rows, whose sample is a small file: of a large one, and near miss, of the same rows packed."""
    texts = [f"{i} a few words that nobody holds {i * i}" for i in range(40_000)]
    text = lines(texts).encode()
    (tmp_path / "in.jsonl").write_bytes(text)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(text, 1))
    dataset = Dataset.open([str(tmp_path / "in.jsonl")])
    sample = list(sample_rows(dataset, len(texts)))
    assert len(b"\n".join(sample)) < LARGE
    held = []
    for name in ("in.jsonl", "packed.jsonl.gz"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        dataset = Dataset.open([str(tmp_path / name)])
        trials = _trials(dataset, DedupConfig(workers=1), sample, tmp_path / "out.jsonl", folder)
        held.append([trial.text_bytes for trial in trials])
    assert held[0] == [0, 0]
    assert held[1][1] > 4 * 10**4
    assert 3 * held[1][0] < held[1][1]


def test_memory_and_disk_are_arithmetic_over_bytes() -> None:
    """300,000 rows of 2,500 bytes with 8 bytes of offset, 18 keys and a bitmap of 8 words; no pair in the sample."""
    small, large = _Trial(1024, 0.2, 0, 0, 0, 0, 18), _Trial(4096, 0.4, 4096 * 2500, 4096 * 2200, 100, 0, 18)
    kept = 300_000 * (2500 + 8 + 8 * 26)
    tight = _extrapolated(Budget(10**9, "--memory", 2 * 10**8), 300_000, 0, False, small, large)
    assert tight.spilled_bytes == kept  # half of the room is not enough
    assert 300 * 10**6 < tight.peak_memory_bytes <= 10**9
    wide = _extrapolated(Budget(10**10, "--memory", 2 * 10**8), 300_000, 0, False, small, large)
    assert wide.spilled_bytes == 0
    assert wide.peak_memory_bytes > kept
    slope = 0.2 / 3072
    compared = 100 * 300_000 / 4096  # more rows than the pairs to expect, none, would have
    assert wide.seconds == pytest.approx(0.4 + slope * (300_000 - 4096) + 12e-6 * compared, abs=0.01)
    assert tight.seconds == pytest.approx(wide.seconds + 2 * kept / 1e9, abs=0.02)


def test_rows_are_counted_by_bytes_in_every_format(tmp_path: Path) -> None:
    texts = large(60_000)
    packed = lines(texts).encode()
    files = {"in.jsonl": packed, "in.jsonl.gz": gzip.compress(packed, 1), "in2.jsonl.zst": zstandard.compress(packed)}
    files["in.csv"] = b"text\n" + b"".join(text.encode() + b"\n" for text in texts)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert count_rows(Dataset.open([str(tmp_path / name)]))[0] == pytest.approx(60_000, rel=0.03), name
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    assert count_rows(Dataset.open([str(tmp_path / "in.parquet")])) == (60_000, True)
    (tmp_path / "in.json").write_text(json.dumps([{"text": text} for text in texts[:999]]))
    assert count_rows(Dataset.open([str(tmp_path / "in.json")]))[0] == pytest.approx(999, rel=0.03)


def test_bounds_of_pairs_by_hand() -> None:
    assert _bounds(7, 1.0, 100) == (7, 7)
    # 100 pairs in a tenth of 10,000 rows: 80 of them ten times over, or 123 a hundred times.
    assert _bounds(100, 10.0, 10_000) == (800, 12_300)
    assert _bounds(0, 10.0, 10_000) == (0, 300)


def test_settings_without_sense_are_refused_as_by_the_stage(big: Path) -> None:
    with pytest.raises(UsageError):
        foretell(big, threshold=0.001)
