"""Many bytes at once inside numba kernels: what Python's indexing has no word for and every processor an instruction.

Each function compiles to LLVM's own vector types, so it runs everywhere and takes one or two instructions where the
registers are wide enough. Nothing is checked: the caller answers for every byte that is read. Byte 0 is the lowest bit,
so little-endian machines alone get these kernels right; all that PyArrow has wheels for are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

WIDTH = 64  # bytes that a mask looks at
intrinsic: Any = _intrinsic  # a call has one argument less than the function that types it
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_VECTOR = ir.VectorType(_BYTE, WIDTH)


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _mask(compare: Callable[[Any, Any], Any]) -> Callable:
    """A typing function of an intrinsic that loads 64 bytes and returns one bit for each, as `compare` says."""

    def typing(typingctx: Any, data: Any, at: Any) -> tuple[Any, Callable]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.bitcast(_pointer(context, builder, signature, args), _VECTOR.as_pointer())
            bits = compare(builder, builder.load(pointer, align=1))
            return builder.bitcast(bits, _WORD)

        return types.uint64(data, types.intp), codegen

    return typing


def _all(byte: int) -> Any:
    return ir.Constant(_VECTOR, [byte] * WIDTH)


def _special(builder: Any, v: Any) -> Any:
    quote = builder.icmp_unsigned("==", v, _all(0x22))
    backslash = builder.icmp_unsigned("==", v, _all(0x5C))
    control = builder.icmp_unsigned("<", v, _all(0x20))
    return builder.or_(builder.or_(quote, backslash), control)


word_mask = intrinsic(_mask(lambda builder, v: builder.icmp_unsigned("!=", v, _all(0))))
word_mask.__doc__ = "The bytes that are not zero."
high_mask = intrinsic(_mask(lambda builder, v: builder.icmp_signed("<", v, _all(0))))
high_mask.__doc__ = "The bytes that are not ASCII."
special_mask = intrinsic(_mask(_special))
special_mask.__doc__ = "The bytes that a JSON string cannot hold as they are: quotation mark, backslash, controls."
line_mask = intrinsic(_mask(lambda builder, v: builder.icmp_unsigned("==", v, _all(0x0A))))
line_mask.__doc__ = "The line feeds."


def _low(builder: Any, v: Any) -> Any:
    return builder.or_(v, _all(0x20))


def _letters(builder: Any, v: Any) -> Any:
    return builder.icmp_unsigned("<", builder.sub(_low(builder, v), _all(ord("a"))), _all(26))


letter_mask = intrinsic(_mask(_letters))
letter_mask.__doc__ = "The letters of ASCII."


def _mask_of(compare: Callable[..., Any], sizes: int) -> Callable:
    """A typing function as `_mask` makes one, of an intrinsic with one or two bytes to compare with."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(_pointer(context, builder, signature, args), _VECTOR.as_pointer())
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        empty = ir.Constant(_VECTOR, ir.Undefined)
        given = []
        for arg in args[2:]:
            first = builder.insert_element(empty, builder.trunc(arg, _BYTE), ir.IntType(32)(0))
            given.append(builder.shuffle_vector(first, empty, lanes))
        return builder.bitcast(compare(builder, builder.load(pointer, align=1), *given), _WORD)

    if sizes == 1:
        return lambda typingctx, data, at, byte: (types.uint64(data, types.intp, types.intp), codegen)
    return lambda typingctx, data, at, first, count: (
        types.uint64(data, types.intp, types.intp, types.intp),
        codegen,
    )


byte_mask = intrinsic(_mask_of(lambda builder, v, byte: builder.icmp_unsigned("==", v, byte), 1))
byte_mask.__doc__ = "The bytes that are this one."
small_mask = intrinsic(_mask_of(lambda builder, v, byte: builder.icmp_unsigned("==", _low(builder, v), byte), 1))
small_mask.__doc__ = "The bytes that are this small letter or its capital."
range_mask = intrinsic(
    _mask_of(lambda builder, v, first, count: builder.icmp_unsigned("<", builder.sub(v, first), count), 2)
)
range_mask.__doc__ = "The bytes that are one of so many from the first on."


@intrinsic
def load64(typingctx: Any, data: Any, at: Any) -> tuple[Any, Callable]:
    """The eight bytes from ``data[at]`` on as a uint64, the first one lowest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(_pointer(context, builder, signature, args), _WORD.as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(data, types.intp), codegen


def _move(change: Callable[[Any, Any], Any]) -> Callable:
    """A typing function of an intrinsic that writes 64 bytes of one array, changed, into another."""

    def typing(typingctx: Any, source: Any, at: Any, target: Any, to: Any) -> tuple[Any, Callable]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            arrays = [context.make_array(signature.args[i])(context, builder, args[i]) for i in (0, 2)]
            read, write = (
                builder.bitcast(builder.gep(array.data, [place]), _VECTOR.as_pointer())
                for array, place in zip(arrays, (args[1], args[3]), strict=True)
            )
            builder.store(change(builder, builder.load(read, align=1)), write, align=1)
            return context.get_dummy_value()

        return types.void(source, types.intp, target, types.intp), codegen

    return typing


def _word_or_zero(builder: Any, v: Any) -> Any:
    lower, letter = _low(builder, v), _letters(builder, v)
    digit = builder.icmp_unsigned("<", builder.sub(v, _all(ord("0"))), _all(10))
    other = builder.or_(digit, builder.icmp_unsigned("==", v, _all(ord("_"))))
    return builder.select(letter, lower, builder.select(other, v, _all(0)))


copy64 = intrinsic(_move(lambda builder, v: v))
copy64.__doc__ = "Copy 64 bytes from ``source[at]`` to ``target[to]``."
word64 = intrinsic(_move(_word_or_zero))
word64.__doc__ = "Copy 64 bytes, ASCII letters in lower case, digits and underscores as they are, everything else as 0."


@intrinsic
def reverse64(typingctx: Any, word: Any) -> tuple[Any, Callable]:
    """A uint64 with its bytes in the opposite order."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.bswap(args[0])


@intrinsic
def lowest(typingctx: Any, mask: Any) -> tuple[Any, Callable]:
    """The number of the lowest bit that is set; 64 for none."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), codegen


@intrinsic
def count_bits(typingctx: Any, mask: Any) -> tuple[Any, Callable]:
    """How many bits are set."""
    return types.intp(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])
