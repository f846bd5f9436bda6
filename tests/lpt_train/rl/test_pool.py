from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lpt_train.rewards import REWARDS, parse_rewards, worker
from lpt_train.rewards.log import BoundedLog
from lpt_train.rewards.pool import BATCH, Item, RewardPool
from manifests.errors import BadInputError, UsageError

GOLD = '{"nums": [6, 4], "target": 24}'


def pool(name, **kwargs):
    kwargs = {"workers": 1, "seconds": 1.0, "memory_mb": 1024} | kwargs
    return RewardPool(parse_rewards(name), **kwargs)


def items(*completions):
    return [Item(c, "a") for c in completions]


def test_scores_by_the_verifier_of_each_record_and_by_name():
    mixed = [
        Item("<answer>6*4</answer>", GOLD, "countdown"),
        Item("#### 72", "72", "integer"),
        Item("#### 1", "x", "integer"),
    ]
    with pool("") as p:
        assert [s.total for s in p.score(mixed)] == [1.0, 1.0, None]
        assert p.failures == {"no_score_given": 1}
    with pool("countdown") as p:
        assert p.network in ("namespace", "audit hook")
        assert [s.total for s in p.score(mixed[:1] * 40)] == [1.0] * 40


def test_messages_to_a_fast_verifier_grow_and_answers_keep_their_order():
    asked = [Item(f"#### {i}", str(i - i % 2), "integer") for i in range(3000)]
    with pool("", workers=2) as p:
        assert [s.total for s in p.score(asked)] == [float(i % 2 == 0) for i in range(3000)]
        assert [
            value for value, _ in p.ask("parse_gold", [Item("", "7" if i % 3 else "x", "integer") for i in range(900)])
        ] == [bool(i % 3) for i in range(900)]
        assert max(p._sizes.values()) > BATCH


def test_a_function_sees_small_batches_however_fast_it_is():
    with pool("reward_functions:size_of_batch") as p:
        assert {s.total for s in p.score(items(*"a" * 400))} == {float(BATCH)}


def test_weighted_terms_add_and_one_unscorable_term_makes_the_item_unscorable():
    with pool("reward_functions:good=0.5,reward_functions:strange_values=2") as p:
        scores = p.score(items("abc", "nan"))
    assert scores[0].total == 0.5 * 3 + 2 * 0.5
    assert scores[0].terms == (3.0, 0.5)
    assert scores[1].total is None
    assert scores[1].reason == "not_finite"


def test_function_gets_the_columns_it_can_take():
    batch = [Item("x", "x", prompt="p"), Item("y", "x", prompt="q")]
    for name in ("named", "positional"):
        with pool(f"reward_functions:{name}") as p:
            assert [s.total for s in p.score(batch)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raises_on_bad", "error_raised"),
        ("hangs_on_bad", "time_limit_passed"),
        ("spins_on_bad", "time_limit_passed"),
        ("dies_on_bad", "process_ended"),
        ("eats_memory_on_bad", "memory_limit_reached"),
    ],
)
def test_one_bad_completion_costs_only_itself(function, reason):
    with pool(f"reward_functions:{function}", seconds=0.7) as p:
        scores = p.score(items("fine", "bad", "fine"))
        assert [s.total for s in scores] == [1.0, None, 1.0]
        assert scores[1].reason == reason
        assert p.failures == {reason: 1}
        assert [s.total for s in p.score(items("fine"))] == [1.0]  # a worker that was lost has been replaced


def test_values_that_are_no_reward_are_none_with_a_reason():
    with pool("reward_functions:strange_values") as p:
        scores = p.score(items("nan", "inf", "text", "none", "list", "fine"))
    assert [s.total for s in scores] == [None] * 5 + [0.5]
    assert [s.reason for s in scores[:5]] == [
        "not_finite",
        "not_finite",
        "not_a_number",
        "no_score_given",
        "not_a_number",
    ]


@pytest.mark.parametrize("function", ["wrong_length", "one_too_many"])
def test_wrong_length_makes_the_batch_unscorable_and_is_an_error_at_the_start(function):
    with pool(f"reward_functions:{function}") as p:
        assert [s.reason for s in p.score(items("a", "b", "c"))] == ["wrong_length"] * 3
        with pytest.raises(BadInputError) as caught:
            p.check(items("a"))  # even a single probe: it is sent as two
    assert "wrong_length" in caught.value.seen
    assert "one value for each completion" in caught.value.next


def test_start_check_names_what_a_function_raises():
    with pool("reward_functions:always_raises") as p, pytest.raises(BadInputError) as caught:
        p.check(items("a", "b"))
    assert "nothing here" in caught.value.seen


@pytest.mark.parametrize(
    "name", ["no_such_module:f", "reward_functions:no_such_function", "reward_functions:not_a_function"]
)
def test_a_function_that_cannot_be_loaded_is_an_error_in_three_parts(name):
    with pytest.raises(BadInputError) as caught:
        pool(name)
    assert name in caught.value.seen
    assert caught.value.next


