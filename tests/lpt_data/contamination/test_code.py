"""Programs under other names and in another layout are found; programs that only look alike are not."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lpt_data.contamination import config_for, decider, load_benchmarks
from lpt_data.contamination.code import (
    CODE_COVERAGE,
    CODE_TOKENS,
    CODE_WINDOW,
    build_code_index,
    code_pairs,
    code_windows,
    renamed,
    scan_code,
)
from lpt_data.dataset import Dataset
from lpt_data.progress import silent

HEAD = "def longest_run(values, limit):\n"
BODY = """    best, here = 0, 0
    for value in values:
        if value > limit:
            here += 1
            best = max(best, here)
        else:
            here = 0
    return best
"""
OTHER_NAMES = """def f(a, b):
  # counts
  x, y = 0, 0
  for z in a:
      if z > b:   # above
          y += 1
          x = max(x, y)

      else:
          y = 0
  return x
"""
NEAR_MISS = """def total_above(values, limit):
    total, seen = 0, 0
    for value in values:
        if value >= limit:
            total += value
            seen = seen + 1
        elif value < 0:
            continue
    return total / seen
"""
BRACES = """int run(int *v, int n, int limit) {
  int best = 0; int here = 0; // as asked
  for (int i = 0; i < n; i++) { if (v[i] > limit) { here++; if (here > best) { best = here; } } else { here = 0; } }
  return best;
}
"""
BRACES_RENAMED = """int zz(int *q, int k, int w) { int aa = 0; int bb = 0; /* two
    counters */ for (int j = 0; j < k; j++) {
        if (q[j] > w) { bb++; if (bb > aa) { aa = bb; } }
        else { bb = 0; } }
    return aa; }
"""


def coverage(program, row, beside=""):
    """How much of a program one row covers."""
    index = build_code_index([program], [beside])
    found = scan_code(pa.array([row], pa.large_string()), index)
    _, _, covered = code_pairs(found[:, 0], found[:, 1], found[:, 2], index)
    return float(covered.max(initial=0.0))


def test_other_names_layout_and_comments_are_the_same_program():
    assert coverage(BODY, OTHER_NAMES, HEAD) == 1.0
    assert coverage(BODY, f"Sure, here's the code:\n```python\n{OTHER_NAMES}```\nIt isn't slow.", HEAD) == 1.0
    assert coverage(BRACES, BRACES_RENAMED) == 1.0


def test_a_program_of_the_same_shape_that_does_something_else_is_not():
    assert coverage(BODY, NEAR_MISS, HEAD) < CODE_COVERAGE
    assert coverage(BRACES, OTHER_NAMES) < CODE_COVERAGE


def test_names_follow_their_places_and_not_their_spelling():
    """Two names exchanged in one place are another program, although every token is of the same kind."""
    assert coverage(BODY, BODY.replace("max(best, here)", "max(here, best)"), HEAD) < 1.0
    assert code_windows("a = b + c; d = a * b - c; e = d / a % b")[CODE_WINDOW - 1] != 0
    same, other = code_windows("a = a + b " * 4), code_windows("x = x + y " * 4)
    assert same.tolist() == other.tolist()
    assert same.tolist() != code_windows("x = y + x " * 4).tolist()


def test_words_that_a_copy_cannot_rename_stay():
    plain, method = "xs.append(f(a)) or ys.append(g(b)) or zs.append(h(c))", "extend"
    assert code_windows(plain).tolist() == code_windows(plain.replace("xs", "qs")).tolist()
    assert code_windows(plain).tolist() != code_windows(plain.replace("append", method)).tolist()
    assert (
        code_windows("len(a) + len(b) + len(c) + len(d)").tolist()
        != code_windows("sum(a) + sum(b) + sum(c) + sum(d)").tolist()
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x = 'a b'; y = \"c\"; z = x + y; w = z + x + y", 'x = "a b"; y = \'c\'; z = x + y; w = z + x + y'),
        ('def f(a):\n    """Says what."""\n    return a[0] + a[1] + a[2]', "def f(a):\n return a[0]+a[1]+a[2]"),
        ("a = 7 // b  # half\nprint(a + a + a + a + a)", "a = 7 // b\nprint(a + a + a + a + a)"),
    ],
)  # fmt: skip
def test_quotes_doc_strings_and_comments_say_nothing(left, right):
    assert code_windows(left).tolist() == code_windows(right).tolist()


def test_one_loop_of_a_row_does_not_cover_two_of_the_program():
    loop = "    {0} = 0\n    for a in {1}:\n        {0} += len(a)\n"
    twice = f"{loop.format('n', 'one')}{loop.format('m', 'two')}    return n <= m\n"
    once = "total = 0\nfor word in words:\n    total += len(word)\nprint(total)"
    assert coverage(twice, once, "def f(one, two):") < CODE_COVERAGE
    assert coverage(twice, f"def g(one, two):\n{renamed(twice)}", "def f(one, two):") == 1.0


def test_rows_keep_their_numbers_where_some_hold_no_program():
    index = build_code_index([BODY], [HEAD])
    rows = pa.array(["prose alone", OTHER_NAMES, "more prose", OTHER_NAMES], pa.large_string())
    found = scan_code(rows, index)
    row, item, covered = code_pairs(found[:, 0], found[:, 1], found[:, 2], index)
    assert (row.tolist(), item.tolist(), covered.tolist()) == ([1, 3], [0, 0], [1.0, 1.0])
    assert len(scan_code(pa.array(["prose"], pa.large_string()), index)) == 0


def test_hostile_text_ends():
    for row in (
        '"""' * 1000,
        "'" * 999 + "\n",
        "/*" * 500,
        "#" * 1000,
        "\\" * 1001,
        "return " + "\\'a" * 300_000,  # a minute and more where each quotation mark is followed to the end
        '"\\',
        "𝒳𝒴 = " * 300,
        "\x00" * 100,
    ):
        assert coverage(BODY, row, HEAD) == 0.0


