"""Splits share no key, lose no row, do not follow the order of rows, and by share never move an old row."""

import json
import random
from collections import Counter

import numpy as np
import pytest

from lpt_data.config import SplitConfig
from lpt_data.dataset import Dataset
from lpt_data.generate.countdown import problems
from lpt_data.keys import key_hash
from lpt_data.split import NAMES, OTHER_ORDER, assign, order_robustness, split
from lpt_data.write import write_jsonl
from manifests import decisions
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, UsageError


def hashes(names):
    return np.frombuffer(b"".join(key_hash(n, "text") for n in names), np.uint8).reshape(-1, 32)


def by_name(names, config):
    return {name: NAMES[i] for name, i in zip(names, assign(hashes(names), config), strict=True)}


OLD, NEW = [f"key {i}" for i in range(1000)], [f"new key {i}" for i in range(500)]


@pytest.mark.parametrize("method", ["hash", "draw"])
@pytest.mark.parametrize(("test", "validation"), [(100, 50), (0.1, 0.05), (100, 0), (0, 0.2)])
def test_assignment_follows_seed_and_keys_not_their_order(method, test, validation):
    config = SplitConfig(test=test, validation=validation, method=method, seed=3)
    shuffled = random.Random(0).sample(OLD, len(OLD))
    assert by_name(OLD, config) == by_name(shuffled, config)
    other = SplitConfig(test=test, validation=validation, method=method, seed=4)
    assert by_name(OLD, config) != by_name(OLD, other)
    counts = Counter(by_name(OLD, config).values())
    if isinstance(test or validation, int):
        assert (counts["test"], counts["validation"]) == (test, validation)
    else:
        assert abs(counts["test"] - 1000 * test) < 40
        assert abs(counts["validation"] - 1000 * validation) < 40


def test_by_share_new_data_moves_no_old_row():
    config = SplitConfig(test=0.1, validation=0.1)
    before, after = by_name(OLD, config), by_name(OLD + NEW, config)
    assert all(after[name] == before[name] for name in OLD)


def test_by_count_new_data_only_pushes_the_last_held_out_keys_on():
    config = SplitConfig(test=100, validation=50)
    before, after = by_name(OLD, config), by_name(OLD + NEW[:20], config)
    moved = {(before[n], after[n]) for n in OLD if before[n] != after[n]}
    assert moved
    assert moved <= {("test", "validation"), ("validation", "train"), ("test", "train")}
    one_more = by_name([*OLD, NEW[0]], config)
    assert sum(before[n] != one_more[n] for n in OLD) <= 2


@pytest.fixture
def countdown(tmp_path):
    """300 problems; 100 of them come back with their numbers in another order, 20 word for word."""
    rows = list(problems(300, numbers=3, seed=5))
    rng = random.Random(1)
    rows += [{**row, "nums": row["nums"][1:] + row["nums"][:1]} for row in rows[:100]] + rows[:20]
    rng.shuffle(rows)
    write_jsonl(tmp_path / "in.jsonl", rows)
    return tmp_path / "in.jsonl", rows


def key_of(row):
    return row["target"], *sorted(row["nums"])


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(source, out, **options):
    config = SplitConfig(**{"key": "countdown", "test": 60, "validation": 30, "seed": 1, **options})
    return split(Dataset.open([str(source)]), config, out=out, catalog=Catalog.open(out.parent / ".lpt"))


def test_countdown(tmp_path, countdown):
    source, rows = countdown
    out = tmp_path / "splits"
    report = run(source, out)
    parts = {name: read(out / f"{name}.jsonl") for name in NAMES}
    keys = {name: {key_of(row) for row in part} for name, part in parts.items()}
    assert [len(keys[n]) for n in NAMES] == [210, 30, 60]
    assert not keys["train"] & keys["test"]
    assert not keys["train"] & keys["validation"]
    assert not keys["validation"] & keys["test"]
    assert (len(parts["test"]), len(parts["validation"])) == (60, 30)  # one row a key
    body = report.to_json()
    assert sum(map(len, parts.values())) + body["removed"][OTHER_ORDER] == len(rows) == body["rows_in"]
    held_out = sum(key_of(row) not in keys["train"] for row in rows)
    assert body["removed"] == {OTHER_ORDER: held_out - 90}
    told = decisions.read(body["decisions"]).to_pylist()
    for one in told:
        assert key_of(rows[one["row"]]) == key_of(rows[one["witness_row"]])
        assert rows[one["witness_row"]] in parts["test"] + parts["validation"]
    assert [pair["intersection"] for pair in body["disjoint"]] == [0, 0, 0]


