"""Rows whose every fate is known by heart, some of them hostile, and the stages and admissions made from them."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from lpt_data.admit import Admission, admit
from lpt_data.clean import decide as clean
from lpt_data.config import CleanConfig, DedupConfig, SplitConfig
from lpt_data.contamination import config_for, decider, load_benchmarks
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide as dedup
from lpt_data.mix import mix
from lpt_data.mix_spec import load_spec
from lpt_data.report.find import story_of
from lpt_data.split import split
from lpt_data.stage import run_stage
from manifests.catalog import Catalog

HOSTILE = (
    '<script>window.__pwned=1;alert(1)</script><img src=x onerror="window.__pwned=1"></pre></details></main>'
    "<style>*{display:none}</style>\"'><svg onload=window.__pwned=1><a href='https://evil.example/'>x</a>"
    "<iframe src='https://evil.example/'></iframe> ]]> --> &lt;b&gt; "
    "\u202eevil\u2066 zero\u200bwidth \x1b[31mred \x00nul"
)
QUESTION = "A baker sells nine loaves before noon and four after it; how many loaves is that over six days?"


@dataclass(frozen=True)
class World:
    folder: Path
    catalog: Catalog
    stages: dict[str, str]  # name -> stage id
    bad: Admission  # leaks and a hostile row
    good: Admission

    def story(self, ref: str):
        return story_of(self.catalog, self.stages.get(ref, ref))


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TREES = ("alder", "birch", "cedar", "elder", "fir", "hazel", "juniper", "larch", "maple", "oak", "pine", "rowan")


def words(rng: random.Random, n: int) -> list[str]:
    return [f"{rng.choice(TREES)}{rng.randrange(90)}" for _ in range(n)]


def rows() -> list[dict]:
    """40 plain rows, 3 exact copies, 4 near copies of one row, a near copy among hostile rows, one without text."""
    rng = random.Random(7)
    texts = [" ".join(words(rng, 60)) for _ in range(40)]
    near = []
    for number in range(4):
        changed = texts[0].split()
        changed[20 + number] = f"changed{number}"
        near.append(" ".join(changed))
    frame = " ".join(words(rng, 60))
    hostile = [f"{HOSTILE} one {frame}", f"{HOSTILE} two {frame}"]
    found = [{"text": text} for text in [*texts, *texts[1:4], *near, *hostile]]
    return [*found, {"text": 7}]


def make(folder: Path) -> World:
    catalog = Catalog.open(folder / ".lpt")
    stages = {}

    def run(name, source, config, decide, out):
        report = run_stage(name, Dataset.open([str(source)]), config, decide, output=folder / out, catalog=catalog)
        stages[name] = report.body["stage_id"]
        return folder / out

    corpus = jsonl(folder / "corpus.jsonl", rows())
    unique = run("dedup", corpus, DedupConfig(threshold=0.7), dedup, "unique.jsonl")
    mended = run("clean", unique, CleanConfig(rules=("unicode", "space")), clean, "mended.jsonl")
    bench = jsonl(
        folder / "bench.jsonl", [{"question": QUESTION, "answer": "#### 78"}, {"question": HOSTILE, "answer": "1"}]
    )
    dirty = jsonl(
        folder / "dirty.jsonl",
        [{"text": f"Solve. {QUESTION} Thirteen."}, {"text": f"{HOSTILE} and more"}, *rows()[:30]],
    )
    benchmarks = load_benchmarks({"bakery": [str(bench)]})
    run("decontaminate", dirty, config_for(benchmarks), decider(benchmarks), "checked.jsonl")
    parts = split(Dataset.open([str(mended)]), SplitConfig(test=6), out=folder / "parts", catalog=catalog)
    stages["split"] = parts.body["stage_id"]
    (folder / "mix.yaml").write_text(
        f"domains:\n  trees: {{inputs: {folder}/parts/train.jsonl, weight: 0.75}}\n"
        f"  held: {{inputs: {folder}/parts/test.jsonl, weight: 0.25}}\ntotal: {{rows: 24}}\n"
    )
    stages["mix"] = mix(load_spec(str(folder / "mix.yaml")), out=folder / "mixed.jsonl", catalog=catalog).body[
        "stage_id"
    ]
    train, test = folder / "parts" / "train.jsonl", folder / "parts" / "test.jsonl"
    good = admit("trees", "text", {"train": [str(train)], "test": [str(test)]}, catalog=catalog)
    leaky = jsonl(folder / "leaky.jsonl", [*map(json.loads, train.read_text().splitlines()), *rows()[-3:-1],
                                           json.loads(test.read_text().splitlines()[0])])  # fmt: skip
    bad = admit("bad", "text", {"train": [str(leaky)], "test": [str(test)]}, catalog=catalog)
    return World(folder, catalog, stages, bad, good)
