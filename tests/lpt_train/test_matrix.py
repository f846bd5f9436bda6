"""Matrices of runs: the specification, the choice on planted cells, real runs that are stopped, broken and resumed."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import yaml
from train_cases import admit_by_hand, chats, preferences, write_jsonl

from lpt_train.admitted import load_unadmitted
from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.matrix import _body, run_matrix, shared_starts
from lpt_train.matrix_choice import CellResult, choose
from lpt_train.matrix_names import values_of
from lpt_train.matrix_page import page
from lpt_train.matrix_spec import parse_spec, read_spec
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError
from manifests.sql import query

BODY = {
    "algorithm": "sft", "model": "tiny", "admitted": "chats:train", "eval": "chats:validation",
    "base": {"max_steps": 3, "max_length": 128, "per_device_train_batch_size": 4},
    "variants": {"small": {"lora_r": 2, "lora_alpha": 4}, "large": {"lora_r": 8, "lora_alpha": 16}},
    "seeds": [1, 2], "band": {"absolute": 0.05},
}  # fmt: skip


def spec(**changes):
    return parse_spec({**BODY, **changes}, "demo")


def cells(of, **values):
    """Cells with the metric's values by variant, seed by seed; None is a failed cell."""
    found = []
    for variant, by_seed in values.items():
        for seed, value in zip(of.seeds, by_seed, strict=True):
            size = {"small": 100.0, "large": 400.0, "medium": 200.0}[variant]
            numbers = {"eval_loss": value, "trainable_parameters": size, "peak_memory_bytes": 1e6, "seconds": 2.0}
            failed = value is None
            found.append(
                CellResult(variant, seed, "failed" if failed else "done", f"run-{variant}-{seed}", None,
                           {} if failed else numbers, ("boom",) if failed else ())
            )  # fmt: skip
    return found


def test_the_cheapest_within_the_band_wins():
    of = spec()
    chosen = choose(of, cells(of, small=(1.04, 1.02), large=(1.00, 1.00)))
    assert (chosen.best, chosen.winner) == ("large", "small")
    small = chosen.variants[0]
    assert small.difference.value == pytest.approx(0.03)
    half = 12.7062 * math.sqrt(0.0002) / math.sqrt(2)
    assert small.difference.high == pytest.approx(0.03 + half, rel=1e-4)
    assert (small.inside, small.shown) == (True, False)
    assert "wider than the band" in chosen.reason
    outside = choose(of, cells(of, small=(1.08, 1.06), large=(1.00, 1.00)))
    assert (outside.winner, outside.variants[0].inside) == ("large", False)


def test_differences_are_paired_by_seed():
    """Seeds that differ by far more than the variants do hide nothing."""
    of = spec()
    chosen = choose(of, cells(of, small=(1.02, 5.02), large=(1.0, 5.0)))
    assert chosen.variants[0].value.high - chosen.variants[0].value.low > 40
    assert chosen.variants[0].difference.high == pytest.approx(0.02)
    assert chosen.variants[0].shown is True


def test_relative_band_and_a_metric_of_which_more_is_better():
    of = spec(metric="probe.accuracy", better="higher", band={"relative": 0.1}, probe={"admitted": "a:b"})
    found = cells(of, small=(0.46, 0.46), large=(0.5, 0.5))
    found = [replace(cell, values={**cell.values, "probe.accuracy": cell.values["eval_loss"]}) for cell in found]
    assert choose(of, found).winner == "small"
    assert choose(of, found).variants[0].difference.value == pytest.approx(0.04)  # positive is worse
    assert choose(replace(of, band=replace(of.band, size=0.07)), found).winner == "large"


def test_resources_are_compared_in_the_declared_order():
    of = spec(cheapest=["seconds", "trainable_parameters"])
    found = cells(of, small=(1.0, 1.0), large=(1.0, 1.0))
    found = [replace(c, values={**c.values, "seconds": 1.0 if c.variant == "large" else 3.0}) for c in found]
    assert choose(of, found).winner == "large"


