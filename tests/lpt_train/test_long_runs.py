"""Long runs: batches that would spoil the weights, runs that no longer get better, observers, runs made longer."""

from __future__ import annotations

import json
import os
import signal
from importlib import import_module

import pytest
import torch
from train_cases import chat, chats, preferences, write_jsonl

import lpt_train.reward as reward
import lpt_train.reward_batch as reward_batch
import lpt_train.sft as sft
import lpt_train.sinks as sinks
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import checkpoints, latest
from lpt_train.config import RunOptions, SFTConfig, from_mapping
from lpt_train.config_grpo import GRPOConfig
from lpt_train.config_guard import GuardOptions
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.config_reward import RewardConfig
from lpt_train.early_stop import EarlyStop
from lpt_train.observers import Ask, Moment, ask_all
from lpt_train.packing import epoch_order
from lpt_train.spikes import SpikeGuard, batch_sha256
from manifests.catalog import Catalog
from manifests.errors import LptError, RefusedError, UsageError
from manifests.sql import query

TIMES = ("tokens_per_second", "step_seconds", "eta_seconds")
MODEL = torch.nn.Linear(1, 1)
PAIRS = {"preference": PreferenceConfig, "kto": KTOConfig, "reward": RewardConfig}


def config(tiny, **options) -> SFTConfig:
    defaults = {"max_steps": 16, "learning_rate": 1e-2, "per_device_train_batch_size": 2, "lora_r": 4}
    return from_mapping(SFTConfig, {"model": str(tiny), **defaults, **options})


def logged(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def quarantine(out):
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]


def split_with(tmp_path, poison: dict[int, str], count=32):
    """`count` conversations; in step n (two rows a step, seed 42) the first is answered by what `poison` says."""
    rows = chats(count)
    for step, answer in poison.items():
        rows[int(epoch_order(count, 42, 0)[2 * step])]["messages"] = chat("say it", answer)
    return load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", rows), "sft")


@pytest.fixture
def absurd(monkeypatch):
    """Rows that hold a tilde have a loss a million times too large; those that hold a caret one that is not finite."""
    honest = sft._objective

    def objective(logp_N, batch, extras):
        loss, report = honest(logp_N, batch, extras)
        for mark, factor in ((b"~", 1e6), (b"^", float("nan"))):
            loss = loss * torch.where((batch.input_ids_1_T == mark[0]).any(), factor, 1.0)
        return loss, report

    monkeypatch.setattr(sft, "_objective", objective)


def test_a_poison_row_moves_no_weight_and_is_named(tiny, tmp_path, absurd):
    split = split_with(tmp_path, {10: "~"})
    poison = split.record_ids[int(epoch_order(32, 42, 0)[20])]
    catalog = Catalog.open(tmp_path / "catalog")
    guarded = config(tiny, spike_guard=True, spike_cooldown=3, lr_scheduler_type="constant")
    result = sft.train(guarded, split=split, out=tmp_path / "run", catalog=catalog)
    assert result.status == "done"
    (entry,) = quarantine(tmp_path / "run")
    assert (entry["step"], entry["suspect"], len(entry["record_ids"])) == (11, poison, 2)
    assert entry["reason"] == "loss_spike"
    assert entry["batch_sha256"] == batch_sha256(entry["record_ids"])
    assert entry["suspect_grad_norm"] > 100 * entry["median_grad_norm"]
    rows = {row["step"]: row for row in logged(tmp_path / "run") if row["step"]}
    assert [step for step, row in rows.items() if row.get("skipped")] == [11]
    assert [rows[step]["learning_rate"] for step in range(10, 16)] == [1e-2, 1e-2, 5e-3, 5e-3, 5e-3, 1e-2]
    assert result.body["proof"]["updates"] == 15
    assert rows[12]["loss"] < rows[1]["loss"]
    assert any("1 batches were set aside" in note for note in result.notes)
    sql = "SELECT run_id, step, reason, suspect, batch_sha256 FROM v_quarantine"
    assert query(catalog, sql).rows == [(result.run_id, 11, "loss_spike", poison, entry["batch_sha256"])]


