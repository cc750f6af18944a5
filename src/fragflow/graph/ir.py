"""The graph's vocabulary: an immutable program of operations and loops over named values.

A value's name is its position in the program (`7/3.0`: first result of equation 3 in the loop at
position 7), so it is the same in every trace of the same loop, whatever is in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from fragflow._jax import Eqn, host_call_p
from fragflow.graph.fragment_extent import Extent
from fragflow.policies.policy import Over

Value: TypeAlias = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One equation, kept for every extent that was traced."""

    path: str
    eqns: Mapping[Extent, Eqn]
    inputs: tuple[Value | None, ...]
    """None stands for a literal, which each trace has for itself"""
    outputs: tuple[Value | None, ...]
    """None stands for a result that nobody uses"""
    components: frozenset[str] = frozenset()

    @property
    def eqn(self) -> Eqn:
        return next(iter(self.eqns.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A closed-over array or a literal that needs a name."""

    output: Value
    arrays: Mapping[Extent, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """A value that a loop keeps from step to step."""

    inside: Value
    init: Value
    next: Value
    final: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A loop's input that is consumed step by step along its first axis."""

    inside: Value
    outside: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A loop's output that is collected step by step along a new first axis."""

    element: Value
    outside: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A scan that several fragments share; its body sees all values of the blocks around it."""

    path: str
    length: int | None
    """None for the training loop, whose length is chosen at run time"""
    reverse: bool = False
    counter: Value | None = None
    carries: tuple[Carry, ...] = ()
    slices: tuple[Slice, ...] = ()
    stacks: tuple[Stack, ...] = ()
    body: tuple["Node", ...] = ()


REDUCTIONS = ("reduce-mean", "reduce-sum", "reduce-max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One value of a message, and how it travels between replicas."""

    value: Value
    collective: str
    """one-to-one, gather, scatter, exchange (both), broadcast, pick, or reduce-mean, -sum, -max"""
    cut: int | None = None
    """the axis along which a sender cuts it for its receivers"""
    join: int | None = None
    """the axis along which a receiver joins what senders sent"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A message from one fragment to another at this point of the program."""

    name: str
    source: str
    target: str
    parcels: tuple[Parcel, ...]
    crossed: bool = False
    """replicas of one end hold environments, those of the other agents: each sends to each"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    transfer: Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    transfer: Transfer


Node: TypeAlias = Op | Constant | Loop | Transfer | Send | Receive


class EpisodeStat(NamedTuple):
    """One statistic of the episodes that ended in an iteration."""

    env_state: int
    """index among the environments' states in the algorithm's state"""
    field: str
    """of `EpisodeStats`"""

    def __str__(self) -> str:
        return f"1.{self.env_state}.{self.field}"  # an iteration returns (metrics, statistics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The whole training loop, before or after it is cut."""

    loop: Loop
    constants: tuple[Constant, ...]
    sources: Mapping[str, Value]
    """values that every fragment knows by itself: the run's key, its environments' indices, ..."""
    avals: Mapping[Extent, Mapping[Value, Any]]
    """types, by extent"""
    extent: Extent
    """of the undivided program"""
    labels: Mapping[Value, str]
    """user-visible names: those of state leaves, metrics and episode statistics"""
    params: frozenset[Value]
    """those leaves of the state that a trained agent acts with"""
    episodes: Mapping[Value, EpisodeStat]
    """the training loop's outputs that are episode statistics; the others are metrics"""

    @property
    def num_envs(self) -> int:
        return self.extent.envs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The work of one kind of worker: its part of the program, with its entries and exits."""

    name: str
    places: tuple[str, ...]
    """those of the policy that it is: several where paired ones are one"""
    components: tuple[str, ...]
    replicas: int
    device: str
    extent: Extent
    """the extent of a replica"""
    constants: tuple[Constant, ...]
    loop: Loop
    asked_replicas: int
    """before replicas that share a place were fused into a larger batch"""
    group: bool = False
    """replicas reduce among themselves, so they run as one program over a mesh"""
    own_devices: bool = False
    """each replica has a device of its own"""
    first_device: int = 0
    """index of its first device, among those of its platform"""
    first: int | None = None
    """environments acted on at a time, the first that have answered; None: all together"""
    over: Over = "environments"
    """the axis that its replicas divide"""

    @property
    def num_envs(self) -> int:
        """The number of environments per replica."""
        return self.extent.envs


@dataclass(frozen=True, slots=True, kw_only=True)
class FDG:
    """A fragmented dataflow graph: fragments and the messages between them."""

    policy: str
    program: Program
    fragments: Mapping[str, Fragment]
    transfers: tuple[Transfer, ...]
    kinds: Mapping[str, Mapping[Value, Any]]
    """per fragment, what its replicas hold of each value (see replicas/kinds.py)"""
    row_kinds: Mapping[Value, Any]
    """the same if every fragment were replicated: which values have the environment axis"""
    delays: Mapping[str, int] = field(default_factory=dict[str, int])
    """by message, the number of iterations it is late"""
    synchronisation: str = "lockstep"
    server: str | None = None
    """of asynchronous runs: the fragment that serves all workers"""
    workers: int = 1
    """of asynchronous runs: the number of workers that run this graph against the one server"""
    unproven: tuple[str, ...] = ()
    """fragments whose replicas hold one environment or agent each: the check has compared programs
    for two in their place, so that the programs that run must be tried"""


def walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """All nodes, loop bodies included, in program order."""
    for node in nodes:
        yield node
        if isinstance(node, Loop):
            yield from walk(node.body)


def walk_with_trips(nodes: tuple[Node, ...], trips: int = 1) -> Iterator[tuple[Node, int]]:
    """All nodes, each with the number of times it runs per training iteration."""
    for node in nodes:
        yield node, trips
        if isinstance(node, Loop):
            yield from walk_with_trips(node.body, trips * (node.length or 1))


def is_host_call(node: Node) -> bool:
    """True if `node` calls an environment on the host."""
    return isinstance(node, Op) and node.eqn.primitive is host_call_p


def is_compilable(node: Node) -> bool:
    """True if `node` sends nothing, receives nothing and asks nothing of the host."""
    inner = walk(node.body) if isinstance(node, Loop) else [node]
    return not any(isinstance(n, Send | Receive | Transfer) or is_host_call(n) for n in inner)
