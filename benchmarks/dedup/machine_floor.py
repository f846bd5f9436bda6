#!/usr/bin/env python3
"""What the machine itself asks for: read a file, hash it, copy it once, and write its bytes with zstd at level 1.

usage: machine_floor.py CORPUS.jsonl OUT.zst ; the caller's clock measures it, start of the interpreter included.
No JSON is parsed: nothing that names its input by digest and leaves compressed output is faster on one core.
"""

from __future__ import annotations

import hashlib
import sys

import zstandard

BLOCK = 1 << 20


def main() -> None:
    digest, compressor, held = hashlib.sha256(), zstandard.ZstdCompressor(level=1), bytearray(BLOCK)
    with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as out:
        while block := source.read(BLOCK):
            digest.update(block)
            held[: len(block)] = block
            out.write(compressor.compress(memoryview(held)[: len(block)]))


if __name__ == "__main__":
    main()
