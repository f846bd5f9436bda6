"""Which rules can find anything in a text: one fast pass over its bytes that spares most texts most rules.

A mark may say too much, never too little: a test holds each rule against its marks. Windows of 64 bytes are compared at
once, and bits say where something could begin or end; such a byte is looked at with its neighbours.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lpt_data.wide import WIDTH, byte_mask, lowest, range_mask, small_mask

UNCOMPOSED, CONTROL, ANGLE, AMPERSAND, AT, UNTIDY, IPV4, IPV6, PHONE, CARD, IBAN = (1 << n for n in range(11))
MOJIBAKE, SECRET, NOTICE, LOREM = (1 << n for n in range(11, 15))

BEFORE, STEP = 3, 48  # bytes of a window: before those it is about, and those; the others are what they may need behind
_1, _2, _3, _4, _8, _9 = (np.uint64(n) for n in (1, 2, 3, 4, 8, 9))

_PLAIN, _FEED, _CONTROL, _DIGIT, _WIDE, _SIGN, _CAPITAL, _SMALL = range(8)


def _kinds() -> np.ndarray:
    kinds = np.zeros(256, np.uint8)
    kinds[:32] = _CONTROL
    kinds[[9, 12]] = _PLAIN  # tab and form feed are white space
    kinds[10] = _FEED
    kinds[127] = _CONTROL
    kinds[48:58] = _DIGIT
    kinds[128:] = _WIDE
    kinds[[ord(c) for c in "@&<+:_-/"]] = _SIGN
    kinds[[ord(c) for c in "AJKMV"]] = _CAPITAL
    kinds[[ord(c) for c in "kmv"]] = _SMALL
    return kinds


_KINDS = _kinds()
_COOKIE, _JAVASCRIPT, _PRIVACY, _TERMS, _RIGHTS, _LOREM = (
    np.frombuffer(word, np.uint8)
    for word in (b"cookie", b"javascript", b"privacy policy", b"terms of use", b"all rights reserved", b"lorem ipsum")
)


@njit(nogil=True, cache=True)
def _at(data: np.ndarray, i: int) -> int:
    """The byte at i, 0 outside."""
    return int(data[i]) if 0 <= i < len(data) else 0


@njit(nogil=True, cache=True)
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@njit(nogil=True, cache=True)
def _is_upper(byte: int) -> bool:
    return 65 <= byte <= 90


@njit(nogil=True, cache=True)
def _is_hex(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 70 or 97 <= byte <= 102


@njit(nogil=True, cache=True)
def _is_word(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95


@njit(nogil=True, cache=True)
def _low(byte: int) -> int:
    return byte | 32 if 65 <= byte <= 90 else byte


@njit(nogil=True, cache=True)
def _hidden(data: np.ndarray, i: int) -> bool:
    """Whether a character that nobody sees starts at byte i, which is not ASCII: C1, soft hyphen, zero width, bidi."""
    lead, second, third = data[i], _at(data, i + 1), _at(data, i + 2)
    if lead == 0xC2:
        return 0x80 <= second <= 0x9F or second == 0xAD
    if lead == 0xE2:
        return (second == 0x80 and third in (0x8B, 0xAD, 0xAE)) or (second == 0x81 and third == 0xA0)
    return lead == 0xEF and second == 0xBB and third == 0xBF


@njit(nogil=True, cache=True)
def _suspect(data: np.ndarray, i: int) -> bool:
    """Whether the character whose first byte is at i is of a kind that decoding with a wrong code page makes."""
    lead = _at(data, i)
    return 0xC2 <= lead <= 0xD2 or lead == 0xE2 or (lead == 0xEF and _at(data, i + 1) in (0xA3, 0xAC, 0xBF))


@njit(nogil=True, cache=True)
def _uncomposed(data: np.ndarray, i: int) -> bool:
    """Whether NFC may change the character at i or join it to the one before; a test asks Unicode's tables."""
    lead, second, third = data[i], _at(data, i + 1), _at(data, i + 2)
    if lead < 0xCC or 0xCF <= lead <= 0xD1 or 0xE4 <= lead <= 0xE9:  # Latin, Cyrillic, Han
        return False
    if lead == 0xE2:
        return third < 0x82 if second == 0x80 else second in (0x83, 0x84, 0x8C, 0xAB, 0xB3, 0xB5, 0xB7)
    if lead == 0xE3:
        return (second == 0x80 and third >= 0xAA) or (second == 0x82 and 0x99 <= third <= 0x9A)
    if lead == 0xEF:
        return second <= 0xAD or second == 0xB8
    return lead != 0xF0 or second != 0x9F


