"""Lines and paragraphs: planted ones go from all documents but one, near misses and short ones stay, laws hold."""

import json
import random

import pytest
from boilerplate_cases import Ran, left_of, lines_of, paragraphs_of, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.boilerplate import decide
from lpt_data.boilerplate.units import forms, weight
from lpt_data.config import BoilerplateConfig
from lpt_data.dataset import Dataset
from lpt_data.progress import silent
from lpt_data.text import words

FOOT = "This site uses cookies to make your visit better."  # nine words
OTHER = "Subscribe to our letter and never miss a story."


def stories(count, *lines):
    return rows(
        *("\n".join([f"Story {n} is about the number {n * 7}.", *lines, f"The end of {n}."]) for n in range(count))
    )


def test_a_line_of_seven_documents_is_cut_from_six(tmp_path):
    ran = Ran(
        tmp_path,
        [
            *stories(6, FOOT),
            {"text": f"The longest of them all is this one, and it goes on for a while.\n{FOOT}", "n": 6},
        ],
    )
    assert ran.texts[:6] == [f"Story {n} is about the number {n * 7}.\nThe end of {n}." for n in range(6)]
    assert ran.texts[6].endswith(FOOT)
    assert [row["n"] for row in ran.rows] == list(range(7))
    assert ran.report["rewritten"] == {"repeated_line": 6}
    assert ran.report["characters_cut"] == {"repeated_line": 6 * len(FOOT)}
    assert ran.report["most_repeated"] == [
        {"text": FOOT, "documents": 7, "characters_cut": 6 * len(FOOT), "kept_row": 6}
    ]
    first = ran.decisions[0]
    assert (first["row"], first["action"], first["reason"], first["witness_row"]) == (0, "rewrite", "repeated_line", 6)
    assert first["score"] == pytest.approx(len(FOOT) / len("Story 0 is about the number 0.\n\nThe end of 0." + FOOT))
    assert first["detail"].endswith(f"; 1 line, {len(FOOT)} characters")


def test_six_documents_are_too_few_and_five_words_are_needed(tmp_path):
    ran = Ran(tmp_path, stories(6, FOOT))
    assert ran.decisions == []
    ran = Ran(tmp_path / "short", stories(9, "    return the_value  # why"))  # four words
    assert ran.decisions == []
    ran = Ran(tmp_path / "long", stories(9, "    return the_value  # and why not"))
    assert ran.report["rewritten"] == {"repeated_line": 8}


def test_a_line_repeated_inside_documents_counts_each_of_them_once(tmp_path):
    ran = Ran(tmp_path, stories(3, FOOT, FOOT, FOOT), least_documents=4)
    assert ran.decisions == []
    ran = Ran(tmp_path / "two", stories(3, FOOT, FOOT, FOOT), least_documents=3)
    assert sorted(text.count(FOOT) for text in ran.texts) == [0, 0, 3]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"a b c\r\n{FOOT}\r\nd", "a b c\r\nd"),
        (f"{FOOT}\r\n  d e", "  d e"),
        (f"a b\n{FOOT}\n", "a b\n"),
        (f"a b\n{FOOT}", "a b"),
        (f"a\n\n{FOOT}\nb", "a\n\nb"),
        (f"a\n{FOOT}\n\nb", "a\n\nb"),
        (f"if a:\n    b\n\t {FOOT} \n  c", "if a:\n    b\n  c"),
        (f"a  \n{FOOT}  \n  b", "a  \n  b"),
        (f"a\n\u3000{FOOT}\u00a0\nb", "a\nb"),
        (f"a\n{FOOT} More.\nb", f"a\n{FOOT} More.\nb"),
    ],
)
def test_what_is_left_around_a_line(tmp_path, before, after):
    keeper = {"text": f"{FOOT}\n" + "A document that is longer than the other one. " * 3}
    ran = Ran(tmp_path, [{"text": before}, keeper], least_documents=2)
    assert ran.texts == [after, keeper["text"]]


def test_several_witnesses_are_several_decisions_and_one_rewritten_row(tmp_path):
    long, longer = f"{FOOT}\n{'x ' * 60}", f"{OTHER}\n{'y ' * 80}"
    ran = Ran(tmp_path, rows(f"mine\n{FOOT}\n{OTHER}", long, longer), least_documents=2)
    assert ran.texts[0] == "mine"
    assert ran.report["rewritten"] == {"repeated_line": 1}
    assert {d["witness_row"] for d in ran.decisions} == {1, 2}


def test_a_document_of_nothing_else_is_removed_with_its_witness(tmp_path):
    ran = Ran(tmp_path, rows(f"{FOOT}\n{OTHER}", f"{FOOT}\n", f"{OTHER}\n{FOOT}\nand more"), least_documents=2)
    assert ran.texts == [f"{OTHER}\n{FOOT}\nand more"]
    assert ran.report["removed"] == {"repeated_line": 2}
    assert ran.report["rows_emptied"] == 2
    assert [(d["row"], d["action"], d["witness_row"], d["score"] > 0.9) for d in ran.decisions] == [
        (0, "remove", 2, True),
        (1, "remove", 2, True),
    ]


def test_drop_all_keeps_no_copy_and_names_no_witness(tmp_path):
    ran = Ran(tmp_path, stories(7, FOOT), drop_all=True)
    assert not any(FOOT in text for text in ran.texts)
    assert {d["witness_row"] for d in ran.decisions} == {None}
    assert ran.report["rewritten"] == {"repeated_line": 7}


