"""Two texts side by side: what differs is marked, nothing else is, and no pair of texts takes long or fills a page."""

import random

from hypothesis import given
from hypothesis import strategies as st

from lpt_data.report.compare import SHOWN, alone, compare


def kinds(pieces):
    return {kind for _, kind in pieces}


def text_of(pieces):
    return "".join(part for part, kind in pieces if kind != "gap")


def test_words_that_differ_are_marked_and_no_others():
    left, right = compare("the old house by the sea", "the new house by the lake")
    assert left == (("the ", "plain"), ("old", "differs"), (" house by the ", "plain"), ("sea", "differs"))
    assert right == (("the ", "plain"), ("new", "differs"), (" house by the ", "plain"), ("lake", "differs"))


def test_a_phrase_is_one_mark():
    left, right = compare("a b c d z", "a B C D z")
    assert left == (("a ", "plain"), ("b c d", "differs"), (" z", "plain"))
    assert right == (("a ", "plain"), ("B C D", "differs"), (" z", "plain"))


def test_equal_texts_have_no_mark_and_an_addition_is_on_one_side():
    assert compare("same", "same") == ((("same", "plain"),), (("same", "plain"),))
    left, right = compare("one two", "one two three")
    assert left == (("one two", "plain"),)
    assert right == (("one two", "plain"), (" three", "differs"))


def test_scripts_without_spaces_differ_by_character():
    left, _ = compare("東京都に住む", "京都府に住む")
    assert kinds(left) == {"plain", "differs"}
    assert ("に住む", "plain") in left


@given(st.text(max_size=120), st.text(max_size=120))
def test_short_texts_are_whole(a, b):
    left, right = compare(a, b)
    assert (text_of(left), text_of(right)) == (a, b)
    assert "".join(p for p, k in left if k == "plain").split() == "".join(p for p, k in right if k == "plain").split()


def test_long_stretches_in_common_become_a_remark():
    same = "word " * 500
    left, _ = compare(f"{same}left {same}", f"{same}right {same}")
    assert ("left", "differs") in left
    assert [part for part, kind in left if kind == "gap"] == [
        "… 2,340 characters in common …",  # 500 times five characters without the 160 beside the difference
        "… 2,341 characters in common …",  # and the space before them
    ]
    assert len(text_of(left)) < 500


def test_two_long_texts_are_bounded_and_say_so():
    rng = random.Random(1)
    for words in ("ab", [str(n) for n in range(900)], ["x" * 5000]):
        a, b = (" ".join(rng.choice(words) for _ in range(20_000)) for _ in "ab")
        for side in compare(f"1 {a}", f"2 {b}"):
            assert len(text_of(side)) <= SHOWN
            assert "gap" in kinds(side)


def test_words_beyond_the_last_one_in_common_are_not_called_different():
    """Where the alignment stops, a longer side would look as if it had more."""
    tail = " ".join(f"w{n}" for n in range(3000))
    left, right = compare(f"x {tail} end", f"x y y {tail} fin")
    assert [part for part, kind in left if kind == "differs"] == []
    assert [part.split() for part, kind in right if kind == "differs"] == [["y", "y"]]


def test_alone_says_how_much_is_left():
    assert alone("abc") == (("abc", "plain"),)
    assert alone("x" * 700) == (("x" * 600, "plain"), ("… 100 more characters …", "gap"))
