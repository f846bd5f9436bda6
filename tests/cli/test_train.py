"""``lpt train``: how a run ends, and what it may not be trained on."""

from __future__ import annotations

import contextlib
import json
import signal
import time

import pytest
from command_line import invoke, refused, unchanged

from cli.train import exit_code
from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.config import described, option_names
from lpt_train.config_unread import LOSSES, OTHERS, check_read
from manifests.catalog import Catalog
from manifests.errors import UsageError

SMALL = ("--set", "lora_r=2", "--set", "per_device_train_batch_size=2")


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_was_stopped_does_not_exit_0_and_says_how_to_go_on(place, model, warm, tmp_path, number, code):
    run = ["train", "sft", "--admitted", "chats:train", "--model", model, "--out", tmp_path / "run", *SMALL]
    command = [*run, "--set", "lr_scheduler_type=constant", "--set", "max_steps=100000", "--json"]
    with warm.start(*command, cwd=place) as process:
        until = time.monotonic() + 60
        while len(lines(tmp_path / "run/metrics.jsonl")) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        ran = process.wait()
    assert ran.returncode == code, ran.stderr
    body, stderr = json.loads(ran.stdout), ran.stderr
    assert (body["status"], body["stopped_by"]) == ("stopped", signal.Signals(number).name)
    assert f"stopped after step {body['steps']:,}\nnext: lpt train sft --resume {tmp_path}/run\n" in stderr
    assert "interrupted" not in stderr
    more = f"max_steps={body['steps'] + 1}"
    ended = invoke("train", "sft", "--resume", tmp_path / "run", "--set", more, "--json", cwd=place)
    assert (ended.code, ended.json["status"], ended.json["stopped_by"]) == (0, "done", None)


@pytest.mark.parametrize(
    ("status", "by", "code"),
    [("done", None, 0), ("failed", None, 1), ("running", None, 1), ("stopped", "SIGTERM", 143), ("stopped", None, 1)],
)
def test_only_a_run_that_is_done_exits_0(status, by, code):
    body = {"status": status, "stopped_by": by, "steps": 3, "algorithm": "sft", "metrics_path": "runs/a/metrics.jsonl"}
    assert exit_code(body) == code


def test_a_test_split_is_refused_for_training_and_free_for_evaluation(place, model, tmp_path):
    run = ("--model", model, "--out", tmp_path / "run", "--set", "max_steps=1", *SMALL)
    with unchanged(tmp_path, place):
        outcome = invoke("train", "grpo", "--admitted", "sums:test", *run, cwd=place)
        refused(outcome, 4, "a test split measures, it does not train", "sums@1:train")
    measured = invoke("eval", "--admitted", "sums:test", "--model", model, "--max-tokens", 2, "--json", cwd=place)
    assert measured.code == 0, measured.stderr


def test_grpo_measures_on_a_split_that_does_not_train(place, model, tmp_path):
    sizes = {
        "max_steps": 1, "num_generations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1,
        "max_completion_length": 2, "reward_workers": 1,
    }  # fmt: skip
    run = ["train", "grpo", "--admitted", "sums:train", "--model", model, "--out", tmp_path / "run", "--json"]
    options = [word for name, value in sizes.items() for word in ("--set", f"{name}={value}")]
    outcome = invoke(*run, "--eval", "sums:test", *options, cwd=place)
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["metrics"]["eval_n"] == [6.0, 6.0]
    assert not [note for note in outcome.json["notes"] if "evaluated" in note]


def test_the_length_that_a_split_was_admitted_for_is_taken_where_none_is_typed(place, model, tmp_path):
    """`chats` was admitted for 128 tokens."""
    run = ("train", "sft", "--admitted", "chats:train", "--model", model, "--set", "max_steps=1", *SMALL, "--json")
    taken = invoke(*run, "--out", tmp_path / "taken", cwd=place)
    assert taken.code == 0, taken.stderr
    assert taken.json["config"]["max_length"] == 128
    assert taken.json["notes"][0] == "max_length 128, for which chats@1:train was admitted"
    typed = invoke(*run, "--out", tmp_path / "typed", "--set", "max_length=256", cwd=place)
    assert typed.json["config"]["max_length"] == 256
    assert "chats@1:train was admitted with max_length 128; this run has 256" in typed.json["notes"]
    alike = invoke(*run, "--out", tmp_path / "alike", "--set", "max_length=128", cwd=place)
    assert not [note for note in alike.json["notes"] if "max_length" in note]
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes((place / "chats.jsonl").read_bytes())
    unasked = invoke("train", "sft", "--unadmitted", rows, *run[4:], "--out", tmp_path / "loose", cwd=place)
    assert unasked.json["config"]["max_length"] == 1024