def test_canaries_pass_and_a_broken_verifier_stops_the_run(monkeypatch):
    probe = [Item("", GOLD, "countdown"), Item("", "3", "integer")]
    with pool("") as p:
        p.check(probe)
        assert not p.failures
        broken = replace(REWARDS["countdown"].canaries[0], score=0.0)
        monkeypatch.setitem(REWARDS, "countdown", replace(REWARDS["countdown"], canaries=(broken,)))
        with pytest.raises(BadInputError, match="countdown"):
            p.check(probe)


def test_no_network_in_a_worker():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        socket.create_connection(("127.0.0.1", int(port)), timeout=2).close()  # it can be reached from here
        with pool("reward_functions:uses_network", seconds=10) as p:
            (score,) = p.score([Item("c", port)])
    assert score.reason == "error_raised"


def test_a_kernel_that_refuses_the_maps_of_a_namespace_stops_no_worker(monkeypatch):
    """Ubuntu hands out the user namespace and then refuses what is written into it."""

    class Libc:
        answers = iter([-1, 0])

        def unshare(self, _flags):
            return next(self.answers)

    def refused(path, *_args, **_named):
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(worker.ctypes, "CDLL", lambda *_args, **_named: Libc())
    monkeypatch.setattr("builtins.open", refused)
    assert worker.leave_network() == "namespace"


def test_workers_load_no_tensor_library():
    with pool("reward_functions:heavy_modules") as p:
        assert p.score(items("c"))[0].total == 0.0


def test_prints_go_to_the_log_and_not_into_the_pipe(tmp_path):
    with pool("reward_functions:prints", log=tmp_path / "rewards.log") as p:
        assert [s.total for s in p.score(items("a", "b"))] == [1.0, 1.0]
    assert "straight to standard output" in (tmp_path / "rewards.log").read_text()


def test_a_reward_that_prints_without_end_keeps_the_newest_lines_and_counts_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("lpt_train.rewards.pool.BoundedLog", partial(BoundedLog, most=100_000))
    with pool("reward_functions:prints_much", log=tmp_path / "rewards.log", seconds=20) as p:
        assert [s.total for s in p.score(items(*"abcdef"))] == [6.0] * 6  # 6 times 100 kB
        log = p._log
    files = [tmp_path / "rewards.log.1", tmp_path / "rewards.log"]
    assert all(0 < file.stat().st_size <= 100_000 for file in files)
    assert files[1].read_text().endswith("end of f\n")
    heads = [file.read_bytes().splitlines(keepends=True)[0] for file in files]
    notes = [head for head in heads if head.startswith(b"(")]
    assert notes[-1] == b"(%d bytes before rewards.log.1 were left out)\n" % log.left_out
    assert log.left_out + sum(file.stat().st_size for file in files) >= 6 * 100_000


def test_temporary_files_go_with_their_worker_however_it_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pool("reward_functions:leaves_files", workers=2) as p:
        inside = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert len(inside) == 1
        assert [s.total for s in p.score(items("a"))] == [1.0]
        assert len(list(inside[0].rglob("left behind"))) == 1
        scores = p.score(items("hang"))
        assert scores[0].reason == "time_limit_passed"
        assert not [path for path in inside[0].rglob("left behind") if path.read_text() == "hang"]
        assert [s.total for s in p.score(items("a", "b"))] == [1.0, 1.0]  # the next worker has a folder of its own
    assert list(tmp_path.iterdir()) == []


def test_a_killed_worker_leaves_no_folder_of_a_program(tmp_path, monkeypatch):
    """The pool's limit ends the worker while its program still sleeps."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    answer = '{"tests": "assert f() == 1", "entry_point": "f"}'
    program = "import time\ndef f():\n    open('mine', 'w').write('x')\n    time.sleep(60)\n"
    with pool("code", seconds=1.0) as p:
        assert p.score([Item(program, answer)])[0].reason == "time_limit_passed"
    assert list(tmp_path.iterdir()) == []


def test_close_leaves_no_process():
    p = pool("countdown", workers=2)
    processes = [w.process for w in p._workers]
    p.close()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_workers_end_when_the_trainer_is_killed(tmp_path):
    import signal
    import subprocess

    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from lpt_train.rewards import parse_rewards\n"
        "from lpt_train.rewards.pool import RewardPool\n"
        "p = RewardPool(parse_rewards('countdown'), workers=1)\n"
        "print(p._workers[0].process.pid, flush=True); time.sleep(60)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program, os.getcwd()], stdout=subprocess.PIPE, text=True)
    pid = int(trainer.stdout.readline())
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("the worker outlived its trainer")


def test_long_and_odd_text_travels():
    text = "x" * 300_000 + "\ud800 \u0000 é"
    with pool("reward_functions:good", seconds=10) as p:
        assert p.score(items(text))[0].total == len(text)


@pytest.mark.parametrize(
    "text", ["nothing", "countdown=x", "countdown=nan", "countdown,countdown", "a b:c", "m:", ":f"]
)
def test_reward_text_that_names_nothing_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse_rewards(text)


def test_reward_text():
    terms = parse_rewards("countdown=0.5, pkg.mod:fn")
    assert [(t.name, t.weight, t.is_function) for t in terms] == [("countdown", 0.5, False), ("pkg.mod:fn", 1.0, True)]
    assert parse_rewards("")[0].name == "record"
