"""Ray gives what threads give: on two nodes, with a worker killed, with a node lost; and says what it cannot do."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_embedder import WORDS, static_model

from lpt_data.config import DedupConfig, SemanticConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide, spread
from lpt_data.engines import ray as engine
from lpt_data.progress import silent
from lpt_data.semantic.alike import Semantics
from lpt_data.semantic.models import find_model
from lpt_data.semantic.vectors import source_of
from lpt_data.stage import run_stage
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes of one core each on this machine."""
    for name, value in engine._QUIET.items():
        os.environ.setdefault(name, value)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": SOON})
    made.add_node(**NODE)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def connected(nodes):
    """The cluster with a connection of this process, which the engine uses as it is; each new one costs seconds."""
    import ray

    with engine._kept_aside([]):  # news of a node may come when the work is done
        ray.init(address=nodes.address, log_to_driver=False, logging_level="CRITICAL")
        yield nodes
        ray.shutdown()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(spread, "PART", 40_000)
    monkeypatch.setattr(spread, "BATCH", 40_000)


def documents(count, seed=0):
    """Documents of sixty words, a third of them copies with a few words changed, some of them equal."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("abcdefghijklmnop", k=6)) for _ in range(3000)]
    texts = []
    for number in range(count):
        text = chosen.choices(words, k=60)
        if number > 20 and chosen.random() < 0.35:
            text = list(chosen.choice(texts[-200:]))
            for _ in range(chosen.choice([0, 1, 1, 2, 3])):
                text[chosen.randrange(60)] = chosen.choice(words)
        texts.append(text)
    return [{"text": " ".join(text), "kind": "ab"[number % 2]} for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in documents(2000)))
    return path


@pytest.fixture(scope="module")
def alone(corpus):
    """What one machine finds."""
    return decide(Dataset.open([str(corpus)]), DedupConfig(), silent)


def over(nodes, path, progress=silent, **config):
    settled = DedupConfig(engine="ray", ray_address=nodes.address, **config)
    return decide(Dataset.open([str(path)]), settled, progress)


def same(one, other):
    assert one.decisions.equals(other.decisions)
    assert np.array_equal(one.record_ids, other.record_ids)
    told = ("batches", "largest_component")  # the parts are cut otherwise
    near = [{k: v for k, v in result.extra.get("minhash", {}).items() if k not in told} for result in (one, other)]
    assert near[0] == near[1]


def refused(error, words, **config):
    with pytest.raises(error, match=words) as problem, engine.cluster(**config):
        pass
    assert problem.value.seen
    assert problem.value.next
    return problem.value


def test_a_cluster_that_does_not_answer():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "nobody", f"ray://127.0.0.1:{port}"):
        assert "ray start --head" in refused(BadInputError, "no Ray cluster", address=address).next


def test_ray_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'lpt[ray]'" in refused(UsageError, "not installed").next


def test_the_command_prints_one_object_and_nothing_of_ray(nodes, corpus, tmp_path):
    command = ["data", "dedup", str(corpus), "--out", "o.jsonl", "--engine", "ray", "--ray-address", nodes.address]
    program = [sys.executable, "-c", "from cli.main import run; run()"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ran = subprocess.run(
        [*program, *command, "--json"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["engine"]["nodes"] == 2
    said = [line for line in ran.stderr.splitlines() if "catalog head" not in line]  # progress too, on a slow machine
    assert [line for line in said if re.search(r"\bray|pid=|\bINFO\b|\bWARN", line, re.IGNORECASE)] == []


def test_survivors_decisions_and_digests_are_those_of_one_machine(connected, corpus, tmp_path):
    reports = {}
    for name, options in {"local": {}, "ray": {"engine": "ray", "ray_address": connected.address}}.items():
        reports[name] = run_stage(
            "dedup",
            Dataset.open([str(corpus)]),
            DedupConfig(**options),
            decide,
            output=tmp_path / f"{name}.jsonl",
            catalog=Catalog.open(tmp_path / name),
        )
    here, there = reports["local"], reports["ray"]
    assert there.body["removed"]["near_duplicate"] > 250
    assert there.body["removed"]["exact_duplicate"] > 50
    for key in ("stage_id", "content_root", "rows_out", "removed", "quarantined"):
        assert here.body[key] == there.body[key]
    assert (tmp_path / "local.jsonl").read_bytes() == (tmp_path / "ray.jsonl").read_bytes()
    decided = [tmp_path / name / "decisions" / f"{here.body['stage_id']}.parquet" for name in reports]
    assert decided[0].read_bytes() == decided[1].read_bytes()
    told = there.extra["engine"]
    assert (told["nodes"], told["cpus"]) == (2, 2)
    assert told["tasks"] > 2 * 18
    assert there.extra["minhash"]["batches"] > 5
    assert pq.read_table(decided[1]).num_rows == sum(there.body["removed"].values())


def test_a_worker_that_is_killed_costs_no_row(connected, corpus, alone):
    import ray

    killed = []

    def progress(done, total, label):
        if label == "rows read" and done > 500 and not killed:
            killed.append(ray.get(ray.remote(lambda: os.getpid()).remote()))
            os.kill(killed[0], signal.SIGKILL)

    same(alone, over(connected, corpus, progress))
    assert killed
    assert killed[0] != os.getpid()


@pytest.mark.parametrize("when", ["rows read", "partitions of bands joined"])
def test_a_node_that_is_lost_costs_no_row(connected, corpus, alone, capfd, when):
    others = [node for node in connected.list_all_nodes() if node is not connected.head_node]
    lost = []

    def progress(done, total, label):
        if label == when and not lost and done > (500 if when == "rows read" else 1):
            lost.append(others[0])
            connected.remove_node(others[0], allow_graceful=False)

    result = over(connected, corpus, progress)
    connected.add_node(**NODE)
    assert lost
    same(alone, result)
    assert capfd.readouterr().out == ""  # where Ray prints such news


def test_a_node_that_has_left_is_not_taken_for_another_version(connected):
    import ray

    before = {node["NodeID"] for node in ray.nodes()}
    extra = connected.add_node(**NODE)
    (node,) = (one for one in ray.nodes() if one["NodeID"] not in before)
    look = ray.remote(num_cpus=0)(engine._their_code)
    assert engine._code_of(ray, look, node, engine._ask(look, node)) == engine.code_digest()  # it has just joined
    connected.remove_node(extra)
    assert engine._code_of(ray, look, node, engine._ask(look, node)) is None


@pytest.mark.parametrize(
    "config",
    [
        {"method": ("exact",)},
        {"template_df": 0.05},
        {"key": "text+kind"},
        {"drop_all": True, "threshold": 0.6},
    ],
    ids=str,
)
def test_every_way_of_comparing_goes_over_the_cluster(connected, corpus, config):
    here = decide(Dataset.open([str(corpus)]), DedupConfig(**config), silent)
    same(here, over(connected, corpus, **config))


def test_meanings_are_compared_beside_the_cluster(connected, tmp_path):
    chosen = random.Random(3)
    texts = [" ".join(chosen.choices(WORDS[4:16], k=9)) for _ in range(150)]
    rows = [*texts, *(f"{text} away" for text in texts[::5]), *(text.replace("cat", "feline") for text in texts[::4])]
    corpus = tmp_path / "rows.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    model = find_model(str(static_model(tmp_path / "m", feline="cat")))
    semantics = Semantics(source_of(model, tmp_path / "catalog"), tmp_path / "catalog")
    method = {
        "method": ("minhash", "semantic"),
        "ngram": 2,
        "semantic": SemanticConfig(semantics.source.digest, 0.95, 0.9),
    }
    data = Dataset.open([str(corpus)])
    here = decide(data, DedupConfig(**method), silent, semantics=semantics)
    over = DedupConfig(engine="ray", ray_address=connected.address, **method)
    there = decide(data, over, silent, semantics=semantics)
    same(here, there)
    assert {"near_duplicate", "semantic_duplicate"} <= set(there.decisions["reason"].to_pylist())


def test_against_a_reference(connected, corpus, tmp_path):
    (tmp_path / "ref.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents(300)))
    reference = Dataset.open([str(tmp_path / "ref.jsonl")])
    settled = DedupConfig(engine="ray", ray_address=connected.address)
    here = decide(Dataset.open([str(corpus)]), DedupConfig(), silent, reference=reference)
    there = decide(Dataset.open([str(corpus)]), settled, silent, reference=reference)
    same(here, there)
    assert "duplicate_of_reference" in there.decisions["reason"].to_pylist()


def test_another_version_on_a_node(connected, monkeypatch):
    monkeypatch.setattr(engine, "code_digest", lambda: "another")
    problem = refused(BadInputError, "not this version of lpt", address=connected.address)
    assert "is not another" in problem.seen


def test_what_makes_no_sense_is_refused(corpus):
    for config in ({"engine": "spark"}, {"ray_address": "10.0.0.1:6379"}):
        with pytest.raises(UsageError):
            decide(Dataset.open([str(corpus)]), DedupConfig(**config), silent)