@njit(nogil=True, cache=True)
def _wide(data: np.ndarray, i: int) -> int:
    """Marks of the byte i, which is not ASCII."""
    lead = data[i]
    if lead < 0xC0:
        return 0
    found = UNCOMPOSED if _uncomposed(data, i) else 0
    if lead == 0xE2 and _at(data, i + 1) == 0x84 and _at(data, i + 2) == 0xAA:  # the Kelvin sign, in lower case a k
        found |= NOTICE
    if lead == 0xC2 or lead == 0xE2 or lead == 0xEF:
        if _hidden(data, i):
            found |= CONTROL
        if lead == 0xC2 and _at(data, i + 1) <= 0x9F:
            return found | MOJIBAKE
    second = _at(data, i + 1)
    if (lead == 0xC3 and (second == 0x82 or second == 0x83)) or (lead == 0xC5 and (second == 0x92 or second == 0x93)):
        return found | MOJIBAKE
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return found | MOJIBAKE if _suspect(data, i) and _suspect(data, i + size) else found


@njit(nogil=True, cache=True)
def _feed(data: np.ndarray, i: int) -> int:
    """Marks of a line feed at i."""
    before = _at(data, i - 1)
    if before == 32 or before == 9 or i == 0:
        return UNTIDY
    many = before == 10 and (i == len(data) - 1 or (_at(data, i - 2) == 10 and _at(data, i - 3) == 10))
    return UNTIDY if many else 0


@njit(nogil=True, cache=True)
def _number(data: np.ndarray, i: int) -> int:
    """Marks of a run of digits that starts at i."""
    end = i + 1
    while _is_digit(_at(data, end)):
        end += 1
    found, size = 0, end - i
    after, before = _at(data, end), _at(data, i - 1)
    if size >= 3 and (after == 45 or after == 46):
        four = True
        for k in range(1, 5):
            four = four and _is_digit(_at(data, end + k))
        if four:
            found |= PHONE
    if after == 46 and size <= 3 and before != 46 and not _is_word(before):
        groups, at = 1, end
        while groups < 4 and _at(data, at) == 46 and _is_digit(_at(data, at + 1)):
            groups += 1
            at += 2
            while _is_digit(_at(data, at)):
                at += 1
        if groups == 4:
            found |= IPV4
    if 50 <= data[i] <= 54 and not _is_word(before) and before != 46 and before != 45 and _card(data, i):
        found |= CARD
    country = size >= 2 and _is_upper(before) and _is_upper(_at(data, i - 2)) and not _is_word(_at(data, i - 3))
    return found | IBAN if country and _iban(data, i + 2) else found


@njit(nogil=True, cache=True)
def _card(data: np.ndarray, i: int) -> bool:
    """Whether 13 digits with at most a blank or hyphen between two start at i."""
    count = 0
    while count < 13:
        if _is_digit(_at(data, i)):
            count += 1
        elif (data[i - 1] == 32 or data[i - 1] == 45) or (_at(data, i) != 32 and _at(data, i) != 45):
            return False
        i += 1
    return True


@njit(nogil=True, cache=True)
def _iban(data: np.ndarray, i: int) -> bool:
    """Whether 11 capitals and digits with at most a blank between two follow from i."""
    count = 0
    while count < 11:
        byte = _at(data, i)
        if _is_digit(byte) or _is_upper(byte):
            count += 1
        elif byte != 32 or data[i - 1] == 32:
            return False
        i += 1
    return True


@njit(nogil=True, cache=True)
def _plus(data: np.ndarray, i: int) -> int:
    """Marks of a plus sign at i."""
    before = _at(data, i - 1)
    if _is_word(before) or before in (43, 45, 46) or not _is_digit(_at(data, i + 1)):
        return 0
    for k in range(2, 8):
        byte = _at(data, i + k)
        if not (_is_digit(byte) or byte in (32, 40, 41, 45, 46) or byte >= 128):
            return 0
    return PHONE


@njit(nogil=True, cache=True)
def _sign(data: np.ndarray, i: int) -> int:
    """Marks of one of "@&<+:_-/" at i."""
    byte, one, two, three = data[i], _at(data, i - 1), _at(data, i - 2), _at(data, i - 3)
    if byte == 64:
        return AT
    if byte == 38:
        return AMPERSAND
    if byte == 60:
        after = _at(data, i + 1)
        return ANGLE if 97 <= _low(after) <= 122 or after in (33, 47) or after >= 128 else 0
    if byte == 43:
        return _plus(data, i)
    if byte == 58:
        group = _is_hex(one) and _is_hex(two) and _is_hex(three) and _at(data, i - 4) in (50, 51)
        after, later = _at(data, i + 1), _at(data, i + 2)
        return IPV6 if group and (_is_hex(after) or after == 58) and (_is_hex(later) or later == 58) else 0
    if byte == 47:  # hooks.slack.com/services/T
        return SECRET if one == 115 and two == 101 and _at(data, i + 1) == 84 else 0
    four = _at(data, i - 4)
    if byte == 95:  # gh?_, hf_, npm_, _pat_, _live_
        if (two == 104 and three == 103) or (one == 109 and two == 112 and three == 110):
            return 0 if _is_word(four) or four == 45 else SECRET
        if one == 102 and two == 104:
            return 0 if _is_word(three) or three == 45 else SECRET
        return SECRET if (one == 116 and two == 97 and four == 95) or (one == 101 and two == 118 and four == 108) else 0
    if one == 107 and two == 115:  # sk-
        return 0 if _is_word(three) or three == 45 else SECRET
    return SECRET if (two == 120 and three == 111) or (one == 116 and two == 97 and four == 108) else 0  # xox?-, glpat-


