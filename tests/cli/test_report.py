"""`lpt report` and `lpt manifest export` as a user types them."""

from __future__ import annotations

import json

import pytest
from command_line import invoke, jsonl, refused, sums, unchanged


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    jsonl(folder / "sums.jsonl", [*sums(40), *sums(3)])
    ran = invoke(
        "data", "dedup", "sums.jsonl", "--out", "unique.jsonl", "--method", "exact", "--key", "row", cwd=folder
    )
    assert ran.code == 0
    assert "all of it on one page, rows side by side: lpt report " in ran.said
    invoke("data", "split", "unique.jsonl", "--key", "countdown", "--test", 8, "--out", "parts", cwd=folder)
    files = ("--train", "parts/train.jsonl", "--test", "parts/test.jsonl", "--key", "countdown")
    ran = invoke("admit", "sums", "--contract", "rlvr", *files, cwd=folder)
    assert "its page: lpt report sums@1" in ran.said
    return folder


def test_a_page_of_an_admission_and_of_a_stage(folder):
    ran = invoke("report", "sums", cwd=folder)
    assert (ran.code, ran.stdout) == (0, "sums@1.html\n")
    assert (folder / "sums@1.html").read_text().startswith("<!doctype html>")
    stage = json.loads(
        invoke("sql", "select stage_id from v_stage where stage = 'dedup'", "--format", "json", cwd=folder).stdout
    )
    name = stage["rows"][0]["stage_id"]
    ran = invoke("report", name[:8], "--out", "stage.html", "--json", cwd=folder)
    assert ran.json["report"] == "stage.html"
    assert ran.json["bytes"] == (folder / "stage.html").stat().st_size
    assert name in (folder / "stage.html").read_text()


def test_a_page_of_a_run_needs_no_catalog(tmp_path):
    run = {"run_id": "sft-1", "algorithm": "sft", "status": "running"}
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "run.json").write_text(json.dumps(run))
    (tmp_path / "first" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    ran = invoke("report", "first", cwd=tmp_path)
    assert (ran.code, ran.stdout) == (0, "sft-1.html\n")
    assert "2.5" in (tmp_path / "sft-1.html").read_text()
    (tmp_path / "first" / "run.json").write_text("{")
    refused(invoke("report", "first", cwd=tmp_path), 5, "record of the run cannot be read")


def test_a_damaged_catalog_is_said_on_the_page_of_a_folder_and_in_words(tmp_path):
    (tmp_path / "first").mkdir()
    run = {"run_id": "sft-1", "algorithm": "sft", "status": "done"}
    (tmp_path / "first" / "run.json").write_text(json.dumps(run))
    (tmp_path / ".lpt" / "objects").mkdir(parents=True)
    (tmp_path / ".lpt" / "events.jsonl").write_text("garbage\n")
    ran = invoke("report", "first", "--out", "z.html", cwd=tmp_path)
    assert (ran.code, ran.stdout) == (0, "z.html\n")
    assert "evaluations: the catalog .lpt cannot be read: " in " ".join(ran.said.split())
    assert "evaluations: the catalog .lpt cannot be read: " in (tmp_path / "z.html").read_text()
    refused(invoke("report", "sft-1", cwd=tmp_path), 5, "log")  # an id is looked up nowhere else


def test_one_object_on_stdout_and_files_in_a_folder(folder):
    assert json.loads(invoke("report", "sums@1", "--format", "json", "--out", "-", cwd=folder).stdout)["checks"]
    (folder / "cards").mkdir()
    for name, file in (("card", "README.md"), ("croissant", "croissant.json"), ("in-toto", "statement.intoto.json")):
        ran = invoke("manifest", "export", "sums", "--format", name, "--out", "cards", cwd=folder)
        assert ran.stdout == f"cards/{file}\n"
        assert (folder / "cards" / file).stat().st_size > 500
    assert invoke("manifest", "export", "sums", "--format", "card", "--out", "-", cwd=folder).stdout.startswith("---\n")


def test_a_carried_manifest_needs_no_catalog(folder, tmp_path):
    path = folder / ".lpt" / "splits" / "sums@1" / "manifest.json"
    ran = invoke("report", path, cwd=tmp_path)
    assert ran.code == 0
    assert not (tmp_path / ".lpt").exists()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("report nosuch", 5, "no manifest or stage of that name"),
        ("report sums --format pdf", 2, "no such format"),
        ("report sums@9", 5, "no manifest or stage"),
        ("report sums --out no/such/r.html", 5, "folder of the report is not there"),
        ("report sums --out parts/train.jsonl", 2, "replace a file of the data"),
        ("manifest export nosuch --format card --out -", 5, "no manifest or stage"),
        ("manifest export sums --format docx --out -", 2, "no such format"),
    ],
)
def test_refusals(folder, line, code, said):
    with unchanged(folder):
        refused(invoke(*line.split(), cwd=folder), code, said)


def test_no_catalog_is_said(tmp_path):
    refused(invoke("report", "sums", cwd=tmp_path), 5, "there is no catalog here")
