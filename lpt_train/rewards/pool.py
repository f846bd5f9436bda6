"""Scores completions in worker processes that may be killed: a reward can raise, hang, crash or eat memory, the run
goes on.

Whatever a reward does, each item ends as a finite number or as None with a reason; None is "could not score", is
counted and is never a reward of 0. Items travel in small batches; what a batch leaves unscored because it raises,
overruns its time or kills its process is tried again one by one, so that one bad completion costs only itself. A
result of the wrong length has no such cure (which value belongs to which completion is unknown): the batch is
unscorable, and at the start of a run it is an error. Where a verifier answers in microseconds the messages grow, or
most of the time would go into them; a user's function always sees as many completions at once as before.

Reasons: ``time_limit_passed``, ``process_ended``, ``error_raised``, ``memory_limit_reached``, ``wrong_length``,
``not_finite``, ``not_a_number``, ``no_score_given`` (the verifier cannot read the gold answer, or a function
returned None).
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from lpt_train.rewards import FROM_RECORD, REWARDS, RewardTerm
from lpt_train.rewards import worker as worker_module
from lpt_train.rewards.log import BoundedLog
from lpt_train.rewards.worker import HEADER, frame, parse
from manifests.errors import BadInputError

BATCH = 16  # items of one message, and of a user's function always
MOST, MOST_TEXT = 512, 1 << 15  # items, and characters, of a message to a fast verifier: a pipe takes it whole
QUICK, SLOW = 0.01, 0.1  # seconds of a message, below which the next ones have twice the items, and above which half
START_SECONDS = 60.0  # for a worker to import the reward's module
MAX_REPLY = 8 << 20  # bytes; a reply holds a few numbers and one short message, or completions that a verifier wrote
READ = 1 << 20  # bytes at a time


COLUMNS = ("completions", "answers", "verifiers", "prompts")  # of a message: the fields of its items


class Item(NamedTuple):
    """One completion to score, with the answer and the verifier's name that travel with its record."""

    completion: str
    answer: str
    verifier: str = ""
    prompt: str = ""


@dataclass(frozen=True)
class Score:
    """The weighted total (None when any term could not score), the terms, and the reason for None."""

    total: float | None
    terms: tuple[float | None, ...]
    reason: str = ""


@dataclass
class _Job:
    term: int
    items: list[int]
    asked: str = "score"


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    folder: Path  # its temporary files, and those of what it starts
    buffer: bytearray = field(default_factory=bytearray)
    job: _Job | None = None
    asked_at: float = 0.0
    deadline: float = 0.0
    ended: bool = False


