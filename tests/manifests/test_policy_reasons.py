"""Every check says why it is made, on the screen and in docs/checks.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from manifests.policy import load_policy
from manifests.policy_reasons import page, reason_of, reasons
from manifests.policy_yaml import shipped

DOCS = Path(__file__).parents[2] / "docs" / "checks.md"
WRITE = "python -c \"from manifests.policy_reasons import page; open('docs/checks.md', 'w').write(page())\""


@pytest.mark.parametrize("name", shipped())
def test_every_check_of_a_policy_has_a_reason(name):
    checks = [rule.id for rule in load_policy(name, name.removeprefix("lpt:")).rules]
    assert [check for check in checks if len(reasons(name).get(check) or reason_of(check)) < 20] == []
    assert set(reasons(name)) <= set(checks)


def test_a_comment_stands_for_the_checks_below_it_and_for_no_others():
    sft = reasons("lpt:sft")
    assert (
        sft["leakage.records"]
        == sft["leakage.keys"]
        == ("Held-out numbers mean nothing when the rows were trained on. Zero, and proven.")
    )
    assert sft["leakage.near"].startswith("Held-out rows that almost repeat")
    assert "Thresholds for" not in sft["rows.empty_splits"]
    assert reason_of("sft.turns.empty_share") == "An empty answer teaches to stop at once."
    assert reason_of("mine.own_share") == ""


def test_the_docs_are_what_the_policies_say():
    assert DOCS.read_text("utf-8") == page(), WRITE
