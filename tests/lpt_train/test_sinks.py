"""Metrics beside metrics.jsonl: what TensorBoard reads back, W&B and trackio where they are, and sinks that fail."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import struct

import pytest

from lpt_train import sft, sinks
from lpt_train.config import RunOptions, SFTConfig, from_mapping
from manifests.errors import UsageError


def config(tiny, **options) -> SFTConfig:
    small = {"max_steps": 3, "per_device_train_batch_size": 2, "lora_r": 2, "lr_scheduler_type": "constant"}
    return from_mapping(SFTConfig, {"model": str(tiny), **small, **options})


def logged(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in rows]


def events(folder):
    """(step, tag, value) of the scalars in a folder of event files, as their format has them."""
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    yield event.step, value.tag, value.simple_value


def test_tensorboard_has_what_the_file_has_and_goes_on_after_a_resume(tiny, sft_split, tmp_path):
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    sft.train(config(tiny, report_to="tensorboard"), split=sft_split, out=out)
    sft.train(config(tiny, report_to="tensorboard", max_steps=5), split=sft_split, out=out, resume=True)
    found = sorted((step, value) for step, tag, value in events(out / "tensorboard") if tag == "loss")
    assert found == logged(out)
    assert [step for step, _ in found] == [1, 2, 3, 4, 5]


def test_tensorboard_opened_again_in_the_same_second_hides_only_later_steps(tmp_path):
    pytest.importorskip("tensorboardX")
    one = sinks.Sinks(("tensorboard",), tmp_path, "run", {})
    one.begin(0)
    for loss in (1.0, 2.0, 3.0):
        for step in (4, 5):
            one.log(step, {"loss": loss})
        one.went_back(4)
    one.close()
    assert one.notes == []
    files = sorted((tmp_path / "tensorboard").iterdir(), key=lambda path: int(path.name.rpartition(".")[2]))
    assert len(files) == 4
    assert sorted(value for _, tag, value in events(tmp_path / "tensorboard") if tag == "loss") == [1, 1, 2, 2, 3, 3]
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    starts = []
    for path in files:
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16
            if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
                starts.append(event.step)
    assert starts == [0, 5, 5, 5]  # the first step that is hidden: 4 was kept


def test_wandb_offline(tiny, sft_split, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = sft.train(config(tiny, report_to="wandb"), split=sft_split, out=tmp_path / "run")
    assert (result.status, result.notes) == ("done", [])
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert result.run_id in kept.name
    assert b"grad_norm" in kept.read_bytes()


def test_trackio(tiny, sft_split, tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    home = importlib.import_module("trackio.utils").TRACKIO_DIR  # read when it was imported, whoever did that
    project = f"lpt-test-{tmp_path.name}-{os.getpid()}"
    monkeypatch.setenv("TRACKIO_PROJECT", project)
    try:
        result = sft.train(config(tiny, report_to="trackio"), split=sft_split, out=tmp_path / "run")
        assert (result.status, result.notes) == ("done", [])
        with sqlite3.connect(home / f"{project}.db") as database:
            rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
        assert [(step, json.loads(metrics)["loss"]) for step, metrics in rows] == logged(tmp_path / "run")
    finally:
        for path in home.glob(f"{project}*"):
            path.unlink()


def test_a_sink_that_cannot_be_opened_is_noted_and_the_run_goes_on(tiny, sft_split, tmp_path):
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    out.mkdir()
    (out / "tensorboard").write_text("a file where a folder should be")
    result = sft.train(config(tiny, report_to="tensorboard"), split=sft_split, out=out)
    assert result.status == "done"
    (note,) = result.notes
    assert note.startswith("tensorboard failed and was left out")
    assert len(logged(out)) == 3


def test_a_sink_that_fails_on_the_way_or_prints_disturbs_nothing(tiny, sft_split, tmp_path, monkeypatch, capsys):
    class Fails:
        seen: list[int] = []

        def log(self, step, metrics):
            print("hello")  # noqa: T201
            self.seen.append(step)
            if step == 2:
                raise ConnectionError("the server went away\nwith a long story")

        def close(self):
            raise AssertionError("it is gone already")

    monkeypatch.setitem(sinks.SINKS, "trackio", (("json",), lambda *_: Fails()))
    result = sft.train(config(tiny, report_to="trackio"), split=sft_split, out=tmp_path / "run")
    assert result.status == "done"
    assert Fails.seen == [1, 2]
    assert result.notes == [
        "trackio failed and was left out from then on (ConnectionError: the server went away); metrics.jsonl has all"
    ]
    assert capsys.readouterr().out == ""


def test_a_package_that_is_missing_is_named_before_the_run_starts(tiny, sft_split, tmp_path, monkeypatch):
    monkeypatch.setitem(sinks.SINKS, "wandb", (("no_such_package_here",), sinks.SINKS["wandb"][1]))
    with pytest.raises(UsageError, match="report_to=wandb needs a package") as missing:
        sft.train(config(tiny, report_to="wandb"), split=sft_split, out=tmp_path / "run")
    assert "pip install no_such_package_here" in missing.value.next
    assert not (tmp_path / "run" / "run.json").exists()


def test_names_are_checked_and_none_is_none():
    assert RunOptions().reports == ()
    assert RunOptions(report_to="wandb, tensorboard,wandb").reports == ("wandb", "tensorboard")
    for wrong in ("tensorbord", "", "wandb,none", "all"):
        with pytest.raises(UsageError, match="report_to"):
            RunOptions(report_to=wrong)
