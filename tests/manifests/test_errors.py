from __future__ import annotations

import pickle

import pytest

from manifests.errors import (
    BadInputError,
    BusyError,
    CheckNotRunError,
    LptError,
    RecordError,
    RefusedError,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [(LptError, 1), (UsageError, 2), (RefusedError, 4), (BadInputError, 5), (CheckNotRunError, 5), (BusyError, 75)],
)
def test_exit_codes_are_those_of_the_command_line(error, code):
    assert error("x").exit_code == code


def test_an_error_says_three_things():
    assert str(BadInputError("no such file", seen="a.jsonl", next="check the path")) == (
        "no such file\n  seen: a.jsonl\n  next: check the path"
    )
    assert str(LptError("broken")) == "broken"


def test_a_seen_value_is_shortened():
    assert len(str(BadInputError("x", seen="y" * 1_000_000))) < 3000


def test_an_empty_value_is_shown_and_one_that_is_not_given_is_not():
    assert str(UsageError("w", seen="", next="n")) == "w\n  seen: ''\n  next: n"
    assert str(UsageError("w", next="n")) == "w\n  next: n"


def test_errors_cross_process_borders_whole():
    error = RecordError("bad", reason="wrong_type", field="messages[0].role", seen=3, next="fix it")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RecordError
    assert (str(again), again.reason, again.field) == (str(error), "wrong_type", "messages[0].role")
