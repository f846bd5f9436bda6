"""Text is text: whatever a row holds, it becomes no element, no attribute and nothing that cannot be seen."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpt_data.report.markdown import block, code, said, table
from manifests.html import Html, code_points, el, one_line, text


class Read(HTMLParser):
    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.said += data


def test_a_string_is_text_and_an_element_is_markup():
    assert el("p", "<b>&", el("b", 1)) == "<p>&lt;b&gt;&amp;<b>1</b></p>"
    assert el("rect", x=1, class_="kept") == '<rect x="1" class="kept"/>'
    assert el("p", None, ["a", ["b"]], hidden=True, id=None, title=False) == "<p hidden>ab</p>"


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=60))
def test_any_text_stays_text(given):
    read = Read(el("p", given, title=given))
    assert [tag for tag in read.tags if tag != "span"] == ["p"]
    assert read.said == code_points(given)
    assert dict(read.attributes)["title"] == code_points(given)
    read.said.encode("utf-8")  # no lone surrogate is left


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\0", "U+0000"),
        ("\x1b[31m", "U+001B[31m"),
        ("\u202e", "U+202E"),
        ("\u200b", "U+200B"),
        ("\u2028", "U+2028"),
        ("\ud800", "U+D800"),
        ("\U000e0041", "U+E0041"),
        ("\r", "U+000D"),
    ],
)
def test_what_cannot_be_seen_has_a_name(hidden, shown):
    assert code_points(f"a{hidden}b") == f"a{shown}b"
    assert '<span class="code-point">U+' in text(hidden)


@pytest.mark.parametrize("plain", ["é ü ß", "日本語、", "שלום", "한국어", "a\tb\nc", "a\u00a0b", "e\u0301", "😀"])
def test_letters_of_any_script_are_themselves(plain):
    assert text(plain) == plain


def test_a_command_is_one_line_whatever_it_holds():
    shown = one_line("lpt report a\nrm -rf b")
    assert "\n" not in shown
    assert Read(shown).said == "lpt report aU+000Arm -rf b"


@pytest.mark.parametrize(
    "attributes",
    [
        {"onclick": "x"},
        {"src": "x"},
        {"style": "x"},
        {"srcdoc": "x"},
        {"formaction": "x"},
        {"href": "https://a"},
        {"href": "javascript:x"},
        {"xlink_href": "#a"},
    ],
)
def test_no_element_can_run_load_or_lead_away(attributes):
    with pytest.raises(ValueError, match="report"):
        el("a", **attributes)


def test_names_of_elements_are_no_data():
    with pytest.raises(ValueError, match="name of HTML"):
        el("p><script")
    assert isinstance(el("a", "x", href="#b"), Html)


def test_markdown_that_rows_cannot_leave():
    assert said("[a](http://b) <i> *c* | d\n# e") == "\\[a\\]\\(http://b\\) \\<i\\> \\*c\\* \\| d \\# e"
    assert code("a`b``c") == "```a`b``c```"
    assert code("`a`") == "`` `a` ``"
    assert block("x\n````\ny")[0] == "`````"
    assert table(["a", "n:"], [["`x|y`", "1"]])[:3] == ["| a | n |", "|---|---:|", "| `x\\|y` | 1 |"]


def test_a_remark_is_no_part_of_a_command_and_a_command_in_it_is_one():
    from lpt_data.report.parts import command

    assert Read(command("lpt a --b")).said == "lpt a --bCopy"
    assert Read(command("lpt a  # estimated: 3 %")).said == "lpt aCopyestimated: 3 %"
    assert Read(command("lpt a  # to take them out: lpt b")).said == "lpt aCopyto take them out:lpt bCopy"
    assert Read(command("lpt a '# no remark'")).said == "lpt a '# no remark'Copy"
