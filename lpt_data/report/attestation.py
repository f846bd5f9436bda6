"""An admission as an in-toto statement (in-toto.io/Statement/v1), unsigned: sign it with the tools made for that.

The predicate is in-toto's test-result, whose three results are our three verdicts, so that a verifier that has never
heard of this program can act on it; what else the manifest says stands beside it under `lpt`, which the format asks
readers to ignore when they do not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpt_data.report.story import ManifestStory

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
_RESULTS = {"accept": "PASSED", "tune": "WARNED", "reject": "FAILED"}


def statement(story: ManifestStory) -> dict[str, Any]:
    """Return the statement: every file of the folder and the manifest itself as subjects, by sha256."""
    body = story.body
    files = [file for s in story.splits for file in s.entry["files"]] + list(body.get("side_files") or ())
    subjects = [_subject(file["path"], file["sha256"]) for file in files]
    by_status: dict[str, list[str]] = {}
    for one in story.checks:
        by_status.setdefault(one.check["status"], []).append(one.check["id"])
    predicate = {
        "result": _RESULTS[body["verdict"]],
        "configuration": [{"name": f"policy {body['policy']['name']}", "digest": {"sha256": body["policy"]["digest"]}}],
        "passedTests": by_status.get("pass", []),
        "warnedTests": by_status.get("warn", []),
        "failedTests": [*by_status.get("fail", []), *by_status.get("error", [])],
        "lpt": _summary(story, body, by_status),
    }
    subjects.append(_subject("manifest.json", story.id))
    return {"_type": STATEMENT, "subject": subjects, "predicateType": PREDICATE, "predicate": predicate}


def _subject(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def _summary(story: ManifestStory, body: Mapping[str, Any], by_status: Mapping[str, list[str]]) -> dict[str, Any]:
    kept = ("rows", "content_root", "order_sha256", "key")
    return {
        "name": body["name"],
        "version": body["version"],
        "contract": body["contract"],
        "verdict": body["verdict"],
        "canon": body["canon"],
        "created": body.get("created"),
        "splits": {s.name: {name: s.entry.get(name) for name in kept} for s in story.splits},
        "disjoint": body.get("disjoint") or [],
        "skippedTests": by_status.get("skipped", []),
        "not_checked": body.get("not_checked") or [],
        "sources": [{"name": f["path"], "digest": {"sha256": f["sha256"]}} for f in body.get("sources") or ()],
        "stages": body.get("stages") or [],
        "parents": body.get("parents") or [],
    }