@njit(nogil=True, cache=True)
def _spelt(data: np.ndarray, i: int, word: np.ndarray) -> bool:
    """Whether a word stands at i, in letters of either case."""
    if i < 0 or i + len(word) > len(data):
        return False
    same = 0
    while same < len(word) and _low(data[i + same]) == word[same]:
        same += 1
    return same == len(word)


@njit(nogil=True, cache=True)
def _letter(data: np.ndarray, i: int) -> int:
    """Marks of one of "kmv", of either case, at i."""
    byte, one, two = _low(data[i]), _low(_at(data, i - 1)), _low(_at(data, i - 2))
    found = False
    if byte == 107:
        found = one == 111 and two == 111 and _spelt(data, i - 3, _COOKIE)
    elif byte == 118:
        if one == 97 and two == 106:
            found = _spelt(data, i - 2, _JAVASCRIPT)
        elif one == 105 and two == 114:
            found = _spelt(data, i - 3, _PRIVACY)
        elif one == 114 and two == 101:
            found = _spelt(data, i - 16, _RIGHTS)
    elif byte == 109:
        if one == 101 and two == 114 and _spelt(data, i - 4, _LOREM):
            return LOREM
        found = one == 114 and two == 101 and _spelt(data, i - 3, _TERMS)
    return NOTICE if found else 0


@njit(nogil=True, cache=True)
def _capital(data: np.ndarray, i: int) -> int:
    """Marks of one of "AJK" at i: AKIA, ASIA, AIza, eyJ, PRIVATE KEY."""
    byte, before, after, later = data[i], _at(data, i - 1), _at(data, i + 1), _at(data, i + 2)
    if byte == 65:
        key = (after == 75 or after == 83) and later == 73 and _at(data, i + 3) == 65
        known = (key or (after == 73 and later == 122)) and not _is_word(before)
    elif byte == 74:
        known = before == 121 and _at(data, i - 2) == 101 and not _is_word(_at(data, i - 3))
    else:
        known = byte == 75 and after == 69 and before == 32 and _at(data, i - 2) == 69
    return SECRET if known else 0


@njit(nogil=True, cache=True)
def _byte(data: np.ndarray, i: int, kinds: np.ndarray) -> int:
    """Marks of the byte at i."""
    kind = kinds[data[i]]
    if kind == _PLAIN:
        return 0
    if kind == _SMALL:
        return _letter(data, i)
    if kind == _DIGIT:
        return _number(data, i) if i == 0 or not _is_digit(data[i - 1]) else 0
    if kind == _FEED:
        return _feed(data, i)
    if kind == _SIGN:
        return _sign(data, i)
    if kind == _WIDE:
        return _wide(data, i)
    if kind == _CAPITAL:
        return _capital(data, i) | _letter(data, i)
    return UNTIDY if data[i] == 13 else CONTROL


@njit(nogil=True, cache=True)
def _words_begun(data: np.ndarray, at: int) -> np.uint64:
    """Letters in a window that may be the "kmv" of a notice, or the "AJK" of a secret."""
    e, r = small_mask(data, at, 101), small_mask(data, at, 114)
    re, er = (r << _2) & (e << _1), (e << _2) & (r << _1)
    o, ri = small_mask(data, at, 111), (r << _2) & (small_mask(data, at, 105) << _1)
    ja = (small_mask(data, at, 106) << _2) & (small_mask(data, at, 97) << _1)
    found = small_mask(data, at, 107) & (o << _1) & (o << _2)
    found |= (small_mask(data, at, 118) & (ja | ri | er)) | (small_mask(data, at, 109) & (re | er))
    k, i = byte_mask(data, at, 75), byte_mask(data, at, 73)
    found |= byte_mask(data, at, 65) & ((i >> _1) | (((k | byte_mask(data, at, 83)) >> _1) & (i >> _2)))
    found |= byte_mask(data, at, 74) & (byte_mask(data, at, 121) << _1)
    return found | (k & (byte_mask(data, at, 69) >> _1) & (byte_mask(data, at, 32) << _1))


