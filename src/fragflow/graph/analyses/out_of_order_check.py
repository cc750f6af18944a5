"""Rollouts out of order: a worker acts on the first environments that have answered.

Each environment then makes its steps at its own pace. That changes no result where every step works
on each environment by itself, which the replica check knows; anything else is refused here.
"""

from collections.abc import Mapping
from dataclasses import replace

from fragflow._jax import contains_all_reduce, source_line
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.api.host import Host, HostEnvironment, answers_one_by_one
from fragflow.errors import PolicyError
from fragflow.graph.ir import (
    FDG,
    Fragment,
    Loop,
    Node,
    Op,
    Receive,
    Send,
    Value,
    is_host_call,
    walk,
)
from fragflow.graph.replicas.kinds import UNIFORM, Kind


def host_steps(nodes: tuple[Node, ...]) -> list[Op]:
    """The steps of environments on the host among `nodes` themselves, not in loops among them."""
    return [n for n in nodes if isinstance(n, Op) and is_host_call(n)]


def with_out_of_order(fdg: FDG, first: int | None, environment: AnyEnvironment | Host) -> FDG:
    """The graph with `first` environments acted on at a time; PolicyError where that cannot be."""
    if first is None:
        return fdg
    title = f"the first {first} environments of a worker"
    if first < 1:
        raise PolicyError(f"{title}: expected at least 1")
    if isinstance(environment, Host):
        raise PolicyError(
            f"{title}: under policy {fdg.policy!r} the compiled program steps {environment.name} "
            "itself, all at once. Use another policy (single-learner-coarse), or leave out --first."
        )
    if not isinstance(environment, HostEnvironment) or not answers_one_by_one(environment):
        raise PolicyError(
            f"{title}: {environment.name} answers for all its environments at once. Use one of "
            "EnvPool's (envpool:NAME), or leave out --first."
        )
    fragments = dict(fdg.fragments)
    for name, fragment in fdg.fragments.items():
        loops = [n for n in walk((fragment.loop,)) if isinstance(n, Loop) and host_steps(n.body)]
        if not loops:
            continue
        if first > fragment.num_envs:
            raise PolicyError(
                f"{title}: a worker has only {fragment.num_envs}. Use a smaller number, or more "
                "environments (--num-envs)."
            )
        for loop in loops:
            reason = _obstacle(fragment, loop, fdg.row_kinds)
            if reason is not None:
                raise PolicyError(f"{title}, under policy {fdg.policy!r}: {reason}")
        fragments[name] = replace(fragment, first=first)
    return replace(fdg, fragments=fragments)


def _obstacle(fragment: Fragment, loop: Loop, kinds: Mapping[Value, Kind]) -> str | None:
    """The reason that environments cannot go through a loop each at its own pace, or None."""
    if fragment.group:
        return f"the replicas of fragment {fragment.name!r} are one program, in step"
    if loop.length is None:
        return "environments are stepped once in an iteration, by all workers together"
    if any(isinstance(n, Send | Receive) for n in walk(loop.body)):
        return (
            "fragments exchange messages at every step. Use a policy that keeps actor and "
            "environments together, like single-learner-coarse"
        )
    if len(host_steps(loop.body)) > 1 or any(
        is_host_call(n) for inner in loop.body if isinstance(inner, Loop) for n in walk(inner.body)
    ):
        return "environments are stepped in several places of one loop"
    for op in walk(loop.body):
        if isinstance(op, Op) and contains_all_reduce(op.eqn):
            return f"{source_line(op.eqn)} reduces over all environments at every step"
    step = source_line(host_steps(loop.body)[0].eqn)
    carried = [(c.inside, "keeps from step to step") for c in loop.carries]
    taken = [(s.inside, "takes a row of at every step") for s in loop.slices]
    made = [(s.element, "collects at every step") for s in loop.stacks]
    for value, what in (*carried, *taken, *made):
        kind = kinds.get(value, UNIFORM)
        if not (kind.is_cuttable and kind.axis == 0):
            return (
                f"the loop around {step} {what} something that all environments share, so that "
                "they must be in step. Make it one per environment (env.keys), or leave out --first"
            )
    return None