def test_records_of_stages_and_runs_say_the_command_and_the_ids_of_data_do_not(place, model, tmp_path):
    dedup = ("data", "dedup", "chats.jsonl", "--key", "row", "--out")
    first = invoke(*dedup, tmp_path / "a.jsonl", "--json", cwd=place)
    second = invoke(*dedup, tmp_path / "b.jsonl", "--json", cwd=place)
    assert first.json["content_root"] == second.json["content_root"]
    assert first.json["stage_id"] == second.json["stage_id"]
    record = Catalog.open(place / ".lpt").get(first.json["object"])
    assert record["command"] == ["lpt", *map(str, dedup), str(tmp_path / "a.jsonl"), "--json"]
    run = ("train", "sft", "--admitted", "chats:train", "--model", model, "--set", "max_steps=1", *SMALL, "--json")
    ran = invoke(*run, "--out", tmp_path / "run", cwd=place)
    assert ran.json["command"] == ["lpt", *map(str, run), "--out", str(tmp_path / "run")]


@pytest.fixture(scope="module")
def begun(place, model, tmp_path_factory):
    """A run of two steps with settings that are no defaults, measured on a split; it can be made longer."""
    out = tmp_path_factory.mktemp("begun") / "run"
    run = ("--admitted", "chats:train", "--eval", "chats:train", "--model", model, "--out", out, *SMALL)
    options = ("learning_rate=0.003", "lr_scheduler_type=constant", "max_steps=2", "seed=7")
    outcome = invoke("train", "sft", *run, *(word for option in options for word in ("--set", option)), cwd=place)
    assert outcome.code == 0, outcome.stderr
    return out


def test_a_run_goes_on_by_its_folder_alone(place, begun):
    before = json.loads((begun / "run.json").read_text())
    outcome = invoke("train", "sft", "--resume", begun, "--set", "max_steps=3", "--json", cwd=place)
    assert outcome.code == 0, outcome.stderr
    after = outcome.json
    assert (after["run_id"], after["steps"], after["status"]) == (before["run_id"], 3, "done")
    assert after["config"] == before["config"] | {"run": before["config"]["run"] | {"max_steps": 3}}
    for name in ("split", "content_root", "eval", "model", "seed"):
        assert after[name] == before[name]
    steps = [json.loads(line)["step"] for line in lines(begun / "metrics.jsonl")]
    assert steps == [0, 1, 2, 3]
    # Typed as it was typed then is no contradiction.
    same = ("--set", "learning_rate=0.003", "--admitted", "chats:train", "--out", begun)
    assert invoke("train", "sft", "--resume", begun, *same, cwd=place).code == 0


def test_a_run_that_is_done_has_nothing_left_and_leaves_no_second_record(place, model, tmp_path):
    out = tmp_path / "run"
    asked = ("--admitted", "chats:train", "--model", model, "--out", out, *SMALL, "--json")
    options = ("--set", "max_steps=1", "--set", "lr_scheduler_type=constant")
    first = invoke("train", "sft", *asked, *options, cwd=place)
    assert first.code == 0, first.stderr
    with unchanged(out, place):
        again = invoke("train", "sft", "--resume", out, "--json", cwd=place)
        told = invoke("train", "sft", "--resume", out, "--admitted", "chats:train", cwd=place)
    assert (again.code, told.code) == (0, 0)
    assert "nothing is left to do" in told.said
    assert again.json["tokens_per_second"] == first.json["tokens_per_second"] > 0
    assert "loading torch" not in told.said
    longer = invoke("train", "sft", "--resume", out, "--set", "max_steps=2", "--json", cwd=place)
    assert (longer.code, longer.json["steps"]) == (0, 2)
    of = f"where run_id = '{first.json['run_id']}'"
    shown = invoke("sql", f"select steps, folder from v_run {of}", "--json", cwd=place)
    assert shown.json["rows"] == [{"steps": 2, "folder": str(out)}]
    metrics = invoke("sql", f"select count(*) n from v_metric {of}", "--json", cwd=place)
    assert metrics.json["rows"] == [{"n": len(longer.json["metrics"])}]


