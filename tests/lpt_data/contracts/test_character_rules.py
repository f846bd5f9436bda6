from __future__ import annotations

import pytest

from lpt_data.contracts.common import control_character, is_blank, mojibake, nul_character, printable, strings


def text(value: str) -> list[str]:
    return ["beside", value]


@pytest.mark.parametrize("blank", ["", " ", "\t\r\n", "\u00a0\u3000", "\u200b\ufeff\u2060", None])
def test_blank_texts_show_nothing(blank):
    assert is_blank(blank)


@pytest.mark.parametrize("seen", ["0", ".", "\u200ba\u200b", "。"])
def test_texts_that_show_something_are_not_blank(seen):
    assert not is_blank(seen)


def test_nul_is_found_with_its_place():
    assert nul_character(text("ab\x00cd")) == "NUL at character 2: 'ab\\x00cd'"
    assert nul_character(text("a literal \\x00 and \\u0000")) is None


@pytest.mark.parametrize("bad", ["\x01", "\x07", "\x1b[31m", "\x7f", "\x85", "\x9f", "lost \ufffd here"])
def test_control_characters_and_lost_bytes_are_found(bad):
    assert control_character(text(f"a{bad}b"))


@pytest.mark.parametrize("fine", ["tab\there", "line\r\nend", "page\x0cbreak", "\u00a0", "ctrl-A", "?", "\u200d"])
def test_white_space_and_joiners_are_no_control_characters(fine):
    assert control_character(text(fine)) is None


@pytest.mark.parametrize("word", ["café", "naïve", "it’s", "“quoted”", "a – b", "Größe", "à", "…"])
def test_utf8_read_as_a_code_page_is_found(word):
    assert mojibake(text("so " + word.encode().decode("cp1252", "replace") + " it is"))


@pytest.mark.parametrize("fine", ["NÃO", "MAÇÃ.", "Âge", "château", "10 Å", "â€ alone", "Ã", "São Paulo", "€ 5"])
def test_real_accents_are_no_mojibake(fine):
    assert mojibake(text(fine)) is None


def test_every_string_of_a_record_is_looked_at():
    record = {"messages": [{"role": "user", "content": "a"}, {"tool_calls": [{"function": {"arguments": "b"}}]}]}
    assert strings(record) == ["user", "a", "b"]


def test_details_cannot_drive_a_terminal():
    assert printable("\x1b[2J\nnext") == "\\x1b[2J\\nnext"
    assert len(printable("x" * 1000)) == 240
