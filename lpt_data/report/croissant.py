"""An admission as Croissant 1.1 (mlcommons.org/croissant): its files with their sha256, its splits as record sets.

Only what the manifest records is written. A list of objects (messages) is an array with a sub-field for each plain
member; lists inside those objects (tool calls) have no form in the format, and the description names the whole type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpt_data.report import words
from lpt_data.report.card import size_category
from lpt_data.report.story import ColumnStory, ManifestStory, SplitStory
from manifests.html import code_points

CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
PARQUET = "application/x-parquet"
_SPLITS = "splits"  # a record set of its own, whose name no split can have twice
_TYPES = (
    ("bool", "sc:Boolean"),
    ("int", "sc:Integer"),
    ("uint", "sc:Integer"),
    ("float", "sc:Float"),
    ("double", "sc:Float"),
)


def croissant(story: ManifestStory) -> dict[str, Any]:
    """Return the JSON-LD of an admission; columns are described where the files of the split are at hand."""
    body = story.body
    filled = [s for s in story.splits if s.entry["rows"]]
    described: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": str(body["name"]),
        "description": _description(story),
        "version": f"{body['version']}.0.0",
        "license": "unknown",
        "identifier": f"sha256:{story.id}",
        "isLiveDataset": False,
        "keywords": ["post-training", str(body["contract"])],
        "distribution": [_file(file) for s in story.splits for file in s.entry["files"]],
        "recordSet": [_enumeration(filled), *(record for s in filled for record in _records(s))],
        "rai:dataPreprocessingProtocol": _protocol(story),
        "rai:dataLimitations": _limitations(body),
    }
    if created := body.get("created"):
        described["dateCreated"] = str(created)
    if cleaned := story.of_stage("clean"):
        told = [f"personal data: {c['config']['pii']}; secrets: {c['config']['secrets']}" for c in cleaned]
        described["rai:personalSensitiveInformation"] = told
    return described


def _description(story: ManifestStory) -> str:
    body = story.body
    rows = sum(s.entry["rows"] for s in story.splits)
    bad = [one.check["id"] for one in story.checks if one.check["status"] in ("fail", "error", "warn")]
    because = f" Checks not passed: {', '.join(bad)}." if bad else ""
    return code_points(
        f"{story.ref}, {rows:,} rows ({size_category(rows)}), admitted under the contract {body['contract']} with the "
        f"verdict {body['verdict']}.{because} Licence, languages and collection are not recorded in the manifest."
    )


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file["path"],
        "name": file["path"],
        "contentUrl": file["path"],
        "contentSize": f"{file['bytes']} B",
        "encodingFormat": PARQUET,
        "sha256": file["sha256"],
    }


def _enumeration(splits: list[SplitStory]) -> dict[str, Any]:
    """The splits themselves, as the format lists them."""
    name = f"{_SPLITS}/name"
    return {
        "@type": "cr:RecordSet",
        "@id": _SPLITS,
        "name": _SPLITS,
        "dataType": "cr:Split",
        "key": {"@id": name},
        "field": [{"@type": "cr:Field", "@id": name, "name": "name", "dataType": "sc:Text"}],
        "data": [{name: s.name} for s in splits],
    }


def _records(split: SplitStory) -> list[dict[str, Any]]:
    """One record set for each file of a split; a split has one file unless it was written in parts."""
    if not split.columns:
        return []
    found = []
    files = split.entry["files"]
    for number, file in enumerate(files):
        name = f"rows-{split.name}" if len(files) == 1 else f"rows-{split.name}-{number:05d}"
        found.append(
            {
                "@type": "cr:RecordSet",
                "@id": name,
                "name": name,
                "description": f"{words.rows(file['rows'])} of the split {split.name}",
                "key": {"@id": f"{name}/record_id"},
                "field": [_field(name, column, file["path"]) for column in split.columns],
            }
        )
    return found


def _field(records: str, column: ColumnStory, path: str) -> dict[str, Any]:
    name = f"{records}/{column.name}"
    source = {"fileObject": {"@id": path}, "extract": {"column": column.name}}
    field: dict[str, Any] = {"@type": "cr:Field", "@id": name, "name": column.name}
    if column.members:
        inner = [
            {
                "@type": "cr:Field",
                "@id": f"{name}/{member}",
                "name": member,
                "dataType": _type(kind),
                "source": {**source, "transform": {"jsonPath": member}},
            }
            for member, kind in column.members
        ]
        return {
            **field,
            "isArray": True,
            "arrayShape": "-1",
            "description": f"Arrow type {column.type}",
            "subField": inner,
        }
    field |= {"dataType": _type(column.type), "source": source}
    if column.name == "record_id":
        field["description"] = "sha256 of the canonical record, in hex: the identity of the row"
    elif column.type.startswith(("list", "large_list")):
        field |= {"isArray": True, "arrayShape": "-1"}
    return field


def _type(kind: str) -> str:
    inner = kind.partition("element: ")[2] if kind.startswith(("list", "large_list")) else kind
    return next((name for start, name in _TYPES if inner.startswith(start)), "sc:Text")


def _protocol(story: ManifestStory) -> list[str]:
    """The stages in words, oldest first."""
    told = []
    for flow in story.flows:
        why = ", ".join(f"{reason} {n:,}" for reason, n in flow.removed.items())
        gone = f"{flow.lost:,} removed{f' ({why})' if why else ''}, {flow.quarantined:,} set aside"
        told.append(code_points(f"{flow.title}: {flow.rows_in:,} rows in, {gone}, {flow.rows_out:,} rows out"))
    return told


def _limitations(body: Mapping[str, Any]) -> list[str]:
    return [code_points(f"not checked: {one}") for one in body.get("not_checked") or ()] or ["none recorded"]