def test_a_row_unlike_all_others_is_found_by_its_gradient_alone(tiny, tmp_path):
    rows = [{"messages": chat(f"say {n}", "yes")} for n in range(64)]
    at = int(epoch_order(64, 42, 0)[41])
    rows[at]["messages"] = chat("say", "\xff\xfe\xfd" * 40)
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", rows), "sft")
    guarded = config(tiny, spike_guard=True, spike_factor=4, spike_window=8, max_steps=32, use_peft=False)
    sft.train(guarded, split=split, out=tmp_path / "run")
    (entry,) = quarantine(tmp_path / "run")
    assert (entry["step"], entry["suspect"]) == (21, split.record_ids[at])


def test_without_the_guard_what_is_not_finite_ends_the_run(tiny, tmp_path, absurd):
    split = split_with(tmp_path, {10: "^"})
    with pytest.raises(LptError, match="loss of step 11 is not finite"):
        sft.train(config(tiny), split=split, out=tmp_path / "run")
    result = sft.train(config(tiny, spike_guard=True), split=split, out=tmp_path / "guarded")
    assert [entry["reason"] for entry in quarantine(tmp_path / "guarded")] == ["loss_not_finite"]
    assert result.body["quarantined"][0]["loss"] == "nan"
    assert result.body["proof"]["verdict"] == "effective"


def test_two_spikes_in_a_row_go_back_to_the_checkpoint_and_leave_both_batches_out(tiny, tmp_path, absurd):
    split = split_with(tmp_path, {10: "~", 11: "~"})
    guarded = config(tiny, spike_guard=True, save_steps=6, lr_scheduler_type="constant")
    result = sft.train(guarded, split=split, out=tmp_path / "run")
    assert [entry["step"] for entry in quarantine(tmp_path / "run")] == [11, 12]
    assert "went back to step-000006: loss_spike in step 12" in result.notes
    rows = logged(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 17))  # no step twice
    assert [row["step"] for row in rows if row.get("skipped")] == [11, 12]
    assert rows[6]["learning_rate"] == 1e-2 / 4  # lowered from where it went back to
    assert result.body["proof"]["updates"] == 14


def test_every_step_that_moved_nothing_is_in_the_metrics(tiny, tmp_path, absurd):
    split = split_with(tmp_path, {10: "~"})
    sft.train(config(tiny, spike_guard=True, logging_steps=8), split=split, out=tmp_path / "run")
    rows = logged(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 8, 11, 16]
    assert [row["step"] for row in rows if row.get("skipped")] == [11]


def test_what_a_run_undid_is_hidden_in_tensorboard_and_told_of_a_sink_that_cannot(tiny, tmp_path, absurd, monkeypatch):
    begun, closed = [], []

    class Kept:
        def __init__(self, name, step):
            self.name = name
            begun.append((name, step))

        def log(self, step, metrics):
            pass

        def close(self):
            closed.append(self.name)

    for name in ("tensorboard", "trackio"):
        opened = lambda out, run_id, config, step, name=name: Kept(name, step)  # noqa: E731
        monkeypatch.setitem(sinks.SINKS, name, (("json",), opened))
    split = split_with(tmp_path, {10: "~", 11: "~"})
    made = config(tiny, spike_guard=True, save_steps=6, report_to="tensorboard,trackio")
    result = sft.train(made, split=split, out=tmp_path / "run")
    assert begun == [("tensorboard", 0), ("trackio", 0), ("tensorboard", 6)]
    assert sorted(closed) == ["tensorboard", "tensorboard", "trackio"]
    assert [note.split()[0] for note in result.notes if "what was undone" in note] == ["trackio"]


