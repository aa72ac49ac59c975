"""Work that goes on beside training, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor


class Background:
    """A tensor that is computed while its caller goes on; `result` waits for it.

    The thread ends with the program, so that stopping a training does not wait for it.
    """

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._found: Tensor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(compute,), daemon=True)
        self._thread.start()

    def _run(self, compute: Callable[[], Tensor]) -> None:
        try:
            self._found = compute()
        except BaseException as error:  # told where the result is asked for
            self._error = error

    def result(self) -> Tensor:
        """What was computed, or its error raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copied system waits for the same result."""
        return self