@pytest.mark.parametrize(
    ("algorithm", "typed", "code", "words"),
    [
        ("sft", ("--set", "learning_rate=0.01"), 4, ("another learning_rate", "0.003 then, 0.01 now")),
        ("sft", ("--set", "seed=8"), 4, ("another seed", "seen: seed: 7 then, 8 now")),
        ("sft", ("--model", "tiny"), 4, ("another model", "tiny now")),
        ("sft", ("--admitted", "sums:train"), 4, ("was admitted for rlvr",)),
        ("sft", ("--out", "elsewhere"), 2, ("its own folder", "--out elsewhere", "leave out --out")),
        ("sft", ("--set", "learning_rat=1"), 2, ("unknown option", "learning_rate")),
        ("dpo", (), 4, ("another algorithm", "sft then, dpo now", "lpt train sft --resume")),
    ],
)
def test_what_contradicts_the_record_is_refused_with_both_values(place, begun, algorithm, typed, code, words):
    with unchanged(begun):
        refused(invoke("train", algorithm, "--resume", begun, *typed, cwd=place), code, *words)


def test_what_there_is_to_resume_or_to_start_from(place, model, tmp_path):
    with unchanged(tmp_path, place):
        refused(invoke("train", "sft", "--resume", tmp_path, cwd=place), 2, "there is no run to resume")
        start = ("train", "sft", "--admitted", "chats:train")
        refused(invoke(*start, "--model", model, cwd=place), 2, "no --out", "--resume RUN")
        refused(invoke(*start, "--out", tmp_path / "x", cwd=place), 2, "no --model", "--resume RUN")
    (tmp_path / "run.json").write_text("{")
    refused(invoke("train", "sft", "--resume", tmp_path, cwd=place), 5, "the record of the run is damaged")


def test_a_split_that_is_not_found_any_more_is_asked_for(place, model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}))
    run = ("--unadmitted", rows, "--model", model, "--out", tmp_path / "run", "--set", "max_steps=1", *SMALL)
    constant = ("--set", "lr_scheduler_type=constant")
    assert invoke("train", "sft", *run, *constant, cwd=place).code == 0
    moved = rows.rename(tmp_path / "moved.jsonl")
    again = ("train", "sft", "--resume", tmp_path / "run", "--set", "max_steps=2")
    refused(invoke(*again, cwd=place), 5, "the file cannot be read", "was started with it", "give it as it was given")
    assert invoke(*again, "--unadmitted", moved, cwd=place).code == 4  # a split has its path for a name


@pytest.mark.parametrize(
    ("algorithm", "typed", "words"),
    [
        ("sft", ("--set", "eval_steps=1"), ("eval_steps does nothing", "no --eval", "leave out eval_steps")),
        ("sft", ("--set", "use_peft=false", "--set", "lora_r=4"), ("lora_r does nothing", "use_peft=false")),
        ("sft", ("--set", "optim.decay_ratio=0.3"), ("decay_ratio does nothing", "warmup_stable_decay")),
        ("sft", ("--set", "spike_factor=3"), ("spike_guard=true",)),
        ("dpo", ("--loss", "ipo", "--set", "label_smoothing=0.1"), ("label_smoothing does nothing", "robust and cpo")),
        ("simpo", ("--set", "cpo_alpha=2"), ("cpo_alpha does nothing",)),
        ("dpo", ("--loss", "ipo", "--set", "loss_type=hinge"), ("given twice", "hinge by --set, ipo by its option")),
        ("sft", ("--set", "model=tiny"), ("model is given twice",)),
    ],
)
def test_what_a_run_does_not_read_is_refused(place, model, tmp_path, algorithm, typed, words):
    split = "chats:train" if algorithm == "sft" else "pairs:train"
    run = ("train", algorithm, "--admitted", split, "--model", model, "--out", tmp_path / "run", *typed)
    refused(invoke(*run, cwd=place), 2, *words)
    assert not (tmp_path / "run").exists()


