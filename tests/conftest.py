"""What the tests of every part share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm_lpt import Warm


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Starts programs that use the libraries of training, in a second instead of six."""
    warm = Warm(tmp_path_factory.mktemp("warm"))
    yield warm
    warm.close()
