"""The page of a stage that compared meanings: pairs of each band, hostile text escaped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_embedder import static_model

from lpt_data.config import DedupConfig, SemanticConfig
from lpt_data.progress import silent
from lpt_data.report.stage_story import stage_story
from lpt_data.report.write import write
from lpt_data.semantic.alike import Semantics
from lpt_data.semantic.models import find_model
from lpt_data.semantic.vectors import source_of
from lpt_data.works import Source, dedup
from manifests.catalog import Catalog


def test_pairs_of_each_band_are_shown_and_escaped(tmp_path: Path) -> None:
    rows = [
        "the cat sat on the mat <script>alert(1)</script>",
        "the feline sat on the mat",
        "the cat sat on mat",
        "red",
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    catalog = Catalog.open(tmp_path / "c")
    source = source_of(find_model(str(static_model(tmp_path / "m", feline="cat"))), catalog.directory)
    config = DedupConfig(method=("semantic",), workers=1, semantic=SemanticConfig(source.digest, 0.9))
    semantics = Semantics(source, catalog.directory)
    work = dedup(Source((str(tmp_path / "rows.jsonl"),)), config, tmp_path / "o.jsonl", semantics=semantics)
    ran = work.run(catalog, silent, dry_run=False, wait=5.0)
    write(tmp_path / "r.html", stage_story(catalog, ran.object_id, ran.body, progress=silent), "html")
    page = (tmp_path / "r.html").read_text()
    assert "Some pairs of each band of scores" in page
    assert "Pairs by score" in page
    assert "<script>alert" not in page
