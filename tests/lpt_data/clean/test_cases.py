"""Every rule against its golden cases: one file, one case; a positive, a negative and a near miss for each rule.

A file is named RULE__KIND.txt: the input, `--- output`, the text that stays (nothing where the row is dropped),
`--- reason`, the reason (`kept` where the rule has nothing to say). `\\uXXXX` is that character; `[[text *N]]` is the
text N times over.
"""

import re
from pathlib import Path

import pytest

from lpt_data.clean import RULES, clean_text, make_plan
from lpt_data.config import CleanConfig

FOLDER = Path(__file__).parent.parent / "cases" / "clean"
CASES = sorted(FOLDER.glob("*.txt"))
KINDS = {"positive", "negative", "near_miss"}


def plain(text):
    text = re.sub(r"\[\[(.*?) ?\*(\d+)\]\]", lambda m: m[1] * int(m[2]), text, flags=re.DOTALL)
    return re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), text)


def read(path):
    given, rest = path.read_text("utf-8").split("\n--- output\n", 1)
    expected, reason = ("\n" + rest).split("\n--- reason\n", 1)
    return plain(given), plain(expected[1:]), reason.strip()


def plan(rule):
    english = ("en",) if RULES[rule].needs else ()
    secrets = "mask" if rule == "secrets.mask" else "drop"
    chosen = make_plan(CleanConfig(preset="none", rules=(rule,), languages=english, secrets=secrets))
    steps = tuple(step for step in chosen.steps if step[0].name == rule)
    return type(chosen)(steps, chosen.languages, chosen.skipped)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_golden_case(path):
    given, expected, reason = read(path)
    rule, _, kind = path.stem.partition("__")
    done = clean_text(given, plan(rule))
    if done.drop is not None:
        assert (reason, expected) == (done.drop.reason, "")
        assert kind.startswith("positive")
    else:
        assert done.text == expected
        assert (list(done.reasons) or ["kept"]) == [reason]
        assert (reason != "kept") == kind.startswith("positive")


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_all_three_kinds_of_case(rule):
    kinds = {path.stem.partition("__")[2].rstrip("0123456789") for path in CASES if path.stem.startswith(rule + "__")}
    assert kinds == KINDS


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_what_it_does_and_from_where(rule):
    assert len(RULES[rule].source) > 40


def test_every_case_belongs_to_a_rule():
    assert {path.stem.partition("__")[0] for path in CASES} == set(RULES)