@njit(nogil=True, cache=True)
def _signs_and_odd(data: np.ndarray, at: int, digits: np.uint64, hyphens: np.uint64) -> np.uint64:
    """Bytes in a window that are signs, feeds or controls and may have a mark, or begin characters beyond ASCII."""
    feeds, tabs = byte_mask(data, at, 10), byte_mask(data, at, 9)
    found = feeds & ((byte_mask(data, at, 32) | tabs) << _1 | ((feeds << _1) & (feeds << _2) & (feeds << _3)))
    found |= (range_mask(data, at, 0, 32) & ~(feeds | tabs | byte_mask(data, at, 12))) | byte_mask(data, at, 127)
    found |= range_mask(data, at, 0xC0, 64) | byte_mask(data, at, 64) | byte_mask(data, at, 38)
    found |= byte_mask(data, at, 60) | (byte_mask(data, at, 43) & (digits >> _1))
    hexadecimal = digits | range_mask(data, at, 65, 6) | range_mask(data, at, 97, 6)
    found |= byte_mask(data, at, 58) & (hexadecimal << _1)
    h, s = byte_mask(data, at, 104), byte_mask(data, at, 115)
    found |= byte_mask(data, at, 47) & (s << _1)
    pat = (byte_mask(data, at, 97) << _2) & (byte_mask(data, at, 116) << _1)
    behind = (h << _2) | pat | ((byte_mask(data, at, 112) << _2) & (byte_mask(data, at, 109) << _1))
    behind |= (byte_mask(data, at, 118) << _2) & (byte_mask(data, at, 101) << _1)
    found |= byte_mask(data, at, 95) & behind
    keys = (s << _2) & (byte_mask(data, at, 107) << _1)
    return found | (hyphens & (keys | pat | (byte_mask(data, at, 120) << _2)))


@njit(nogil=True, cache=True)
def _numbers_begun(data: np.ndarray, at: int, digits: np.uint64, hyphens: np.uint64) -> np.uint64:
    """Digits in a window that begin a number which may be of a card or an account."""
    first = digits & ~(digits << _1)
    near = digits | hyphens | byte_mask(data, at, 32)
    near &= near >> _1
    near &= near >> _2
    card = range_mask(data, at, 50, 5) & near & (near >> _4) & (near >> _8) & (near >> _9)
    capitals = range_mask(data, at, 65, 26)
    return first & (card | ((digits >> _1) & (capitals << _1) & (capitals << _2)))


@njit(nogil=True, cache=True)
def _window(data: np.ndarray, i: int, kinds: np.ndarray) -> int:
    """Marks of the STEP bytes from i on, which have BEFORE others before them and the rest of 64 behind."""
    at = i - BEFORE
    inside = np.uint64(((1 << STEP) - 1) << BEFORE)
    digits, hyphens = range_mask(data, at, 48, 10), byte_mask(data, at, 45)
    seen = (
        _words_begun(data, at) | _signs_and_odd(data, at, digits, hyphens) | _numbers_begun(data, at, digits, hyphens)
    )
    seen &= inside
    found = 0
    while seen:
        found |= _byte(data, at + lowest(seen), kinds)
        seen &= seen - _1
    # What joins the digits of a telephone number or an address stands between two of them; the number begins before.
    joints = (hyphens | byte_mask(data, at, 46)) & (digits << _1) & (digits >> _1) & inside
    while joints:
        start = at + lowest(joints) - 1
        while start > 0 and _is_digit(data[start - 1]):
            start -= 1
        found |= _number(data, start)
        joints &= joints - _1
    return found


@njit(nogil=True, cache=True)
def _marks(data: np.ndarray, kinds: np.ndarray, wide: bool) -> int:
    """Marks of a text; without `wide`, byte by byte alone, which says the same."""
    found = 0
    size = len(data)
    if size and (data[size - 1] == 32 or data[size - 1] == 9):
        found |= UNTIDY
    i = 0
    if wide and size >= WIDTH:
        for i in range(BEFORE):
            found |= _byte(data, i, kinds)
        i = BEFORE
        while i - BEFORE + WIDTH <= size:
            found |= _window(data, i, kinds)
            i += STEP
        while i > 0 and _is_digit(data[i - 1]):  # what joins it to others may be behind the windows
            i -= 1
    for rest in range(i, size):
        found |= _byte(data, rest, kinds)
    return found


def marks(data: np.ndarray) -> int:
    """Tell what a text may hold: an OR of the bits above, of its UTF-8 bytes."""
    return int(_marks(data, _KINDS, True))