def test_one_spike_more_than_allowed_ends_the_run_and_names_the_record(tiny, tmp_path, absurd):
    split = split_with(tmp_path, {9: "~", 12: "~"})
    poison = split.record_ids[int(epoch_order(32, 42, 0)[18])]
    with pytest.raises(LptError, match="2 batches spiked") as error:
        sft.train(config(tiny, spike_guard=True, spike_limit=1), split=split, out=tmp_path / "run")
    assert poison in error.value.next
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_the_way_back_is_to_weights_from_before_the_update_under_suspicion(tiny, tmp_path, absurd):
    split = split_with(tmp_path, {10: "~", 11: "~"})
    result = sft.train(
        config(tiny, spike_guard=True, save_steps=1, save_total_limit=9), split=split, out=tmp_path / "run"
    )
    # Steps 11 and 12 spiked, so the update of step 10 is the suspect; its checkpoint and that of step 11 are not taken.
    assert "went back to step-000009: loss_spike in step 12" in result.notes
    kept = [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")]
    assert kept == [f"step-{n:06d}" for n in range(8, 17)]


@pytest.mark.parametrize("at", [8, 13])
def test_a_guarded_run_that_was_stopped_and_resumed_is_the_whole_one(tiny, tmp_path, absurd, at):
    split = split_with(tmp_path, {9: "~", 11: "~", 12: "~"})
    options = {"spike_guard": True, "save_steps": 4, "save_total_limit": 9, "lora_dropout": 0.1}
    whole = sft.train(config(tiny, **options), split=split, out=tmp_path / "whole")

    def terminate(done, _total, _metrics):
        if done == at:
            os.kill(os.getpid(), signal.SIGTERM)

    first = sft.train(config(tiny, **options), split=split, out=tmp_path / "halves", progress=terminate)
    assert first.status == "stopped"
    second = sft.train(config(tiny, **options), split=split, out=tmp_path / "halves", resume=True)
    assert second.body["proof"]["end"] == whole.body["proof"]["end"]
    assert second.body["proof"]["updates"] == whole.body["proof"]["updates"]
    assert logged(tmp_path / "halves") == logged(tmp_path / "whole")
    assert quarantine(tmp_path / "halves") == quarantine(tmp_path / "whole")


def test_a_signal_is_answered_by_a_checkpoint_and_not_by_an_evaluation(tiny, tmp_path):
    split = split_with(tmp_path, {})
    options = {"max_steps": 6, "eval_steps": 2, "save_steps": 0}
    whole = sft.train(config(tiny, **options), split=split, eval_split=split, out=tmp_path / "whole")

    def terminate(seen):
        if (seen.point, seen.done) == ("update", 2):  # in the third step, whose end is not due for one
            os.kill(os.getpid(), signal.SIGTERM)

    out = tmp_path / "halves"
    first = sft.train(config(tiny, **options), split=split, eval_split=split, out=out, observers=[terminate])
    assert (first.status, first.body["steps"]) == ("stopped", 3)
    assert [line["step"] for line in logged(out) if "eval_loss" in line] == [0, 2]
    sft.train(config(tiny, **options), split=split, eval_split=split, out=out, resume=True)
    assert logged(out) == logged(tmp_path / "whole")
    assert whole.status == "done"


def moment(point="update", done=0, **metrics):
    return Moment(point, done, 100, MODEL, metrics, ["a", "b"])


def test_what_a_spike_is(tmp_path):
    guard = SpikeGuard(GuardOptions(spike_factor=4), tmp_path / "q.jsonl")
    assert guard(moment(loss=9e9, grad_norm=9e9)) is None  # nothing to compare it with
    for step in range(1, 12):
        assert guard(Moment("update", step, 100, MODEL, {"loss": 0.1, "grad_norm": 1.0}, [str(step)])) is None
    near = {"done": 20, "grad_norm": 3.9}
    assert guard(moment(loss=0.1, **near)) is None
    assert guard(moment(loss=1.05, **near)) is None  # ten times the median, but less than a nat above it
    assert guard(moment(loss=1.2, **near)).what == "skip"
    assert guard(moment(loss=0.1, grad_norm=1.0)).reason == "the batch is in quarantine"
    assert guard(Moment("update", 21, 100, MODEL, {"loss": 0.1, "grad_norm": 4.1}, ["c"])).what == "roll_back"
    assert guard(moment("step_end", loss=9e9, grad_norm=9e9)) is None
    other = SpikeGuard(GuardOptions(spike_factor=4), tmp_path / "q.jsonl")
    other.restore(json.loads(json.dumps(guard.state())))
    assert other.state() == guard.state()
    # Losses around zero, as of grpo, have no ratio; their gradients have.
    around = SpikeGuard(GuardOptions(), tmp_path / "q.jsonl")
    for step in range(9):
        assert around(Moment("update", step, 9, MODEL, {"loss": -0.1, "grad_norm": 1.0}, [str(step)])) is None
    assert around(Moment("update", 9, 9, MODEL, {"loss": 5.0, "grad_norm": 1.0}, ["9"])) is None
    assert around(Moment("update", 9, 9, MODEL, {"loss": 0.0, "grad_norm": 11.0}, ["9"])).reason.startswith("gradient")


def test_patience_is_counted_as_transformers_counts_it():
    early = EarlyStop(RunOptions(early_stopping_patience=2, early_stopping_threshold=0.1))
    wishes = [
        early(moment("evaluation", done, eval_loss=loss))
        for done, loss in [(0, 1.0), (1, 3.0), (2, 2.0), (3, 1.95), (4, 1.5), (5, 1.45), (6, 1.44)]
    ]
    # Better by no more than the threshold counts against the run, and yet is the best.
    assert [wish is not None for wish in wishes] == [False] * 6 + [True]
    assert wishes[-1].what == "stop"
    assert early.best == {"step": 6, "metric": "eval_loss", "value": 1.44}
    higher = EarlyStop(RunOptions(early_stopping_patience=1))
    assert higher(moment("evaluation", 1, eval_accuracy=0.5)) is None
    assert higher(moment("evaluation", 2, eval_accuracy=0.6)) is None
    assert higher(moment("evaluation", 3, eval_accuracy=float("nan"))).what == "stop"
    assert higher.best["step"] == 2
    with pytest.raises(UsageError, match="no metric eval_los"):
        EarlyStop(RunOptions(early_stopping_patience=1, metric_for_best_model="eval_los"))(
            moment("evaluation", 1, eval_loss=1.0)
        )


@pytest.mark.parametrize("algorithm", ["sft", "preference", "kto", "reward", "grpo"])
def test_patience_without_evaluations_is_refused_before_the_run_starts(tiny, tmp_path, algorithm):
    loop = import_module(f"lpt_train.{algorithm}")
    made = {"sft": SFTConfig, "grpo": GRPOConfig, **PAIRS}[algorithm]
    kind = {"sft": "sft", "grpo": "rlvr"}.get(algorithm, "preference")
    rows = {"sft": chats(4), "rlvr": [{"prompt": chat("1 2"), "answer": "3", "verifier": "integer"}]}
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows.get(kind) or preferences(4)), kind)
    for options, held_out in (({}, split), ({"eval_steps": 2}, None)):
        patient = from_mapping(made, {"model": str(tiny), "early_stopping_patience": 2, **options})
        with pytest.raises(UsageError, match="needs evaluations"):
            loop.train(patient, split=split, eval_split=held_out, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_gets_no_better_is_done_and_its_best_checkpoint_stays(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
    apart = [{"messages": chat("what", "zzz qqq")}]
    held_out = load_unadmitted(write_jsonl(tmp_path / "other.jsonl", apart), "sft")
    patient = {"early_stopping_patience": 3, "eval_steps": 1, "learning_rate": 3e-2, "save_total_limit": 1}
    patient |= {"max_steps": 60, "lr_scheduler_type": "constant"}
    out = tmp_path / "run"
    result = sft.train(config(tiny, **patient), split=split, eval_split=held_out, out=out)
    losses = {row["step"]: row["eval_loss"] for row in logged(out) if row["step"]}
    best = min(losses, key=losses.get)
    assert (result.status, result.body["stopped_by"], result.body["failures"]) == ("done", None, [])
    assert result.body["steps"] == best + 3 < 60
    assert result.body["stopped_early"].startswith("no better evaluation in the last 3")
    assert (result.body["best"]["step"], result.body["best"]["value"]) == (best, losses[best])
    names = [path.name for path in checkpoints(out / "checkpoints")]
    assert names == [f"step-{best:06d}", f"step-{best + 3:06d}"]
    assert result.body["best"]["path"] == str(out / "checkpoints" / names[0])
    # Resumed, it is over at once; with more patience it goes on.
    again = sft.train(config(tiny, **patient), split=split, eval_split=held_out, out=out, resume=True)
    assert (again.status, again.body["steps"]) == ("done", best + 3)
    longer = config(tiny, **patient | {"early_stopping_patience": 4})
    more = sft.train(longer, split=split, eval_split=held_out, out=out, resume=True)
    assert more.body["steps"] > best + 3


def test_observers_see_the_points_in_order_and_may_skip_and_stop(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
    seen = []

    def watch(now):
        seen.append((now.point, now.done))
        if now.point == "step_start":
            assert len(now.record_ids) == 2
            assert set(now.record_ids) <= set(split.record_ids)
        if (now.point, now.done) == ("step_start", 1):
            return Ask("skip", "not this one")
        if (now.point, now.done) == ("update", 2):
            assert now.metrics["grad_norm"] > 0
            return Ask("skip", "nor this one")
        return Ask("stop", "enough") if (now.point, now.done) == ("step_end", 4) else None

    result = sft.train(
        config(tiny, eval_steps=2), split=split, eval_split=split, out=tmp_path / "run", observers=[watch]
    )
    assert seen == [
        ("evaluation", 0), ("step_start", 0), ("update", 0), ("step_end", 1), ("step_start", 1), ("evaluation", 2),
        ("step_end", 2), ("step_start", 2), ("update", 2), ("step_end", 3), ("step_start", 3), ("update", 3),
        ("evaluation", 4), ("step_end", 4),
    ]  # fmt: skip
    assert (result.status, result.body["steps"], result.body["stopped_early"]) == ("done", 4, "enough")
    assert result.body["proof"]["updates"] == 2
    assert latest(tmp_path / "run" / "checkpoints").name == "step-000004"


def test_an_observer_with_a_state_goes_back_once_and_counts_on_after_a_resume(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")

    class Counts:
        seen = asked = 0

        def __call__(self, now):
            self.seen += now.point == "step_end"
            if now.point == "step_end" and now.done == 5 and not self.asked:
                self.asked = 1
                return Ask("roll_back", "once more")
            return None

        def state(self):
            return {"seen": self.seen}

        def restore(self, state):
            self.seen = state["seen"]

    counts = Counts()
    options = {"max_steps": 6, "save_steps": 3, "lr_scheduler_type": "constant"}
    result = sft.train(config(tiny, **options), split=split, out=tmp_path / "run", observers=[counts])
    assert (counts.seen, result.body["steps"], result.body["proof"]["updates"]) == (6, 6, 6)
    assert "went back to step-000003: once more" in result.notes
    plain = sft.train(config(tiny, **options), split=split, out=tmp_path / "plain")
    assert plain.body["proof"]["end"] == result.body["proof"]["end"]
    other = Counts()
    sft.train(
        config(tiny, **options | {"max_steps": 8}), split=split, out=tmp_path / "run", observers=[other], resume=True
    )
    assert other.seen == 8


def test_what_an_observer_cannot_ask_and_what_cannot_be_done(tiny, tmp_path):
    with pytest.raises(UsageError, match="cannot ask for that at step_end"):
        ask_all([lambda now: Ask("skip", "late")], moment("step_end"))
    asks = [
        lambda now: Ask("stop", "a"),
        lambda now: None,
        lambda now: Ask("roll_back", "b"),
        lambda now: Ask("skip", "c"),
    ]
    assert ask_all(asks, moment("update")).reason == "b"
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
    for name, options, message in (("none", {}, "cannot go back"), ("always", {"save_steps": 1}, "again and again")):
        always = [lambda now: Ask("roll_back", "never content") if now.point == "step_end" and now.done > 1 else None]
        with pytest.raises(LptError, match=message):
            sft.train(config(tiny, **options), split=split, out=tmp_path / name, observers=always)


def test_a_stable_schedule_can_be_made_longer_until_it_decays(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
    wsd = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 2, "num_decay_steps": 2, "save_total_limit": 1}
    whole = sft.train(config(tiny, **wsd, max_steps=10), split=split, out=tmp_path / "whole")
    out = tmp_path / "run"
    sft.train(config(tiny, **wsd, max_steps=6), split=split, out=out)
    # The last checkpoint of the stable phase is kept beside the last one.
    assert [path.name for path in checkpoints(out / "checkpoints")] == ["step-000004", "step-000006"]
    with pytest.raises(RefusedError, match="lies in the decay") as refused:
        sft.train(config(tiny, **wsd, max_steps=10), split=split, out=out, resume=True)
    assert "remove the checkpoints after step-000004" in refused.value.next
    latest(out / "checkpoints").rename(tmp_path / "decayed")
    longer = sft.train(config(tiny, **wsd, max_steps=10), split=split, out=out, resume=True)
    assert longer.body["proof"]["end"] == whole.body["proof"]["end"]
    assert logged(out) == logged(tmp_path / "whole")
    # A warm-up that is a share of the run would have been another one.
    share = wsd | {"warmup_steps": 0, "warmup_ratio": 0.5}
    sft.train(config(tiny, **share, max_steps=6), split=split, out=tmp_path / "share")
    with pytest.raises(RefusedError, match="lies in the decay"):
        sft.train(config(tiny, **share, max_steps=10), split=split, out=tmp_path / "share", resume=True)


def test_rankings_are_guarded_alike(tiny, tmp_path, monkeypatch):
    honest = reward_batch.ranking_loss

    def spoiled(rewards_R, extras, config):
        loss, report = honest(rewards_R, extras, config)
        calls.append(1)
        return loss * (float("nan") if len(calls) == 2 else 1.0), report

    calls: list[int] = []
    monkeypatch.setattr(reward_batch, "ranking_loss", spoiled)
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(12)), "preference")
    options = {"model": str(tiny), "max_steps": 3, "per_device_train_batch_size": 4, "lora_r": 2, "spike_guard": True}
    result = reward.train(from_mapping(RewardConfig, options), split=split, out=tmp_path / "run")
    (entry,) = quarantine(tmp_path / "run")
    assert (entry["step"], entry["reason"], len(entry["record_ids"])) == (2, "loss_not_finite", 4)
    assert set(entry["record_ids"]) <= set(split.record_ids)
    assert result.body["proof"]["updates"] == 2


def test_records_that_are_not_named_are_not_taken_for_each_other(tmp_path):
    guard = SpikeGuard(GuardOptions(), tmp_path / "q.jsonl")
    assert guard(Moment("update", 0, 9, MODEL, {"loss": float("nan"), "grad_norm": 1.0})).what == "skip"
    assert guard(Moment("update", 1, 9, MODEL, {"loss": 1.0, "grad_norm": 1.0})) is None


@pytest.mark.parametrize("algorithm", ["preference", "kto"])
def test_pairs_and_completions_are_guarded_alike(tiny, tmp_path, monkeypatch, algorithm):
    loop = import_module(f"lpt_train.{algorithm}")
    made = PAIRS[algorithm]
    honest = loop._objective

    def spoiled(config):
        def objective(logp_N, batch, extras):
            loss, report = honest(config)(logp_N, batch, extras)
            return loss * torch.where((batch.input_ids_1_T == ord("~")).any(), float("inf"), 1.0), report

        return objective

    monkeypatch.setattr(loop, "_objective", spoiled)
    rows = preferences(12)
    rows[5]["chosen"][0]["content"] = "it is ~"
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    options = {"model": str(tiny), "num_train_epochs": 1, "per_device_train_batch_size": 4, "lora_r": 2}
    guarded = from_mapping(made, options | {"spike_guard": True})
    result = loop.train(guarded, split=split, out=tmp_path / "run")
    assert result.status == "done"
    (entry,) = quarantine(tmp_path / "run")
    assert entry["suspect"] == split.record_ids[5]
    assert entry["reason"] == "loss_not_finite"
    with pytest.raises(LptError, match="is not finite"):
        loop.train(from_mapping(made, options), split=split, out=tmp_path / "plain")
