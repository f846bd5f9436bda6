"""Programs under test: the good ones pass, and no bad one passes, gets out, stays, or brings the judge down."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lpt_train.rewards import code, confine, trial
from lpt_train.rewards.code import Problem, program, run, score

ADD = Problem("assert add(1, 2) == 3\nassert add(-1, 1) == 0", "add")
ANSWER = json.dumps({"tests": ADD.tests, "entry_point": "add"})
HUMAN_EVAL = Path(__file__).parents[4] / "shared/data/human_eval/HumanEval.jsonl.gz"
GOOD = "def add(a, b):\n    return a + b\n"


def verdict(source: str, given: Problem = ADD) -> str:
    return run(source, given)[0]


def test_a_right_program_passes_however_it_is_wrapped():
    assert score(GOOD, ANSWER) == 1.0
    assert score(f"Here:\n```python\n{GOOD}```\nor so\n```py\n{GOOD}```", ANSWER) == 1.0
    assert (
        score(f"```python\n{GOOD}```\n```python\ndef add(a, b):\n    return 0\n```", ANSWER) == 0.0
    )  # the last counts


def test_a_fence_of_another_language_is_no_program():
    assert score(f"```bash\npip install x\n```\nThen:\n```python\n{GOOD}```\nIt says\n```text\n3\n```\n", ANSWER) == 1.0


def test_a_completion_goes_on_with_the_prefix_or_replaces_it():
    given = Problem(
        "def check(candidate):\n    assert candidate(2) == 4", "twice", 'def twice(n):\n    """Double."""\n'
    )
    assert verdict(program("    return 2 * n\n", given), given) == "passed"
    assert verdict(program("def twice(n):\n    return n + n\n", given), given) == "passed"
    assert verdict(program("    return n\n", given), given) == "failed"


FAKES = {
    "leaves early": "import sys\ndef add(a, b):\n    sys.exit(0)\n",
    "leaves at once": "import os\nos._exit(0)\n",
    "leaves when loaded": GOOD + "raise SystemExit(0)\n",
    "equals everything": "class A(int):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return A()\n",
    "is no plain data": "class A:\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return A()\n",
    "patches built-ins": "import builtins\nbuiltins.AssertionError = builtins.print\ndef add(a, b):\n    return 9\n",
    "prints a verdict": 'import os\nfor fd in range(3, 40):\n    try: os.write(fd, b\'{"verdict": "passed"}\')\n'
    "    except OSError: pass\ndef add(a, b):\n    return 9\n",
    "looks for the tests": "import gc, sys\ndef add(a, b):\n    for o in gc.get_objects():\n"
    "        if isinstance(o, dict) and 'nonce' in o: raise SystemExit\n"
    "    f = sys._getframe()\n    while f:\n        if 'job' in f.f_locals: return 3\n        f = f.f_back\n"
    "    return 9\n",
    "reads what is left of its orders": "import os\ndef add(a, b):\n    return len(os.read(0, 99)) and 3\n",
    "raises the wrong thing": "def add(a, b):\n    raise StopIteration\n",
    "does not load": "def add(a, b)\n    return a + b\n",
    "is another function": "def plus(a, b):\n    return a + b\n",
    "recurses": "def add(a, b):\n    return add(a, b)\n",
    "answers too much": "def add(a, b):\n    return 'x' * 50_000_000\n",
    "answers too deep": "def add(a, b):\n    x = []\n    for _ in range(9999): x = [x]\n    return x\n",
}


@pytest.mark.parametrize("source", FAKES.values(), ids=FAKES)
def test_no_trick_passes(source):
    assert verdict(source) == "failed"


def test_a_program_cannot_shadow_what_the_tests_use():
    """`abs` of the program would make every difference nothing; helpers of the prefix are the problem's own."""
    near = Problem("def check(f):\n    assert abs(f(2.0) - 1.0) < 1e-6", "half")
    assert verdict("def abs(x):\n    return 0\ndef half(x):\n    return 7.0\n", near) == "failed"
    helped = Problem(
        "def check(f):\n    assert value(f(3)) == 6",
        "root",
        'def value(x):\n    return 2 * x\n\ndef root(n):\n    """Such that value(root(n)) is 2 n."""\n',
    )
    assert verdict(program("    return n\n", helped), helped) == "passed"
    assert verdict(program("def value(x):\n    return 6\ndef root(n):\n    return 0\n", helped), helped) == "failed"


def test_changes_in_place_and_errors_reach_the_tests():
    given = Problem(
        "def check(f):\n    x = [3, 1]\n    assert f(x) is None and x == [1, 3]\n    try:\n        f({1, 2})\n"
        "    except AttributeError:\n        pass\n    else:\n        raise AssertionError",
        "order",
    )
    assert verdict("def order(x):\n    x.sort()\n", given) == "passed"
    assert verdict("def order(x):\n    sorted(x)\n", given) == "failed"


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, -(10**30), 1.5, float("inf"), 1 + 2j, "é\ud800\0", b"\0a", [1, [2]], (1, (2,)), {1, 2},
        frozenset({3}), {"a": [1], (1, 2): {3: 4}}, range(3, 9, 2), 1.0, "", [], {},
    ],
    ids=repr,
)  # fmt: skip
def test_plain_data_comes_back_as_it_was(value):
    there = trial.unpack(json.loads(json.dumps(trial.pack(value))))
    assert there == value
    assert type(there) is type(value)