class RewardPool:
    """A fixed number of worker processes that score items; a context manager.

    ``seconds`` is the time limit of one item (and of one batch, before its items are tried singly); ``memory_mb``
    bounds a worker's address space. ``network`` says how workers are kept off the network: ``namespace``, ``audit
    hook``, or ``none needed`` (only verifiers of the table, none of which opens a connection). ``failures`` counts
    unscorable items by reason; ``examples`` keeps one message per reason. Temporary files lie in one folder and go with
    their worker, however it ends. Not for several threads.
    """

    def __init__(
        self,
        terms: Sequence[RewardTerm],
        *,
        workers: int = 2,
        seconds: float = 5.0,
        memory_mb: int = 4096,
        log: Path | None = None,
    ) -> None:
        self.terms = tuple(terms)
        self.seconds, self.memory_bytes = seconds, memory_mb << 20
        self.failures: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.network = ""
        self._log = BoundedLog(log) if log is not None else None
        self._folder = tempfile.TemporaryDirectory(prefix="lpt-rewards-", ignore_cleanup_errors=True)
        self._workers: list[_Worker] = []
        self._sizes: dict[tuple[int, str], int] = {}  # (term, what is asked) -> items of the next message
        try:
            for _ in range(workers):
                self._workers.append(self._start())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            _kill(worker)
        self._workers.clear()
        self._folder.cleanup()
        if self._log is not None:
            self._log.close()
            self._log = None

    def score(self, items: Sequence[Item]) -> list[Score]:
        """One score per item, in order; never raises for what a reward does."""
        values: list[list[float | None]] = [[None] * len(self.terms) for _ in items]
        reasons = [""] * len(items)
        whole = list(range(len(items)))
        jobs = [_Job(term, whole) for term in range(len(self.terms)) if items]
        for job, answered, why in self._answered(jobs, items):
            for item, value, reason in zip(job.items, answered, why, strict=True):
                values[item][job.term] = value
                reasons[item] = reasons[item] or reason
        self.failures.update(reason for reason in reasons if reason)
        return [self._total(row, reason) for row, reason in zip(values, reasons, strict=True)]

    def ask(self, function: str, items: Sequence[Item]) -> list[tuple[Any, str]]:
        """What a function of each item's verifier answers (`parse_gold`, say), or None and the reason why it did not.

        For a pool of one term, the record's verifier.
        """
        found: list[tuple[Any, str]] = [(None, "")] * len(items)
        jobs = [_Job(0, list(range(len(items))), function)] if items else []
        for job, answered, why in self._answered(jobs, items):
            for item, value, reason in zip(job.items, answered, why, strict=True):
                found[item] = (value, reason)
        return found

    def _answered(self, todo: Iterable[_Job], items: Sequence[Item]) -> Iterator[tuple[_Job, list[Any], list[str]]]:
        """Run jobs, cut into messages, and yield what each message came to; items that fail in one of several are tried
        again alone.
        """
        jobs = deque(todo)
        while jobs or any(worker.job is not None for worker in self._workers):
            self._assign(jobs, items)
            for worker, reply in self._wait():
                job, worker.job = worker.job, None
                assert job is not None
                values, reasons = reply["values"], reply["reasons"]
                again = [i for i, reason in enumerate(reasons) if reason in _RETRIED] if len(job.items) > 1 else []
                if again:
                    if len(again) == len(job.items):
                        self._sizes.pop((job.term, job.asked), None)
                    jobs.extendleft(_Job(job.term, [job.items[i]], job.asked) for i in reversed(again))
                    left = sorted(set(range(len(job.items))).difference(again))
                    job = _Job(job.term, [job.items[i] for i in left], job.asked)
                    values, reasons = [values[i] for i in left], [reasons[i] for i in left]
                else:
                    self._settle(job, time.monotonic() - worker.asked_at)
                    for reason in filter(None, reasons if reply["detail"] else ()):
                        self.examples.setdefault(reason, reply["detail"])
                yield job, values, reasons

    def _settle(self, job: _Job, seconds: float) -> None:
        """Let the next messages of a kind have more or fewer items, by the time that one of full size took."""
        size = self._size(job)
        if seconds > SLOW and len(job.items) > BATCH:
            self._sizes[job.term, job.asked] = max(BATCH, size // 2)
        elif seconds < QUICK and len(job.items) >= size and not self.terms[job.term].is_function:
            self._sizes[job.term, job.asked] = min(MOST, 2 * size)

    def _size(self, job: _Job) -> int:
        return self._sizes.get((job.term, job.asked), BATCH)

    def _cut(self, job: _Job, items: Sequence[Item]) -> tuple[_Job, _Job | None]:
        """The next message of a job, and what is left of it."""
        size = min(self._size(job), len(job.items))
        sizes = [len(items[i].completion) + len(items[i].answer) for i in job.items[:size]]
        size = min(size, max(BATCH, bisect.bisect_right(list(itertools.accumulate(sizes)), MOST_TEXT)))
        rest = _Job(job.term, job.items[size:], job.asked) if size < len(job.items) else None
        return _Job(job.term, job.items[:size], job.asked), rest

    def check(self, probes: Sequence[Item] = ()) -> None:
        """Runs the canaries of each verifier in use and, for a function, a batch of probes out of the data.

        Raises `BadInputError` when a canary gets another score than its own, when a function returns the wrong
        number of values, or when it can score none of the probes.
        """
        for term in self.terms:
            for name in dict.fromkeys(p.verifier for p in probes) if term.name == FROM_RECORD else [term.name]:
                if name in REWARDS:
                    self._check_canaries(name, term)
        functions = [index for index, term in enumerate(self.terms) if term.is_function]
        if not functions or not probes:
            return
        batch = list(probes[:BATCH]) * (1 if len(probes) > 1 else 2)
        scores = self.score(batch)
        for index in functions:
            name = self.terms[index].name
            if all(score.terms[index] is None for score in scores):
                reason = next(score.reason for score in scores)
                raise BadInputError(
                    f"The reward {name} could not score any of {len(batch)} trial completions.",
                    seen=f"{reason} {self.examples.get(reason, '')}".strip(),
                    next=_ADVICE.get(reason, "Return a finite number, or None where a completion cannot be scored."),
                )
        self.failures.clear()

    def _check_canaries(self, name: str, term: RewardTerm) -> None:
        canaries = REWARDS[name].canaries
        scores = self.score([Item(c.completion, c.answer, name) for c in canaries])
        index = self.terms.index(term)
        for canary, score in zip(canaries, scores, strict=True):
            if score.terms[index] != canary.score:
                raise BadInputError(
                    f"The verifier {name} does not give a canary its known score; rewards cannot be trusted.",
                    seen=f"{canary.completion!r} for {canary.answer!r}: {score.terms[index]} {score.reason}, "
                    f"must be {canary.score}",
                    next="Check that this installation of lpt is unchanged, and the time and memory limits of rewards.",
                )
        self.failures.clear()

    def _total(self, row: list[float | None], reason: str) -> Score:
        known = [value for value in row if value is not None]
        if len(known) < len(row):
            return Score(None, tuple(row), reason)
        return Score(sum(term.weight * value for term, value in zip(self.terms, known, strict=True)), tuple(row))

    def _start(self) -> _Worker:
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        process = subprocess.Popen(
            [sys.executable, "-P", worker_module.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.descriptor if self._log is not None else subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder)},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        worker = _Worker(process, folder)
        settings = {
            "path": [entry or os.getcwd() for entry in sys.path],
            "terms": [term.name for term in self.terms],
            "memory_bytes": self.memory_bytes,
            "seconds": self.seconds,
        }
        deadline = time.monotonic() + START_SECONDS
        _send(worker, frame(settings), deadline)
        reply = None
        while reply is None and time.monotonic() < deadline and process.poll() is None:
            _readable([worker], 0.5)
            reply = _receive(worker)
        if reply is None or "error" in reply:
            _kill(worker)
            raise BadInputError(
                "A reward could not be loaded in its worker process.",
                seen=reply["error"] if reply else f"no answer; exit status {process.returncode}",
                next="Check that the module can be imported from this folder, within the memory limit of rewards.",
            )
        self.network = reply["network"]
        return worker

    def _assign(self, jobs: deque[_Job], items: Sequence[Item]) -> None:
        for position, worker in enumerate(self._workers):
            if not jobs or worker.job is not None:
                continue
            if worker.process.poll() is not None:
                _kill(worker)
                worker = self._workers[position] = self._start()
            worker.job, rest = self._cut(jobs.popleft(), items)
            if rest is not None:
                jobs.appendleft(rest)
            columns = dict(zip(COLUMNS, zip(*[items[i] for i in worker.job.items], strict=True), strict=True))
            worker.asked_at = time.monotonic()
            worker.deadline = worker.asked_at + self.seconds
            _send(
                worker, frame({"term": worker.job.term, "asked": worker.job.asked, "columns": columns}), worker.deadline
            )

    def _wait(self) -> list[tuple[_Worker, dict[str, Any]]]:
        """What busy workers answered; one that ended or ran out of time is killed and answers with the reason."""
        busy = [worker for worker in self._workers if worker.job is not None]
        first = min(worker.deadline for worker in busy)
        ready = _readable(busy, first - time.monotonic())
        done: list[tuple[_Worker, dict[str, Any]]] = []
        for worker in busy:
            assert worker.job is not None
            n = len(worker.job.items)
            reply = _receive(worker) if worker.process.stdout in ready else None
            if reply is not None and len(reply["values"]) == len(reply["reasons"]) == n:
                done.append((worker, reply))
                continue
            if reply is not None or worker.ended:
                reason = "process_ended"
            elif time.monotonic() >= worker.deadline:
                reason = "time_limit_passed"
            else:
                continue
            _kill(worker)
            done.append((worker, {"values": [None] * n, "reasons": [reason] * n, "detail": ""}))
        return done


def _readable(workers: Iterable[_Worker], seconds: float) -> list[IO[bytes] | None]:
    """The output pipes with bytes or an end of file, within so many seconds."""
    poll = select.poll()
    pipes = {worker.process.stdout.fileno(): worker.process.stdout for worker in workers if worker.process.stdout}
    for descriptor in pipes:
        poll.register(descriptor, select.POLLIN)
    return [pipes[descriptor] for descriptor, _ in poll.poll(max(0, int(seconds * 1000) + 1))]


def _send(worker: _Worker, data: bytes, deadline: float) -> None:
    """Writes a message; gives up at the deadline or when nobody reads (the wait that follows finds out why)."""
    assert worker.process.stdin is not None
    descriptor, view = worker.process.stdin.fileno(), memoryview(data)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view and time.monotonic() < deadline:
        poll.poll(100)
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            return


def _receive(worker: _Worker) -> dict[str, Any] | None:
    """The worker's message if all of it has come; marks a worker whose pipe ended or whose message is no message."""
    assert worker.process.stdout is not None
    try:
        chunk = os.read(worker.process.stdout.fileno(), READ)
    except BlockingIOError:
        return None
    worker.buffer += chunk
    size = HEADER.unpack_from(worker.buffer)[0] if len(worker.buffer) >= HEADER.size else 0
    if not chunk or size > MAX_REPLY:
        worker.ended = True
        return None
    if size == 0 or len(worker.buffer) < HEADER.size + size:
        return None
    body = bytes(worker.buffer[HEADER.size : HEADER.size + size])
    worker.buffer.clear()
    try:
        return parse(body)
    except ValueError:
        worker.ended = True
        return None


def _kill(worker: _Worker) -> None:
    """Ends the worker and whatever it started, closes its pipes and sweeps its temporary files."""
    process = worker.process
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    shutil.rmtree(worker.folder, ignore_errors=True)


_RETRIED = {"time_limit_passed", "process_ended", "error_raised", "memory_limit_reached"}
_ADVICE = {
    "wrong_length": "Return a list with exactly one value for each completion.",
    "time_limit_passed": "Make the function faster, or allow more time with --set reward_timeout=SECONDS.",
    "memory_limit_reached": "Use less memory, or allow more with --set reward_memory_mb=MEGABYTES.",
    "process_ended": "Find what ends the process; a training run keeps its messages in rewards.log of its folder.",
}
