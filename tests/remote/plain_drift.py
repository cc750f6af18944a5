"""An environment on the host that other processes can make, and that fails on demand."""

import dataclasses
import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from fragflow.api.host import HostStep
from runtime.test_host import HostDrift


@dataclass(frozen=True)
class PlainDrift(HostDrift):
    """As data, which travels; at a step of the first environment, something happens."""

    disturb: Any = dataclasses.field(default=None, init=False, repr=False)
    breaks_at: int = -1
    exits_at: int = -1
    hangs_at: int = -1

    def open(self, ids: Any) -> Any:
        def disturb(step: int, answer: HostStep) -> HostStep:
            if 0 in ids and step == self.exits_at:
                os._exit(7)
            if 0 in ids and step == self.hangs_at:
                threading.Event().wait()
            if 0 in ids and step == self.breaks_at:
                answer.reward[0] = np.nan
            return answer

        return HostDrift(disturb=disturb).open(ids)