def test_an_error_of_the_program_ends_no_loop_of_the_tests():
    cases = "def check(f):\n    assert all(map(lambda c: f(*c) == 3, [(1, 2), (2, 1)]))"
    assert verdict("def add(a, b):\n    raise StopIteration\n", replace(ADD, tests=cases)) == "failed"
    refuses = "try:\n    add(1, 2)\nexcept Exception:\n    pass\nelse:\n    raise AssertionError"
    assert verdict("import os\ndef add(a, b):\n    os._exit(0)\n", replace(ADD, tests=refuses)) == "failed"
    assert verdict("class E(Exception): pass\ndef add(a, b):\n    raise E\n", replace(ADD, tests=refuses)) == "passed"


def test_helpers_of_a_prefix_that_stops_at_a_head_are_the_problems():
    given = Problem("assert near(add(1, 2), 3)", "add", "def near(a, b):\n    return a == b\n\ndef add(a, b):\n")
    fake = "    return 7\n\ndef near(a, b):\n    return True\n"
    assert verdict(program(fake, given), given) == "failed"
    assert verdict(program("    return a + b\n", given), given) == "passed"


def test_tests_that_hand_over_functions_cannot_be_scored():
    answer = json.dumps({"tests": "assert use(lambda x: x + 1, 2) == 3", "entry_point": "use"})
    assert score("def use(f, x):\n    return f(x)\n", answer) is None


def test_tests_that_say_nothing_are_no_pass():
    assert run(GOOD, replace(ADD, tests="assert ("))[0] == "broken"
    assert run(GOOD, replace(ADD, tests="x = 1"))[0] == "broken"  # the program was never called
    assert score(GOOD, '{"tests": "", "entry_point": "add"}') is None
    assert score(GOOD, "no json") is None


# -- what a program cannot do

ESCAPES = {
    "write elsewhere": "open(PLACE, 'w').write('x')",
    "read elsewhere": "open(FILE).read()",
    "read who runs": "open('/proc/1/cmdline', 'rb').read(1)",
    "make a folder elsewhere": "os.mkdir(PLACE)",
    "link out of the folder": "os.symlink('/', 'here')",
    "change a mode": "os.chmod(FILE, 0o777)",
    "remove a file": "os.unlink(FILE)",
    "move a file": "os.rename(FILE, 'mine')",
    "cut a file": "os.truncate(FILE, 0)",
    "open a socket": "socket.socket()",
    "open a local socket": "socket.socket(socket.AF_UNIX)",
    "start a program": "subprocess.run(['true'])",
    "fork": "os.fork() or os._exit(0)",
    "kill its judge": "os.kill(os.getppid(), 9)",
    "leave its session": "os.setsid()",
    "read a neighbour's memory": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "raise its limits": "resource.setrlimit(resource.RLIMIT_CPU, (100, 100))",
    "send signals by a pipe": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "renice": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
}
IMPORTS = "import os, socket, subprocess, resource, fcntl\n"


@pytest.mark.parametrize("what", ESCAPES.values(), ids=ESCAPES)
def test_what_a_program_may_not_do_is_an_error_in_it(what, tmp_path):
    file, place = tmp_path / "file", tmp_path / "place"
    file.write_text("kept")
    mode = file.stat().st_mode
    body = what.replace("PLACE", repr(str(place))).replace("FILE", repr(str(file)))
    source = f"{IMPORTS}def tried():\n    try:\n        {body}\n    except (OSError, ValueError) as e:\n"
    source += "        return type(e).__name__\n    return 'done'\n"
    given = Problem(
        "assert tried() in ('PermissionError', 'OSError', 'ValueError', 'FileNotFoundError'), tried()", "tried"
    )
    assert run(source, given) == ("passed", "")
    assert file.read_text() == "kept"
    assert file.stat().st_mode == mode
    assert not place.exists()


def test_a_program_has_a_folder_of_its_own_that_does_not_outlive_it(tmp_path):
    source = (
        "import os, tempfile\ndef where():\n    open('note', 'w').write('x')\n    with tempfile.TemporaryFile() as f:\n"
    )
    source += "        f.write(b'y')\n    assert os.listdir() == ['note']\n    return os.getcwd()\n"
    probe = tmp_path / "probe"
    given = Problem(f"assert where().startswith({str(Path(code.tempfile.gettempdir()).resolve())!r})", "where")
    assert run(source, given) == ("passed", "")
    assert not probe.exists()
    assert not list(Path(code.tempfile.gettempdir()).glob("lpt-trial-*"))


