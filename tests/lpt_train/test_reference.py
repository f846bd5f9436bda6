"""Reference log-probs that runs share: reused to the bit, never of another model, rows or program, never damaged."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from functools import wraps
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from train_cases import chat, preferences, write_jsonl

from lpt_train import reference
from lpt_train.adapters import load_for_training
from lpt_train.admitted import load_unadmitted
from lpt_train.config import from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_lora import Lora
from lpt_train.config_preference import PreferenceConfig
from lpt_train.kto import train as train_kto
from lpt_train.machine import env, sources_sha256
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import placement
from lpt_train.packing import Row, epoch_order
from lpt_train.preference import train as train_preference
from lpt_train.reference import values_sha256
from lpt_train.tiny import make_tiny
from manifests.catalog import Catalog

LOOPS = {"dpo": (PreferenceConfig, train_preference), "kto": (KTOConfig, train_kto)}
PARTS = {"dpo": ["train", "eval"], "kto": ["train", "train, mismatched", "eval", "eval, mismatched"]}


@pytest.fixture
def pairs(tmp_path):
    return load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(12)), "preference")


@pytest.fixture
def references(tmp_path):
    return tmp_path / ".lpt" / "references"


def run(tiny, split, out, algorithm="dpo", **options):
    kind, loop = LOOPS[algorithm]
    defaults = {"max_steps": 3, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "lora_r": 4}
    defaults["lr_scheduler_type"] = "constant"
    arguments = {name: options.pop(name) for name in ("resume", "eval_split", "progress", "catalog") if name in options}
    config = from_mapping(kind, {"model": str(tiny), **defaults, **options})
    return loop(config, split=split, out=out, **arguments)


def numbers(out):
    """What a run computed, without what depends on the clock."""
    clock = ("tokens_per_second", "step_seconds", "eta_seconds")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in clock} for row in rows]


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_another_beta_reuses_it_and_loses_as_a_run_that_computed(tiny, pairs, tmp_path, references, algorithm):
    first = run(tiny, pairs, tmp_path / "first", algorithm, beta=0.1, eval_split=pairs)
    assert list(first.body["reference"]) == PARTS[algorithm]
    assert not any(part["reused"] for part in first.body["reference"].values())
    assert [note.split(", sha")[0] for note in first.notes if note.startswith("reference")] != []
    second = run(tiny, pairs, tmp_path / "second", algorithm, beta=0.5, eval_split=pairs)
    assert {name: {**part, "reused": False} for name, part in second.body["reference"].items()} == (
        first.body["reference"]
    )
    assert all(part["reused"] for part in second.body["reference"].values())
    told = [note for note in second.notes if note.startswith("reference log-probs")]
    assert len(told) == len(PARTS[algorithm])
    assert all("reused from an earlier run" in note for note in told)
    written = json.loads((tmp_path / "second" / "run.json").read_text())["reference"]
    assert written == second.body["reference"]
    for part in written.values():
        kept = json.loads((references / f"{part['key']}.json").read_text())
        assert part["sha256"] == values_sha256(np.asarray(kept["logps"], np.float32))
    computed = run(
        tiny, pairs, tmp_path / "alone", algorithm, beta=0.5, eval_split=pairs, catalog=Catalog.open(tmp_path / "other")
    )
    assert not any(part["reused"] for part in computed.body["reference"].values())
    assert numbers(tmp_path / "second") == numbers(tmp_path / "alone")
    assert numbers(tmp_path / "second") != numbers(tmp_path / "first")


def test_other_weights_rows_precisions_adapters_and_seeds_have_their_own(tiny, pairs, tmp_path, references):
    run(tiny, pairs, tmp_path / "first", max_steps=1)
    assert len(list(references.iterdir())) == 1
    rows = preferences(12)
    rows[int(epoch_order(12, 42, 0)[0])]["rejected"] = chat("", "something else")[1:]  # the first row that is read
    changed = load_unadmitted(write_jsonl(tmp_path / "changed.jsonl", rows), "preference")
    twin = make_tiny(tmp_path / "twin", hidden=32, layers=2, heads=2, seed=1)
    others = {
        "weights": (twin, pairs, {}), "rows": (tiny, changed, {}), "precision": (tiny, pairs, {"dtype": "bfloat16"}),
        "adapter": (tiny, pairs, {"init_lora_weights": "pissa"}), "whole": (tiny, pairs, {"use_peft": False}),
        "way": (tiny, pairs, {"execution": "rows"}), "size": (tiny, pairs, {"per_device_train_batch_size": 2}),
        "chunk": (tiny, pairs, {"logits_chunk": 16}), "seed": (tiny, pairs, {"seed": 7}),
        "length": (tiny, pairs, {"max_steps": 2}),
    }  # fmt: skip
    for number, (name, (model, split, options)) in enumerate(others.items()):
        body = run(model, split, tmp_path / name, **{"max_steps": 1, **options}).body
        assert body["reference"]["train"]["reused"] is False, name
        assert len(list(references.iterdir())) == number + 2, name
    free = {"learning_rate": 1e-3, "loss_type": "ipo", "save_steps": 1, "weight_decay": 0.1}
    assert run(tiny, pairs, tmp_path / "free", max_steps=1, **free).body["reference"]["train"]["reused"] is True


def test_masks_belong_to_the_rows(tiny, pairs, tmp_path):
    """The same ids with another target are another sum."""
    rows = [np.arange(4, dtype=np.int32), np.ones(4, np.uint8)]
    one = [(Row(0, *rows),)]
    other = [(Row(0, rows[0], np.array([1, 1, 1, 0], np.uint8)),)]
    assert reference._rows_sha256(one, [0]) != reference._rows_sha256(other, [0])
    assert reference._rows_sha256([*one, *other], [0, 1]) != reference._rows_sha256([*one, *other], [1, 0])


DAMAGES = ["{", '{"key": 1', "[]", "{}", "[" * 100_000, "[[NaN, 1.0]]", "[[null, 1.0]]", "[[1" + "0" * 400 + ", 1.0]]",
           "one value", "one row less", "of another key"]  # fmt: skip


def test_a_damaged_file_is_computed_again_said_and_put_right(tiny, pairs, tmp_path, references):
    run(tiny, pairs, tmp_path / "first", max_steps=1)
    (kept,) = references.iterdir()
    good = kept.read_bytes()
    for number, damage in enumerate(DAMAGES):
        body = json.loads(good)
        if damage == "one value":
            body["logps"][1][0] += 1
        elif damage == "one row less":
            del body["logps"][-1]
            body["sha256"] = values_sha256(np.asarray(body["logps"], np.float32))
        elif damage == "of another key":
            body["key"] = "0" * 64
        elif damage.startswith("[[") and damage[2] != "[":
            body["logps"] = "HERE"
        text = json.dumps(body).replace('"HERE"', damage) if body != json.loads(good) else damage
        kept.write_text(text)
        result = run(tiny, pairs, tmp_path / f"run{number}", max_steps=1)
        assert sum(f"{kept} was damaged" in note for note in result.notes) == 1, damage
        assert result.body["reference"]["train"]["reused"] is False, damage
        assert kept.read_bytes() == good, damage
        assert numbers(tmp_path / f"run{number}") == numbers(tmp_path / "first"), damage


class Kept:
    """What keeping asks of a run."""

    def __init__(self, folder):
        self.catalog, self.out, self.notes = Catalog.open(folder / ".lpt"), folder / "run", []


LOGPS = np.random.default_rng(0).normal(-50, 10, (20_000, 2)).astype(np.float32)


def test_two_at_once_write_whole_files_and_a_reader_never_meets_half_of_one(tmp_path, references):
    digest, read = values_sha256(LOGPS), Kept(tmp_path)

    def write() -> None:
        for _ in range(5):
            assert reference._keep(Kept(tmp_path), "k", LOGPS, digest) == "computed and kept"

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    found = 0
    while any(writer.is_alive() for writer in writers):
        taken = reference._taken(read, "k", LOGPS.shape)
        found += taken is not None
        assert taken is None or np.array_equal(taken, LOGPS)
    assert read.notes == []
    assert found
    assert [path.name for path in references.iterdir()] == ["k.json"]


def test_a_write_that_ends_half_way_leaves_what_was_there(tmp_path, references):
    run = Kept(tmp_path)
    assert reference._keep(run, "k", LOGPS, values_sha256(LOGPS)) == "computed and kept"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        for key in ("k", "new"):
            assert "neither" in reference._keep(run, key, LOGPS, values_sha256(LOGPS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in references.iterdir()] == ["k.json"]
    assert np.array_equal(reference._taken(run, "k", LOGPS.shape), LOGPS)
    assert run.notes == []


def test_what_was_used_longest_ago_goes_first(tiny, pairs, tmp_path, references, monkeypatch):
    first = run(tiny, pairs, tmp_path / "first", max_steps=1)
    (kept,) = references.iterdir()
    monkeypatch.setattr(reference, "KEPT_BYTES", 3 * kept.stat().st_size)
    for age, name in ((100, "old"), (50, "new")):
        (references / f"{name}.json").write_bytes(kept.read_bytes())
        os.utime(references / f"{name}.json", (1e9 - age, 1e9 - age))
    os.utime(kept, (1, 1))
    assert run(tiny, pairs, tmp_path / "again", max_steps=1, beta=0.3).body["reference"]["train"]["reused"] is True
    other = run(tiny, pairs, tmp_path / "other", max_steps=1, seed=7).body["reference"]["train"]["key"]
    left = {path.name for path in references.iterdir()}
    assert left == {kept.name, f"{other}.json", "new.json"}
    monkeypatch.setattr(reference, "KEPT_BYTES", 1)
    newest = run(tiny, pairs, tmp_path / "newest", max_steps=1, seed=8).body["reference"]["train"]["key"]
    assert [path.name for path in references.iterdir()] == [f"{newest}.json"]  # larger than all, and yet kept
    assert first.body["reference"]["train"]["key"] != newest


def test_without_a_catalog_the_run_keeps_its_own(tiny, pairs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LPT_CATALOG", str(tmp_path / "file"))

    def terminate(done, _total, _metrics):
        if done == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    out = tmp_path / "run"
    begun = run(tiny, pairs, out, progress=terminate)
    key = begun.body["reference"]["train"]["key"]
    assert [path.name for path in (out / "references").iterdir()] == [f"{key}.json"]
    ended = run(tiny, pairs, out, resume=True)
    assert ended.status == "done"
    assert ended.body["reference"] == begun.body["reference"]
    assert any("those that the run began with" in note for note in ended.notes)
    assert not any("an earlier run" in note or "differ" in note for note in ended.notes)


def stopping(done, _total, _metrics):
    if done == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_goes_on_against_other_values_says_so(tiny, pairs, tmp_path, monkeypatch):
    out = tmp_path / "run"
    begun = run(tiny, pairs, out, progress=stopping, catalog=Catalog.open(tmp_path / "c")).body["reference"]["train"]
    score, threads = MicroBatch.row_logprobs, torch.get_num_threads()
    # What other threads do to the rounding of some machines, and of this small model on none.
    monkeypatch.setattr(MicroBatch, "row_logprobs", wraps(score)(lambda *asked: score(*asked) * (1 + 1e-6)))
    torch.set_num_threads(threads + 1)
    try:
        ended = run(tiny, pairs, out, resume=True, catalog=Catalog.open(tmp_path / "c"))
    finally:
        torch.set_num_threads(threads)
    assert ended.status == "done"
    told = ended.body["reference"]["train"]
    assert {name: told[name] for name in begun} == begun
    assert told["resumed_with"]["key"] != begun["key"]
    assert told["resumed_with"]["sha256"] != begun["sha256"]
    assert sum("differ from those the run began with" in note for note in ended.notes) == 1


def test_a_run_that_is_made_longer_began_with_the_same(tiny, pairs, tmp_path):
    out, options = tmp_path / "run", {"lr_scheduler_type": "constant", "catalog": Catalog.open(tmp_path / "c")}
    begun = run(tiny, pairs, out, max_steps=1, **options).body["reference"]["train"]
    longer = run(tiny, pairs, out, max_steps=2, resume=True, **options)
    told = longer.body["reference"]["train"]
    assert (begun["rows"], told["rows"]) == (8, 16)
    assert "resumed_with" not in told
    assert not any("differ" in note for note in longer.notes)


def test_whatever_changes_the_values_changes_the_key(tiny, monkeypatch):
    def micro(longest=64):
        return MicroBatch(
            load_for_training(str(tiny), Lora(lora_r=4), placement("cpu")), placement("cpu"),
            lambda logp_N, batch, extras: (logp_N.sum(), {}), execution="eager", longest=longest, most_tokens=128,
            most_rows=4, pad_id=0,
        )  # fmt: skip

    def key(run_micro_batch, bits=False):
        body = {"model": {"digest": "d"}, "config": {"lora": {"load_in_4bit": bits}, "run": {"seed": 0}}}
        return reference._key(SimpleNamespace(body=body), run_micro_batch, "rows", 4, "row_logprobs")

    run_micro_batch = micro()
    keys = [key(run_micro_batch), key(micro(128)), key(run_micro_batch, bits=True)]
    assert key(micro()) == keys[0]
    now = {**env(), "packages": {**env()["packages"], "bitsandbytes": "another"}}
    with monkeypatch.context() as other:
        other.setattr(reference, "env", lambda: now)
        assert key(run_micro_batch) in keys
        keys.append(key(run_micro_batch, bits=True))
    with monkeypatch.context() as other:
        other.setattr(reference, "sources_sha256", lambda: "another")
        keys.append(key(run_micro_batch))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        keys.append(key(run_micro_batch))
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(set(keys)) == len(keys) == 6


def test_sources_are_told_apart_by_text_name_and_place(tmp_path):
    def digest(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return sources_sha256(folder)

    assert digest(a="x", b="y") == digest(b="y", a="x")
    assert len({digest(a="x", b="y"), digest(a="x"), digest(a="y", b="x"), digest(a="x", in__b="y")}) == 4
    assert sources_sha256() == sources_sha256()


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path, references):
    """A pipe without a writer would be waited for, for good; the last byte that the shape allows is still read."""
    run = Kept(tmp_path)
    small = LOGPS[:3]
    assert reference._keep(run, "k", small, values_sha256(small)) == "computed and kept"
    (kept,) = references.iterdir()
    good, most = kept.read_bytes(), 1024 + 3 * (2 * reference._VALUE + 4)
    kept.write_bytes(good.ljust(most))
    assert np.array_equal(reference._taken(run, "k", small.shape), small)
    kept.write_bytes(good.ljust(most + 1))
    assert reference._taken(run, "k", small.shape) is None
    kept.unlink()
    os.mkfifo(kept)
    assert reference._taken(run, "k", small.shape) is None
    assert sum("was damaged" in note for note in run.notes) == 2
    assert reference._keep(run, "k", small, values_sha256(small)) == "computed and kept"
    assert kept.is_file()


def test_every_value_fits_into_what_is_read(tmp_path):
    run, tiny = Kept(tmp_path), np.nextafter(np.float32(1e-38), np.float32(1))
    logps = np.full((2000, 2), -tiny, np.float32)
    assert reference._keep(run, "k", logps, values_sha256(logps)) == "computed and kept"
    assert np.array_equal(reference._taken(run, "k", logps.shape), logps)


def test_log_probs_that_are_not_finite_are_not_kept(tmp_path):
    logps = np.array([[1.0, np.nan]], np.float32)
    assert "not kept" in reference._keep(None, "k", logps, values_sha256(logps))
