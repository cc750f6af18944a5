"""Apart: the statement about a run's results, which is made before it and remembered after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fragflow.graph.ir import FDG
from fragflow.runtime.promises.equality import elsewhere, with_figures
from fragflow.runtime.promises.run_probe import NOT_DIVIDED, Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A run's relation to one undivided program, as far as it was tried."""

    equality: str
    """'bitwise', 'rounding: ...' or 'different: ...'"""
    trial: Tried
    """of the probe"""
    seconds: float = 0.0
    """to probe, and to compare bits"""

    @property
    def probe(self) -> str:
        """The result of the probe, or the reason that there was none."""
        return self.trial.text

    def weakened_by(self, inexact: Sequence[str]) -> "Promise":
        """The promise if these implementations of kernels round differently than XLA's."""
        if not inexact or self.equality.startswith("different"):
            return self
        return replace(self, equality=with_figures(f"rounding: {', '.join(inexact)}", self.trial))

    def on(self, processors: Sequence[tuple[str, str]], fdg: FDG) -> "Promise":
        """The promise on these processors, by fragment: bits were compared on this machine's."""
        return replace(self, equality=elsewhere(self.equality, fdg, processors))


EAGER_PROMISE = Promise(
    equality="rounding: eager runs every operation by itself", trial=NOT_DIVIDED
)