def with_values(found, variant, **changed):
    return [replace(c, values={**c.values, **changed}) if c.variant == variant else c for c in found]


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_a_resource_that_one_lacks_chooses_nobody(missing):
    of = spec(cheapest=["seconds", "trainable_parameters"])
    equal = cells(of, small=(1.0, 1.0), large=(1.0, 1.0))
    partly = [
        replace(c, values={**c.values, "seconds": missing}) if c.name == "small with seed 2" else c for c in equal
    ]
    none = [replace(c, values={k: v for k, v in c.values.items() if k != "seconds"}) for c in equal]
    for found, names in ((partly, "small"), (with_values(equal, "large", seconds=missing), "large"),
                         (none, "small, large")):  # fmt: skip
        chosen = choose(of, found)
        assert (chosen.best, chosen.winner) == ("small", None)
        assert chosen.reason.endswith(f"its seconds: there is no finite value of it for {names}")
        assert "Winner: **none**. none of small, large is taken" in page(of, found, chosen, [], None)
    # What does not decide may be missing: of one that is outside the band, and of what comes after the decision.
    outside = cells(of, small=(1.0, 1.0), large=(2.0, 2.0))
    assert choose(of, with_values(outside, "large", seconds=missing)).winner == "small"
    cheaper = with_values(with_values(equal, "large", seconds=1.0), "small", trainable_parameters=missing)
    assert choose(of, cheaper).winner == "large"


@pytest.mark.parametrize("name", ["trainable_paramters", "tokens_per_second", "largest_batch", "eval_loss",
                                  "probe.latency_seconds"])  # fmt: skip
def test_only_resources_of_which_less_is_better_choose(name):
    with pytest.raises(UsageError, match="no resource of which less is better") as refused:
        spec(cheapest=["seconds", name])
    assert refused.value.seen == name
    assert "trainable_parameters, peak_memory_bytes, seconds, steps" in refused.value.next
    probed = spec(cheapest=["probe.latency_seconds", "step_seconds"], probe={"admitted": "a:b"})
    assert probed.cheapest == ("probe.latency_seconds", "step_seconds")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_passes_no_gate(value):
    of = spec(gates={"seconds": "<= 9", "steps": ">= 1"})
    found = [replace(c, values={**c.values, "steps": 3.0}) for c in cells(of, small=(1, 1), large=(1, 1))]
    assert choose(of, found).winner == "small"
    for at in (0, 1):  # of either seed: what `max` makes of a NaN hangs on the order
        spoiled = [*found]
        spoiled[at] = replace(found[at], values={**found[at].values, "seconds": value, "steps": value})
        small, large = choose(of, spoiled).variants
        assert [check.status for check in small.checks] == ["error", "error"]
        assert found[at].name in small.checks[0].detail
        assert (small.passed, large.passed) == (False, True)


def test_gates_are_hard_and_none_is_green_by_silence():
    of = spec(gates={"eval_loss": "<= 1.05", "trainable_parameters": "<= 300"})
    chosen = choose(of, cells(of, small=(1.04, 1.02), large=(1.00, 1.00)))
    assert chosen.winner == chosen.best == "small"  # the best one is the best that passes
    worst = choose(of, cells(of, small=(1.06, 1.00), large=(1.00, 1.00)))  # the mean would pass, one seed does not
    assert worst.winner is None
    assert "small: eval_loss is 1.06, must be <= 1.05" in worst.reason
    assert "large: trainable_parameters is 400, must be <= 300" in worst.reason
    unmeasured = spec(gates={"probe.format_rate": ">= 0.9"}, probe={"admitted": "a:b"})
    assert choose(unmeasured, cells(unmeasured, small=(1, 1), large=(1, 1))).winner is None


def test_failed_cells_are_named_and_never_win():
    of = spec(gates={"eval_loss": "<= 9"})
    chosen = choose(of, cells(of, small=(0.5, None), large=(1.00, 1.00)))
    assert (chosen.winner, chosen.variants[0].status) == ("large", "incomplete")
    assert "small with seed 2" in chosen.variants[0].checks[0].detail
    assert choose(of, cells(of, small=(0.5, None), large=(1.0, math.nan))).winner is None
    text = page(of, cells(of, small=(0.5, None), large=(1.0, 1.0)), chosen, [], "0" * 64)
    assert "| small | 2 | failed |" in text
    assert "boom" in text


