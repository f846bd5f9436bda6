"""The report of a decontamination that has just ended, in the form that a file name asks for."""

from __future__ import annotations

from pathlib import Path

from lpt_data.contamination.items import Benchmarks
from lpt_data.contamination.report import PAGE, write_report
from lpt_data.dataset import Dataset
from lpt_data.progress import Progress
from lpt_data.report.stage_story import stage_story
from lpt_data.report.write import write
from lpt_data.stage import StageReport
from manifests.catalog import Catalog


def write_contamination(
    path: Path, dataset: Dataset, benchmarks: Benchmarks, ran: StageReport, catalog: Catalog, progress: Progress
) -> None:
    """Write JSON or Markdown with every figure of the search, or the page that every stage has."""
    if path.suffix == PAGE:
        write(path, stage_story(catalog, ran.object_id, ran.body, progress=progress), "html")
    else:
        write_report(path, dataset, benchmarks, ran, progress)
