"""Rows packed by their true lengths: hand-worked bins, what does not fit, and the same bins as the trainer's."""

import json
from dataclasses import dataclass

import pytest

from lpt_data.dataset import Dataset
from lpt_data.pack import pack_work
from manifests.bins import best_fit_decreasing
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError, RecordError, UsageError


@dataclass
class Encoded:
    ids: list[int]


class Letters:
    """A tokenizer of one token a letter, and three for the template of a chat; `!` cannot be rendered."""

    name, fingerprint, template_sha256 = "letters", "f" * 64, "t" * 64

    def encode(self, messages, tools=None):
        said = "".join(message["content"] for message in messages)
        if "!" in said:
            raise RecordError("the template refuses it", reason="template_refused", seen=said)
        return Encoded([0] * (len(said) + 3))

    def encode_text(self, text):
        return Encoded([0] * len(text))


def texts(place, rows):
    path = place / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset.open([str(path)])


def run(place, rows, length=10):
    out = place / "packed.jsonl"
    report = pack_work(texts(place, rows), Letters(), length, out).run(Catalog.open(place / ".lpt"))
    return report, [json.loads(line) for line in out.read_text().splitlines()]


def test_bins_worked_by_hand(tmp_path):
    """Lengths 5 1 7 4 3 into 10: 7+3, 5+4+1."""
    report, rows = run(tmp_path, [{"text": "abcdefg"[:n] if n < 7 else "abcdefg"} for n in (5, 1, 7, 4, 3)])
    assert [(len(row["text"]), row["pack"], row["pack_tokens"]) for row in rows] == [
        (7, 0, 7), (3, 0, 3), (5, 1, 5), (4, 1, 4), (1, 1, 1),
    ]  # fmt: skip
    assert report.extra == {
        "bins": 2, "max_length": 10, "tokens": 20, "fill": 1.0, "padded_fill": round(20 / 35, 6), "rows_per_bin": 2.5,
        "emptiest_bin": 10, "longest_row": 7,
    }  # fmt: skip


def test_what_does_not_fit_goes_with_its_reason(tmp_path):
    chat = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    long = [chat[0], {"role": "assistant", "content": "c" * 9}]
    broken = [chat[0], {"role": "assistant", "content": "!"}]
    report, rows = run(tmp_path, [{"messages": m} for m in (chat, long, broken)])
    assert [row["pack_tokens"] for row in rows] == [6]
    assert report.body["removed"] == {"too_long": 1}
    assert report.body["quarantine"] == {"template_refused": 1}
    exact, _ = run(tmp_path, [{"messages": m} for m in (chat, [chat[0], {"role": "assistant", "content": "c" * 5}])])
    assert exact.body["removed"] == {}  # ten tokens into ten


def test_no_bin_is_over_the_length_and_every_row_is_in_one(tmp_path):
    lengths = [(i * 7919) % 37 + 1 for i in range(200)]
    _, rows = run(tmp_path, [{"text": chr(97 + i % 26) * n} for i, n in enumerate(lengths)], length=40)
    bins: dict[int, int] = {}
    for row in rows:
        bins[row["pack"]] = bins.get(row["pack"], 0) + row["pack_tokens"]
    assert max(bins.values()) <= 40
    assert sorted(len(row["text"]) for row in rows) == sorted(lengths)
    assert len(bins) == len(best_fit_decreasing(lengths, 40))


def test_refusals(tmp_path):
    data = texts(tmp_path, [{"text": "abc"}])
    with pytest.raises(UsageError, match="needs a tokenizer"):
        pack_work(data, None, 10, tmp_path / "o.jsonl")
    with pytest.raises(UsageError, match="two tokens"):
        pack_work(data, Letters(), 1, tmp_path / "o.jsonl")
    with pytest.raises(BadInputError, match="no row fits"):
        run(tmp_path, [{"text": "abc"}], length=2)
    pairs = texts(tmp_path, [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(BadInputError, match="preference"):
        pack_work(pairs, Letters(), 10, tmp_path / "o.jsonl")
    with pytest.raises(LptError, match="empty bin"):
        best_fit_decreasing([11], 10)
