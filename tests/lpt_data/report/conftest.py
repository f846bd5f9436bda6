"""A small world with everything that a report shows, made once by the real commands' functions."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for report_world

from report_world import World, make


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    return make(tmp_path_factory.mktemp("report"))