BOMBS = {
    "loops": "def add(a, b):\n    while True: pass\n",
    "sleeps": "import time\ndef add(a, b):\n    time.sleep(600)\n",
    "eats memory": "def add(a, b):\n    return len([bytearray(1 << 20) for _ in range(10**6)])\n",
    "starts threads": "import threading, time\ndef add(a, b):\n    for _ in range(10**5):\n"
    "        threading.Thread(target=time.sleep, args=(60,)).start()\n    return 3\n",
    "forks": "import os\ndef add(a, b):\n    while True:\n        os.fork()\n",
    "forks and goes on": "import os\ndef add(a, b):\n    while True:\n        try: os.fork()\n"
    "        except OSError: pass\n",
    "fills the disk": "def add(a, b):\n    n = 0\n    while True:\n        n += 1\n"
    "        open(str(n), 'wb').write(b'x' * (4 << 20))\n",
    "prints without end": "import sys\ndef add(a, b):\n    while True: sys.stdout.write('x' * 65536)\n",
    "computes for ever in C": "def add(a, b):\n    return len(str(3 ** 10**8))\n",
    "hangs in a pattern": "import re\ndef add(a, b):\n    return re.match('(a+)+b', 'a' * 60)\n",
    "ignores signals": "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except OSError: pass\ndef add(a, b):\n    while True: pass\n",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_program_that_does_not_end_is_ended(source):
    limits = code.LIMITS | {"CPU": 1}
    began = set(_processes())
    assert run(source, ADD, limits=limits, seconds=1.5)[0] in ("failed", "busy")
    for _ in range(40):
        left = {pid for pid in set(_processes()) - began if "trial.main" in _command(pid)}
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"{len(left)} processes were left behind")


def test_a_program_that_waits_by_itself_fails_and_one_that_gets_no_processor_does_not():
    """The same limit of time: one sleeps, one shares its processor with nine others."""
    assert run("import time\ndef add(a, b):\n    time.sleep(9)\n", ADD, seconds=1.0)[0] == "failed"
    mine = os.sched_getaffinity(0)
    spins = [sys.executable, "-c", "while True: pass"]
    os.sched_setaffinity(0, {min(mine)})  # what is started from here on stays there, too
    try:
        others = [subprocess.Popen(spins, start_new_session=True) for _ in range(9)]  # each a share of its own
        try:
            source = "def add(a, b):\n    sum(range(15_000_000))\n    return a + b\n"
            verdict, detail = run(source, ADD, seconds=1.0)
            assert (verdict, "busy machine" in detail) == ("busy", True)
            assert score(source, ANSWER) in (1.0, None)  # within 4 s, or 8
        finally:
            for other in others:
                other.kill()
                other.wait()
    finally:
        os.sched_setaffinity(0, mine)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_without_landlock_no_path_can_be_written_at_all():
    """The filter of the fallback: every way to open for writing is refused, reading is not."""
    import subprocess
    import sys

    source = f"""
import sys, os
sys.path.insert(0, {str(Path(confine.__file__).parent)!r})
import confine
confine._landlock = lambda libc, folder: False
assert confine.confine(os.getcwd(), dict(CPU=5)) is False
open(os.__file__).read(1)
for tried in (lambda: open("x", "w"), lambda: os.mkdir("y"), lambda: os.open("z", os.O_RDWR | os.O_CREAT)):
    try:
        tried()
    except PermissionError:
        continue
    raise SystemExit("written")
"""
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_machine_that_cannot_lock_in_runs_nothing(monkeypatch, tmp_path):
    broken = tmp_path / "trial.py"
    broken.write_text(Path(trial.__file__).read_text())
    (tmp_path / "confine.py").write_text(Path(confine.__file__).read_text().replace('"x86_64": (', '"other": ('))
    monkeypatch.setattr(code.trial, "__file__", str(broken))
    if os.uname().machine != "x86_64":
        pytest.skip("the other machine of the table")
    assert run(GOOD, ADD)[0] == "unsafe"
    with pytest.raises(OSError, match="cannot lock"):
        score(GOOD, ANSWER)


def test_the_filter_knows_both_machines():
    for machine, open_number in (("x86_64", 257), ("aarch64", 56)):
        filled = confine.program(machine, paths_guarded=True)
        assert len(filled) % 8 == 0
        assert len(filled) // 8 < 4096  # what the kernel takes
        assert (open_number).to_bytes(4, "little") in filled
    for name, numbers in confine.CALLS.items():
        assert name not in ("socket", "execve", "fork", "kill", "ptrace", "clone3", "io_uring_setup")
        assert numbers[0] >= 0


@pytest.mark.skipif(not HUMAN_EVAL.is_file(), reason="needs the data folder")
def test_every_canonical_solution_of_humaneval_passes_and_an_empty_one_does_not():
    rows = [json.loads(line) for line in gzip.decompress(HUMAN_EVAL.read_bytes()).splitlines()]
    assert len(rows) == 164
    for row in rows:
        given = Problem(row["test"], row["entry_point"], row["prompt"])
        assert run(program(row["canonical_solution"], given), given) == ("passed", ""), row["task_id"]
        if int(row["task_id"].split("/")[1]) % 8 == 0:
            assert run(program("    return None\n", given), given)[0] == "failed", row["task_id"]
