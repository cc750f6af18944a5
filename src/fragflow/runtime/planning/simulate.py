"""The meaning of instructions, as a pure schedule that steps them without executing anything.

When an instruction is ready, what it does to the messages under way, and where control goes next is
said here. The functions that are generated for real runs are held to it: their events, in the order
of time, are an order that the schedule allows (`check_order`).

What is not modelled: how long anything takes; that collectives wait for all members of a group that
is divided among processes; asynchronous runs, whose order depends on time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fragflow.errors import GraphError
from fragflow.graph.ir import FDG, Transfer
from fragflow.runtime.planning.instructions import (
    Ask,
    Code,
    Enter,
    Get,
    Keep,
    Message,
    Put,
    Repeat,
    Run,
    RunOutOfOrder,
    Work,
    routes,
)
from fragflow.runtime.planning.plan import Plan

MessageRoute: TypeAlias = tuple[str, int, int]
"""(message, sending replica, receiving replica)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One instruction that was carried out."""

    iteration: int
    fragment: str
    replicas: tuple[int, ...]
    """the replica, or those of a group that is driven as one"""
    kind: str
    """name of the instruction's class"""
    what: int | str
    """the message's name, or the instruction's number"""
    steps: tuple[int, ...] = ()
    """of every loop around it, the steps before this one"""
    is_call: bool = True
    """False for what generated drivers do by an assignment, which nobody sees: to keep a row, and
    to hand a message over within a thread"""

    def __str__(self) -> str:
        replicas = ",".join(map(str, self.replicas))
        inside = f" in step {', '.join(map(str, self.steps))}" if self.steps else ""
        where = f"{self.fragment}[{replicas}], iteration {self.iteration}{inside}"
        return f"{where}: {self.kind} {self.what}"


def event_of(
    iteration: int,
    fragment: str,
    replicas: tuple[int, ...],
    instruction: Work | Message,
    steps: tuple[int, ...],
    is_call: bool = True,
) -> Event:
    """Makes the event of one instruction."""
    match instruction:
        case Run(number) | Ask(number) | RunOutOfOrder(number):
            what = number
        case Keep(loop, row):
            what = f"row {row} of loop {loop}"
        case Put(transfer) | Get(transfer):
            what = transfer.name
    return Event(
        iteration=iteration,
        fragment=fragment,
        replicas=replicas,
        kind=type(instruction).__name__,
        what=what,
        steps=steps,
        is_call=is_call,
    )


def visits(code: Code) -> Iterator[tuple[Work | Message, tuple[int, ...]]]:
    """Goes through an iteration; yields instructions with the step of every loop around them."""
    position = 0
    steps: list[int] = []
    while position < len(code):
        match instruction := code[position]:
            case Enter(loop, 0):
                position = code.index(Repeat(loop, 0, position + 1)) + 1
            case Enter():
                steps.append(0)
                position += 1
            case Repeat(_, length, first):
                steps[-1] += 1
                if steps[-1] < length:
                    position = first
                else:
                    steps.pop()
                    position += 1
            case _:
                yield instruction, tuple(steps)
                position += 1


def messages_of(
    instruction: Work | Message, own: tuple[int, ...], counts: Mapping[str, int]
) -> tuple[tuple[MessageRoute, ...], tuple[MessageRoute, ...]]:
    """The messages that an instruction waits for and takes, and those that it adds.

    `own` are the replicas that carry it out together, `counts` those of every fragment.
    """
    match instruction:
        case Get(transfer):
            return tuple(r for r in _routes(transfer, counts) if r[2] in own), ()
        case Put(transfer):
            return (), tuple(r for r in _routes(transfer, counts) if r[1] in own)
        case _:
            return (), ()


