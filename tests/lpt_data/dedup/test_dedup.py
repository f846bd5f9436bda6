from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import dedup, jaccard, survivors

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide
from lpt_data.dedup.memory import parse_bytes
from lpt_data.progress import silent
from manifests import decisions
from manifests.errors import BadInputError, UsageError

SHARED = Path(__file__).parents[4] / "shared" / "data"
ONE = DedupConfig(workers=1)


def edited(text: str, edits: int, rng: random.Random) -> str:
    words = text.split()
    for place in rng.sample(range(len(words)), edits):
        words[place] = f"edit{rng.randrange(10**9)}"
    return " ".join(words)


def corpus(fresh: int = 60, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    texts = [" ".join(f"w{rng.randrange(5000)}" for _ in range(rng.randrange(30, 120))) for _ in range(fresh)]
    texts += [edited(rng.choice(texts), rng.choice([0, 1, 1, 2, 4]), rng) for _ in range(fresh)]
    texts += [rng.choice(texts).upper() for _ in range(5)] + ["", "!!", "!!", "short row", "Short  row"]
    rng.shuffle(texts)
    return texts


def write(path: Path, texts: list[str]) -> Dataset:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return Dataset.open([str(path)])


def check_laws(texts: list[str], outcome: reference.Outcome, threshold: float) -> None:
    """Each removed row has a kept witness whose score, computed again from the raw texts, is the recorded one."""
    for row, (reason, witness, score) in outcome.items():
        if reason == "empty_text":
            assert not texts[row].strip()
            continue
        assert witness not in outcome
        if reason == "exact_duplicate":
            assert texts[row] == texts[witness]
        elif reason == "normalized_duplicate":
            assert texts[row].lower().split() == texts[witness].lower().split()
        else:
            assert score == jaccard(texts[row], texts[witness])
            assert score >= threshold


@pytest.mark.parametrize("keep", ["content", "first", "longest"])
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_laws_and_nothing_above_the_threshold_left(keep: str, threshold: float) -> None:
    texts = corpus()
    outcome = dedup(texts, DedupConfig(threshold=threshold, keep=keep, workers=1))
    check_laws(texts, outcome, threshold)
    kept = [text for row, text in enumerate(texts) if row not in outcome and len(text.split()) >= 5]
    margin = min(1.0, threshold + 0.05)
    assert not [1 for i, a in enumerate(kept) for b in kept[:i] if jaccard(a, b) >= margin]
    assert {reason for reason, _, _ in outcome.values()} >= {"exact_duplicate", "near_duplicate", "empty_text"}


def test_survivors_are_the_same_for_any_order_batch_and_thread() -> None:
    texts = corpus(seed=3)
    expected = survivors(texts, dedup(texts))
    for seed in range(6):
        rng = random.Random(seed)
        shuffled = texts[:]
        rng.shuffle(shuffled)
        config = DedupConfig(workers=(1, 4)[seed % 2])
        assert survivors(shuffled, dedup(shuffled, config, size=rng.choice([1, 3, 50, 1000]))) == expected


def test_threads_change_no_decision() -> None:
    texts = corpus(seed=4)
    assert dedup(texts, ONE, size=5) == dedup(texts, DedupConfig(workers=4), size=9)


@given(st.lists(st.text(alphabet="ab \n!é世ไΣ", max_size=30), max_size=30), st.sampled_from(["content", "first"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_dedup_is_conservative_and_idempotent(texts: list[str], keep: str) -> None:
    config = DedupConfig(keep=keep, ngram=2, workers=1)
    outcome = dedup(texts, config)
    assert all(witness not in outcome for _, witness, _ in outcome.values())
    stay = survivors(texts, outcome)
    assert len(stay) == len(set(stay))
    assert {t.strip() for t in texts} - {""} == set() or stay
    again = [text for row, text in enumerate(texts) if row not in outcome]
    assert dedup(again, config) == {}


def test_templates_are_not_duplicates() -> None:
    # One frame of 14 words and a filling of 12: the shingles of the frame are shared, most are not.
    frame = "You are a careful assistant . Answer the question below in one short sentence : {}"
    rng = random.Random(1)
    texts = [frame.format(" ".join(f"q{rng.randrange(10**6)}" for _ in range(12))) for _ in range(300)]
    assert dedup(texts) == {}


@pytest.mark.parametrize(
    "page",
    [
        "这个命令用来显示当前目录中的所有文件，包括隐藏文件，并且按照修改时间排序，最新的文件排在最前面，便于用户快速查找需要的内容。",
        "このコマンドは現在のディレクトリにあるすべてのファイルを表示し、更新日時の順に並べ替えて、必要な内容をすばやく見つけられるようにします。",
        "คำสั่งนี้ใช้แสดงไฟล์ทั้งหมดในไดเรกทอรีปัจจุบัน รวมถึงไฟล์ที่ซ่อนอยู่ และเรียงลำดับตามเวลาที่แก้ไขล่าสุด เพื่อให้ค้นหาได้อย่างรวดเร็ว",
        "បញ្ជានេះបង្ហាញឯកសារទាំងអស់នៅក្នុងថតបច្ចុប្បន្ន រួមទាំងឯកសារលាក់ ហើយតម្រៀបតាមពេលវេលាកែប្រែចុងក្រោយ ដើម្បីងាយស្រួលស្វែងរក",
    ],
)
def test_unspaced_scripts(page: str) -> None:
    others = [
        "压缩一个文件夹，然后把结果上传到远程服务器，完成以后删除本地的临时副本，并且写入日志。",
        "ファイルを圧縮してリモートサーバーへ送信し、終了後に一時コピーを削除してログに記録します。",
        "บีบอัดโฟลเดอร์แล้วอัปโหลดผลลัพธ์ไปยังเซิร์ฟเวอร์ระยะไกล จากนั้นลบสำเนาชั่วคราวและบันทึกลงไฟล์บันทึก",
    ]
    copy = page + "。"
    near = page[:3] + page[5:]  # in the middle of so short a page, one letter is too much
    outcome = dedup([page, *others, copy, near], DedupConfig(keep="first", workers=1))
    assert set(outcome) == {4, 5}
    assert outcome[4] == ("near_duplicate", 0, 1.0)
    assert 0.8 <= outcome[5][2] < 1.0


def test_spaced_scripts_of_other_alphabets() -> None:
    arabic = "هذا الأمر يعرض جميع الملفات في المجلد الحالي بما في ذلك الملفات المخفية ويرتبها حسب وقت التعديل الأخير"
    other = "يقوم هذا البرنامج بضغط المجلد ثم رفعه إلى الخادم البعيد وبعد ذلك يحذف النسخة المؤقتة من القرص المحلي"
    assert set(dedup([arabic, other, arabic + " 🙂"])) <= {0, 2}
    assert len(dedup([arabic, other, arabic + " 🙂"])) == 1


def test_edges() -> None:
    assert dedup([]) == {}
    assert dedup(["one row of five words here"]) == {}
    assert set(dedup(["the very same five words"] * 4, DedupConfig(keep="first", workers=1))) == {1, 2, 3}


def test_ten_thousand_copies_and_as_many_variants() -> None:
    words = " ".join(f"w{i}" for i in range(200))
    copies = dedup([words] * 10_000, DedupConfig(keep="first", workers=1), size=1000)
    assert len(copies) == 9_999
    variants = [f"{words} n{i}" for i in range(10_000)]  # all above the threshold to each other
    outcome = dedup(variants, DedupConfig(keep="first", workers=1), size=1000)
    assert len(outcome) == 9_999
    assert {witness for _, witness, _ in outcome.values()} == {0}


def test_minhash_alone_finds_copies_too_and_exact_alone_no_near_ones() -> None:
    texts = corpus(seed=8)
    both, alone = dedup(texts), dedup(texts, DedupConfig(method=("minhash",), workers=1))
    assert survivors(texts, both) == survivors(texts, alone)
    assert {reason for reason, _, _ in alone.values()} == {"near_duplicate", "empty_text"}
    exact = dedup(texts, DedupConfig(method=("exact",), workers=1))
    assert "near_duplicate" not in {reason for reason, _, _ in exact.values()}
    assert set(exact) < set(both)


def test_the_stage_over_a_file(tmp_path: Path) -> None:
    texts = [text for text in corpus(seed=5) if text.strip()]
    dataset = write(tmp_path / "in.jsonl", texts)
    result = decide(dataset, DedupConfig(workers=2), silent)
    assert result.record_ids.shape == (len(texts), 32)
    assert result.decisions.schema == decisions.SCHEMA
    rows = result.decisions.to_pylist()
    assert [row["row"] for row in rows] == sorted(row["row"] for row in rows)
    for row in rows:
        assert row["action"] == "remove"
        assert row["witness_id"] == result.record_ids[row["witness_row"]].tobytes().hex()
        assert row["record_id"] == result.record_ids[row["row"]].tobytes().hex()
    gone = {row["row"] for row in rows}
    assert gone.isdisjoint(row["witness_row"] for row in rows)
    extra = result.extra
    assert json.loads(json.dumps(extra)) == extra
    assert sum(extra["methods"].values()) == len(rows)
    assert extra["minhash"]["bands"] * extra["minhash"]["rows"] == extra["minhash"]["num_perm"]
    assert extra["minhash"]["candidates"] >= extra["minhash"]["verified"] > 0
    assert extra["biggest_keeper"]["absorbed"] >= 1
    scores = [weak["score"] for weak in extra["weakest"]]
    assert len(scores) >= 3
    assert scores == sorted(scores)
    assert all(weak["text"] and weak["witness_text"] for weak in extra["weakest"])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_same_rows_stay_in_any_order_whatever_their_other_columns(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": text, "id": i} for i, text in enumerate(corpus(seed=6) * 2) if text.strip()]
    kept = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        path = tmp_path / f"in{seed}{suffix}"
        if suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = decide(Dataset.open([str(path)]), DedupConfig(workers=1 + seed), silent)
        gone = set(result.decisions["row"].to_pylist())
        kept.append(sorted(row["id"] for place, row in enumerate(rows) if place not in gone))
    assert kept[0] == kept[1] == kept[2]


def test_memory_that_is_not_enough_is_said(tmp_path: Path) -> None:
    dataset = write(tmp_path / "in.jsonl", ["some words that take room " * 20] * 50)
    with pytest.raises(BadInputError, match="memory"):
        decide(dataset, DedupConfig(memory="10KB", workers=1), silent)


@pytest.mark.parametrize(("size", "expected"), [(None, None), ("4GB", 4 * 10**9), ("1.5 MiB", 1572864), ("100", 100)])
def test_sizes(size: str | None, expected: int | None) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"method": ("simhash",)},
        {"method": ()},
        {"keep": "quality:"},
        {"template_df": 1.5},
        {"alarm_share": -1.0},
        {"ngram": 0},
        {"seed": -1},
        {"workers": 0},
        {"threshold": 1.5},
        {"threshold": 0.001},
        {"memory": "lots"},
    ],
)
def test_settings_without_sense_are_refused(tmp_path: Path, changes: dict) -> None:
    dataset = write(tmp_path / "in.jsonl", ["a", "b"])
    with pytest.raises(UsageError) as error:
        decide(dataset, DedupConfig(**changes), silent)
    assert error.value.next


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_short_pages_in_ten_languages_go_only_to_pages_they_resemble() -> None:
    texts = [json.loads(line)["text"] for line in (SHARED / "tldr" / "tldr.jsonl").open(encoding="utf-8")]
    outcome = dedup(texts, DedupConfig(workers=1), size=2000)
    assert len(outcome) < 0.05 * len(texts)
    for row, (_, witness, _) in outcome.items():  # by another measure: pairs of neighbouring characters
        pairs = [{a + b for a, b in zip(t, t[1:], strict=False)} for t in (texts[row].lower(), texts[witness].lower())]
        assert len(pairs[0] & pairs[1]) / len(pairs[0] | pairs[1]) > 0.6
    assert np.isfinite([score for _, _, score in outcome.values()]).all()
