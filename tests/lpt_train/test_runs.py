"""A run's folder and record, with a catalog that works, one that is busy and one that is broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from lpt_train.config import SFTConfig, from_mapping, to_mapping
from lpt_train.proof import Proof
from lpt_train.runs import Run, StopRequest, check_resume
from manifests.catalog import Catalog
from manifests.errors import BadInputError, BusyError, LptError, RefusedError, UsageError

TOKENIZER = {"fingerprint": "f", "template_sha256": "t"}
EFFECTIVE = {"verdict": "effective"}


def create(out, split, tiny, catalog=None, **named) -> Run:
    model = {"name": str(tiny), "digest": "d"}
    return Run.create(
        out, "sft", named.pop("config", SFTConfig()), split, model, tokenizer=TOKENIZER, catalog=catalog, **named
    )


def test_the_folder_says_running_from_the_start_and_done_at_the_end(tmp_path, sft_split, tiny):
    catalog = Catalog.open(tmp_path / ".lpt")
    run = create(tmp_path / "run", sft_split, tiny, catalog)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    run.log(1, {"loss": 3.0})
    run.log(2, {"loss": 2.0, "extra": 1.0})
    result = run.finish("done", steps=2, proof=EFFECTIVE)
    assert result.body["metrics"] == {"loss": [3.0, 2.0], "extra": [1.0, 1.0]}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "done"
    assert catalog.get(result.object_id)["run_id"] == result.run_id
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0, "extra": 1.0}]
    wanted = {
        "type", "run_id", "algorithm", "config", "manifest", "split", "verified", "tainted", "verdict", "model",
        "tokenizer", "tokenized_id", "steps", "metrics", "tokens_per_second", "peak_memory_bytes", "checkpoint",
        "proof", "failures", "status", "env", "seed", "created", "seconds", "metrics_path", "parents",
    }  # fmt: skip
    assert wanted <= set(result.to_json())


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path, sft_split, tiny):
    create(tmp_path / "run", sft_split, tiny, Catalog.open(tmp_path / ".lpt")).finish("done", steps=0)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        create(tmp_path / "run", sft_split, tiny)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    with pytest.raises(UsageError, match="no run to resume"):
        create(tmp_path / "other", sft_split, tiny, resume=True)


@pytest.mark.parametrize("record", ["[]", "{", "{}", '{"run_id": "r", "config": 1, "model": {}}'])
def test_a_damaged_record_is_not_resumed(tmp_path, sft_split, tiny, record):
    (tmp_path / "run.json").write_text(record)
    with pytest.raises(BadInputError, match="damaged"):
        create(tmp_path, sft_split, tiny, resume=True)


def test_two_processes_do_not_share_a_folder(tmp_path, sft_split, tiny):
    running = create(tmp_path / "run", sft_split, tiny)
    with pytest.raises(BusyError):
        create(tmp_path / "run", sft_split, tiny, resume=True)
    assert running.body["status"] == "running"


def test_a_broken_catalog_does_not_fail_the_run(tmp_path, sft_split, tiny):
    catalog = Catalog.open(tmp_path / ".lpt")
    run = create(tmp_path / "run", sft_split, tiny, catalog)
    (tmp_path / ".lpt" / "events.jsonl").mkdir()
    result = run.finish("done", steps=0, proof=EFFECTIVE)
    assert result.status == "done"
    assert result.object_id is None
    assert "could not record the run" in result.notes[0]
    assert json.loads((tmp_path / "run" / "unrecorded" / "run.json").read_text())["run_id"] == result.run_id


def test_a_busy_index_loses_nothing(tmp_path, sft_split, tiny):
    catalog = Catalog.open(tmp_path / ".lpt")
    assert catalog.sync()
    run = create(tmp_path / "run", sft_split, tiny, catalog)
    code = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(catalog.index_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        result = run.finish("done", steps=0, proof=EFFECTIVE)
        holder.stdin.close()
    assert result.status == "done"
    assert "busy" in " ".join(result.notes)
    assert [body["run_id"] for _, body in catalog.find("lpt.run/1")] == [result.run_id]
    assert catalog.sync()


def test_a_run_without_an_update_says_so_in_its_verdict(tmp_path, sft_split, tiny):
    model = torch.nn.Linear(1, 1)
    proof = Proof(model)
    proof.observe(0.0)
    result = create(tmp_path / "run", sft_split, tiny).finish("done", steps=1, proof=proof.finish())
    assert result.body["verdict"] == "no_effective_update"


def test_values_that_are_not_finite_are_written_as_text(tmp_path, sft_split, tiny):
    run = create(tmp_path / "run", sft_split, tiny)
    run.log(1, {"loss": float("nan")})
    assert json.loads(run.metrics_path.read_text()) == {"step": 1, "loss": "nan"}
    with pytest.raises(LptError, match="grad_norm of step 2 is not finite"):
        run.require_finite(2, loss=1.0, grad_norm=float("inf"))


def test_resuming_forgets_what_came_after_the_checkpoint(tmp_path, sft_split, tiny):
    run = create(tmp_path / "run", sft_split, tiny)
    for step in (1, 2, 3):
        run.log(step, {"loss": float(step)})
    with open(run.metrics_path, "a") as file:
        file.write('[]\n{"step": "x"}\n{"step": 4, "lo')  # what somebody else wrote, and a kill in the middle of a line
    run.resumed_at(2)
    assert [json.loads(line)["step"] for line in run.metrics_path.read_text().splitlines()] == [1, 2]
    assert run.body["metrics"] == {"loss": [1.0, 2.0]}
    run.log(0, {"eval_loss": 1.0})
    run.resumed_at(0)
    assert run.metrics_path.read_bytes() == b""
    assert run.body["metrics"] == {}


def test_a_resume_may_change_what_is_watched_and_nothing_else(tmp_path, sft_split, tiny):
    body = create(tmp_path / "run", sft_split, tiny).body
    watched = from_mapping(SFTConfig, {"save_steps": 3, "logging_steps": 2, "eval_steps": 5, "save_total_limit": 9})
    check_resume(body, body | {"config": {**body["config"], "run": to_mapping(watched.run)}})
    for change in ({"learning_rate": 1}, {"max_length": 7}, {"seed": 1}, {"lora_r": 3}, {"packing": True}):
        changed = create(
            tmp_path / f"run-{next(iter(change))}", sft_split, tiny, config=from_mapping(SFTConfig, change)
        )
        with pytest.raises(RefusedError, match=f"another {next(iter(change))}"):
            check_resume(body, changed.body)
    with pytest.raises(RefusedError, match="another split"):
        check_resume(body, body | {"split": "other@1:train"})
    with pytest.raises(RefusedError, match="another start_model"):  # the same path, other weights in it
        check_resume(body, body | {"model": {**body["model"], "digest": "e"}})


def test_a_resume_under_another_template_names_it_and_what_to_do(tmp_path, sft_split, tiny):
    def under(version: str | None, **more: str):
        told = {"env": {"packages": {"trl": version} if version else {}}}
        return body | told | {"tokenizer": TOKENIZER | more}

    body = create(tmp_path / "run", sft_split, tiny).body
    trained = {"training_template": "trl/qwen3_training", "template_sha256": "u" * 64}
    check_resume(under("1.16.0", **trained), under("1.17.0", **trained))  # the same text from another version
    without = pytest.raises(RefusedError, check_resume, under(None), under("1.16.0", **trained)).value
    assert without.what == "the run was begun without TRL's training template"
    assert without.seen == f"the chat template of the model (t…) then; trl/qwen3_training ({'u' * 16}…) now"
    assert "pip uninstall trl" in without.next
    for now_ in (under(None), under("1.17.0", **trained | {"template_sha256": "v"})):
        begun = pytest.raises(RefusedError, check_resume, under("1.16.0", **trained), now_).value
        assert begun.what == "the run was begun with TRL's training template trl/qwen3_training (trl 1.16.0)"
        assert begun.next == "pip install 'trl==1.16.0', or start a new run in another folder"
    unused = pytest.raises(RefusedError, check_resume, under("1.16.0", **trained), under("1.16.0")).value
    assert unused.next == "start a new run in another folder"
    with pytest.raises(RefusedError, match="another tokenizer"):
        check_resume(under(None), under(None, fingerprint="g"))


def test_a_resume_measures_on_the_same_split(tmp_path, sft_split, tiny):
    """One curve and one early stopping have one split; what an older record does not say is another one."""
    first, other = ({"ref": name, "content_root": name * 64} for name in "ab")
    body = create(tmp_path / "run", sft_split, tiny, eval_split=sft_split).body
    assert body["eval"] == {"ref": sft_split.ref, "content_root": sft_split.content_root}
    assert create(tmp_path / "plain", sft_split, tiny).body["eval"] is None
    older = {name: value for name, value in body.items() if name != "eval"}
    for then, now_ in ((body | {"eval": first},) * 2, (body | {"eval": None},) * 2, (older, body | {"eval": None})):
        check_resume(then, now_)
    same_rows_changed = {**first, "content_root": "c" * 64}  # the name is the same, its rows are not
    for then in ({"eval": None}, {"eval": other}, {"eval": same_rows_changed}, {}):
        with pytest.raises(RefusedError, match="another eval split") as refused:
            check_resume(older | then, body | {"eval": first})
        assert f"a {'a' * 64} now" in refused.value.seen
    with pytest.raises(RefusedError, match="another eval split"):
        check_resume(body | {"eval": first}, body | {"eval": None})


def test_the_seconds_of_a_killed_run_are_not_lost(tmp_path, sft_split, tiny):
    killed = create(tmp_path / "run", sft_split, tiny)
    killed._started -= 100  # it began so long ago
    killed.log(1, {"loss": 1.0})
    killed._written -= 100
    killed.log(2, {"loss": 1.0})
    killed._lock.close()  # as the end of its process does
    assert json.loads((tmp_path / "run" / "run.json").read_bytes())["seconds"] >= 100
    again = create(tmp_path / "run", sft_split, tiny, Catalog.open(tmp_path / ".lpt"), resume=True)
    again.resumed_at(2)
    result = again.finish("done", steps=2, proof=EFFECTIVE)
    assert 100 <= result.body["seconds"] < 200  # its own and the earlier ones, once
    on_disk = json.loads((tmp_path / "run" / "run.json").read_bytes())["seconds"]
    assert on_disk == result.body["seconds"] == again.catalog.get(result.object_id)["seconds"]


@pytest.mark.parametrize("change", [{"max_steps": 99}, {"max_steps": -1, "num_train_epochs": 3}])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_length_may_change_where_no_schedule_aims_at_it(tmp_path, sft_split, tiny, schedule, change):
    start = {"max_steps": 10, "warmup_steps": 2, "lr_scheduler_type": schedule}

    def body(name, **options):
        return create(tmp_path / name, sft_split, tiny, config=from_mapping(SFTConfig, start | options)).body

    before = body("before")
    check_resume(before, body("unused_epochs", num_train_epochs=7))  # max_steps decides, epochs say nothing
    if schedule == "constant":
        check_resume(before, body("longer", **change))
        with pytest.raises(RefusedError, match="another warmup_steps"):
            check_resume(before, body("warmer", warmup_steps=3, **change))
        return
    with pytest.raises(RefusedError, match=f"{schedule} schedule of the run aims at the length") as refused:
        check_resume(before, body("longer", **change))
    assert "max_steps: 10 then" in refused.value.seen
    assert "lr_scheduler_type=constant" in refused.value.next


def test_an_exception_is_recorded_and_passed_on(tmp_path, sft_split, tiny):
    catalog = Catalog.open(tmp_path / ".lpt")
    run = create(tmp_path / "run", sft_split, tiny, catalog)
    proof = Proof(torch.nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match="boom"), run.guarded(proof):
        raise RuntimeError("boom")
    (_, body), *_ = catalog.find("lpt.run/1")
    assert (body["status"], body["failures"]) == ("failed", ["RuntimeError: boom"])


def test_running_out_of_gpu_memory_says_what_to_change(tmp_path, sft_split, tiny):
    run = create(tmp_path / "run", sft_split, tiny)
    with pytest.raises(LptError, match="not enough memory") as error, run.guarded(Proof(torch.nn.Linear(1, 1))):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "gradient_accumulation_steps" in error.value.next


def test_a_signal_asks_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert stop.signal == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
