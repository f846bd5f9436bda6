"""What counts in the loss against what was replied: planted masks too narrow or too wide, and the trainer's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from lpt_data.audit import AuditReport, audit
from lpt_data.contracts.rendered import conversation, mask_fault
from lpt_data.dataset import Dataset
from manifests.errors import BadInputError, RecordError


@dataclass(frozen=True)
class Letters:
    """An encoder for tests: one token a character; `before` and `after` widen the mask of a reply, or narrow it."""

    before: int = 0
    after: int = 0
    name: str = "letters"
    fingerprint: str = "f" * 64
    template_sha256: str = "0" * 64
    bos_token_id: None = None
    stop_ids: frozenset[int] = frozenset({ord("$")})

    def encode(self, messages, tools=None):
        text, mask = "", []
        for message in messages:
            head, body = f"<{message['role']}>", f"{message['content']}$"
            text += head + body + "\n"
            mask += [0] * len(head) + [int(message["role"] == "assistant")] * len(body) + [0]
        text, mask = f"{text}<end>", [*mask, 0, 0, 0, 0, 0]
        ids = list(map(ord, text))
        for start, end in _runs(mask):
            first, last = start - self.before, end + self.after
            mask[min(first, start) : max(last, end)] = [0] * (max(last, end) - min(first, start))
            mask[first:last] = [1] * (last - first)
        return _Encoded(ids, mask)

    def decode(self, ids):
        return "".join(map(chr, ids))


@dataclass(frozen=True)
class _Encoded:
    ids: list[int]
    loss_mask: list[int]


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    starts = [i for i, m in enumerate(mask) if m and (i == 0 or not mask[i - 1])]
    return [(start, next(i for i in range(start, len(mask) + 1) if i == len(mask) or not mask[i])) for start in starts]


def chat(*turns: str) -> dict:
    roles = {"u": "user", "a": "assistant"}
    return {"messages": [{"role": roles[t[0]], "content": t[2:]} for t in turns]}


def report_of(tmp_path: Path, rows: list[dict], encoder) -> AuditReport:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return audit({"train": Dataset.open([str(path)], kind="sft")}, "sft", encode=encoder)


def metric(report: AuditReport, name: str = "sft.mask.inexact_share"):
    return next(m for m in report.metrics if m.id == name)


ROWS = [chat("u:what", "a:this", "u:and", "a:that one"), chat("u:2 + 2", "a: 4 ")]


def test_a_mask_of_the_replies_alone(tmp_path):
    assert metric(report_of(tmp_path, ROWS, Letters())).value == 0.0


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (Letters(before=1), "more than"),  # the end of the header
        (Letters(before=-2), "part of"),  # without the first letters
        (Letters(after=2), "more than"),  # into what follows
        (Letters(after=-3), "part of"),  # without the last letter, which no stop token excuses
    ],
)
def test_planted_masks_are_found_with_their_rows(tmp_path, encoder, said):
    report = report_of(tmp_path, ROWS[:1], encoder)
    assert metric(report).value == 1.0
    assert said in report.rows("sft.mask.inexact_share")[0]["detail"]


def test_a_reply_that_is_not_learned_is_no_exact_mask(tmp_path):
    encoder = Letters()
    encoded = encoder.encode(ROWS[0]["messages"])
    mask = list(encoded.loss_mask)
    first, last = _runs(mask)[0]
    mask[first:last] = [0] * (last - first)
    fault = mask_fault(encoder, ROWS[0]["messages"], encoded.ids, mask)
    assert fault == {"mask": "2 replies, 1 runs of supervised tokens"}


def test_an_encoder_that_cannot_decode_is_skipped(tmp_path):
    encoder = Letters()
    plain = type("Plain", (), {n: getattr(encoder, n) for n in ("name", "fingerprint", "stop_ids", "bos_token_id")})()
    plain.template_sha256, plain.encode = "", encoder.encode
    assert metric(report_of(tmp_path, ROWS, plain)).status == "skipped"


def test_the_masks_of_the_trainer_are_exact(tmp_path):
    pytest.importorskip("transformers")
    from lpt_train.render import Renderer
    from lpt_train.tiny import byte_tokenizer

    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    rows = [
        *ROWS,
        chat("u:naïve — “quoted” 日本語", "a:ok 🙂👩‍👩‍👧 e\u0301\n\n```\ncode\n```\n"),
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so", "tool_calls": [call]}]},
    ]
    report = report_of(tmp_path, rows, Renderer(byte_tokenizer()))
    assert (metric(report).value, metric(report).n) == (0.0, 4)


def test_a_reply_that_history_closes_otherwise_needs_no_stop(tmp_path):
    encoder = Letters(after=-1)  # nothing but the words of the replies
    asked, answered = chat("u:one", "a:two", "u:three"), chat("u:one", "a:two", "u:three", "a:four")

    def fault(row):
        return conversation(row, encoder, None).faults.get("stop")

    assert fault(asked) == "1 assistant turns, 0 supervised stop tokens"
    object.__setattr__(encoder, "history_ends", frozenset([ord("$")]))
    assert fault(asked) is None
    assert fault(answered) == "1 assistant turns, 0 supervised stop tokens"  # behind the last one nothing follows
    object.__setattr__(encoder, "history_ends", frozenset([ord("!")]))
    assert fault(asked) is not None


def test_a_last_reply_stops_where_history_closes_the_others():
    """As gpt-oss writes: what ends the first reply is no target, what ends the last one is, and nothing follows it."""
    encoder = Letters(stop_ids=frozenset({ord("%")}))
    object.__setattr__(encoder, "history_ends", frozenset([ord("$")]))
    row = chat("u:q", "a:x", "u:q", "a:y")
    for text, mask, faults in (
        ("q" "x$" "q" "y%", [0, 1, 0, 0, 1, 1], {}),
        ("q" "x$" "q" "y$", [0, 1, 0, 0, 1, 0], {"stop": "1 assistant turns, 0 supervised stop tokens"}),
        ("q" "x$" "q" "y%", [0, 1, 0, 0, 1, 0], {"stop": "1 assistant turns, 0 supervised stop tokens"}),
    ):  # fmt: skip
        encoded = _Encoded(list(map(ord, text)), mask)
        object.__setattr__(encoder, "encode", lambda *_, encoded=encoded: encoded)
        assert conversation(row, encoder, None).faults == faults


def test_a_tokenizer_without_a_chat_template_ends_the_audit(tmp_path):
    pytest.importorskip("transformers")
    from lpt_train.render import Renderer
    from lpt_train.tiny import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(BadInputError, match="no chat template"):
        report_of(tmp_path, ROWS, Renderer(tokenizer))


def test_a_template_that_raises_is_counted_row_by_row(tmp_path):
    pytest.importorskip("transformers")
    from lpt_train.render import Renderer
    from lpt_train.tiny import byte_tokenizer

    tokenizer = byte_tokenizer()
    guard = "{% if messages[0]['content'] == 'what' %}{{ raise_exception('no ' + messages[0]['content']) }}{% endif %}"
    tokenizer.chat_template = guard + tokenizer.chat_template
    report = report_of(tmp_path, ROWS, Renderer(tokenizer))
    assert metric(report, "sft.render.failed_share").value == 0.5
    assert report.exit_code == 4
    assert "no what" in report.rows("sft.render.failed_share")[0]["detail"]


class Refusing(Letters):
    """An encoder that renders no conversation with three turns or more."""

    def encode(self, messages, tools=None):
        if len(messages) > 2:
            raise RecordError("too many turns", reason="template_refused", field="messages")
        return super().encode(messages, tools)


def test_rows_that_cannot_be_rendered_are_not_looked_at_and_no_pass(tmp_path):
    three, two = chat("u:q", "a:r", "u:s"), chat("u:q", "a:r")
    for rows, status, n in ([three, three], "skipped", 2), ([three, two], "pass", 1):
        path = tmp_path / f"{n}.jsonl"
        path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
        report = audit({"train": Dataset.open([str(path)], kind="sft")}, "sft", encode=Refusing(), max_length=99)
        found = {check.id: (check.status, check.n) for check in report.checks}
        for name in ("sft.mask.inexact_share", "sft.stop.unsupervised_share"):
            assert found[name] == (status, n)
        assert found["sft.render.failed_share"] == ("fail", 2)