def test_what_variants_do_not_share_is_noted():
    of = spec()
    same = {"model": "m", "rows": "r", "order": "o", "start": "s", "trainable_parameters": 1}
    found = [replace(cell, identity=same) for cell in cells(of, small=(1, 1), large=(1, 1))]
    assert shared_starts(of, found) == []
    other = [replace(found[0], identity={**same, "order": "p"}), *found[1:]]
    assert ["different orders" in note for note in shared_starts(of, other)] == [True]
    other = [replace(found[0], identity={**same, "start": "t"}), *found[1:]]
    assert "start from different values" in shared_starts(of, other)[0]
    other = [replace(found[0], identity={**same, "start": "t", "trainable_parameters": 2}), *found[1:]]
    assert shared_starts(of, other) == []  # another size starts elsewhere by nature


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"band": {}}, "band"),
        ({"band": {"relative": 0.1, "absolute": 1}}, "band"),
        ({"seeds": [1, 1]}, "different"),
        ({"seeds": []}, "seeds"),
        ({"base": {"seed": 3}}, "seed"),
        ({"variants": {"a": {"lora_r": 2}, "b": {"lora_r": 2}}}, "differ"),
        ({"variants": {"../a": {}}}, "name"),
        ({"variants": {"a": {"lora_rank": 2}}}, "variant a: lora_rank is no option here"),
        ({"variants": {"a": {}, "b": {"use_peft": False, "lora_r": 8}}}, "variant b: lora_r does nothing in this run"),
        ({"algorithm": "dpo", "base": {"loss_type": "ipo"}, "variants": {"a": {"label_smoothing": 0.1}}}, "sigmoid"),
        ({"metric": "eval_loss", "eval": None}, "eval"),
        ({"metric": "probe.accuracy", "better": "higher"}, "probe"),
        ({"metric": "loss"}, "better"),
        ({"gates": {"eval_loss": 3}}, "not a bound"),
        ({"unadmitted": "a.jsonl"}, "admitted"),
        ({"colour": "red"}, "unknown"),
        ({"gates": {"eval_los": "<= 6"}}, "did you mean eval_loss?"),
        ({"gates": {"probe.accuracy": ">= 0"}}, "give probe"),
        ({"gates": {"largest_batch": ">= 8"}}, "give largest_batch"),
        ({"gates": {"eval_loss": "<= 6"}, "eval": None, "metric": "loss", "better": "lower"}, "give eval"),
        ({"metric": "eval_lss", "better": "lower"}, "did you mean eval_loss?"),
        ({"algorithm": "dpo", "base": {"loss_type": "simpo"}}, "loss_type"),
    ],
)
def test_a_specification_is_checked_before_anything_runs(changes, says):
    with pytest.raises((BadInputError, UsageError)) as raised:
        spec(**changes)
    assert says in f"{raised.value.what} {raised.value.seen} {raised.value.next}"


def test_the_example_is_a_specification(request):
    read = read_spec(request.config.rootpath / "lpt_train" / "matrix_example.yaml")
    assert (len(read.cells), read.metric, read.more) == (9, "eval_loss", False)
    assert [cell.seed for cell in read.cells] == [1] * 3 + [2] * 3 + [3] * 3
    assert read.cells[0].options["lora_r"] == 4


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "cpo", "kto", "reward"])
def test_gates_may_name_every_value_that_a_run_has(tiny, tmp_path, algorithm):
    rows = (chats if algorithm == "sft" else preferences)(8)
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), ALGORITHMS[algorithm].contract)
    options = {"model": str(tiny), "max_steps": 1, "lora_r": 2}
    result = ALGORITHMS[algorithm].train(
        config_of(algorithm, options), split=split, out=tmp_path / "run", eval_split=split
    )
    assert set(result.body["metrics"]) <= values_of(algorithm)
    assert values_of(algorithm) - values_of(algorithm, evaluated=False) <= set(result.body["metrics"]) | {"eval_kl_k1"}


def test_what_would_fail_each_cell_is_refused_before_the_first(folder):
    path, catalog = folder
    sums = [{"prompt": [{"role": "user", "content": f"1 + {n}"}], "answer": str(1 + n)} for n in range(4)]
    admit_by_hand(catalog, "rlvr", {"train": sums}, name="rows")
    body = yaml.safe_load((path / "demo.yaml").read_text())
    for changes, error, words in (
        (
            {"admitted": "chats:validation", "algorithm": "dpo", "metric": "loss", "better": "lower"},
            RefusedError,
            "dpo",
        ),
        ({"probe": {"admitted": "chats:train", "k": 4}}, UsageError, "probe.k does nothing here"),
        ({"probe": {"admitted": "rows:train", "max_length": 9}}, UsageError, "leave out probe.max_length"),
        ({"probe": {"admitted": "chats:train", "match": "fuzzy"}}, UsageError, "normaliser"),
        ({"base": {"early_stopping_patience": 2}}, UsageError, "evaluations"),
    ):
        with pytest.raises(error) as raised:
            run_matrix(parse_spec({**body, **changes}, "demo"), out=path / "m", catalog=catalog)
        assert words in f"{raised.value.what} {raised.value.seen} {raised.value.next}"
        assert not (path / "m").exists()


