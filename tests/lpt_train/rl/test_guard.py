from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lpt_train.rewards import REWARDS
from lpt_train.rewards.guard import guarded
from manifests.errors import BadInputError

HANGS = json.dumps({"type": "string", "pattern": "^(a+)+$"})  # backtracks for ever on `LONG`
LONG = json.dumps("a" * 60 + "b")
PLAIN = json.dumps({"type": "string"})


def test_nothing_starts_before_it_is_asked():
    with guarded() as lent:
        assert lent["math"].guard.pool is None
        assert set(lent) == set(REWARDS)


def test_it_answers_as_the_verifier_does():
    calls = [(c.completion, c.answer) for c in REWARDS["math"].canaries]
    with guarded() as lent:
        assert lent["math"].ask_many("score", calls) == [(c.score, "") for c in REWARDS["math"].canaries]
        assert lent["math"].ask_many("parse_gold", [("3/4",), (" ",)]) == [(True, ""), (False, "")]
        for function in ("gold_completion", "wrong_completion"):
            assert getattr(lent["integer"], function)("72") == getattr(REWARDS["integer"], function)("72")
        assert lent["integer"].gold_completion("no number") is None
        assert lent["integer"].score("#### 72", "72") == 1.0
        assert lent["integer"].parse_gold("x") is False
        assert lent["math"].ask_many("score", []) == []


def test_a_call_that_hangs_costs_only_itself():
    calls = [(LONG, PLAIN), (LONG, HANGS), (json.dumps("aaa"), HANGS), (LONG, PLAIN)]
    with guarded(seconds=1.0, workers=1) as lent:
        answers = lent["schema"].ask_many("score", calls)
        assert answers == [(1.0, ""), (None, "time_limit_passed"), (1.0, ""), (1.0, "")]
        assert lent["schema"].score(LONG, PLAIN) == 1.0


def test_a_canary_that_fails_stops_everything(monkeypatch):
    wrong = replace(REWARDS["integer"].canaries[0], score=0.0)
    monkeypatch.setitem(REWARDS, "integer", replace(REWARDS["integer"], canaries=(wrong,)))
    with guarded() as lent, pytest.raises(BadInputError, match="integer"):
        lent["integer"].parse_gold("72")
