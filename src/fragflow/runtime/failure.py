"""The first error of a run: it stops all workers, and is raised where the run is waited for."""

import threading
from collections.abc import Callable, Sequence

from fragflow.runtime.drivers.channels import Closed
from fragflow.runtime.protocols import Driver


class FirstFailure:
    """Keeps the first error of any driver; others follow from it. Any thread may add to it."""

    def __init__(self, drivers: Sequence[Driver], stop: Callable[[], None]):
        """`stop` wakes all threads that wait for one another."""
        self._drivers = drivers
        self._stop = stop
        self._first: tuple[Driver, BaseException] | None = None
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self._first is not None

    def add(self, driver: Driver, error: BaseException) -> None:
        """Notes an error that occurred in `driver`, and stops all workers."""
        with self._lock:
            if self._first is None and not isinstance(error, Closed):
                self._first = (driver, error)
        self._stop()

    def find_stuck(self, seconds: float) -> bool:
        """True if environments have stopped answering, which is then the run's error."""
        for driver in self._drivers:
            fault = driver.stuck(seconds)
            if fault is not None:
                self.add(driver, fault)
                return True
        return False

    def raise_first(self) -> None:
        if self._first is not None:
            driver, cause = self._first
            raise driver.error(cause)