@pytest.fixture
def folder(tmp_path, tiny, monkeypatch):
    """A catalog with admitted conversations, and the specification on the small model."""
    catalog = Catalog.open(tmp_path / ".lpt")
    admit_by_hand(catalog, "sft", {"train": chats(16), "validation": chats(20)[16:]})
    body = {**BODY, "model": str(tiny)}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    return tmp_path, catalog


def test_a_matrix_runs_resumes_and_is_recorded(folder):
    path, catalog = folder
    read = read_spec(path / "demo.yaml")
    steps = []

    def stop_early(cell, number, count, step, total, metrics):
        steps.append((cell.name, step))
        if (number, step) == (2, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = run_matrix(read, out=path / "m", catalog=catalog, progress=stop_early)
    assert stopped.choice is None
    assert stopped.stopped_by == "SIGTERM"
    assert [cell.variant for cell in stopped.cells][:1] == ["small"]
    first = json.loads((path / "m" / "small-seed1" / "run.json").read_bytes())
    done = run_matrix(read, out=path / "m", catalog=catalog, progress=lambda *told: steps.append(told[0].name))
    assert [cell.name for cell in done.cells] == ["small with seed 1", "large with seed 1", "small with seed 2",
                                                  "large with seed 2"]  # fmt: skip
    assert done.cells[0].run_id == first["run_id"]  # it was not run again
    assert "small-seed1" not in steps[steps.index(("small-seed1", 3)) + 1 :]
    assert done.choice.winner in ("small", "large")
    assert done.notes == []  # model, rows, order and first values are shared
    assert all(cell.values["steps"] == 3 for cell in done.cells)
    # The same matrix without a stop has the same losses.
    plain = run_matrix(read, out=path / "n", catalog=catalog)
    assert [c.values["eval_loss"] for c in plain.cells] == [c.values["eval_loss"] for c in done.cells]

    body = catalog.get(done.object_id)
    assert body["parents"] == [cell.object_id for cell in done.cells]
    assert body["winner"] == done.choice.winner
    rows = query(catalog, "SELECT variant, winner, seeds, trainable_parameters FROM v_matrix WHERE object_id = "
                 f"'{done.object_id}' ORDER BY trainable_parameters").rows  # fmt: skip
    assert [row[0] for row in rows] == ["small", "large"]
    assert [row[1] for row in rows] == [row[0] == done.choice.winner for row in rows]
    assert rows[1][3] == 4 * rows[0][3]
    text = (path / "m" / "matrix.md").read_text()
    assert f"Winner: **{done.choice.winner}**" in text
    assert "variants:" in text

    again = run_matrix(read, out=path / "m", catalog=catalog)
    assert (again.object_id, again.body) == (done.object_id, body)
    assert query(catalog, "SELECT DISTINCT folder FROM v_matrix ORDER BY 1").rows == [
        (str(path / "m"),), (str(path / "n"),)
    ]  # fmt: skip
    assert query(catalog, "SELECT count(DISTINCT object_id) FROM v_matrix").rows == [(2,)]

    # Another option in the same folder is another matrix.
    other = parse_spec({**yaml.safe_load((path / "demo.yaml").read_text()), "base": {"max_steps": 4}}, "demo")
    with pytest.raises(RefusedError, match="other options"):
        run_matrix(other, out=path / "m", catalog=catalog)


def test_a_failed_cell_stays_failed_until_it_is_asked_for_again(folder):
    path, catalog = folder
    body = yaml.safe_load((path / "demo.yaml").read_text())
    body |= {"seeds": [1], "variants": {"small": {"lora_r": 2}, "large": {"lora_target_modules": "nothing_there"}}}
    read = parse_spec(body, "demo")
    found = run_matrix(read, out=path / "m", catalog=catalog)
    assert [cell.status for cell in found.cells] == ["done", "failed"]
    assert "nothing_there" in found.cells[1].failures[0]
    assert found.choice.winner == "small"
    assert catalog.get(found.object_id)["cells"][1]["failures"]
    again = run_matrix(read, out=path / "m", catalog=catalog)
    assert again.cells[1].failures == found.cells[1].failures
    run_matrix(read, out=path / "m", catalog=catalog, retry=True)
    assert (path / "m" / "large-seed1.failed-1" / "failed.json").exists()


def test_a_cell_is_not_reused_for_other_rows_of_measurement(folder):
    """The names of the splits stay; what is admitted under them changes."""
    path, catalog = folder
    admit_by_hand(catalog, "sft", {"test": chats(24)[20:]}, name="probes")
    body = yaml.safe_load((path / "demo.yaml").read_text())
    probe = {"admitted": "probes:test", "match": "words", "n": 1, "max_completion_length": 4}
    body |= {"seeds": [1], "variants": {"small": {"lora_r": 2, "max_steps": 1}}, "probe": probe}
    first = run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog).cells[0]
    admit_by_hand(catalog, "sft", {"test": chats(40)[30:]}, name="probes")
    second = run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog).cells[0]
    assert first.run_id == second.run_id  # trained once, probed again
    assert first.values["eval_loss"] == second.values["eval_loss"]
    assert first.values["probe.loss"] != second.values["probe.loss"]

    admit_by_hand(catalog, "sft", {"train": chats(16), "validation": chats(30)[20:]})
    with pytest.raises(RefusedError, match="other options or rows") as refused:
        run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog)
    assert refused.value.seen.startswith("eval.content_root: ")
    record = path / "m" / "small-seed1" / "run.json"
    old = json.loads(record.read_bytes())
    del old["eval"]  # a record of before: its evaluation split is not known
    record.write_text(json.dumps(old))
    with pytest.raises(RefusedError, match="other options or rows") as refused:
        run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog)
    assert "unknown there" in refused.value.seen