def test_the_record_of_a_split(tmp_path, countdown):
    report = run(countdown[0], tmp_path / "splits")
    told = json.loads((tmp_path / "splits" / "split.json").read_text())
    assert told["splits"] == report.extra["splits"]
    assert told["key"] == {"normaliser": "countdown", "version": "lpt-key/1"}
    for split_name, body in told["splits"].items():
        assert body["sha256"] == bytes_sha256(tmp_path / "splits" / body["file"]), split_name
    names = [entry["path"].rsplit("/", 1)[1] for entry in report.body["outputs"]]
    assert names == ["train.jsonl", "validation.jsonl", "test.jsonl", "order_robustness.jsonl", "split.json"]
    assert run(countdown[0], tmp_path / "splits").reused
    (tmp_path / "splits" / "split.json").write_text("{}")
    assert not run(countdown[0], tmp_path / "splits").reused


def test_the_order_robustness_set_asks_test_problems_only(tmp_path, countdown):
    run(countdown[0], tmp_path / "splits", robustness_problems=40, robustness_orders=4)
    asked = read(tmp_path / "splits" / "order_robustness.jsonl")
    test = read(tmp_path / "splits" / "test.jsonl")
    assert {key_of(row) for row in asked} <= {key_of(row) for row in test}
    assert len({row["problem"] for row in asked}) == 40
    first = [row["nums"] for row in asked if row["order"] == 0]
    assert all(nums in [row["nums"] for row in test] for nums in first)
    orders = Counter((row["problem"], tuple(row["nums"])) for row in asked)
    assert set(orders.values()) == {1}
    assert max(Counter(row["problem"] for row in asked).values()) == 4


def test_orders_of_few_and_of_many_numbers():
    config = SplitConfig(robustness_problems=5, robustness_orders=8)
    assert [row["nums"] for row in order_robustness([([2, 2], 4)], config)] == [[2, 2]]
    assert len(list(order_robustness([([1, 2], 3)], config))) == 2
    many = list(order_robustness([(list(range(1, 10)), 45)], config))
    assert len({tuple(row["nums"]) for row in many}) == 8
    problems_ = [([i, i + 1, i + 2], 9) for i in range(20)]
    assert list(order_robustness(problems_, config)) == list(order_robustness(problems_[::-1], config))


def test_the_order_of_the_input_changes_no_split(tmp_path, countdown):
    source, rows = countdown
    one = run(source, tmp_path / "one")
    write_jsonl(tmp_path / "shuffled.jsonl", random.Random(9).sample(rows, len(rows)))
    other = run(tmp_path / "shuffled.jsonl", tmp_path / "other")
    for name in NAMES:
        for what in ("key_root", "content_root", "rows", "keys"):
            assert one.extra["splits"][name][what] == other.extra["splits"][name][what]


def test_all_rows_of_a_key_go_together_and_rows_without_one_are_put_aside(tmp_path):
    rows = [{"text": f"row {i}", "user": i % 40} for i in range(200)] + [{"text": "nobody's"}]
    write_jsonl(tmp_path / "in.jsonl", rows)
    report = run(tmp_path / "in.jsonl", tmp_path / "s", key="user", test=8, validation=0)
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["split.json", "test.jsonl", "train.jsonl"]
    test = read(tmp_path / "s" / "test.jsonl")
    assert len(test) == 40
    assert len({row["user"] for row in test}) == 8
    assert report.to_json()["quarantine"] == {"missing_field": 1}
    assert report.to_json()["rows_out"] == 200


@pytest.mark.parametrize("name", ["in.parquet", "in.csv"])
def test_other_formats(tmp_path, name):
    write_jsonl(tmp_path / name, problems(200, numbers=2, seed=2))
    report = run(tmp_path / name, tmp_path / "s", test=0.2, validation=0)
    assert (tmp_path / "s" / f"test.{name.split('.')[1]}").is_file()
    assert report.body["rows_out"] == 200


def test_what_cannot_be_split(tmp_path, countdown):
    source, _ = countdown
    for options in [
        {"test": 0, "validation": 0},
        {"test": 0.5, "validation": 0.5},
        {"test": 10, "validation": 0.5},
        {"method": "tail"},
        {"key": "number"},
    ]:
        with pytest.raises(UsageError):
            run(source, tmp_path / "s", **options)
    with pytest.raises(BadInputError, match="too few distinct keys"):
        run(source, tmp_path / "s", test=300, validation=0)
    with pytest.raises(BadInputError, match="too few distinct keys"):
        run(source, tmp_path / "s", test=0.000001, validation=0)
    (tmp_path / "s" / "test.jsonl").write_text("of another split")
    with pytest.raises(BadInputError, match="another split"):
        run(source, tmp_path / "s", test=0, validation=10)


def test_a_column_that_is_part_of_the_record_is_no_key(tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    write_jsonl(path, [{"question": f"{n} + 1?", "answer": f"#### {n + 1}", "topic": str(n)} for n in range(9)])
    catalog = Catalog.open(tmp_path / ".lpt")
    with pytest.raises(UsageError, match="becomes part of the record") as error:
        split(Dataset.open([str(path)]), SplitConfig(key="question", test=2), out=tmp_path / "out", catalog=catalog)
    assert "--key text, math" in error.value.next
    split(Dataset.open([str(path)]), SplitConfig(key="topic", test=2), out=tmp_path / "out", catalog=catalog)
