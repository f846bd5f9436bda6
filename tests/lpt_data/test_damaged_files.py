"""Files damaged at random: every row is read, put aside with a reason, or the file is refused."""

import gzip
import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lpt_data.dataset import Dataset
from manifests.errors import LptError

ROWS = [{"text": f'row {i} é "q"', "n": i, "m": [{"role": "user", "content": "x"}]} for i in range(40)]
SNIPPETS = [b"NaN", b'"', b"\\u0022", b"\\ud800", b"\n", b"\r", b"\0", b"{", b"[", b',"text":1']


def whole(name):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if name.endswith(".json"):
        return json.dumps(ROWS).encode()
    if name.endswith(".csv"):
        return b"text,n\n" + b"".join(b'"row %d ""q""\nx",%d\n' % (i, i) for i in range(40))
    if name.endswith(".parquet"):
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(ROWS), sink)
        return sink.getvalue()
    return {"a.jsonl": lines, "a.jsonl.gz": gzip.compress(lines), "a.jsonl.zst": zstandard.compress(lines)}[name]


def damage(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        at, kind = rng.randrange(len(data)), rng.random()
        if kind < 0.5:
            data[at] = rng.randrange(256)
        elif kind < 0.7:
            del data[at : at + rng.randrange(30)]
        elif kind < 0.9:
            data[at:at] = rng.randbytes(rng.randrange(9))
        else:
            data[at:at] = rng.choice(SNIPPETS)
        data = data or bytearray(b"x")
    return bytes(data)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_no_row_is_lost_and_nothing_else_is_raised(tmp_path, name):
    rng, data = random.Random(name), whole(name)
    outcomes = set()
    for _ in range(60):
        (tmp_path / name).write_bytes(damage(data, rng))
        try:
            found = Dataset.open([str(tmp_path / name)])
            rows = [row for batch in found.texts("text") for row in batch.rows.tolist()]
            assert [row for row, _, _ in found.records()] == rows
        except LptError as error:
            outcomes.add("refused" if error.seen and error.next else "refused without a word")
            continue
        aside = [q.row for q in found.quarantined()]
        assert sorted(rows + aside) == list(range(found.rows_in))
        outcomes.add("put aside" if aside else "read")
    assert outcomes <= {"read", "put aside", "refused"}
    assert len(outcomes) > 1 or outcomes == {"refused"}
