from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from rl_cases import problem, split_of
from train_cases import chats, write_jsonl

from lpt_train import grpo
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import Lora, from_mapping
from lpt_train.config_grpo import GRPOConfig
from lpt_train.models import load_model
from lpt_train.observers import Ask
from lpt_train.sampler.generate import Completion
from lpt_train.speed import Speed
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError, RefusedError, UsageError
from manifests.sql import query


@pytest.fixture
def catalog(tmp_path):
    return Catalog.open(tmp_path / "catalog")


def train(config, split, out, catalog, **kwargs):
    return grpo.train(config, split=split, out=out, catalog=catalog, **kwargs)


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def weights(result):
    return {n: p.detach() for n, p in load_model(result.body["checkpoint"]["path"]).named_parameters()}


def options(config, **kwargs):
    return from_mapping(GRPOConfig, kwargs, config)


def test_reward_rises(config, split, tmp_path, catalog):
    seen = []
    config = options(config, max_steps=25, gradient_accumulation_steps=8, learning_rate=1e-2)
    result = train(config, split, tmp_path / "run", catalog, progress=lambda *row: seen.append(row))
    rewards = [row["reward"] for row in metrics(tmp_path / "run")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15
    assert result.status == "done"
    assert result.body["proof"]["verdict"] == "effective"
    assert [step for step, _, _ in seen] == list(range(1, 26))
    assert seen[-1][2]["eta_seconds"] == 0


def test_what_a_run_records(config, split, tmp_path, catalog):
    result = train(options(config, reward="reward_functions:sometimes"), split, tmp_path / "run", catalog)
    body = catalog.get(result.object_id)
    assert body["algorithm"] == "grpo"
    assert body["tainted"] is True
    assert body["split"] == split.ref
    assert body["rewards"]["network"] in ("namespace", "audit hook")
    first = metrics(tmp_path / "run")[0]
    for name in (
        "reward", "reward_std", "frac_zero_variance", "unscorable", "completion_length", "truncated_share", "entropy",
        "clip_low", "clip_high", "ratio_kl", "grad_norm", "learning_rate", "tokens_per_second", "mismatch", "loss",
        "generation_seconds", "training_seconds",
    ):  # fmt: skip
        assert name in first, name
    assert 0 < first["unscorable"] < 1
    assert first["generation_seconds"] + first["training_seconds"] < first["step_seconds"]
    assert first["mismatch"] < 1e-5  # the sampler and the trainer are the same model in float32
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * config.generation_size
    assert {row["record_id"] for row in rows} <= set(split.record_ids)
    assert all((row["reward"] is None) == (row["failure"] == "no_score_given") for row in rows)
    step = [row for row in rows if row["step"] == 0]
    scored = [row["reward"] for row in step if row["reward"] is not None]
    assert first["reward"] == pytest.approx(sum(scored) / len(scored))
    assert first["unscorable"] == pytest.approx(1 - len(scored) / len(step))
    assert body["rewards"]["unscorable"]["no_score_given"] == sum(row["reward"] is None for row in rows)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_peft": True, "lora_r": 2, "lora_dropout": 0.1, "beta": 0.1, "lr_scheduler_type": "cosine"},
        {"steps_per_generation": 4, "num_iterations": 2, "max_steps": 8},
    ],
    ids=["full", "lora", "off_policy"],
)
def test_n_steps_and_n_steps_are_2n_steps(config, split, tmp_path, catalog, changes):
    """Bit for bit, through a checkpoint; the schedule is that of the whole run, as it is when a run was interrupted."""
    whole = options(config, max_steps=4) if "max_steps" not in changes else config
    whole = options(whole, save_steps=whole.run.max_steps // 2, save_total_limit=9, **changes)
    whole = options(whole, save_steps=whole.run.max_steps // 2)
    one = train(whole, split, tmp_path / "one", catalog)

    class Enough(Exception):
        pass

    def interrupt(step, total, _):
        if step > total // 2:
            raise Enough

    with pytest.raises(Enough):
        train(whole, split, tmp_path / "two", catalog, progress=interrupt)
    two = train(whole, split, tmp_path / "two", catalog, resume=True)
    assert one.body["proof"]["start"] == two.body["proof"]["start"]
    assert one.body["proof"]["end"] == two.body["proof"]["end"]
    timing = ("tokens_per_second", "step_seconds", "eta_seconds", "generation_seconds", "training_seconds")
    strip = lambda rows: [{k: v for k, v in row.items() if k not in timing} for row in rows]  # noqa: E731
    assert strip(metrics(tmp_path / "one")) == strip(metrics(tmp_path / "two"))
    assert (tmp_path / "one/rollouts.jsonl").read_bytes() == (tmp_path / "two/rollouts.jsonl").read_bytes()
    told = [row["step"] for row in metrics(tmp_path / "one") if "generation_seconds" in row]
    assert told == [step + 1 for step in range(0, whole.run.max_steps, whole.steps_of_generation)]  # each once


def test_generation_and_training_have_an_mfu_each(config, split, tmp_path, catalog, monkeypatch):
    """On a device whose peak is 1e9 operations a second."""
    made = options(config, reward="reward_functions:sometimes", beta=0.1)
    honest = Speed.__init__
    monkeypatch.setattr(Speed, "__init__", lambda self, start, total, peak=None, *more: honest(self, start, total, 1e9, *more))
    train(made, split, tmp_path / "run", catalog)
    first = metrics(tmp_path / "run")[0]
    generated, trained = (first[f"mfu_{part}"] * first[f"{part}_seconds"] for part in ("generation", "training"))
    assert generated > 0
    assert trained > 0
    assert first["mfu"] * first["step_seconds"] == pytest.approx(generated + trained)


def test_groups_that_are_all_equal_are_no_update(config, split, tmp_path, catalog):
    result = train(options(config, reward="reward_functions:constant"), split, tmp_path / "run", catalog)
    assert result.body["skipped_steps"] == 2
    assert result.body["verdict"] == "no_effective_update"
    assert result.body["proof"]["start"] == result.body["proof"]["end"]
    assert [row["frac_zero_variance"] for row in metrics(tmp_path / "run")] == [1.0, 1.0]
    assert "loss" not in metrics(tmp_path / "run")[0]


def test_a_reward_that_scores_nothing_ends_the_run(config, split, tmp_path, catalog, monkeypatch):
    config = options(config, reward="reward_functions:never", max_steps=9)
    monkeypatch.setattr(grpo, "probes", lambda tasks: [tasks[0].item("")])  # passes at the start, then scores nothing
    with pytest.raises(LptError, match="could be scored") as caught:
        train(config, split, tmp_path / "run", catalog)
    assert caught.value.next
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["status"] == "failed"
    assert record["steps"] <= grpo.BLIND


def test_the_rollouts_of_a_run_are_in_sql_whatever_its_end(config, split, tmp_path, catalog, monkeypatch):
    done = train(config, split, tmp_path / "run", catalog)
    sql = "SELECT run_id, step, record_id, sample, reward, advantage, finish, tokens, completion FROM v_rollout"
    found = {row[:4]: row[4:] for row in query(catalog, sql).rows}
    lines = [json.loads(line) for line in (tmp_path / "run/rollouts.jsonl").read_text().splitlines()]
    names = ("reward", "advantage", "finish", "tokens", "completion")
    assert found == {
        (done.run_id, row["step"], row["record_id"], row["sample"]): tuple(row[name] for name in names) for row in lines
    }
    assert len(found) == done.body["rollouts"]["rows"] == 2 * config.generation_size
    means = query(catalog, "SELECT avg(advantage) a FROM v_rollout GROUP BY step, group_index").rows
    assert len(means) == 4
    # A group whose rewards are all equal has no advantages; which groups are, the machine's sampling decides.
    assert [row[0] for row in means if row[0] is not None] == pytest.approx(
        [0.0] * sum(row[0] is not None for row in means), abs=1e-6
    )
    monkeypatch.setattr(grpo, "probes", lambda tasks: [tasks[0].item("")])
    with pytest.raises(LptError, match="could be scored"):
        train(options(config, reward="reward_functions:never", max_steps=9), split, tmp_path / "failed", catalog)
    assert query(catalog, "SELECT count(*) FROM v_rollout WHERE failure = 'no_score_given'").rows[0][0] > 0


def test_rollouts_that_cannot_be_kept_do_not_fail_the_run(config, split, tmp_path, catalog):
    (catalog.directory / "rollouts").write_text("in the way")
    result = train(config, split, tmp_path / "run", catalog)
    assert (result.status, result.body["rollouts"]) == ("done", None)
    assert result.object_id
    assert any("the rollouts are not in the catalog" in note for note in result.notes)


def test_rewards_that_cannot_be_trusted_stop_before_the_run_exists(config, split, tmp_path, catalog):
    for name in ("wrong_length", "always_raises", "no_such_function"):
        with pytest.raises(BadInputError):
            train(options(config, reward=f"reward_functions:{name}"), split, tmp_path / "run", catalog)
    assert not (tmp_path / "run/run.json").exists()


def test_refusals(config, split, tmp_path, catalog):
    sft = load_unadmitted(write_jsonl(tmp_path / "sft.jsonl", chats(4)), "sft")
    with pytest.raises(RefusedError, match="rlvr"):
        train(config, sft, tmp_path / "run", catalog)
    other = replace(split, tokenizer={"name": "other", "fingerprint": "0" * 64})
    with pytest.raises(RefusedError, match="tokenizer"):
        train(config, other, tmp_path / "run", catalog)
    with pytest.raises(BadInputError, match="no row"):
        train(options(config, max_prompt_length=3), split, tmp_path / "run", catalog)
    unknown = split_of(tmp_path / "u.jsonl", [problem(1, 2) | {"verifier": "magic"}])
    with pytest.raises(BadInputError, match="verifier"):
        train(options(config, reward=""), unknown, tmp_path / "run", catalog)


def test_a_test_split_is_not_trained_on(config, split, tmp_path, catalog):
    test = replace(split, name="sums", version=1, split="test", verified="admitted")
    with pytest.raises(RefusedError, match="measures, it does not train"):
        train(config, test, tmp_path / "run", catalog)
    assert not (tmp_path / "run").exists()


def test_a_refused_resume_leaves_the_run_as_it_was(config, split, tmp_path, catalog):
    linear = options(config, lr_scheduler_type="linear")
    train(linear, split, tmp_path / "run", catalog)
    kept = [tmp_path / "run" / name for name in ("run.json", "metrics.jsonl", "rollouts.jsonl")]
    before = [path.read_bytes() for path in kept]
    with pytest.raises(RefusedError, match="aims at the length"):
        train(options(linear, max_steps=4), split, tmp_path / "run", catalog, resume=True)
    (latest(tmp_path / "run/checkpoints") / "rng.safetensors").write_bytes(b"")
    with pytest.raises(BadInputError, match="damaged"):
        train(linear, split, tmp_path / "run", catalog, resume=True)
    assert [path.read_bytes() for path in kept] == before


def test_sigterm_stops_after_the_generation_with_a_checkpoint(config, split, tmp_path, catalog):
    def progress(step, total, _):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    config = options(config, max_steps=50)
    result = train(config, split, tmp_path / "run", catalog, progress=progress)
    assert (result.status, result.body["steps"]) == ("stopped", 3)
    assert latest(tmp_path / "run/checkpoints").name == "step-000003"
    resumed = train(options(config, max_steps=4), split, tmp_path / "run", catalog, resume=True)
    assert (resumed.status, resumed.body["steps"]) == ("done", 4)


def test_completions_that_are_all_cut_are_reported(config, split, tmp_path, catalog):
    result = train(options(config, max_completion_length=1, max_steps=1), split, tmp_path / "run", catalog)
    assert any("max_completion_length" in note for note in result.notes)


def test_cut_completions_can_be_masked(config, split, tmp_path, catalog):
    config = options(config, max_completion_length=1, max_steps=1, mask_truncated_completions=True)
    result = train(config, split, tmp_path / "run", catalog)
    (row,) = metrics(tmp_path / "run")
    assert row["truncated_share"] == 1.0
    assert result.body["skipped_steps"] == 1


def test_an_evaluation_split_is_measured_before_every_eval_steps_and_at_the_end(config, split, tmp_path, catalog):
    held_out = split_of(tmp_path / "held_out.jsonl", [problem(a, 9) for a in range(1, 6)])
    config = options(config, max_steps=5, eval_steps=2, logging_steps=100)
    result = train(config, split, tmp_path / "run", catalog, eval_split=held_out)
    assert result.body["eval"] == held_out.identity
    rows = {row["step"]: row for row in metrics(tmp_path / "run")}
    assert [step for step, row in rows.items() if "eval_accuracy" in row] == [0, 2, 4, 5]
    for step in (0, 2, 4, 5):
        assert rows[step]["eval_n"] == 5
        assert rows[step]["eval_low"] <= rows[step]["eval_accuracy"] <= rows[step]["eval_high"]
    assert result.body["metrics"]["eval_accuracy"] == [rows[0]["eval_accuracy"], rows[5]["eval_accuracy"]]
    assert not [note for note in result.notes if "evaluated" in note]


def test_evaluation_changes_no_update(config, split, tmp_path, catalog):
    held_out = split_of(tmp_path / "held_out.jsonl", [problem(a, 9) for a in range(1, 6)])
    seen = train(options(config, eval_steps=1), split, tmp_path / "seen", catalog, eval_split=held_out)
    assert seen.body["proof"]["end"] == train(config, split, tmp_path / "blind", catalog).body["proof"]["end"]


def test_rows_that_are_evaluated_and_trained_on_or_left_out_are_said(config, split, tmp_path, catalog):
    rows = [problem(1, 5), problem(4, 7), problem(9, 9), problem(8, 8)]
    rows[3]["prompt"][0]["content"] = "long " * 20
    held_out = split_of(tmp_path / "held_out.jsonl", rows)
    result = train(options(config, max_prompt_length=60), split, tmp_path / "run", catalog, eval_split=held_out)
    assert [note for note in result.notes if "evaluated" in note] == [
        "2 rows that the run is evaluated on are trained on as well",
        "1 of 4 rows are not evaluated on: prompt_too_long 1",
    ]


def test_an_evaluation_split_that_does_not_fit_is_refused_before_the_run_exists(config, split, tmp_path, catalog):
    chatty = load_unadmitted(write_jsonl(tmp_path / "sft.jsonl", chats(4)), "sft")
    other = replace(split, tokenizer={"name": "other", "fingerprint": "0" * 64})
    for held_out, words in ((chatty, "not for rlvr"), (other, "another tokenizer")):
        with pytest.raises(RefusedError, match=words):
            train(config, split, tmp_path / "run", catalog, eval_split=held_out)
    unknown = split_of(tmp_path / "u.jsonl", [problem(1, 2) | {"verifier": "magic"}])
    with pytest.raises(BadInputError, match="verifier"):
        train(options(config, reward=""), split, tmp_path / "run", catalog, eval_split=unknown)
    assert not (tmp_path / "run/run.json").exists()


def test_the_reference_is_the_start_model(config, split, tiny):
    """At the first step policy and reference agree; without an adapter the reference is a frozen copy."""
    row = grpo.Row([5, 6, 7], Completion([1, 2, 258], [-5.0, -5.0, -5.0], "stop"), 1.0)
    for lora in (Lora(use_peft=False), Lora(lora_r=2)):
        made = replace(config, beta=0.1, lora=lora)
        policy = grpo.make_policy(made, str(tiny), grpo.placement("cpu", "float32"))
        batch = grpo.collate([row], torch.device("cpu"))
        ours = grpo.logprobs(policy.model, batch, made, policy.place).logp_B_T
        theirs = grpo.reference_logp(policy, batch, made)
        assert torch.allclose(ours, theirs, atol=1e-6)
        assert not theirs.requires_grad
        found = grpo.update(policy, [row], made)
        assert found["kl"] == pytest.approx(0.0, abs=1e-6)
        policy.optimizer.step()
        assert torch.allclose(grpo.reference_logp(policy, batch, made), theirs, atol=1e-6)
        assert policy.model.training


@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_change_no_gradient(config, tiny, size):
    rows = [
        grpo.Row([5] * n, Completion([10 + n] * (n + 1), [-5.0] * (n + 1), "stop"), (-1.0) ** n) for n in range(1, 5)
    ]
    gradients = []
    for batch in (4, size):
        made = options(
            config, per_device_train_batch_size=batch, gradient_accumulation_steps=8 // batch, max_grad_norm=0
        )
        policy = grpo.make_policy(made, str(tiny), grpo.placement("cpu", "float32"))
        found = grpo.update(policy, rows, made)
        assert found.pop("training_seconds") > 0  # no two take the same time
        gradients.append((found, torch.cat([p.grad.flatten() for p in policy.model.parameters()])))
    assert gradients[0][0] == pytest.approx(gradients[1][0], abs=1e-5)
    assert torch.allclose(gradients[0][1], gradients[1][1], atol=1e-6)


def test_less_memory_changes_no_weight(config, split, tmp_path, catalog):
    """Layers computed again, activations and moments on the host, the ladder: the same updates, and it is recorded."""
    plain = train(config, split, tmp_path / "plain", catalog)
    asked = {"gradient_checkpointing": True, "activation_offloading": True, "optim": "adamw_torch_offload"}
    for name, changes in (("asked", asked), ("ladder", {"max_memory_gb": 1e-6})):
        lean = train(options(config, **changes), split, tmp_path / name, catalog)
        ours = weights(lean)
        assert all(torch.equal(value, ours[key]) for key, value in weights(plain).items())
        work = lean.body["memory"]["work"]
        assert (work["checkpoint_every"], work["offload_activations"]) == (1, True)
        assert ("optimizer" in lean.body["memory"]["predicted"]["host"]) == (name == "asked")
    assert plain.body["memory"]["rungs"] == []


def test_a_step_takes_its_share_of_the_generation(config):
    made = options(config, steps_per_generation=4, num_iterations=2, max_steps=4)
    assert (made.step_size, made.generation_size, made.prompts_per_generation, made.steps_of_generation) == (
        8,
        16,
        4,
        4,
    )
    rewards = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1], [math.nan, 1, 0, 1], [0, 0, 0, 1]])
    groups = [[Completion([p, g], [0.0, 0.0], "stop") for g in range(4)] for p in range(4)]
    found = list(grpo.steps_of(made, [[p] for p in range(4)], groups, grpo.group_advantages(rewards)))
    assert [[tuple(row.completion.ids) for row in rows] for rows in found] == [
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        [(2, 1), (2, 2), (2, 3), (3, 0), (3, 1), (3, 2), (3, 3)],
    ] * 2