def test_a_file_of_settings_may_serve_several_runs_but_not_another_loss(tmp_path):
    config = config_of("sft", {"eval_steps": 5, "lora_r": 4, "use_peft": False})
    check_read(config, {"use_peft"}, {"eval_steps", "lora_r", "use_peft"}, evaluated=False)
    check_read(config_of("sft", {"eval_steps": 5, "lora_r": 16}), {"eval_steps", "lora_r"}, evaluated=True)
    for loss, taken in (("sigmoid", True), ("cpo", True), ("hinge", False)):
        given = config_of("cpo" if loss == "cpo" else "dpo", {"loss_type": loss, "label_smoothing": 0.1})
        with contextlib.nullcontext() if taken else pytest.raises(UsageError, match="label_smoothing does nothing"):
            check_read(given, (), ("label_smoothing",), evaluated=False)


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "reward", "grpo"])
def test_every_rule_names_options_that_are_there(kind):
    there = {name for known in ALGORITHMS.values() for name in option_names(known.config)}
    assert {name for names, _, _ in (*LOSSES, *OTHERS) for name in names} <= there
    known = set(option_names(ALGORITHMS[kind].config))
    check_read(config_of(kind, {"reward": "integer"} if kind == "grpo" else {}), known, evaluated=False)


def test_a_length_without_a_tokenizer_is_refused(place):
    asked = ("admit", "short", "--contract", "sft", "--train", "chats.jsonl", "--max-length", 200)
    refused(invoke(*asked, cwd=place), 2, "--max-length 200 without --tokenizer", "--tokenizer MODEL")


def test_a_refused_run_leaves_nothing_and_what_can_be_known_is_known_before_torch(place, model, tmp_path):
    start = ("train", "sft", "--model", "tiny", "--out", tmp_path / "runs" / "x")
    with unchanged(tmp_path):  # after the model was made: conversations longer than a row may be
        late = refused(invoke(*start, "--admitted", "chats:train", "--set", "max_length=2", cwd=place), 4)
        assert not (tmp_path / "runs").exists()
        refused(invoke(*start, "--admitted", "chats:train", "--set", "dtype=float16", cwd=place), 2, "one of")
        refused(invoke(*start, "--admitted", "sums:train", cwd=place), 4, "was admitted for rlvr")
    assert "no row" in late.said
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with unchanged(tmp_path):
        own = (*start[:-1], tmp_path / "mine")
        refused(invoke(*own, "--admitted", "chats:train", "--set", "max_length=2", cwd=place), 4)
        assert not (tmp_path / "mine" / "tiny").exists()


def test_the_folder_of_a_matrix_takes_no_run_and_that_of_a_run_no_matrix(place, model, begun, tmp_path):
    matrix = tmp_path / "m"
    matrix.mkdir()
    (matrix / ".matrix.lock").touch()
    run = ("train", "sft", "--admitted", "chats:train", "--model", model, "--out")
    with unchanged(tmp_path, begun):
        refused(invoke(*run, matrix, cwd=place), 2, "holds a matrix", "another --out")
        refused(invoke(*run, begun, cwd=place), 2, "holds a run already", "--resume")
        body = {"algorithm": "sft", "model": str(model), "admitted": "chats:train", "metric": "loss", "better": "lower",
                "variants": {"a": {}}, "seeds": [1], "band": {"absolute": 1}}  # fmt: skip
        (place / "spec.yaml").write_text(json.dumps(body))
        refused(invoke("train", "matrix", "spec.yaml", "--out", begun, cwd=place), 2, "the folder holds a run")


def test_the_settings_say_which_beta_a_loss_has_by_default():
    from lpt_train.losses.preference import LOSSES as functions

    ((name, default, told),) = [row for row in described(ALGORITHMS["dpo"].config) if row[0] == "beta"]
    assert (name, default) == ("beta", "none")
    assert "none: 0.1, simpo 2.0" in told
    assert {loss: known.beta for loss, known in functions.items() if known.beta != 0.1} == {"simpo": 2.0}
