"""Each criterion: a planted positive, a negative, a near miss; shares counted by hand."""

from __future__ import annotations

import random

import pytest
from planted import Run, slow_evidence, text, words

from lpt_data.contamination.index import build_index
from lpt_data.contamination.judge import find_stops, pairs_of
from lpt_data.contamination.stage import read
from lpt_data.progress import silent


def test_half_of_a_question_by_one_row_and_not_nine_twentieths(tmp_path):
    item = words(20)
    rows = [
        text(words(30), item[:10], words(30)),  # 10 of 20
        text(words(30), item[11:], words(30)),  # 9 of 20
        text(item[:7], words(3), item[7:14], words(3), item[14:]),  # 20 of 20, in pieces of 7: no 8-gram
        text(words(60)),
    ]
    run = Run(tmp_path, rows, {"b": [text(item)]})
    assert run.removed == {0: ("coverage", 0, 0.5)}
    assert run.detail(0)["row_spans"] == [[30, 40]]
    assert run.detail(0)["item_spans"] == [[0, 10]]
    decision = run.decisions[0]
    assert (decision["action"], decision["reason"]) == ("remove", "benchmark_overlap")
    assert decision["witness_id"] == run.benchmarks.items[0].record_id.hex()
    assert decision["witness_row"] is None
    assert [(w["row"], w["coverage"], w["longest"]) for w in run.extra["below_the_rule"]] == [(1, 0.45, 9.0)]


def test_pieces_add_up_within_one_row_and_never_over_rows(tmp_path):
    item = words(32)
    rows = [text(item[:8], words(5), item[20:28]), text(item[:8]), text(item[20:28])]
    assert Run(tmp_path, rows, {"b": [text(item)]}).removed == {0: ("coverage", 0, 0.5)}


def test_thirteen_words_in_one_piece_covering_three_tenths(tmp_path):
    item, long_item = words(43), words(44)
    rows = [
        text(words(9), item[5:18], words(9)),  # 13 of 43 = 0.302
        text(words(9), item[5:17], words(9)),  # 12 words
        text(words(9), long_item[5:18], words(9)),  # 13 of 44 = 0.295
        text(item[:8], words(4), item[20:28]),  # 16 of 43 = 0.37, but pieces of 8
    ]
    run = Run(tmp_path, rows, {"b": [text(item), text(long_item)]})
    assert run.removed == {0: ("longest_match", 0, pytest.approx(13 / 43))}
    assert run.detail(0)["longest"] == 13.0
    assert run.told()["any_13gram"] == {"items": 2, "rows": 2}  # the legacy number hits row 2 as well


def test_a_piece_that_repeats_in_a_row_counts_once(tmp_path):
    item = words(40)
    assert Run(tmp_path, [text(item[:8], words(2), item[:8], words(2), item[:8])], {"b": [text(item)]}).removed == {}


def test_short_questions_are_found_whole_and_by_word(tmp_path):
    rows = [
        "He asked: who wrote the LONG song, again?",
        "He asked who wrote the longest song",  # near miss: another last word
        "who wrote the long",  # near miss: cut off
        "bewho wrote the long song",  # near miss: inside a word
        "who wrote the\n\n  long-song",
    ]
    run = Run(tmp_path, rows, {"b": ["Who wrote the long song?"]})
    assert run.removed == {0: ("short_item", 0, 1.0), 4: ("short_item", 0, 1.0)}
    assert run.detail(0)["row_spans"] == [[2, 7]]


def test_a_question_of_two_words_is_found_only_where_it_is_all_there_is(tmp_path):
    run = Run(tmp_path, ["New York!", "I love New York", "new", "york new"], {"b": ["New York", "Los Angeles"]})
    assert run.removed == {0: ("short_item", 0, 1.0)}
    told = run.told()
    assert told["undetectable"] == {"too_short": 2}
    assert told["canaries"]["verbatim"]["found"] == 2
    assert told["canaries"]["embedded"]["found"] == 0
    assert any("is not checked against it" in note for note in run.extra["notes"])


def test_an_answer_alone_decides_only_when_it_is_long(tmp_path):
    long_answer, short_answer = words(50), words(49)
    items = [
        {"question": text(words(20)), "answer": text(long_answer)},
        {"question": text(words(20)), "answer": text(short_answer)},
    ]
    rows = [
        text(words(10), long_answer[:40]),  # 40 of 50
        text(words(10), long_answer[:39]),  # near miss
        text(words(10), short_answer),  # whole, but 49 words
    ]
    run = Run(tmp_path, rows, {"b": items})
    assert run.removed == {0: ("long_answer", 0, 0.8)}
    assert (run.detail(0)["question_coverage"], run.detail(0)["answer_coverage"]) == (0.0, 0.8)


