#!/usr/bin/env python3
"""What no deduplication of a file can undercut: read it, decode its JSON, write the same rows as Parquet.

usage: floor.py CORPUS.jsonl OUT.parquet ; the caller's clock measures it, start of the interpreter included.
"""

from __future__ import annotations

import sys
from itertools import islice

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.large_string())])


def main() -> None:
    with open(sys.argv[1], "rb") as lines, pq.ParquetWriter(sys.argv[2], SCHEMA, compression="zstd") as out:
        while rows := [orjson.loads(line) for line in islice(lines, 20_000)]:
            out.write_table(pa.Table.from_pylist(rows, SCHEMA))


if __name__ == "__main__":
    main()
