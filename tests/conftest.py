"""What the tests of every part share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_lpt import Warm

# What takes longest, each 20 seconds and more. Files are given out whole: one of these at the end is one core idle.
LONGEST = (
    "smoke/test_commands.py", "smoke/test_readme.py", "lpt_train/test_ranks.py", "cli/test_refusals.py",
    "lpt_data/dedup/test_semantic_memory.py", "lpt_data/engines/test_ray_engine.py", "lpt_train/test_reward_loop.py",
    "lpt_data/report/test_pages_in_chromium.py", "lpt_train/test_long_runs.py", "lpt_data/dedup/test_spill.py",
    "lpt_train/rl/test_code_reward.py", "lpt_data/test_plain.py", "lpt_train/test_trl_engine.py",
    "lpt_data/contracts/test_hostile_rows.py", "lpt_train/test_export.py", "lpt_train/test_matrix.py",
    "lpt_data/dedup/test_semantic_bad_input.py", "cli/test_output.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others as they were; xdist keeps the order with --no-loadscope-reorder."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in places)
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Starts programs that use the libraries of training, in a second instead of six."""
    warm = Warm(tmp_path_factory.mktemp("warm"))
    yield warm
    warm.close()
