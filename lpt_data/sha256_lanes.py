"""SHA-256 (FIPS 180-4) of many short messages, sixteen at a time, one in each lane of a vector.

On processors with AVX-512 a message of 1.8 KB costs 0.5 us, less than half of one call of hashlib; on others hashlib,
which has an instruction for a round, is faster, and `worth_it` says so. Not for secrets: nothing here is timed or
wiped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils

from lpt_data.wide import intrinsic

LANES = 16
BLOCK = 64  # bytes
_MINIMUM = 9  # bytes that padding adds at least: 0x80 and the length in bits
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_V = ir.VectorType(_I32, LANES)


def _root_bits(number: int, power: int) -> int:
    """The first 32 bits of the fractional part of the square or cube root of a number."""
    if power == 2:
        return isqrt(number << 64) & 0xFFFFFFFF
    root = round(number ** (1 / 3) * 2**32) + 2**20
    while root**3 > number << 96:  # Newton from above
        root = (2 * root + (number << 96) // root**2) // 3
    return root & 0xFFFFFFFF


_PRIMES = [n for n in range(2, 312) if all(n % d for d in range(2, isqrt(n) + 1))]
_K = [_root_bits(prime, 3) for prime in _PRIMES]
START = np.array([_root_bits(prime, 2) for prime in _PRIMES[:8]], np.uint32)


@cache
def worth_it() -> bool:
    """Whether this processor has vectors of sixteen words and rotates them."""
    return bool(binding.get_host_cpu_features().get("avx512f", False))


@njit(nogil=True, cache=True)
def padded(length: int) -> int:
    """The bytes of a message with its padding."""
    return (length + _MINIMUM + BLOCK - 1) // BLOCK * BLOCK


@njit(nogil=True, cache=True)
def pad(data: np.ndarray, start: int, length: int) -> int:
    """Write the padding behind the message ``data[start : start + length]``; returns where it ends."""
    end = start + padded(length)
    data[start + length] = 0x80
    data[start + length + 1 : end] = 0
    bits = length * 8
    for k in range(8):
        data[end - 1 - k] = (bits >> (8 * k)) & 0xFF
    return end


def _const(value: int) -> Any:
    return ir.Constant(_V, [value] * LANES)


class _Emitter:
    """The operations of the standard on vectors of words."""

    def __init__(self, builder: Any) -> None:
        self.b = builder
        self.swap = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_V, [_V]), "llvm.bswap.v16i32")

    def rotr(self, x: Any, by: int) -> Any:
        return self.b.or_(self.b.lshr(x, _const(by)), self.b.shl(x, _const(32 - by)))

    def xor3(self, x: Any, y: Any, z: Any) -> Any:
        return self.b.xor(self.b.xor(x, y), z)

    def big(self, x: Any, one: int, two: int, three: int) -> Any:
        return self.xor3(self.rotr(x, one), self.rotr(x, two), self.rotr(x, three))

    def small(self, x: Any, one: int, two: int, shift: int) -> Any:
        return self.xor3(self.rotr(x, one), self.rotr(x, two), self.b.lshr(x, _const(shift)))

    def add(self, *parts: Any) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total = self.b.add(total, part)
        return total


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Sixteen vectors of sixteen words with rows and columns exchanged, in four rounds of interleaving."""
    low = ir.Constant(ir.VectorType(_I32, LANES), [n // 2 + LANES * (n % 2) for n in range(LANES)])
    high = ir.Constant(ir.VectorType(_I32, LANES), [LANES // 2 + n // 2 + LANES * (n % 2) for n in range(LANES)])
    for _ in range(4):
        pairs = [(rows[n], rows[n + LANES // 2]) for n in range(LANES // 2)]
        rows = [builder.shuffle_vector(a, b, mask) for a, b in pairs for mask in (low, high)]
    return rows


@intrinsic
def _compress(typingctx: Any, state: Any, data: Any, places: Any) -> tuple[Any, Callable]:
    """Add one block to each lane: ``state`` uint32 [8, 16], the block of a lane begins at its place in the data."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = _Emitter(builder)
        states, bytes_, starts = (
            context.make_array(kind)(context, builder, arg).data for kind, arg in zip(signature.args, args, strict=True)
        )

        def pointer(base: Any, at: Any) -> Any:
            return builder.bitcast(builder.gep(base, [at]), _V.as_pointer())

        places_of = [builder.load(builder.gep(starts, [_I64(lane)])) for lane in range(LANES)]
        words = [builder.call(emit.swap, [builder.load(pointer(bytes_, at), align=1)]) for at in places_of]
        w = _transposed(builder, words)
        slots = [pointer(states, _I64(n * LANES)) for n in range(8)]
        before = [builder.load(slot, align=4) for slot in slots]
        a, b, c, d, e, f, g, h = before
        for t in range(64):
            if t >= LANES:
                old, recent = w[t - 15], w[t - 2]
                w.append(emit.add(emit.small(recent, 17, 19, 10), w[t - 7], emit.small(old, 7, 18, 3), w[t - 16]))
            choice = builder.xor(g, builder.and_(e, builder.xor(f, g)))
            one = emit.add(h, emit.big(e, 6, 11, 25), choice, builder.add(w[t], _const(_K[t])))
            majority = builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))
            two = builder.add(emit.big(a, 2, 13, 22), majority)
            a, b, c, d, e, f, g, h = builder.add(one, two), a, b, c, builder.add(d, one), e, f, g
        for slot, was, now in zip(slots, before, (a, b, c, d, e, f, g, h), strict=True):
            builder.store(builder.add(was, now), slot, align=4)
        return context.get_dummy_value()

    return types.void(state, data, places), codegen


@njit(nogil=True, cache=True)
def digests(data: np.ndarray, cuts: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The digests, uint8 [n, 32], of padded messages: number i is ``data[cuts[i] : cuts[i + 1]]``."""
    rows = len(cuts) - 1
    out = np.empty((rows, 32), np.uint8)
    state = np.zeros((8, LANES), np.uint32)
    row_of = np.full(LANES, -1, np.int64)  # what each lane works at
    places = np.zeros(LANES, np.int64)
    started = 0
    done = 0
    while True:
        for lane in range(LANES):
            row = row_of[lane]
            if row >= 0:
                places[lane] += BLOCK
                if places[lane] < cuts[row + 1]:
                    continue
                for n in range(8):
                    word = state[n, lane]
                    for k in range(4):
                        out[row, 4 * n + k] = (word >> np.uint32(24 - 8 * k)) & np.uint32(0xFF)
                done += 1
                row_of[lane] = -1
                places[lane] = 0
            if started < rows:
                row_of[lane] = started
                places[lane] = cuts[started]
                state[:, lane] = start
                started += 1
        if done == rows:
            return out
        _compress(state, data, places)