def _routes(transfer: Transfer, counts: Mapping[str, int]) -> tuple[MessageRoute, ...]:
    ends = routes(counts[transfer.source], counts[transfer.target], transfer.crossed)
    return tuple((transfer.name, sender, receiver) for sender, receiver in ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One instruction as control comes to it, in every iteration."""

    event: Event
    """in iteration 0"""
    takes: tuple[MessageRoute, ...]
    """where it waits for a message, and takes it"""
    gives: tuple[MessageRoute, ...]
    """where it adds a message"""


ThreadCode: TypeAlias = tuple[Visit, ...]
"""all that one thread does in an iteration, one after the other; nothing, if it runs one program"""


def thread_code(
    fdg: FDG,
    plan: Plan,
    replicas: Mapping[str, tuple[int, ...]],
    order: Iterable[tuple[str, Work | Message]] | None = None,
) -> ThreadCode:
    """All that a thread does which drives `replicas` of one fragment, or of several in `order`."""
    own = {name: visits(plan.parts[name].code) for name in replicas}
    counts = {name: fragment.replicas for name, fragment in fdg.fragments.items()}
    found: list[Visit] = []

    def add(name: str, instruction: Work | Message, steps: tuple[int, ...]) -> None:
        takes, gives = messages_of(instruction, replicas[name], counts)
        is_call = not isinstance(instruction, Keep)
        if isinstance(instruction, Put | Get):
            ends = {instruction.transfer.source, instruction.transfer.target}
            is_call = not ends <= set(replicas)
        made = event_of(0, name, replicas[name], instruction, steps, is_call)
        found.append(Visit(event=made, takes=takes, gives=gives))

    if order is None:
        (name,) = replicas
        order = ((name, instruction) for instruction, _ in visits(plan.parts[name].code))
    for name, instruction in order:
        expected = next(own[name], None)
        if expected is None or expected[0] != instruction:
            raise GraphError(
                f"a thread's order has {instruction} of {name}, whose own next is {expected}"
            )
        add(name, *expected)
    for name, rest in own.items():
        left = next(rest, None)
        if left is not None:
            raise GraphError(f"a thread's order leaves out {left[0]} of {name}")
    return tuple(found)


def replicas_apart(fdg: FDG, plan: Plan) -> tuple[ThreadCode, ...]:
    """All that every replica does, as if each had a thread of its own."""
    return tuple(
        thread_code(fdg, plan, {name: (replica,)})
        for name, fragment in fdg.fragments.items()
        for replica in range(fragment.replicas)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The progress of all threads of a run, and the messages that are under way."""

    threads: tuple[ThreadCode, ...]
    iterations: int
    made: tuple[int, ...]
    """by thread, the instructions that are behind it"""
    under_way: Mapping[MessageRoute, int]
    """messages that were sent and not yet received"""
    late: Mapping[MessageRoute, int]
    """messages that were sent before the first iteration"""

    @staticmethod
    def start(fdg: FDG, threads: Sequence[ThreadCode], iterations: int) -> "Schedule":
        """The schedule before the first iteration."""
        if fdg.server is not None:
            raise GraphError(
                "an asynchronous run has no order that its instructions decide: simulate the "
                "policy in lockstep, or with a lag"
            )
        counts = {name: fragment.replicas for name, fragment in fdg.fragments.items()}
        late = {
            route: fdg.delays[transfer.name]
            for transfer in fdg.transfers
            if transfer.name in fdg.delays
            for route in _routes(transfer, counts)
        }
        return Schedule(
            threads=tuple(threads),
            iterations=iterations,
            made=(0,) * len(threads),
            under_way=late,
            late=late,
        )

    def event(self, thread: int) -> Event | None:
        """The event that comes next in a thread; None after its last iteration."""
        if not self._is_running(thread):
            return None
        iteration = self.made[thread] // len(self.threads[thread])
        return replace(self._next(thread).event, iteration=iteration)

    def ready(self) -> tuple[int, ...]:
        """The threads whose next instruction can be carried out now."""
        return tuple(k for k in range(len(self.threads)) if self.is_ready(k))

    def is_ready(self, thread: int) -> bool:
        """True if all messages that its next instruction takes are under way."""
        return self._is_running(thread) and all(
            self.under_way.get(route, 0) for route in self._next(thread).takes
        )

    def after(self, thread: int) -> "Schedule":
        """The schedule after a thread has carried out its next instruction."""
        done = self._next(thread)
        under_way = dict(self.under_way)
        for route in done.takes:
            under_way[route] -= 1
        for route in done.gives:
            under_way[route] = under_way.get(route, 0) + 1
        made = tuple(count + (k == thread) for k, count in enumerate(self.made))
        return replace(self, made=made, under_way=under_way)

    def check_end(self) -> None:
        """Refuses an end at which threads wait for ever, or messages are left."""
        waiting = [str(found) for k in range(len(self.threads)) if (found := self.event(k))]
        if waiting:
            raise GraphError(f"the fragments wait for one another: {'; '.join(waiting)}")
        left = {
            route: count - self.late.get(route, 0)
            for route, count in self.under_way.items()
            if count != self.late.get(route, 0)
        }
        if left:
            raise GraphError(f"messages are sent that nobody receives: {sorted(left)}")

    def _is_running(self, thread: int) -> bool:
        return self.made[thread] < self.iterations * len(self.threads[thread])

    def _next(self, thread: int) -> Visit:
        steps = self.threads[thread]
        return steps[self.made[thread] % len(steps)]


def simulate(
    fdg: FDG,
    threads: Sequence[ThreadCode],
    iterations: int,
    choose: Callable[[Sequence[int]], int] = min,
) -> tuple[Event, ...]:
    """The events of a run, in one of the orders that are allowed.

    `choose` picks one of the threads that are ready. Fragments that are one program have no events.
    """
    schedule = Schedule.start(fdg, threads, iterations)
    events: list[Event] = []
    while ready := schedule.ready():
        thread = choose(ready)
        made = schedule.event(thread)
        assert made is not None, "a thread that is ready has an event"
        events.append(made)
        schedule = schedule.after(thread)
    schedule.check_end()
    return tuple(events)


def check_order(
    fdg: FDG, threads: Sequence[ThreadCode], iterations: int, events: Iterable[Event]
) -> None:
    """Refuses `events`, the calls of a run, unless they can occur in this order."""
    schedule = Schedule.start(fdg, threads, iterations)
    owners = {
        (made.event.fragment, made.event.replicas): k
        for k, thread in enumerate(threads)
        for made in thread
    }

    def without_calls(schedule: Schedule, thread: int) -> Schedule:
        """The schedule after all that a thread does before its next call."""
        while (made := schedule.event(thread)) and not made.is_call and schedule.is_ready(thread):
            schedule = schedule.after(thread)
        return schedule

    for number, seen in enumerate(events):
        owner = owners.get((seen.fragment, seen.replicas))
        if owner is None:
            raise GraphError(f"event {number} is {seen}: no thread of this run drives that")
        schedule = without_calls(schedule, owner)
        expected = schedule.event(owner)
        if seen != expected:
            raise GraphError(f"event {number} is {seen}: expected {expected or 'no more'}")
        if not schedule.is_ready(owner):
            sent = [route for route in schedule.under_way if schedule.under_way[route]]
            raise GraphError(f"event {number} is {seen}, which is not sent yet; sent is {sent}")
        schedule = schedule.after(owner)
    for thread in range(len(threads)):
        schedule = without_calls(schedule, thread)
    missing = [str(left) for k in range(len(threads)) if (left := schedule.event(k))]
    if missing:
        raise GraphError(f"events are missing: {'; '.join(missing)}")
    schedule.check_end()
