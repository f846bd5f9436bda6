from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest
from planted import Run, text, words

from lpt_data.contamination.canaries import KINDS, wilson
from lpt_data.contamination.plain import plain, plain_text


def test_recall_is_exact_for_each_kind(tmp_path):
    items = [text(words(20)) for _ in range(10)] + ["who wrote the song", "New York", "Rome", "?!"]
    run = Run(tmp_path, [text(words(20))], {"b": items})
    told = run.told()
    found = {kind: (one["planted"], one["found"]) for kind, one in told["canaries"].items()}
    # 13 questions have words; the two tiny ones are found where they are all there is, and not inside a long row.
    assert found == {
        "verbatim": (13, 13), "rewrapped": (13, 13), "recased": (13, 13), "punctuation": (13, 13), "embedded": (13, 11),
    }  # fmt: skip
    assert told["undetectable"] == {"too_short": 2, "empty_question": 1}
    assert [(u["item"], u["reason"]) for u in told["undetectable_items"]] == [
        (11, "too_short"), (12, "too_short"), (13, "empty_question"),
    ]  # fmt: skip
    assert run.removed == {}


def test_recall_falls_where_the_thresholds_ask_for_the_impossible(tmp_path):
    """The canaries go through the judgement of the run, so a rule that finds nothing says so."""
    template = words(30)
    items = [text(template, [f"x{i}"]) for i in range(20)]  # all windows of the template are stops; one differs
    run = Run(tmp_path, [text(words(9))], {"b": items})
    assert run.told()["canaries"]["verbatim"]["found"] == 20
    same = Run(tmp_path, [text(words(9))], {"b": [text(template)] * 20})
    assert same.told()["canaries"]["verbatim"]["found"] == 0
    assert same.told()["undetectable"] == {"only_stop_ngrams": 20}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "verbatim"])
def test_each_kind_changes_the_text(kind):
    given = 'The "café" costs $12 - or less...\nHow much, then, are 3 of them?'
    assert KINDS[kind](given) != given


def test_plain_form_undoes_what_unicode_adds():
    assert plain_text("ﬁve ｅｇｇｓ１２ cafe\u0301 so\u00adft a\u200bb") == "five eggs12 café soft a b"
    assert plain_text("ASCII stays\r\n\tAS it is") == "ASCII stays\r\n\tAS it is"


def test_wilson_by_hand():
    # p = 0.8, n = 10, z = 1.96: (0.8 + 0.19207 ± 1.96 * sqrt(0.016 + 0.009604)) / 1.38415
    assert wilson(8, 10) == (pytest.approx(0.490162, abs=1e-5), pytest.approx(0.943318, abs=1e-5))
    assert wilson(10, 10) == (pytest.approx(0.722467, abs=1e-5), 1.0)
    assert wilson(0, 10) == (0.0, pytest.approx(0.277533, abs=1e-5))
    assert wilson(0, 0) == (0.0, 1.0)


def test_plain_is_what_unicodedata_says():
    """Every character between two letters, joined with what may combine: the kernel passes over none that changes."""
    every = [c for c in map(chr, range(0x30000)) if unicodedata.category(c) not in ("Cs", "Cn")]
    texts = ["".join(f"a{c}e" for c in every[i : i + 8]) for i in range(0, len(every), 8)]
    found = plain(pa.array(texts, pa.large_string())).to_pylist()
    for given, now in zip(texts, found, strict=True):
        normal = unicodedata.normalize("NFKC", given.replace("\u200b", " "))
        stays = "".join(c for c in normal if unicodedata.category(c) != "Cf")
        assert now == (stays.lower() if "\u03a3" in stays else stays), [hex(ord(c)) for c in given]