@pytest.mark.parametrize(
    "changes",
    [{"num_generations": 1}, {"num_generations": 3}, {"loss_type": "magic"}, {"temperature": 0},
     {"steps_per_generation": 3}, {"no_such_option": 1}, {"beta": -1}, {"scale_rewards": "std"}, {"rollout": "vllm"}],
)  # fmt: skip
def test_options_that_fit_nothing_are_usage_errors(config, changes):
    with pytest.raises(UsageError):
        options(config, **changes)


def test_a_run_is_a_whole_number_of_generations(config):
    made = options(config, steps_per_generation=4, max_steps=3)
    with pytest.raises(UsageError, match="whole number of generations"):
        grpo.total_steps(made, 12)
    epochs = from_mapping(GRPOConfig, {"max_steps": -1, "num_train_epochs": 2}, config)
    assert grpo.total_steps(epochs, 13) == 13  # two prompts a step


def test_a_generation_that_spikes_twice_goes_back_with_its_sampler_and_its_rollouts(
    config, split, tmp_path, catalog, monkeypatch
):
    made = options(config, max_steps=6, save_steps=2, spike_guard=True, lr_scheduler_type="constant")
    honest, calls = grpo.update, []

    def spoiled(policy, rows, config, parts):
        calls.append(1)
        found = honest(policy, rows, config, parts)
        return found | {"loss": math.nan} if len(calls) in (4, 5) else found

    monkeypatch.setattr(grpo, "update", spoiled)
    result = train(made, split, tmp_path / "run", catalog)
    assert result.status == "done"
    notes = [note for note in result.notes if note.startswith("went back")]
    assert notes == ["went back to step-000002: loss_not_finite in step 5"]
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 6 * made.generation_size  # none twice
    entries = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [4, 5]
    assert set(entries[0]["record_ids"]) <= set(split.record_ids)
    assert result.body["proof"]["updates"] == 4


def test_an_observer_sees_what_was_sampled_and_may_leave_it_out(config, split, tmp_path, catalog):
    def watch(now):
        if now.point == "rollout" and now.done == 1:
            assert "reward" in now.metrics
            assert set(now.record_ids) <= set(split.record_ids)
            return Ask("skip", "not these")
        return None

    made = options(config, max_steps=3, lr_scheduler_type="constant")
    result = train(made, split, tmp_path / "run", catalog, observers=[watch])
    rows = metrics(tmp_path / "run")
    assert [row.get("skipped", 0) for row in rows] == [0, 1, 0]
    assert "loss" not in rows[1]
    assert "reward" in rows[1]
    assert result.body["proof"]["updates"] == 2
