"""Several processes of one run: the same losses and weights as one process, one voice, one end.

The runs with two processes are started by torchrun once for all tests; each is compared with one process here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_cases import run_job
from safetensors.torch import load_file
from train_cases import chat, chats, write_jsonl

from lpt_train import kto, preference, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import RunOptions, SFTConfig, from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.data_order import shuffled
from lpt_train.packing import Row, epoch_order
from lpt_train.ranks import SOLO, Ranks, _alone, _buckets, first_to_fail, join
from lpt_train.resume import check_resume
from lpt_train.sharded import whole
from lpt_train.steps import batched
from manifests.errors import LptError, RefusedError, UsageError

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
COMPARED = (
    "loss", "eval_loss", "grad_norm", "rewards/margins", "kl_k1", "eval_kl_k1", "tokens", "epoch", "supervised_tokens",
)  # fmt: skip
TIMES = ("tokens_per_second", "step_seconds", "eta_seconds")
# 25 rows in steps of 8, twice: the last step has 2 rows, one micro-batch, and nothing for the second process.
ROWS, EPOCHS, STEPS = 25, 2, 7
OPTIONS = {
    "learning_rate": 1e-3, "lora_r": 4, "num_train_epochs": EPOCHS, "per_device_train_batch_size": 2,
    "max_length": 128, "lr_scheduler_type": "constant", "eval_steps": 3, "per_device_eval_batch_size": 2,
}  # fmt: skip
ENDLESS = {
    "max_steps": 100_000, "save_steps": 2, "lr_scheduler_type": "constant", "per_device_train_batch_size": 4,
    "lora_r": 4, "logging_steps": 1000,
}  # fmt: skip
# name -> (algorithm, options besides) of runs that must give what one process gives.
SAME = {
    "sft": ("sft", {}),
    "sft-packed": ("sft", {"packing": True, "max_length": 192, "num_train_epochs": 6}),
    "sft-full": ("sft", {"use_peft": False}),
    "sft-fsdp2": ("sft", {"sharding": "fsdp2"}),
    "sft-full-fsdp2": ("sft", {"use_peft": False, "sharding": "fsdp2", "gradient_checkpointing": True}),
    "dpo": ("dpo", {}),
    "dpo-fsdp2-bf16": ("dpo", {"sharding": "fsdp2", "dtype": "bfloat16"}),
    "dpo-full-fsdp2": ("dpo", {"use_peft": False, "sharding": "fsdp2"}),
}
# Runs of four steps that are then taken up for the rest, with dropout: random numbers must come back as well.
RESUMED = {
    "again": ("sft", {"lora_dropout": 0.1}),
    "dpo-full-fsdp2": SAME["dpo-full-fsdp2"],
}
# Runs whose steps of two rows, one a process, meet rows unlike all others: (those steps, options besides).
GUARDED = {
    "spike": ((20,), {}),
    "spikes-fsdp2": ((20, 21), {"sharding": "fsdp2"}),
}
GUARD = {
    "use_peft": False, "spike_guard": True, "spike_factor": 4, "spike_window": 8, "learning_rate": 1e-2,
    "max_steps": 28, "max_length": 512, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1,
    "save_steps": 6, "eval_steps": 0,
}  # fmt: skip


def pairs(first: int, count: int) -> list[dict]:
    """Preference records of different lengths."""
    return [
        {
            "prompt": chat(f"say {n}"),
            "chosen": [{"role": "assistant", "content": "yes " * (1 + n % 4)}],
            "rejected": [{"role": "assistant", "content": "no no " * (1 + n % 3)}],
        }
        for n in range(first, first + count)
    ]


def odd_rows(steps: tuple[int, ...]) -> list[dict]:
    """Conversations that are answered alike, but for the second row of those steps."""
    rows = [{"messages": chat(f"say {n}", "yes")} for n in range(64)]
    for step in steps:
        rows[int(epoch_order(64, 42, 0)[2 * step + 1])]["messages"] = chat(f"step {step}", "\xff\xfe\xfd" * 40)
    return rows


class Runs:
    """The runs with two processes, their records by name, and the jobs that they were."""

    def __init__(self, folder: Path, tiny: Path) -> None:
        self.folder, self.tiny = folder, tiny
        for name, rows in {
            "sft": chats(ROWS), "sft-eval": chats(ROWS + 5)[ROWS:], "dpo": pairs(0, ROWS), "dpo-eval": pairs(ROWS, 5),
        }.items():  # fmt: skip
            write_jsonl(folder / f"{name}.jsonl", rows)
        self.jobs: dict[str, dict] = {}
        for name, (algorithm, options) in SAME.items():
            self.jobs[name] = self.job(name, algorithm, options)
        for name, (algorithm, options) in RESUMED.items():
            self.jobs.setdefault(name, self.job(name, algorithm, options))
            self.jobs[f"{name} half"] = self.job(f"{name}-resumed", algorithm, {**options, "max_steps": 4})
            self.jobs[f"{name} resumed"] = self.job(f"{name}-resumed", algorithm, options, resume=True)
        for name, (steps, options) in GUARDED.items():
            rows = write_jsonl(folder / f"{name}.jsonl", odd_rows(steps))
            self.jobs[name] = self.job(name, "sft", {**GUARD, **options}, rows=str(rows), eval=None)
        # Begun by one process, gone on with by two, with their weights spread.
        run_job(self.job("from-one", "sft", {"max_steps": 4, "gradient_accumulation_steps": 4}))
        self.jobs["from-one"] = self.job("from-one", "sft", {"max_steps": STEPS, "sharding": "fsdp2"}, resume=True)
        self.jobs["stopped"] = self.job("stopped", "sft", {"sharding": "fsdp2"}, stop=3)
        results, self.talk = folder / "results.json", folder / "stderr.txt"
        (folder / "jobs.json").write_text(
            json.dumps({"jobs": self.jobs, "results": str(results), "command": self.endless()})
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "LPT_CATALOG": str(folder / "own"),
        }
        with open(self.talk, "w") as talk:
            self.running = subprocess.Popen(
                [*TORCHRUN, str(HERE / "rank_cases.py"), str(folder / "jobs.json")], env=environment,
                stdout=subprocess.DEVNULL, stderr=talk,
            )  # fmt: skip
        self.wait_for(results.exists)
        self.records = json.loads(results.read_text())

    def wait_for(self, there, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not there():
            assert self.running.poll() is None, self.talk.read_text()[:6000]
            assert time.monotonic() < deadline, self.talk.read_text()[:6000]
            time.sleep(0.1)

    def endless(self) -> list[str]:
        """The arguments of a run that ends when one of its processes is killed."""
        options = {**ENDLESS, "gradient_accumulation_steps": 1}
        settings = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
        rows = str(self.folder / "sft.jsonl")
        return ["train", "sft", "--unadmitted", rows, "--model", str(self.tiny), "--out", str(self.folder / "endless"),
                *settings]  # fmt: skip

    def job(self, out: str, algorithm: str, options: dict, **more) -> dict:
        options = {"model": str(self.tiny), **OPTIONS, "gradient_accumulation_steps": 2, **options}
        if "max_steps" in options:
            options.pop("num_train_epochs")
        return {
            "algorithm": algorithm, "rows": str(self.folder / f"{algorithm}.jsonl"), "options": options,
            "eval": str(self.folder / f"{algorithm}-eval.jsonl"), "out": str(self.folder / out), **more,
        }  # fmt: skip

    def in_one(self, name: str, **options) -> tuple[dict, Path]:
        """The run `name` in one process, with the same rows a step: its record and its folder."""
        job = self.jobs[name]
        options = {**job["options"], "sharding": "none", "gradient_accumulation_steps": 4, **options}
        out = self.folder / f"{name}-in-one"
        if (out / "run.json").exists():
            return json.loads((out / "run.json").read_text()), out
        return run_job({**job, "options": options, "out": str(out)}), out


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("two"), tiny)
    yield runs
    runs.running.terminate()
    runs.running.wait(60)


def logged(out: Path) -> list[dict]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(next(latest(out / "checkpoints").glob("*model.safetensors")))


@pytest.mark.parametrize("name", SAME)
def test_two_processes_give_the_losses_and_weights_of_one(two, name):
    record = two.records[name]
    one, out = two.in_one(name)
    here, there = logged(out), logged(two.folder / name)
    assert [row["step"] for row in there] == [row["step"] for row in here] == list(range(record["steps"] + 1))
    assert here[-1].keys() == there[-1].keys()
    for alone, together in zip(here, there, strict=True):
        for metric in COMPARED:
            assert together.get(metric) == pytest.approx(alone.get(metric), abs=1e-5), metric
    assert any("eval_loss" in row for row in there[1:-1])
    assert all(("kl_k1" in row) is name.startswith("dpo") for row in there[1:])
    assert record["proof"]["start"] == one["proof"]["start"]  # the adapter drew the same first values
    assert record["proof"]["verdict"] == one["proof"]["verdict"] == "effective"
    ours, theirs = weights(two.folder / name), weights(out)
    assert ours.keys() == theirs.keys()
    assert max(float((ours[key] - theirs[key]).abs().max()) for key in ours) < 1e-5
    assert record["ranks"] == {"world_size": 2, "sharding": two.jobs[name]["options"].get("sharding", "none")}
    assert record["parameters"] == one["parameters"]


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_of_two_processes_is_the_uninterrupted_one_bit_for_bit(two, name):
    whole_run, resumed = two.records[name], two.records[f"{name} resumed"]
    assert two.records[f"{name} half"]["steps"] == 4
    assert resumed["proof"]["end"] == whole_run["proof"]["end"]
    every, again = (
        [{key: value for key, value in row.items() if not key.startswith("eval_")} for row in logged(two.folder / out)]
        for out in (name, f"{name}-resumed")
    )  # the half evaluated at its end, the whole did not
    assert every[-1]["step"] == STEPS
    assert every == again
    if "lora_dropout" in RESUMED[name][1]:  # it is drawn anew in each process: not the run of one process
        alone, _ = two.in_one(name)
        assert alone["proof"]["end"] != whole_run["proof"]["end"]


def test_a_run_goes_on_with_another_number_of_processes(two):
    """The rows of a step are the same, so are the losses up to rounding: 1 → 2 spread over them, and back."""
    _, out = two.in_one("sft")
    expected = [row["loss"] for row in logged(out)[1:]]
    assert [row["loss"] for row in logged(two.folder / "from-one")[1:7]] == pytest.approx(expected[:6], abs=1e-5)
    back = two.job("stopped", "sft", {"gradient_accumulation_steps": 4}, resume=True)
    assert run_job(back)["steps"] == STEPS
    assert "ranks" not in json.loads((two.folder / "stopped" / "run.json").read_text())
    assert [row["loss"] for row in logged(two.folder / "stopped")[1:]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", GUARDED)
def test_processes_set_the_same_batches_aside_and_name_their_rows_once(two, name):
    steps, options = GUARDED[name]
    split = load_unadmitted(two.folder / f"{name}.jsonl", "sft")
    order = epoch_order(64, 42, 0)
    entries = [json.loads(line) for line in (two.folder / name / "quarantine.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [step + 1 for step in steps]
    for entry, step in zip(entries, steps, strict=True):
        taken = [split.record_ids[int(unit)] for unit in order[2 * step : 2 * step + 2]]
        assert entry["record_ids"] == taken  # of both processes
        assert entry["suspect"] == taken[1]
    record = two.records[name]
    assert record["status"] == "done"
    assert record["quarantined by rank"] == [entries, entries]
    rows = [row for row in logged(two.folder / name) if row["step"]]
    assert [row["step"] for row in rows] == list(range(1, 29))
    assert [row["step"] for row in rows if row.get("skipped")] == [step + 1 for step in steps]
    went_back = [note for note in record["notes"] if note.startswith("went back to step-000018")]
    assert len(went_back) == len(steps) - 1
    one, out = two.in_one(name, gradient_accumulation_steps=2)
    assert [entry["suspect"] for entry in one["quarantined"]] == [entry["suspect"] for entry in entries]
    losses = [[row["loss"] for row in logged(folder) if row["step"]] for folder in (two.folder / name, out)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    ours, theirs = weights(two.folder / name), weights(out)
    assert max(float((ours[key] - theirs[key]).abs().max()) for key in ours) < 1e-3


def test_a_signal_to_one_process_stops_all_at_the_same_step(two):
    record = two.records["stopped"]
    assert record["status"] == "stopped"
    assert record["stopped_by"] == "SIGTERM"
    assert 3 <= record["steps"] <= 4
    assert record["checkpoint"]["path"].endswith(f"step-{record['steps']:06d}")


def test_the_main_process_alone_records(two):
    """Every run of two processes is in the catalog once, and has one line a step."""
    from manifests.catalog import Catalog

    bodies = [body for _, body in Catalog.open(two.folder / "catalog").find("lpt.run/1")]
    ids = [body["run_id"] for body in bodies if body["status"] == "done" and body["steps"] == STEPS]
    assert len(ids) == len(set(ids))
    assert two.records["sft"]["run_id"] in ids


def test_a_killed_process_ends_the_command_with_one_error_and_a_checkpoint_that_is_good(two):
    out = two.folder / "endless"
    two.wait_for(lambda: latest(out / "checkpoints") is not None)
    children = Path(f"/proc/{two.running.pid}/task/{two.running.pid}/children").read_text().split()
    (second,) = [pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
    os.kill(int(second), signal.SIGKILL)
    assert two.running.wait(60) != 0
    talk = two.talk.read_text()
    assert talk.count("error: ") == talk.count("error: another process of the run has ended") == 1
    assert talk.count("Traceback") == talk.count("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")
    assert talk.count("is not admitted: the run and everything made from it are marked") == 1
    body = json.loads((out / "run.json").read_text())
    assert body["status"] == "failed"
    assert "another process" in body["failures"][0]
    step = int(latest(out / "checkpoints").name.removeprefix("step-"))
    options = {**ENDLESS, "model": str(two.tiny), "max_steps": step + 1, "gradient_accumulation_steps": 2}
    split = load_unadmitted(two.folder / "sft.jsonl", "sft")
    done = sft.train(from_mapping(SFTConfig, options), split=split, out=out, resume=True)
    assert (done.status, done.body["steps"]) == ("done", step + 1)
    assert any("begun by 2 processes" in note for note in done.notes)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_rows_of_a_step_are_dealt_once_each_and_as_many_micro_batches_to_all(world):
    ranks = [Ranks(rank, world) for rank in range(world)]
    for rows in range(1, 30):
        parts = batched(range(rows), 3)
        dealt = [place.deal(parts, ["blank"]) for place in ranks]
        assert len({len(mine) for mine in dealt}) == 1
        counted = sorted(row for mine in dealt for part in mine for row in part if row != "blank")
        assert counted == list(range(rows))
        assert sum(part == ["blank"] for mine in dealt for part in mine) < world


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_order_of_rows_is_that_of_one_process_where_a_step_has_as_many(world):
    units = list(range(25))
    config = from_mapping(
        SFTConfig, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4 // world, "num_train_epochs": 3}
    )
    order, alone = shuffled(units, config, world), shuffled(units, from_mapping(SFTConfig, {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_train_epochs": 3,
    }))  # fmt: skip
    assert [order.lines(step) for step in range(order.steps)] == [alone.lines(step) for step in range(alone.steps)]
    assert sorted(unit for step in range(order.steps) for unit in order.lines(step)) == sorted(units * 3)


def test_a_process_alone_changes_nothing(tiny):
    values = {"loss": 0.1, "norm": 0.2}
    gradient = torch.nn.Parameter(torch.ones(2))
    gradient.grad = torch.full((2,), 0.3)
    before = torch.get_rng_state()
    SOLO.sum_gradients([gradient])
    SOLO.seed(1, 2)
    assert SOLO.sums(values) == values
    assert SOLO.any(True)
    assert not SOLO.any(False)
    assert SOLO.gathered("x") == ["x"]
    assert torch.equal(gradient.grad, torch.full((2,), 0.3))
    assert torch.equal(torch.get_rng_state(), before)
    assert whole(gradient) is gradient


def test_every_process_and_step_has_random_numbers_of_its_own():
    drawn = set()
    for rank in range(3):
        for step in range(3):
            Ranks(rank, 3).seed(42, step)
            drawn.add(float(torch.rand(())))
    assert len(drawn) == 9
    Ranks(2, 3).seed(42, 2)
    assert float(torch.rand(())) in drawn


def test_buckets_hold_every_gradient_once(monkeypatch):
    monkeypatch.setattr("lpt_train.ranks._BUCKET", 10)
    shapes = [((4,), torch.float32), ((2, 3), torch.float32), ((1,), torch.float32), ((20,), torch.float32),
              ((3,), torch.bfloat16), ((), torch.bfloat16)]  # fmt: skip
    gradients = [torch.rand(shape).to(dtype) for shape, dtype in shapes]
    made = _buckets(gradients)
    assert [bucket.first for bucket in made] == [0, 2, 3, 4]
    assert [piece.shape for bucket in made for piece in bucket.pieces] == [gradient.shape for gradient in gradients]
    for bucket in made:
        some = gradients[bucket.first : bucket.first + len(bucket.pieces)]
        torch._foreach_copy_(bucket.pieces, some)
        assert torch.equal(bucket.flat, torch.cat([gradient.reshape(-1) for gradient in some]))


UNDER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_RANK": "0"}


def launched_by_torchrun(monkeypatch, **more) -> None:
    for name, value in {**UNDER, **more}.items():
        monkeypatch.setenv(name, value)


def test_an_algorithm_that_runs_in_one_process_is_refused_under_torchrun(tiny, tmp_path, monkeypatch):
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", pairs(0, 8)), "preference")
    config = from_mapping(KTOConfig, {"model": str(tiny), "max_steps": 1})
    launched_by_torchrun(monkeypatch)
    with pytest.raises(RefusedError, match="kto runs in one process") as refused:
        kto.train(config, split=split, out=tmp_path / "run")
    assert "without torchrun" in refused.value.next
    assert not (tmp_path / "run" / "run.json").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert kto.train(config, split=split, out=tmp_path / "run").status == "done"


def test_weights_are_spread_over_several_processes_or_refused(tiny, sft_split, tmp_path):
    config = from_mapping(SFTConfig, {"model": str(tiny), "sharding": "fsdp2"})
    with pytest.raises(UsageError, match="spread over several processes") as refused:
        sft.train(config, split=sft_split, out=tmp_path / "run")
    assert "torchrun" in refused.value.next
    with pytest.raises(UsageError, match="no choice of that name"):
        from_mapping(SFTConfig, {"sharding": "fsdp3"})


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch):
    launched_by_torchrun(monkeypatch, LOCAL_RANK="1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="GPU of its own"):
        join(RunOptions())


def test_the_first_process_that_fails_tells_it_and_leaves_its_reason(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launched_by_torchrun(monkeypatch, MASTER_PORT=str(store.port), RANK="1")
    assert first_to_fail(UsageError("the seed is too large", seen=9, next="less"))
    assert not first_to_fail(LptError("what follows from it"))
    followed = _alone(RuntimeError("[/torch/pair.cc:1] Connection closed by peer. And more"))
    assert followed.what == "another process of the run failed: process 1: the seed is too large"
    assert followed.seen == "9"
    del store


def test_without_a_store_every_process_tells_its_own(monkeypatch):
    assert first_to_fail(LptError("alone"))
    launched_by_torchrun(monkeypatch)
    monkeypatch.setattr("lpt_train.ranks._store", lambda: None)
    assert first_to_fail(LptError("alone"))
    lost = _alone(RuntimeError("[/torch/pair.cc:1] Connection closed by peer. And more"))
    assert lost.seen == "Connection closed by peer"
    assert "--resume" in lost.next


def test_an_error_of_another_kind_is_not_taken_for_a_lost_process():
    several = Ranks(0, 2)
    assert several.lost(ValueError("gloo")) is None
    assert several.lost(RuntimeError("shapes differ")) is None
    assert SOLO.lost(RuntimeError("gloo/transport: Connection closed by peer")) is None


def record(world: int, size: int, accumulation: int) -> dict:
    config = from_mapping(SFTConfig, {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation})
    from lpt_train.config import to_mapping

    ranks = {"ranks": {"world_size": world, "sharding": "none"}} if world > 1 else {}
    return {"config": to_mapping(config), "model": {"digest": "d"}, **ranks}


@pytest.mark.parametrize(("world", "size", "accumulation"), [(1, 2, 8), (1, 4, 4), (4, 2, 2), (2, 2, 4), (8, 2, 1)])
def test_a_run_may_go_on_where_a_step_keeps_its_rows(world, size, accumulation):
    check_resume(record(2, 2, 4), record(world, size, accumulation))


@pytest.mark.parametrize(("world", "size", "accumulation"), [(1, 2, 4), (4, 2, 4), (2, 4, 2), (2, 2, 2)])
def test_a_run_may_not_go_on_with_other_rows_a_step(world, size, accumulation):
    with pytest.raises(RefusedError, match="rows_a_step|per_device_train_batch_size|gradient_accumulation_steps"):
        check_resume(record(2, 2, 4), record(world, size, accumulation))


def test_a_blank_micro_batch_adds_nothing(tiny, tmp_path):
    """What a process computes for a step that has no rows left for it: loss 0 and gradients 0."""
    from lpt_train.adapters import load_for_training
    from lpt_train.config import Lora
    from lpt_train.micro_batch import BLANK
    from lpt_train.models import placement

    model = load_for_training(str(tiny), Lora(lora_r=4), placement("cpu"))
    run = sft._micro_batch(model, placement("cpu"), SFTConfig(), [[Row(0, np.arange(9), np.ones(9))]], 0, SOLO)
    report = run([BLANK], {"denominator": torch.tensor(7.0)})
    assert float(report["loss"]) == 0
    assert all(float(p.grad.abs().max()) == 0 for p in model.parameters() if p.grad is not None)
    assert preference._rows([]) == [BLANK, BLANK]