def test_the_question_is_the_witness_even_where_an_answer_is_covered_more(tmp_path):
    question, other = words(20), words(60)
    items = [{"question": text(question), "answer": "1"}, {"question": text(words(20)), "answer": text(other)}]
    run = Run(tmp_path, [text(question[:12], other)], {"b": items})
    assert run.removed == {0: ("coverage", 0, 0.6)}
    assert run.told()["items_hit"] == 2


def test_fifty_characters_are_seen_where_eight_words_are_not(tmp_path):
    item = ["incomprehensibilities", "counterrevolutionary", "electroencephalogram"]  # 61 letters in 3 words
    question = text(words(4), item, words(4))
    rows = [question.replace(" ", "--").upper(), text(item), text(words(9))]
    run = Run(tmp_path, rows, {"b": [question]})
    assert set(run.removed) == {0}
    assert run.told()["any_50_characters"] == {"items": 1, "rows": 2}  # row 1 has three words, the middle 50 letters
    # The middle 50 characters of the question, without its words around them.
    packed = question.replace(" ", "")
    at = (len(packed) - 50) // 2
    near = Run(tmp_path, [packed[at : at + 50], packed[at : at + 49]], {"b": [question]})
    assert near.removed == {}
    assert near.told()["any_50_characters"] == {"items": 1, "rows": 1}


def test_code_laid_out_otherwise_is_the_same_code(tmp_path):
    code = "def area(width: int, height: int) -> int:\n    '''The area of a rectangle.'''\n    return width * height\n"
    other = 'def area(width:int,height:int)->int:\n\n\t"""The area\n\t   of a rectangle."""\n\n\treturn width*height'
    rows = [other, "def volume(a, b, c):\n    return a * b * c  # width times height times depth of a rectangle"]
    assert Run(tmp_path, rows, {"b": [{"prompt": code, "canonical_solution": "    pass"}]}).removed == {
        0: ("coverage", 0, 1.0)
    }


@pytest.mark.parametrize(
    ("item", "row"),
    [
        (
            "小明有五个苹果他又买了三个问他现在一共有多少个苹果",
            "题目：小明有五个苹果，他又买了三个。问：他现在一共有多少个苹果？答",
        ),
        (
            "คำสั่งนี้ใช้แสดงไฟล์ทั้งหมดในไดเรกทอรีปัจจุบันรวมถึงไฟล์ที่ซ่อนอยู่",
            "ก่อน คำสั่งนี้ใช้แสดงไฟล์ทั้งหมดในไดเรกทอรีปัจจุบันรวมถึงไฟล์ที่ซ่อนอยู่ หลัง",
        ),
        (
            "Σίσυφος ὁ μέγας ἔσπρωχνε τὸν βράχον ἕως τῆς ΚΟΡΥΦΗΣ ἀεί",
            "«σίσυφος ὁ ΜΈΓΑΣ ἔσπρωχνε τὸν βράχον ἕως τῆς κορυφης ἀεί»",
        ),
    ],
)
def test_other_scripts(tmp_path, item, row):
    run = Run(tmp_path, [row, row[:6]], {"b": [item]})
    assert set(run.removed) == {0}


def test_evidence_equals_the_slow_truth(tmp_path):
    """Random texts over few words, so that windows repeat and overlap in every way."""
    rng = random.Random(5)
    draw = lambda n: " ".join(rng.choice("ab") for _ in range(n))  # noqa: E731
    items = [draw(rng.randrange(8, 30)) for _ in range(8)]
    rows = [draw(rng.randrange(1, 60)) for _ in range(60)]
    run = Run(tmp_path, rows, {"b": items})
    index = build_index(run.benchmarks, 1.0)
    at, ids, finds = read(run.dataset, index, run.config, silent)
    stops = find_stops(finds, index, at >= 0, 1.0)
    assert not stops.gram.any()
    pairs = pairs_of(finds, index, stops)
    found = {
        (int(r), int(p) // 2): (float(c), int(n))
        for r, p, c, n in zip(pairs.row, pairs.part, pairs.coverage, pairs.longest, strict=True)
    }
    slow = {(r, i): slow_evidence(item, row) for r, row in enumerate(rows) for i, item in enumerate(items)}
    assert found == {pair: pytest.approx(truth) for pair, truth in slow.items() if truth[0]}
    assert len(found) > 50
