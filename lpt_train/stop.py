"""Being asked to stop: SIGTERM and Ctrl-C as a flag that a loop looks at."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from lpt_train.ranks import SOLO, Ranks


class StopRequest:
    """Turns SIGTERM and the first Ctrl-C into a flag that the loop looks at between steps; a second Ctrl-C
    interrupts.

    Of several processes all stop at the same step: there the flag is what they last agreed on (`agree`).
    """

    def __init__(self, ranks: Ranks = SOLO) -> None:
        self.signal: str | None = None
        self._ranks = ranks
        self._agreed = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self._agreed if self._ranks.world > 1 else self.signal is not None

    def agree(self) -> None:
        """Ask all processes whether one of them was asked to stop; every one must come here."""
        self._agreed = self._ranks.any(self.signal is not None)
        if self._agreed and self.signal is None:
            self.signal = "SIGTERM"  # another one was

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name