def write(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def judged(tmp_path):
    """A benchmark of two programs, one too short to be told from others, against five rows."""
    short = "    return values[0] + limit\n"
    bench = [
        {"task_id": n, "prompt": f'{head}    """{said}"""\n', "canonical_solution": body}
        for n, (head, said, body) in enumerate(
            [
                (HEAD, "The longest stretch of neighbouring values that all lie above the limit given.", BODY),
                ("def first(values, limit):\n", "The first of the values with the limit put on top of it.", short),
            ]
        )
    ]
    rows = [{"text": text} for text in (OTHER_NAMES, NEAR_MISS, BRACES, f"def g(p, q):\n{short}", "no code at all")]
    benchmarks = load_benchmarks({"programs": [write(tmp_path / "b.jsonl", bench)]})
    config = config_for(benchmarks, workers=1)
    result = decider(benchmarks)(Dataset.open([write(tmp_path / "rows.jsonl", rows)]), config, silent)
    return result.decisions.to_pylist(), result.extra["benchmarks"][0]


def test_the_stage_removes_the_copy_and_says_what_it_cannot_see(judged):
    decisions, told = judged
    assert [(d["row"], d["reason"], d["score"]) for d in decisions] == [(0, "benchmark_overlap", 1.0)]
    detail = json.loads(decisions[0]["detail"])
    assert (detail["criterion"], detail["item"], detail["question_coverage"]) == ("code", 0, 0.0)
    programs = told["programs"]
    assert {k: programs[k] for k in ("items", "too_short", "items_hit", "rows_hit")} == {
        "items": 2, "too_short": 1, "items_hit": 1, "rows_hit": 1,
    }  # fmt: skip
    assert programs["too_short_items"] == [1]
    canary = told["canaries"]["renamed_program"]
    assert (canary["planted"], canary["recall"]) == (1, 1.0)
    assert told["answers_hit"] == 0
    assert told["compromised"][0]["criterion"] == "code"


def test_a_benchmark_without_programs_says_nothing_of_them(tmp_path):
    rows = [{"question": "How many lamps burn at noon in the corridor of the old house?", "answer": "#### 2"}]
    path = write(tmp_path / "q.jsonl", rows)
    benchmarks = load_benchmarks({"q": [path]})
    other = Dataset.open([write(tmp_path / "t.jsonl", [{"text": BODY}])])
    result = decider(benchmarks)(other, config_for(benchmarks, workers=1), silent)
    assert "programs" not in result.extra["benchmarks"][0]


def test_the_canary_is_another_text_and_the_same_program():
    made = renamed(BODY)
    assert not {"best", "here", "value"} & set(made.split())
    assert made.count("# as before") == len(BODY.strip().splitlines())
    index = build_code_index([BODY], [HEAD])
    assert index.tokens[0] >= CODE_TOKENS
    assert np.array_equal(code_windows(BODY, HEAD), code_windows(made, HEAD))
    assert renamed("re.split(r'a b', text)") == " item_0_0.split(r'a b', item_7_1)  # as before"
