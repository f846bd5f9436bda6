"""Numbers as people read them."""

from __future__ import annotations

import pytest

from lpt_data.report.words import duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.97, "10 s"), (37.2, "37 s"), (59.6, "1 min 0 s"),
     (250, "4 min 10 s"), (3599.4, "59 min 59 s"), (7500, "2 h 5 min"), (3.6e6, "1,000 h 0 min"), (float("nan"), "?")],
)  # fmt: skip
def test_a_duration(seconds, said):
    assert duration(seconds) == said
