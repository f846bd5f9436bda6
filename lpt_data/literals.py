"""Which rows hold one of many short byte strings: one pass over their bytes, whatever the number of strings.

Each string is looked for where its rarest pair of neighbouring bytes stands; nearly every byte costs two looks into
tables and no comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

MOST = 64  # groups of strings, one bit each
_COMMON = " etaoinshrdlcumwfgypbvk"  # the rest is rare in any text


@dataclass(frozen=True)
class Matcher:
    """Groups of strings ready to be looked for."""

    single: np.ndarray  # uint64 [256], groups of the strings of one byte
    begin: np.ndarray  # uint8 [2, 256], a bit in common: the two may be a pair
    bucket: np.ndarray  # uint16 [65536], number of the bucket of a pair, 0: none
    cuts: np.ndarray  # int64 [buckets + 1], first string of each bucket
    written: np.ndarray  # uint8, all strings
    bounds: np.ndarray  # int64 [strings + 1]
    anchors: np.ndarray  # int64 [strings], where in the string its rarest pair begins
    groups: np.ndarray  # uint64 [strings], the bits of its groups

    @classmethod
    def of(cls, groups: Sequence[Sequence[bytes]]) -> Matcher:
        """Prepare at most 64 groups of strings, none of them empty."""
        single = np.zeros(256, np.uint64)
        bits: dict[bytes, int] = {}
        for number, strings in enumerate(groups):
            for string in strings:
                bits[string] = bits.get(string, 0) | 1 << number
        by_pair: dict[int, list[tuple[bytes, int]]] = {}
        for string in bits:
            if len(string) == 1:
                single[string[0]] |= np.uint64(bits[string])
                continue
            anchor = max(range(len(string) - 1), key=lambda i: _rarity(string[i]) * _rarity(string[i + 1]))
            by_pair.setdefault(string[anchor] | string[anchor + 1] << 8, []).append((string, anchor))
        begin = np.zeros((2, 256), np.uint8)
        for number, pair in enumerate(by_pair):
            begin[0, pair & 255] |= np.uint8(1 << number % 8)
            begin[1, pair >> 8] |= np.uint8(1 << number % 8)
        bucket = np.zeros(65536, np.uint16)
        bucket[list(by_pair)] = np.arange(1, len(by_pair) + 1)
        every = [found for strings in by_pair.values() for found in strings]
        return cls(
            single,
            begin,
            bucket,
            np.cumsum([0, 0, *map(len, by_pair.values())]),
            np.frombuffer(b"".join(string for string, _ in every), np.uint8),
            np.cumsum([0, *(len(string) for string, _ in every)]),
            np.array([anchor for _, anchor in every], np.int64),
            np.array([bits[string] for string, _ in every], np.uint64),
        )

    def find(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the groups of which some text of each row (`lpt_data.plain.Plain`) holds a string: uint64 [n]."""
        tables = (self.single, self.begin, self.bucket, self.cuts, self.written, self.bounds, self.anchors, self.groups)
        return _find(data, starts, ends, first, *tables)


def _rarity(byte: int) -> int:
    return 1 + _COMMON.find(chr(byte)) if chr(byte) in _COMMON else 2 * len(_COMMON)


@njit(nogil=True, cache=True)
def _stands(data: np.ndarray, at: int, start: int, end: int, written: np.ndarray, a: int, b: int) -> bool:
    if at < start or at + b - a > end:
        return False
    same = 0
    while same < b - a and data[at + same] == written[a + same]:
        same += 1
    return same == b - a


@njit(nogil=True, cache=True)
def _find(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    first: np.ndarray,
    single: np.ndarray,
    begin: np.ndarray,
    bucket: np.ndarray,
    cuts: np.ndarray,
    written: np.ndarray,
    bounds: np.ndarray,
    anchors: np.ndarray,
    groups: np.ndarray,
) -> np.ndarray:
    found = np.zeros(len(first) - 1, np.uint64)
    for row in range(len(first) - 1):
        bits = np.uint64(0)
        for text in range(first[row], first[row + 1]):
            start = starts[text]
            end = ends[text]
            before = 0
            for i in range(start, end):
                byte = int(data[i])
                bits |= single[byte]
                pair = begin[0, before] & begin[1, byte]
                place = bucket[before | byte << 8] if pair else 0
                before = byte
                if place == 0 or i == start:
                    continue
                for string in range(cuts[place], cuts[place + 1]):
                    if _stands(data, i - 1 - anchors[string], start, end, written, bounds[string], bounds[string + 1]):
                        bits |= groups[string]
        found[row] = bits
    return found