@pytest.mark.parametrize("name", ["run.json", "failed.json"])
@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_cell_says_what_to_remove(folder, name, text):
    path, catalog = folder
    cell = path / "m" / "small-seed1"
    cell.mkdir(parents=True)
    (cell / name).write_text(text)
    with pytest.raises(BadInputError, match="damaged") as raised:
        run_matrix(read_spec(path / "demo.yaml"), out=path / "m", catalog=catalog)
    assert str(cell / name) in raised.value.seen
    assert raised.value.next.startswith(f"remove the folder {cell}" if name == "run.json" else "remove that file")


def test_a_probe_measures_each_cell_and_gates_judge_it(folder):
    path, catalog = folder
    body = yaml.safe_load((path / "demo.yaml").read_text())
    probe = {"admitted": "chats:validation", "match": "words", "n": 2, "max_completion_length": 24}
    body |= {
        "seeds": [1], "probe": probe, "metric": "probe.loss", "better": "lower",
        "gates": {"probe.latency_seconds": "<= 60", "probe.format_rate": ">= 0.99"},
    }  # fmt: skip
    found = run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog)
    assert found.choice.winner is None  # three steps teach no model to stop
    cell = found.cells[0]
    assert {"probe.accuracy", "probe.format_rate", "probe.loss", "probe.latency_seconds"} <= set(cell.values)
    assert cell.values["probe.loss"] == pytest.approx(cell.values["eval_loss"], rel=1e-4)
    assert "probe.format_rate" in found.choice.reason
    assert _body(found.spec, list(found.cells), found.choice, [], catalog)["winner"] is None


def test_the_length_of_timed_answers_is_read_where_only_a_loss_is_measured(folder):
    path, catalog = folder
    body = yaml.safe_load((path / "demo.yaml").read_text())
    body |= {
        "seeds": [1], "variants": {"small": {"lora_r": 2, "max_steps": 1}},
        "probe": {"admitted": "chats:validation", "max_completion_length": 4},
    }  # fmt: skip
    (cell,) = run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog).cells
    assert (cell.status, cell.failures) == ("done", ())
    assert {"probe.loss", "probe.latency_seconds"} <= set(cell.values)


def test_settings_of_all_cells_may_serve_some_of_them():
    base = {"lora_r": 8, "max_length": 64}
    assert spec(base=base, variants={"whole": {"use_peft": False}, "adapter": {"lora_alpha": 8}}).seeds == (1, 2)


def test_the_largest_batch_needs_a_device(folder):
    path, catalog = folder
    body = yaml.safe_load((path / "demo.yaml").read_text()) | {"largest_batch": {"most": 4}}
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(UsageError, match="CUDA"):
        run_matrix(parse_spec(body, "demo"), out=path / "m", catalog=catalog)
