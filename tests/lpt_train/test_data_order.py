"""The rows of each step: shuffled epochs, and the steps of a mixture from its file to the metrics of a run."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from train_cases import chat, chats

from lpt_data.admit import admit
from lpt_data.mix import mix
from lpt_data.mix_spec import parse_spec
from lpt_data.schedule_mix import schedule_path
from lpt_train.admitted import AdmittedSplit, load_split
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.data_order import Scheduled, Shuffled, data_order, shuffled
from lpt_train.packing import Row
from lpt_train.sft import train
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError

RATES = {"type": "wsd", "warmup": 0.25, "decay": 0.5}
FLAT = {"type": "constant", "warmup": 0.0, "decay": 0.0}


def config(**options) -> SFTConfig:
    return from_mapping(SFTConfig, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **options})


def rows_of(indices, length=5) -> list[Row]:
    return [Row(i, np.full(length, i, np.int32), np.ones(length, np.uint8)) for i in indices]


def split_of(rows: int, *, per_step: int | None = 4, rates=RATES) -> AdmittedSplit:
    """A split of which every third row is of the domain b, made by a mixture."""
    schedule = {"plan_hash": "f" * 64, "rows_per_step": per_step, "learning_rate": rates, "phases": []}
    table = pa.table({"domain": ["b" if i % 3 == 2 else "a" for i in range(rows)]})
    return AdmittedSplit(
        "mixed", 1, "train", "sft", "0" * 64, "accept", table, [""] * rows, "", "", None, "admitted", schedule
    )


def indices(order, step: int) -> list[list[int]]:
    return [[row.index for row in unit] for unit in order.lines(step)]


def test_a_step_reads_its_own_rows_in_their_order():
    order = data_order(split_of(10), rows_of(range(10)), config())
    assert isinstance(order, Scheduled)
    assert order.steps == 3
    assert [indices(order, step) for step in range(3)] == [[[0], [1], [2], [3]], [[4], [5], [6], [7]], [[8], [9]]]
    assert [order.place(step) for step in range(4)] == [0, 4, 8, 10]
    assert order.metrics(0) == {"domain/a": 0.75, "domain/b": 0.25}
    assert order.metrics(2) == {"domain/a": 0.5, "domain/b": 0.5}


def test_a_dropped_row_is_missing_from_its_own_step_alone():
    order = data_order(split_of(8), rows_of([0, 1, 3, 4, 5, 6, 7]), config())
    assert [indices(order, step) for step in range(2)] == [[[0], [1], [3]], [[4], [5], [6], [7]]]
    with pytest.raises(RefusedError, match="no row that can be trained on"):
        data_order(split_of(8), rows_of([0, 1, 2, 3]), config())


def test_rows_are_packed_within_their_step():
    """A step of four rows of 5 tokens in bins of 10: two lines; never with a row of the next step."""
    order = data_order(split_of(8), rows_of(range(8)), config(packing=True, max_length=10))
    assert [indices(order, step) for step in range(2)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert data_order(split_of(8, per_step=3), rows_of(range(8)), config(packing=True, max_length=10)).steps == 3


def test_the_learning_rate_is_that_of_the_mixture_where_it_has_one():
    order = data_order(split_of(32), rows_of(range(32)), config(lr_scheduler_type="cosine"))
    assert [order.multiplier(step) for step in range(8)] == [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert "wsd" in order.notes[0]
    flat = data_order(split_of(32, rates=FLAT), rows_of(range(32)), config(lr_scheduler_type="linear"))
    assert [flat.multiplier(step) for step in (0, 4)] == [1.0, 0.5]
    assert "learning rate" not in flat.notes[0]


@pytest.mark.parametrize(
    ("options", "rows", "what", "next"),
    [
        ({"gradient_accumulation_steps": 1}, 8, "another number of rows", "multiply to 4"),
        ({"num_train_epochs": 2}, 8, "read once", "larger total"),
        ({"max_steps": 3}, 8, "fewer steps", "max_steps=2"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, rows, what, next):
    with pytest.raises(RefusedError, match=what) as error:
        data_order(split_of(rows), rows_of(range(rows)), config(**options))
    assert next in error.value.next
    order = data_order(split_of(rows), rows_of(range(rows)), config(**options, mix_schedule="ignore"))
    assert isinstance(order, Shuffled)


def test_fewer_steps_are_the_first_ones():
    order = data_order(split_of(12), rows_of(range(12)), config(max_steps=2))
    assert order.steps == 2
    assert order.multiplier(1) == data_order(split_of(12), rows_of(range(12)), config()).multiplier(1)


def test_a_split_without_a_schedule():
    plain = replace(split_of(8), schedule=None)
    assert isinstance(data_order(plain, rows_of(range(8)), config()), Shuffled)
    with pytest.raises(RefusedError, match="no schedule to follow"):
        data_order(plain, rows_of(range(8)), config(mix_schedule="follow"))
    assert data_order(split_of(8, per_step=None), rows_of(range(8)), config()).per_step == 4


# -- from the mixture to the run


@pytest.fixture
def mixed(tmp_path):
    """Two domains, annealed from one to the other over eight steps of four rows."""
    words = chats(40)
    sums = [{"messages": chat(f"add {n} and {n + 1}", str(2 * n + 1))} for n in range(40)]
    for name, rows in (("words", words), ("sums", sums)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = {
        "domains": {"words": {"inputs": "words.jsonl", "weight": 3}, "sums": {"inputs": "sums.jsonl", "weight": 1}},
        "total": {"rows": 32}, "kind": "sft", "seed": 1,
        "schedule": {
            "learning_rate": {"type": "wsd", "decay": 0.5}, "rows_per_step": 4,
            "anneal": {"from": "lr_decay", "weights": {"sums": 1}},
        },
    }  # fmt: skip
    catalog = Catalog.open(tmp_path / ".lpt")
    mix(parse_spec(body, tmp_path), out=tmp_path / "mixed.jsonl", catalog=catalog)
    return tmp_path, catalog


def admitted(mixed):
    place, catalog = mixed
    made = admit("mixed", "sft", {"train": [str(place / "mixed.jsonl")]}, catalog=catalog)
    assert made.verdict != "reject"
    return load_split("mixed:train", catalog=catalog)


def logged(out) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_follows_the_mixture_step_by_step_and_when_resumed(mixed, tiny, tmp_path):
    split = admitted(mixed)
    phases = split.schedule["phases"]
    assert [(p["first_step"], p["end_step"]) for p in phases] == [(0, 4), (4, 8)]
    options = config(model=str(tiny), per_device_train_batch_size=4, gradient_accumulation_steps=1, device="cpu")
    whole = train(options, split=split, out=tmp_path / "whole", catalog=mixed[1])
    assert whole.body["steps"] == 8
    written = [json.loads(line)["domain"] for line in (mixed[0] / "mixed.jsonl").read_text().splitlines()]
    lines = [line for line in logged(tmp_path / "whole") if "loss" in line]
    for step, line in enumerate(lines):
        there = Counter(written[4 * step : 4 * step + 4])
        assert {name: line[f"domain/{name}"] for name in ("sums", "words")} == {
            name: there[name] / 4 for name in ("sums", "words")
        }
    assert [line["domain/sums"] for line in lines[4:]] == [1.0] * 4  # the second phase is of one domain
    assert [round(line["learning_rate"] / options.optim.learning_rate, 3) for line in lines] == [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25,
    ]  # fmt: skip
    assert whole.body["data"]["mix_schedule"]["plan_hash"] == split.schedule["plan_hash"]
    assert any("rows of each step are those of the mixture" in note for note in whole.notes)

    def terminate(done, _total, _metrics):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    half = train(options, split=split, out=tmp_path / "halves", catalog=mixed[1], progress=terminate)
    assert half.body["steps"] == 3
    train(options, split=split, out=tmp_path / "halves", catalog=mixed[1], resume=True)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    for path in one.glob("*.safetensors"):
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name
    other = replace(options, mix_schedule="ignore")
    with pytest.raises(RefusedError, match="mix_schedule|tokenized_id"):
        train(other, split=split, out=tmp_path / "halves", catalog=mixed[1], resume=True)


def test_a_schedule_of_other_rows_is_not_admitted(mixed):
    place, catalog = mixed
    path = place / "mixed.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    with pytest.raises(BadInputError, match="of other rows than the split") as error:
        admit("mixed", "sft", {"train": [str(path)]}, catalog=catalog)
    assert "as `lpt data mix` wrote it" in error.value.next
    schedule_path(path).unlink()
    admit("mixed", "sft", {"train": [str(path)]}, catalog=catalog)
    assert load_split("mixed:train", catalog=catalog).schedule is None


def test_a_file_that_is_no_schedule(mixed):
    place, catalog = mixed
    schedule_path(place / "mixed.jsonl").write_text("{}")
    with pytest.raises(BadInputError, match="beside a file is none"):
        admit("mixed", "sft", {"train": [str(place / "mixed.jsonl")]}, catalog=catalog)


def test_a_step_of_more_rows_than_there_is_room_for_is_refused():
    config = from_mapping(SFTConfig, {"per_device_train_batch_size": 10**11, "max_steps": 1})
    with pytest.raises(UsageError, match="more rows than a machine can hold"):
        shuffled([0, 1], config)