def test_fold_compares_without_case_and_digits(tmp_path):
    pages = [{"text": f"Body {chr(97 + n)}.\nPage {n} Of The Whole Long Book"} for n in range(7)]
    assert Ran(tmp_path / "as-is", pages).decisions == []
    assert Ran(tmp_path / "folded", pages, fold=True).report["rewritten"] == {"repeated_line": 6}
    table = forms(True)
    assert [chr(table[ord(c)]) for c in "ÄΣ٣7\u00a0z"] == ["ä", "σ", "0", "0", " ", "z"]


def test_a_paragraph_may_be_wrapped_otherwise_and_only_whole_ones_go(tmp_path):
    wrapped = FOOT.replace(" to ", "\nto ") + "\n" + OTHER
    longest = f"{FOOT} {OTHER}\n\n" + "The keeper says much more than all others. " * 3
    ran = Ran(
        tmp_path,
        rows(f"a\n\n{wrapped}\n\nb", f"a\r\n\r\n{FOOT}\r\n{OTHER}\r\n\r\nc", f"d\n{FOOT} {OTHER}", longest),
        method="paragraphs",
        least_documents=3,
    )
    assert ran.texts == ["a\n\nb", "a\r\n\r\nc", f"d\n{FOOT} {OTHER}", longest]
    assert ran.report["rewritten"] == {"repeated_paragraph": 2}


def test_words_of_unspaced_scripts_are_weighed(tmp_path):
    assert weight("one two") == 8
    assert weight("您好") == 8
    assert weight("สวัสดี") == 6  # six letters and marks, a quarter each: one word and a half
    assert weight("ΟΔΟΣ ΣΑΣ") == 4 * len(words("ΟΔΟΣ ΣΑΣ"))
    thai = stories(8, "สวัสดีครับ")
    assert Ran(tmp_path / "thai", thai).decisions == []
    assert Ran(tmp_path / "chinese", stories(8, "本网站使用缓存")).report["rewritten"] == {"repeated_line": 7}


def test_a_million_copies_of_one_line(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "in.jsonl").write_text(f'{{"text": "{FOOT}"}}\n' * 1_000_000)
    result = decide(Dataset.open([str(folder / "in.jsonl")]), BoilerplateConfig(), silent)
    assert result.decisions.num_rows == 999_999
    assert result.decisions["action"].unique().to_pylist() == ["remove"]
    assert result.extra["most_repeated"][0]["documents"] == 1_000_000


LINE = st.sampled_from(["a b", "a  b", "c d e", "", "  ", "\t", "x y z", "\u00a0", "A B", "q"])
TEXT = st.lists(LINE, min_size=1, max_size=7).map("\n".join).filter(str.strip)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=7), least=st.integers(2, 4), paragraphs=st.booleans())
def test_laws_against_the_plain_definition(tmp_path_factory, texts, least, paragraphs):
    folder = tmp_path_factory.mktemp("laws", numbered=True)
    split = paragraphs_of if paragraphs else lines_of
    config = BoilerplateConfig("paragraphs" if paragraphs else "lines", least_documents=least, least_words=0)
    ran = left_of(folder, rows(*texts), config)
    held = {form: sum(form in split(text) for text in texts) for text in texts for form in split(text)}
    left = [split(row["text"]) for row in ran]
    for form, documents in held.items():  # one document keeps what is frequent, all keep what is not
        assert sum(form in forms for forms in left) == (1 if documents >= least else documents)
    by_row = {row["n"]: split(row["text"]) for row in ran}
    for number, text in enumerate(texts):  # nothing is put in, and the order stays
        rest = iter(split(text))
        assert all(form in rest for form in by_row.get(number, []))
    assert left_of(folder, ran, config) == ran
    turned = left_of(folder, rows(*texts)[::-1], config)
    assert sorted(map(str, turned)) == sorted(map(str, ran))


def test_neither_the_order_of_rows_nor_the_files_matter(tmp_path):
    chosen = random.Random(3)
    pool = [f"A line of some words with the number {n}." for n in range(12)]
    every = rows(*("\n".join(chosen.choices(pool, k=6)) for _ in range(80)))
    ran = Ran(tmp_path / "a", every)
    assert ran.report["removed"]["repeated_line"] > 10
    assert ran.report["rewritten"]["repeated_line"] > 3
    mixed = chosen.sample(every, len(every))
    other = Ran(tmp_path / "b", mixed[:30], mixed[30:31], mixed[31:])
    assert other.told() == ran.told()
    assert other.report["content_root"] == ran.report["content_root"]
    assert sorted(map(str, other.rows)) == sorted(map(str, ran.rows))
    again = Ran(tmp_path / "c", ran.rows)
    assert again.decisions == []
    assert again.rows == ran.rows


def test_twins_that_differ_beside_the_text_are_told_apart_by_what_they_say(tmp_path):
    twins = [{"text": FOOT, "source": name} for name in ("b", "c", "a")]
    kept = {
        json.dumps(Ran(tmp_path / str(n), order, least_documents=2).rows)
        for n, order in enumerate([twins, twins[::-1], [twins[1], twins[0], twins[2]]])
    }
    assert len(kept) == 1
