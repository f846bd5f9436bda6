"""Small records that the tests of training share."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.canon import CANON, record_ids
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256, content_root, order_sha256
from manifests.objects import object_bytes


def chat(*turns: str) -> list[dict[str, str]]:
    """Messages that alternate user and assistant, the user first."""
    return [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(turns)]


def chats(count: int) -> list[dict]:
    """`count` sft records of different lengths, in no order of length."""
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    return [
        {"messages": chat(f"say {words[n % 7]} {n}", " ".join(words[n % 5 : n % 5 + 1 + n % 4]))} for n in range(count)
    ]


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def admit_by_hand(
    catalog: Catalog,
    contract: str,
    splits: dict[str, list[dict]],
    *,
    name: str = "chats",
    verdict: str = "accept",
    checks: tuple[dict, ...] = (),
    tokenizer: dict | None = None,
) -> str:
    """Write an admission of `splits` into the catalog, as `lpt admit` lays it out, and return NAME@VERSION."""

    def build(version: int) -> dict:
        folder = catalog.splits_dir / f"{name}@{version}"
        folder.mkdir(parents=True)
        entries, buckets, sums = {}, {}, []
        for split, rows in splits.items():
            ids = record_ids(contract, rows)
            path = folder / f"{split}-00000.parquet"
            hexes = [row.tobytes().hex() for row in ids]
            pq.write_table(pa.Table.from_pylist(rows).append_column("record_id", pa.array(hexes)), path)
            root, digest = content_root(ids), bytes_sha256(path)
            sums.append(f"{digest}  {path.name}\n")
            buckets[split] = root.to_json()
            file = {"path": path.name, "bytes": path.stat().st_size, "sha256": digest, "rows": len(rows)}
            entries[split] = {
                "rows": len(rows),
                "files": [file],
                "content_root": root.root,
                "order_sha256": order_sha256(ids),
                "key": None,
                "tokenized": None,
            }
        body = {
            "type": "lpt.admission/1", "name": name, "version": version, "contract": contract, "canon": CANON,
            "created": "2026-01-01T00:00:00Z", "sources": [], "stages": [], "splits": entries, "disjoint": [],
            "tokenizer": tokenizer, "metrics": [], "checks": list(checks),
            "policy": {"name": "test", "digest": "0" * 64, "text": ""}, "verdict": verdict, "next": [], "env": {},
            "parents": [],
        }  # fmt: skip
        (folder / "buckets.json").write_bytes(orjson.dumps(buckets))
        (folder / "SHA256SUMS").write_text("".join(sums))
        (folder / "manifest.json").write_bytes(object_bytes(body))
        return body

    admitted = catalog.get(catalog.admit_version(name, build))
    return f"{name}@{admitted['version']}"


def preferences(count: int) -> list[dict]:
    """Pairs that differ in their answer: the chosen one repeats the question's number, the rejected one does not."""
    return [
        {
            "prompt": [{"role": "user", "content": f"say {n}"}],
            "chosen": [{"role": "assistant", "content": f"it is {n}"}],
            "rejected": [{"role": "assistant", "content": "no idea" + " at all" * (n % 3)}],
        }
        for n in range(count)
    ]


def reference_of(body: dict, folder: Path, name: str = "train") -> list[list[float]]:
    """The reference log-probs that the run of a record used, as the catalog in `folder` keeps them."""
    kept = folder / ".lpt" / "references" / f"{body['reference'][name]['key']}.json"
    return orjson.loads(kept.read_bytes())["logps"]
