"""Planted sets for each check of generated rows: rows with the fault, rows without it, rows that nearly have it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from lpt_data.audit import AuditReport, audit
from lpt_data.dataset import Dataset
from lpt_train.rewards import REWARDS
from lpt_train.rewards.guard import guarded

SHARED = Path(__file__).parents[4] / "shared/data"
WORDS = [
    f"{a}{b}" for a in ("ka", "lo", "mi", "ne", "pu", "ra", "so", "ti") for b in ("den", "fal", "gor", "hin", "jul")
]


def row(n: int, **changes: Any) -> dict[str, Any]:
    """A generated row without a fault: sum number n, in words of its own."""
    draw = random.Random(n)
    asked = " ".join(draw.choices(WORDS, k=9))
    said = " ".join(draw.choices(WORDS, k=12))
    made = {
        "prompt": f"{asked}: {n} + 1",
        "completion": f"{said}\n#### {n + 1}",
        "generator": "maker-7b",
        "generator_revision": "9c925d6",
        "prompt_id": "sums-v1",
        "verifier": "integer",
        "answer": str(n + 1),
        "sampling": {"temperature": 0.8},
        "source": "sums",
        "depth": 1,
        "licence": "apache-2.0",
        "terms": "allowed",
        "attempts": 10,
        "passes": 3,
        "source_attempts": 1000,
        "source_passes": 300,
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not ...}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))
    return str(path)


def check(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> AuditReport:
    options.setdefault("verifiers", REWARDS)
    dataset = Dataset.open([write(tmp_path / "rows.jsonl", rows)], kind="sft")
    return audit({"train": dataset}, "synthetic", **options)


def result(report: AuditReport, name: str) -> tuple[str, float | None, list[int]]:
    (found,) = [c for c in report.checks if c.id == f"synthetic.{name}"]
    return found.status, found.value, sorted({r["row"] for r in report.rows(found.id)})


def test_a_set_without_a_fault_is_accepted(tmp_path):
    report = check(tmp_path, [row(n) for n in range(60)])
    bad = {c.id: (c.status, c.value, c.detail) for c in report.checks if c.status in ("fail", "warn", "error")}
    assert (report.verdict, bad) == ("accept", {})
    assert all(c.next for c in report.checks if c.required)


# check -> (columns that have the fault, columns that nearly have it); a share over 20 rows
COLUMNS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "generator.missing_share": (
        [{"generator": ""}, {"generator": " "}, {"generator": {}}, {"generator": None}],
        [{"generator": {"model": "m", "revision": "r"}}, {"generator": "human"}],
    ),
    "generator.unpinned_share": (
        [{"generator_revision": "main"}, {"generator_revision": "Latest"}, {"generator_revision": ...}],
        [{"generator_revision": "maintenance-3"}, {"generator": {"name": "m", "digest": "sha256:1"}}],
    ),
    "prompt.missing_share": ([{"prompt_id": ...}, {"prompt_id": ""}], [{"prompt_id": ..., "seed_id": 0}]),
    "verifier.missing_share": ([{"verifier": ...}, {"verifier": ""}], [{"verifier": "a judge we do not have"}]),
    "sampling.missing_share": ([{"sampling": ...}, {"sampling": {}}], [{"sampling": "greedy"}]),
    "licence.missing_share": ([{"licence": ...}], [{"licence": ..., "license": "mit"}]),
    "terms.denied_share": ([{"terms": "denied"}, {"terms": "openai-terms"}], [{"terms": "gemma"}, {"terms": "MIT"}]),
    "terms.unsettled_share": (
        [{"terms": ...}, {"terms": "made up"}, {"terms": "gemma"}],
        [{"terms": "denied"}, {"terms": "Apache-2.0"}],
    ),
    "depth.missing_share": ([{"depth": ...}, {"depth": -1}, {"depth": "deep"}, {"depth": True}], [{"depth": "1"}]),
    "verified.failed_share": (
        [{"answer": "77", "depth": 0}, {"completion": "#### 3 or so 2"}, {"completion": "I do not know"}],
        [{"answer": "seventy"}, {"verifier": "math"}, {"completion": "the same: #### {n1}.0"}],
    ),
    "verified.unscored_share": (
        [{"answer": ...}, {"verifier": "judge"}, {"answer": "seventy"}, {"verifier": ...}],
        [{"answer": "77"}, {"depth": 0, "generator": ..., "answer": ...}],
    ),
    "counts.impossible_share": ([{"attempts": 2}, {"source_passes": 1001}], [{"attempts": 3}]),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_each_fault_of_a_column_is_found_and_nothing_else(tmp_path, name):
    faults, near = COLUMNS[name]
    changes = [*faults, *near, *[{}] * (20 - len(faults) - len(near))]
    rows = []
    for n, change in enumerate(changes):
        text = change.get("completion")
        rows.append(row(n, **{**change, **({"completion": text.replace("{n1}", str(n + 1))} if text else {})}))
    status, value, found = result(check(tmp_path, rows), name)
    assert found == list(range(len(faults)))
    assert status in ("warn", "fail")
    assert 0 < value <= len(faults) / (20 - len(near) - len(faults))
    assert result(check(tmp_path, [row(n) for n in range(20)]), name)[:2] == ("pass", 0.0)


def test_what_was_not_declared_is_not_green(tmp_path):
    report = check(tmp_path, [row(n, terms=..., depth=..., attempts=..., source_attempts=...) for n in range(9)])
    for name in ("terms.denied_share", "depth.deepest", "real.share", "pass_rate.lowest", "pass_rate.highest"):
        assert result(report, name)[0] == "skipped"
    assert (report.verdict, report.exit_code) == ("reject", 5)  # the pass rate is required
    (lowest,) = [c for c in report.checks if c.id == "synthetic.pass_rate.lowest"]
    assert lowest.next.startswith("lpt data synth ")


def test_rows_that_people_wrote_need_no_generator_and_no_verifier(tmp_path):
    mine = {name: ... for name in row(0) if name not in ("prompt", "completion", "generator")}
    rows = [row(n) for n in range(20)] + [row(n, **mine, generator="human") for n in range(20, 30)]
    report = check(tmp_path, rows)
    assert report.verdict == "accept"
    assert result(report, "generator.missing_share")[1] == 0


# -- verification


def test_a_verifier_that_hangs_is_ended_and_its_row_is_neither_right_nor_wrong(tmp_path):
    hangs = json.dumps({"type": "string", "pattern": "^(a+)+$"})
    told = {"verifier": "schema", "answer": hangs}
    rows = [row(n, **told, completion=json.dumps("a" * (n + 1))) for n in range(30)]
    rows[7]["completion"] = json.dumps("a" * 60 + "b")
    with guarded(seconds=1.0) as lent:
        report = check(tmp_path, rows, verifiers=lent)
    assert result(report, "verified.failed_share") == ("pass", 0.0, [])
    assert result(report, "verified.unscored_share") == ("warn", 1 / 30, [7])
    assert "time_limit_passed" in report.rows("synthetic.verified.unscored_share")[0]["detail"]


def test_programs_are_run_again_in_the_sandbox(tmp_path):
    answer = json.dumps({"tests": "assert f(2) == 4", "entry_point": "f"})
    told = {"verifier": "code", "answer": answer}
    rows = [row(n, **told, completion=f"def f(x):\n    return x * 2  # {n}\n") for n in range(4)]
    rows[1]["completion"] = "def f(x):\n    import sys; sys.exit(0)\n"
    rows[2]["completion"] = f"def f(x):\n    open({str(tmp_path / 'out')!r}, 'w')\n    return 4\n"
    with guarded() as lent:
        report = check(tmp_path, rows, verifiers=lent)
    assert result(report, "verified.failed_share")[2] == [1, 2]
    assert not (tmp_path / "out").exists()


def test_without_verifiers_nothing_is_verified(tmp_path):
    report = check(tmp_path, [row(n) for n in range(9)], verifiers=None)
    assert result(report, "verified.failed_share")[0] == "skipped"
    assert report.exit_code == 5


# -- pass rates


@pytest.mark.parametrize(
    ("passes", "lowest", "highest"),
    [(200, "pass", "pass"), (400, "pass", "pass"), (199, "warn", "pass"), (401, "pass", "warn"), (49, "fail", "pass"),
     (951, "pass", "fail"), (1000, "pass", "fail")],
)  # fmt: skip
def test_the_band_of_20_to_40_percent(tmp_path, passes, lowest, highest):
    told = {"source_passes": passes, "attempts": ..., "passes": ...}
    report = check(tmp_path, [row(n, **told) for n in range(9)])
    assert result(report, "pass_rate.lowest")[:2] == (lowest, passes / 1000)
    assert result(report, "pass_rate.highest")[:2] == (highest, passes / 1000)


def test_each_source_is_judged_on_its_own(tmp_path):
    rows = [row(n) for n in range(9)]
    rows += [row(n, source="easy", source_attempts=200, source_passes=190) for n in range(9, 12)]
    report = check(tmp_path, rows)
    assert result(report, "pass_rate.highest") == ("warn", 0.95, [9, 10, 11])
    assert result(report, "pass_rate.lowest") == ("pass", 0.3, [])
    assert (
        "easy: 95.0% of 200 attempts passed (95 %: 91.0% to 97.3%)"
        in report.rows("synthetic.pass_rate.highest")[0]["detail"]
    )


def test_counts_of_prompts_are_an_upper_bound_and_say_so(tmp_path):
    told = {"source_attempts": ..., "source_passes": ...}
    rows = [row(n, **told, attempts=10, passes=4) for n in range(4)]
    rows += [row(3, **told, attempts=10, passes=4, completion=f"again {n}\n#### 4") for n in range(3)]  # one prompt
    report = check(tmp_path, rows)
    (metric,) = [m for m in report.metrics if m.id == "synthetic.pass_rate.lowest"]
    assert (metric.value, metric.n) == (0.4, 40)
    assert "at prompts that have a pass" in metric.reason


def test_a_file_of_all_attempts_is_counted_by_running_the_verifier(tmp_path):
    told = {"source_attempts": ..., "source_passes": ..., "attempts": ..., "passes": ...}
    rows = [row(n, **told, **({} if n < 5 else {"answer": "-1"})) for n in range(20)]
    report = check(tmp_path, rows)
    assert result(report, "pass_rate.lowest")[:2] == ("pass", 0.25)
    assert result(report, "verified.failed_share")[:2] == ("fail", 0.75)


# -- depth


def test_a_second_generation_needs_an_anchor(tmp_path):
    deep = [row(n, depth=2) for n in range(18)]
    assert result(check(tmp_path, deep), "real.share")[:2] == ("warn", 0.0)
    report = check(tmp_path, [*deep, *[row(n, depth=0, generator="human") for n in range(18, 20)]])
    assert result(report, "real.share")[:2] == ("pass", 0.1)
    assert result(report, "depth.deepest") == ("pass", 2, list(range(18)))
    assert result(check(tmp_path, [row(n, depth=3) for n in range(9)]), "depth.deepest")[0] == "warn"
    assert result(check(tmp_path, [row(n) for n in range(9)]), "real.share")[0] == "skipped"


# -- likeness


def test_prompts_near_each_other_and_near_the_seeds(tmp_path):
    base = "kaden logor mihin nejul pufal raden sogor tihin kajul lofal"
    near = base.replace("mihin", "xxx")  # 9 of 10 words in order: F1 0.9
    far = " ".join(reversed(base.split()))  # the same words, LCS 1: F1 0.1
    texts = [base, near, far, "kaden logor other words here that none of them has", near.upper() + "!"]
    rows = [row(n, prompt=texts[n]) for n in range(5)] + [row(n) for n in range(5, 25)]
    seeds = write(tmp_path / "seeds.jsonl", [{"id": "s1", "instruction": base, "instances": []}])
    report = check(tmp_path, rows, seeds=[seeds])
    assert result(report, "rouge_l.pool_share") == ("pass", 3 / 25, [0, 1, 4])
    assert result(report, "rouge_l.seeds_share") == ("warn", 3 / 25, [0, 1, 4])
    assert "0.900 to seed s1" in report.rows("synthetic.rouge_l.seeds_share")[1]["detail"]
    assert result(check(tmp_path, [row(n) for n in range(20)]), "rouge_l.seeds_share")[0] == "skipped"


def test_several_answers_to_one_prompt_are_no_likeness_of_prompts(tmp_path):
    rows = [row(1, completion=f"{WORDS[n]} {WORDS[n + 9]} {n}\n#### 2") for n in range(9)]
    report = check(tmp_path, rows)
    assert result(report, "rouge_l.pool_share") == ("pass", 0.0, [])


def test_near_duplicates_of_whole_rows(tmp_path):
    rows = [row(n) for n in range(20)]
    rows[5] = {**rows[4], "completion": rows[4]["completion"].replace("\n", " so\n")}
    status, value, found = result(check(tmp_path, rows), "near_duplicates.share")
    assert (status, value) == ("pass", 1 / 20)
    assert found in ([4], [5])


def test_a_benchmark_item_in_a_row_and_behind_a_seed(tmp_path):
    item = "how many apples does the farmer have left after the market of tuesday when nine were sold to the baker"
    bench = write(tmp_path / "bench.jsonl", [{"question": item, "answer": "#### 4"}])
    seeds = write(
        tmp_path / "seeds.jsonl", [{"id": "leak", "prompt": f"Q: {item.upper()}?"}, {"id": "ok", "prompt": "say one"}]
    )
    rows = [row(n, seed_id="ok") for n in range(10)]
    rows[2] = row(2, prompt=f"Please: {item}? 2 + 1", seed_id="ok")
    rows[3]["seed_id"] = "leak"
    report = check(tmp_path, rows, seeds=[seeds], benchmarks={"farm": [bench]})
    assert result(report, "contamination.rows") == ("fail", 1, [2])
    assert result(report, "contamination.seeds") == ("fail", 1, [3])
    clean = check(tmp_path, [row(n) for n in range(10)], seeds=[write(tmp_path / "s.jsonl", [{"prompt": "say one"}])],
                  benchmarks={"farm": [bench]})  # fmt: skip
    assert result(clean, "contamination.rows")[:2] == result(clean, "contamination.seeds")[:2] == ("pass", 0)


# -- diversity


def test_templates_are_seen_and_variety_is_not(tmp_path):
    rows = [row(n, prompt=f"Write a short poem about the number {n}", completion=f"Sure, here is a poem for you: {n}")
            for n in range(200)]  # fmt: skip
    report = check(tmp_path, rows)
    assert result(report, "openings.prompts_share") == ("warn", 1.0, list(range(200)))
    assert result(report, "rouge_l.pool_share")[:2] == ("warn", 1.0)
    assert result(report, "diversity.prompts_distinct_2")[0] == "warn"
    assert result(report, "diversity.compression_ratio")[0] == "warn"
    varied = check(tmp_path, [row(n) for n in range(80)])
    for name in ("openings.prompts_share", "diversity.replies_distinct_2", "diversity.compression_ratio"):
        assert result(varied, name)[0] == "pass"


def rounds(tmp_path: Path, vocabulary: int, words: int, name: str, count: int = 150) -> str:
    draw = random.Random(name)
    pool = [f"t{n}" for n in range(vocabulary)]
    odds = [1 / (n + 1) for n in range(vocabulary)]
    texts = [" ".join(draw.choices(pool, odds, k=words)) for _ in range(count)]
    return write(tmp_path / f"{name}.jsonl", [{"prompt": f"{name} {n}", "completion": t} for n, t in enumerate(texts)])


def collapse(tmp_path: Path, vocabulary: int, words: int) -> dict[str, str]:
    first, second = rounds(tmp_path, 3000, 60, "first"), rounds(tmp_path, 3000, 60, "second")
    made = [json.loads(line) for line in Path(rounds(tmp_path, vocabulary, words, "now")).read_text().splitlines()]
    rows = [row(n, **r) for n, r in enumerate(made)]
    report = check(tmp_path, rows, previous=[first, second], verifiers=None)
    return {c.id.rsplit(".", 1)[1]: c.status for c in report.checks if ".collapse." in c.id}


def test_collapse_is_seen_and_another_draw_of_the_same_is_none(tmp_path):
    same = collapse(tmp_path, 3000, 60)
    assert same == dict.fromkeys(("distinct_2_ratio", "vocabulary_ratio", "length_ratio", "tail_lost_share"), "pass")
    narrowed = collapse(tmp_path, 60, 30)
    assert narrowed["vocabulary_ratio"] == narrowed["tail_lost_share"] == "fail"
    assert narrowed["distinct_2_ratio"] in ("warn", "fail")
    assert narrowed["length_ratio"] == "warn"


def test_without_an_earlier_round_collapse_is_not_watched(tmp_path):
    report = check(tmp_path, [row(n) for n in range(30)])
    (ratio,) = [c for c in report.checks if c.id == "synthetic.collapse.tail_lost_share"]
    assert ratio.status == "skipped"
    assert "--previous FILE" in ratio.next


# -- laws and hostile rows


def test_order_and_files_change_nothing(tmp_path):
    rows = [row(n % 25, completion=f"{WORDS[n % 40]} {n}\n#### {n % 25 + 1}") for n in range(60)]
    straight = check(tmp_path, rows)
    random.Random(1).shuffle(rows)
    parts = [write(tmp_path / f"part{n}.jsonl", rows[n::3]) for n in range(3)]
    mixed = audit({"train": Dataset.open(parts, kind="sft")}, "synthetic", verifiers=REWARDS)
    assert {m.id: (m.value, m.n) for m in straight.metrics} == {m.id: (m.value, m.n) for m in mixed.metrics}


def test_rows_of_ten_megabytes_and_hostile_text(tmp_path):
    rows = [row(n) for n in range(6)]
    rows[0]["completion"] = "as an " * 1_700_000 + "\n#### 1"
    rows[1]["prompt"] = "I am an " * 1_300_000
    rows[2] |= {"generator": "\x1b[2J<script>", "source": "a\nb\x00", "sampling": "x" * 10_000}
    rows[3]["completion"] = "aaaa" * 2_500_000
    report = check(tmp_path, rows)
    (failed,) = [c for c in report.checks if c.id == "synthetic.verified.failed_share"]
    assert [r["row"] for r in report.rows(failed.id)] == [3]
    for name in report.outcomes:
        assert all(found["detail"].isprintable() for found in report.rows(name))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data folder")
def test_code_alpaca_against_the_seeds_of_self_instruct(tmp_path):
    data = Dataset.open([str(SHARED / "code_alpaca/code_alpaca_2k.json")], kind="sft")
    bench = {"humaneval": [str(SHARED / "human_eval/HumanEval.jsonl.gz")]}
    seeds = [str(SHARED / "self_instruct/seed_tasks.jsonl")]
    report = audit({"train": data}, "synthetic", verifiers=REWARDS, seeds=seeds, benchmarks=bench)
    values = {m.id.removeprefix("synthetic."): (m.value, m.n) for m in report.metrics}
    assert values["rouge_l.pool_share"] == (57 / 2017, 2017)
    assert values["rouge_l.seeds_share"] == (0.0, 2017)
    assert values["sft.turns.empty_share"] == (2 / 2017, 2017)
    assert values["generator.missing_share"] == (1.0, 2017)
    assert values["verified.failed_share"] == (None, 2017)
    assert report.exit_code == 5
