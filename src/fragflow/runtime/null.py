"""The runtime that executes nothing: it records what would run, and finds deadlocks."""

import random
from collections import Counter
from dataclasses import dataclass, field

from fragflow.errors import GraphError
from fragflow.graph.interfaces import transfer_bytes
from fragflow.graph.ir import FDG
from fragflow.runtime.plan import Plan
from fragflow.runtime.schedule import Done, Instruction, Put, Replica, Schedule


@dataclass(slots=True)
class Record:
    """What one iteration would do."""

    order: list[tuple[Replica, Instruction]] = field(default_factory=list)
    messages: Counter[str] = field(default_factory=Counter)
    bytes_moved: int = 0


def record(fdg: FDG, plan: Plan, seed: int | None = None) -> Record:
    """Steps all fragments through one iteration; `seed` shuffles who goes first."""
    codes = {name: part.code for name, part in plan.parts.items()}
    replicas = {name: fragment.replicas for name, fragment in fdg.fragments.items()}
    schedule = Schedule.start(codes, replicas)
    rng = random.Random(seed)
    result = Record()
    while ready := schedule.ready():
        replica = ready[0] if seed is None else rng.choice(ready)
        instruction = schedule.instruction(replica)
        assert instruction is not None
        result.order.append((replica, instruction))
        if isinstance(instruction, Put):
            result.messages[instruction.transfer.name] += 1
            if replica[1] == 0:
                result.bytes_moved += transfer_bytes(fdg, instruction.transfer)
        schedule = schedule.handle(Done(replica=replica))
    stuck = schedule.stuck()
    if stuck:
        waiting = ", ".join(
            f"{name}[{r}] at {schedule.instruction((name, r))}" for name, r in stuck
        )
        raise GraphError(f"the fragments wait for one another: {waiting}")
    left = {key: count for key, count in schedule.arrived.items() if count}
    if left:
        raise GraphError(f"messages are sent that nobody receives: {sorted(left)}")
    return result
