"""An algorithm on an environment, traced on demand for each extent that a fragment may have."""

from dataclasses import dataclass, field

from fragflow._jax import ClosedJaxpr
from fragflow.api.algorithm import Algorithm
from fragflow.api.environment import num_agents_of, teams_of
from fragflow.api.host import Host
from fragflow.api.vector import AnyEnvironment
from fragflow.blame import judged
from fragflow.graph.extent import Extent
from fragflow.graph.trace import Trace, trace, trace_init


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What is cut; every trace of it is made once."""

    algorithm: Algorithm
    environment: AnyEnvironment | Host
    num_envs: int
    """how many are in the program that is cut"""
    total: int
    """how many there are in all: more, if it is one worker's program"""
    traces: dict[Extent, Trace] = field(default_factory=dict[Extent, Trace])
    inits: dict[Extent, ClosedJaxpr] = field(default_factory=dict[Extent, ClosedJaxpr])

    @property
    def extent(self) -> Extent:
        return Extent(self.num_envs)

    @property
    def teams(self) -> tuple[int, ...]:
        """Agents in each team; empty for one agent without an axis of its own."""
        environment = self.environment
        spaces = environment.environment if isinstance(environment, Host) else environment
        return () if num_agents_of(spaces) is None else teams_of(spaces)

    def at(self, extent: Extent) -> Trace:
        if extent not in self.traces:
            try:
                made = trace(self.algorithm, self.environment, self.total, extent)
            except Exception as error:
                if self.extent not in self.traces:
                    raise
                where = f"for {extent.envs} of {self.num_envs} environments: use env.num_envs"
                raise judged(error, is_running=False, where=where) from error
            self.traces[extent] = made
        return self.traces[extent]

    def init_at(self, extent: Extent) -> ClosedJaxpr:
        if extent not in self.inits:
            self.inits[extent] = trace_init(self.algorithm, self.environment, self.total, extent)
        return self.inits[extent]


def traced(
    algorithm: Algorithm,
    environment: AnyEnvironment | Host,
    num_envs: int,
    total: int | None = None,
) -> Traced:
    """Prepares tracing; the first trace is made when it is asked for."""
    return Traced(
        algorithm=algorithm,
        environment=environment,
        num_envs=num_envs,
        total=total or num_envs,
    )
