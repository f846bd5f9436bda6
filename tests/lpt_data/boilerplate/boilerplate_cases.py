"""Documents of the tests, and the plain definitions that the kernels are held against."""

import json
import unicodedata

from lpt_data.boilerplate import decide
from lpt_data.boilerplate.passages import FLAG, JOINER, WORD, kinds
from lpt_data.config import BoilerplateConfig
from lpt_data.dataset import Dataset
from lpt_data.progress import silent
from lpt_data.stage import run_stage
from manifests import decisions
from manifests.catalog import Catalog


class Ran:
    """One run of the stage on files of rows: its report, the rows that left and the decisions."""

    def __init__(self, folder, *files, suffix="jsonl", **config):
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, rows in enumerate(files):
            path = folder / f"in{number}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            paths.append(str(path))
        self.output = folder / f"out.{suffix}"
        self.catalog = Catalog.open(folder / ".lpt")
        report = run_stage(
            "boilerplate",
            Dataset.open(paths),
            BoilerplateConfig(**config),
            decide,
            output=self.output,
            catalog=self.catalog,
        )
        self.report = report.to_json()
        self.decisions = decisions.read(report.decisions_path).to_pylist()
        self.rows = list(map(json.loads, self.output.read_text().splitlines())) if suffix == "jsonl" else []
        self.texts = [row["text"] for row in self.rows]

    def told(self):
        """The decisions as they read without the order of the input."""
        names = ("record_id", "action", "reason", "witness_id", "score", "detail")
        return sorted(tuple(d[name] for name in names) for d in self.decisions)


def rows(*texts):
    return [{"text": text, "n": number} for number, text in enumerate(texts)]


def left_of(folder, given, config):
    """The rows that leave the stage, without its runner."""
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    result = decide(Dataset.open([str(path)]), config, silent)
    new = {row["row"]: json.loads(row["columns"]) for row in result.rewritten.to_pylist()}
    told = result.decisions.to_pylist()
    gone = {d["row"] for d in told if d["action"] != "rewrite"}
    assert not gone & {d["witness_row"] for d in told}
    assert set(new) == {d["row"] for d in told if d["action"] == "rewrite"}
    return [row | new.get(number, {}) for number, row in enumerate(given) if number not in gone]


def lines_of(text):
    """The lines of a text that are not blank, each with white space as one blank."""
    return [form for line in text.split("\n") if (form := " ".join(line.split()))]


def paragraphs_of(text):
    found, held = [], []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            held.append(line)
        elif held:
            found.append(" ".join("\n".join(held).split()))
            held = []
    return found


def may_part(text, at):
    """Whether a text may be parted before its character ``at``."""
    if at in (0, len(text)):
        return True
    here, before = kinds()[ord(text[at])], kinds()[ord(text[at - 1])]
    if text[at - 1 : at + 1] == "\r\n" or unicodedata.combining(text[at]) or here == JOINER or before == JOINER:
        return False
    return not (here == before and here in (WORD, FLAG))


def shared(a, b, length):
    """The first passage of ``length`` characters that both hold and may be parted from, or None."""
    for start in range(len(a) - length + 1):
        other = b.find(a[start : start + length])
        while other >= 0:
            left, right = start, start + length
            while right < len(a) and other + right - start < len(b) and a[right] == b[other + right - start]:
                right += 1
            while left < right and not (may_part(a, left) and may_part(b, other + left - start)):
                left += 1
            while right > left and not (may_part(a, right) and may_part(b, other + right - start)):
                right -= 1
            if right - left >= length:
                return a[left:right]
            other = b.find(a[start : start + length], other + 1)
    return None
