"""Nanoseconds become plain Python values with and without pandas, and nothing of them is lost."""

import datetime
import subprocess
import sys

import pyarrow as pa
import pytest

from manifests.arrow import plain_rows

WHOLE, BROKEN = 1_700_000_000_000_001_000, 1_700_000_000_000_001_001  # nanoseconds: whole microseconds, and not


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (pa.timestamp("ns"), WHOLE, datetime.datetime(2023, 11, 14, 22, 13, 20, 1)),
        (pa.timestamp("ns"), BROKEN, "2023-11-14 22:13:20.000001001"),
        (pa.timestamp("us"), 1, datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
        (pa.duration("ns"), 2_000, datetime.timedelta(microseconds=2)),
        (pa.duration("ns"), 2_001, 2001),
        (pa.time64("ns"), 3_000, datetime.time(0, 0, 0, 3)),
        (pa.int64(), 7, 7),
    ],
)
def test_a_value_comes_as_python_has_it_or_as_text(kind, value, plain):
    array = pa.array([value, None], pa.int64()).cast(kind)
    assert plain_rows(pa.table({"t": array})) == [{"t": plain}, {"t": None}]
    assert plain_rows(pa.table({"s": pa.array([[value]], pa.list_(pa.int64())).cast(pa.list_(kind))})) == [
        {"s": [plain]}
    ]


def test_pandas_is_not_needed():
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'pandas': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import pyarrow as pa; from manifests.arrow import plain_rows\n"
        f"print(plain_rows(pa.table({{'t': pa.array([{WHOLE}], pa.int64()).cast(pa.timestamp('ns'))}}))[0]['t'].year)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "2023"
