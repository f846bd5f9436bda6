"""Admitted folders as `lpt admit` lays them out, small and by hand."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.canon import CANON, record_ids
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256, content_root, order_sha256
from manifests.objects import object_bytes


def rows_of(texts: list[str]) -> list[dict]:
    return [{"text": text, "source": "by hand"} for text in texts]


def write_split(path: Path, rows: list[dict], kind: str = "text") -> None:
    ids = [row.tobytes().hex() for row in record_ids(kind, rows)]
    pq.write_table(pa.Table.from_pylist([{**row, "record_id": i} for row, i in zip(rows, ids, strict=True)]), path)


def admit(catalog: Catalog, name: str, splits: dict[str, list[str]], **more) -> Path:
    """Admit text splits into the catalog's own folder; return the folder."""

    def build(version: int) -> dict:
        folder = catalog.splits_dir / f"{name}@{version}"
        folder.mkdir(parents=True)
        entries, buckets, sums = {}, {}, {}
        for split, texts in splits.items():
            path = folder / f"{split}-00000.parquet"
            write_split(path, rows_of(texts))
            ids = record_ids("text", rows_of(texts))
            digest = bytes_sha256(path)
            entries[split] = {
                "rows": len(texts),
                "files": [{"path": path.name, "bytes": path.stat().st_size, "sha256": digest, "rows": len(texts)}],
                "content_root": content_root(ids).root,
                "order_sha256": order_sha256(ids),
            }
            buckets[split], sums[path.name] = content_root(ids).to_json(), digest
        (folder / "buckets.json").write_bytes(orjson.dumps(buckets))
        sums["buckets.json"] = bytes_sha256(folder / "buckets.json")
        side = {
            "path": "buckets.json",
            "bytes": (folder / "buckets.json").stat().st_size,
            "sha256": sums["buckets.json"],
        }
        body = {
            "type": "lpt.admission/1",
            "name": name,
            "version": version,
            "contract": "text",
            "canon": CANON,
            "verdict": "accept",
            "checks": [],
            "splits": entries,
            "side_files": [side],
            **more,
        }
        (folder / "manifest.json").write_bytes(object_bytes(body))
        sums["manifest.json"] = bytes_sha256(folder / "manifest.json")
        (folder / "SHA256SUMS").write_text("".join(f"{digest}  {file}\n" for file, digest in sums.items()))
        return body

    manifest_id = catalog.admit_version(name, build)
    body = catalog.get(manifest_id)
    return catalog.splits_dir / f"{name}@{body['version']}"
