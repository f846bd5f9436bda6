from __future__ import annotations

import random

from planted import Run, text, words


def test_a_template_of_many_items_is_no_evidence_and_hides_no_copy(tmp_path):
    template = words(20)
    own = [words(10) for _ in range(12)]
    items = [text(template, mine) for mine in own]
    rows = [
        text(template, words(10)),  # the template, filled otherwise: 20 of 30 words of every item
        text(template, own[3]),  # a copy
        text(words(5), own[4], words(5)),  # what is its own, without the template
    ]
    run = Run(tmp_path, rows, {"b": items})
    assert set(run.removed) == {1, 2}
    assert run.removed[1] == ("coverage", 3, 1.0)
    assert run.extra["stops"]["in_many_items"] == 13  # windows of 8 in 20 words
    assert run.extra["stops"]["matches_ignored"] == 26
    assert all(told["recall"] == 1.0 for told in run.told()["canaries"].values())


def test_nine_items_are_not_many(tmp_path):
    template = words(20)
    run = Run(tmp_path, [text(template)], {"b": [text(template, words(10)) for _ in range(9)]})
    assert run.extra["stops"]["ngrams"] == 0
    assert set(run.removed) == {0}


def test_an_item_that_is_only_template_is_listed(tmp_path):
    template = words(12)
    items = [text(template, words(10)) for _ in range(11)] + [text(template)]
    run = Run(tmp_path, [text(template, words(3))], {"b": items})
    assert run.removed == {}
    assert run.told()["undetectable_items"] == [
        {"item": 11, "record_id": run.benchmarks.items[11].record_id.hex(), "reason": "only_stop_ngrams"}
    ]
    assert run.told()["canaries"]["verbatim"] | {"low": 0, "high": 0} == {
        "planted": 12, "found": 11, "recall": round(11 / 12, 6), "low": 0, "high": 0,
    }  # fmt: skip


def test_a_template_of_many_rows_is_no_evidence(tmp_path):
    prompt, own = words(14), words(10)
    item = text(prompt, own)  # the template alone covers 14 of 24
    rows = [text(prompt, words(20)) for _ in range(60)] + [text(words(20)) for _ in range(200)]
    run = Run(tmp_path, [*rows, text(words(9), own), item], {"b": [item]})
    assert run.extra["stops"]["in_many_rows"] == 7
    assert set(run.removed) == {260, 261}
    # In 21 rows of 500 it is none: 4.2 %.
    few = Run(
        tmp_path, [text(prompt, words(20)) for _ in range(21)] + [text(words(9)) for _ in range(480)], {"b": [item]}
    )
    assert few.extra["stops"]["in_many_rows"] == 0
    assert len(few.removed) == 21


def test_a_question_copied_many_times_is_no_template(tmp_path):
    item = words(24)
    rows = [text(words(3), item, words(3)) for _ in range(80)] + [text(words(20)) for _ in range(20)]
    assert set(Run(tmp_path, rows, {"b": [text(item)]}).removed) == set(range(80))
    same = [text(item[:14], words(4))] * 80 + [text(words(20)) for _ in range(20)]  # one row, eighty times
    assert len(Run(tmp_path, same, {"b": [text(item)]}).removed) == 80


def test_a_short_question_in_many_rows_is_listed(tmp_path):
    rows = [text(words(5), ["what", "is", "the", "answer"], words(5)) for _ in range(30)] + [text(words(5))] * 30
    run = Run(tmp_path, rows, {"b": ["What is the answer?", text(words(20))]})
    assert run.removed == {}
    assert run.told()["undetectable"] == {"in_many_rows": 1}
    assert run.extra["stops"]["matches_ignored"] == 30


def test_order_workers_and_files_change_no_decision(tmp_path):
    rng = random.Random(2)
    items = [text(words(n)) for n in (5, 9, 20, 20, 40, 60)]
    items.append(items[2])  # one item twice, and one in two benchmarks
    cut = lambda t: t.split()[: rng.randrange(4, 50)]  # noqa: E731
    rows = [text(words(6), cut(rng.choice(items)), words(6)) for _ in range(200)] + [text(words(12)) for _ in range(30)]

    def outcome(rows, items, **settings):
        run = Run(tmp_path, rows, {"b": items, "c": items[:2]}, **settings)
        return {(d["record_id"], d["witness_id"], d["score"]) for d in run.decisions.values()}

    expected = outcome(rows, items)
    assert 50 < len(expected) < 230
    for seed in range(3):
        again, turned = rows[:], items[2:]
        random.Random(seed).shuffle(again)
        random.Random(seed).shuffle(turned)
        assert outcome(again, items[:2] + turned, workers=1 + seed) == expected
