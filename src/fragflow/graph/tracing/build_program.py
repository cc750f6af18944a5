"""One program from several traces of the same loop, walked side by side.

Only what a policy cuts is opened: an equation that touches one fragment, or none, stays whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from fragflow._jax import (
    ClosedJaxpr,
    DropVar,
    Eqn,
    Jaxpr,
    Literal,
    called_by,
    component_of,
    contains_all_reduce,
    contains_host_call,
    host_call_p,
    inner_jaxprs,
    num_turns,
    scan_of,
    source_line,
)
from fragflow.errors import GraphError, TraceError
from fragflow.graph.fragment_extent import Extent
from fragflow.graph.ir import Carry, Constant, Loop, Node, Op, Program, Slice, Stack, Value
from fragflow.graph.tracing.trace import ITERATION, SOURCES, Trace, components_of


def build(
    traces: Sequence[Trace],
    whole: Extent,
    fragment_of: Callable[[str], str],
    *,
    open_all: bool = False,
) -> Program:
    """One program from traces of different sizes, opened where `fragment_of` cuts it.

    With `open_all`, everything is opened down to components.
    """
    first = traces[0]
    builder = _Builder({t.extent: {} for t in traces}, fragment_of, open_all)
    jaxprs = {t.extent: t.closed.jaxpr for t in traces}
    count = len(first.state_labels)
    # Labels are the user's; prefixes keep the names of different things apart.
    inside = [f"state:{label}" for label in first.state_labels]
    names = [*inside, ITERATION, *SOURCES]
    for n, jaxpr in jaxprs.items():
        builder.bind(n, jaxpr.invars, names)
        builder.bind_consts(n, {t.extent: t.closed for t in traces}, "const")
    body = builder.block(jaxprs, "", [t.closed.jaxpr.eqns for t in traces])
    outputs = builder.references(jaxprs, {n: j.outvars for n, j in jaxprs.items()}, "out", body)
    carries = tuple(
        Carry(inside=name, init=f"init:{label}", next=result, final=f"final:{label}")
        for name, label, result in zip(inside, first.state_labels, outputs[:count], strict=True)
    )
    metrics = {f"metric:{label}": label for label in first.metric_labels}
    episodes = {f"episodes:{stat}": stat for stat in first.episodes}
    stacks = tuple(
        Stack(element=result, outside=name)
        for name, result in zip([*metrics, *episodes], outputs[count:], strict=True)
    )
    for avals in builder.avals.values():
        for carry in carries:
            avals[carry.init] = avals[carry.final] = avals[carry.inside]
    labels = {name: label for name, label in zip(inside, first.state_labels, strict=True)}
    labels |= metrics | {name: str(stat) for name, stat in episodes.items()}
    return Program(
        loop=Loop(
            path="train",
            length=None,
            counter=ITERATION,
            carries=carries,
            stacks=stacks,
            body=tuple(body),
        ),
        constants=tuple(builder.constants),
        sources={name: name for name in SOURCES},
        avals=builder.avals,
        extent=whole,
        labels=labels,
        params=frozenset(name for name, at in zip(inside, first.is_weight, strict=True) if at),
        episodes=episodes,
    )


class _Builder:
    """Walks several jaxprs of the same structure side by side and names what it meets."""

    def __init__(
        self,
        avals: dict[Extent, dict[Value, Any]],
        fragment_of: Callable[[str], str],
        open_all: bool,
    ):
        self.avals = avals
        self.constants: list[Constant] = []
        self._fragment_of = fragment_of
        self._open_all = open_all
        self._component: frozenset[str] = frozenset()
        """the component around a call of the host, which is opened"""
        # Cached jaxprs share Var objects between calls, so scopes are stacked, never merged.
        self._names: dict[Extent, dict[Any, Value]] = {n: {} for n in avals}

    def bind(self, n: Extent, variables: Sequence[Any], names: Sequence[Value]) -> None:
        for variable, name in zip(variables, names, strict=True):
            self._names[n][variable] = name
            self.avals[n].setdefault(name, variable.aval)

    def bind_consts(self, n: Extent, closed: Mapping[Extent, ClosedJaxpr], path: str) -> None:
        for k, variable in enumerate(closed[n].jaxpr.constvars):
            name = f"{path}:{k}"
            self.bind(n, [variable], [name])
            if all(c.output != name for c in self.constants):
                if len({len(c.consts) for c in closed.values()}) > 1:
                    _refuse_structure(list(closed), [c.jaxpr.eqns for c in closed.values()])
                arrays = {m: c.consts[k] for m, c in closed.items()}
                self.constants.append(Constant(output=name, arrays=arrays))

    def block(
        self, jaxprs: Mapping[Extent, Jaxpr], path: str, all_eqns: Sequence[Sequence[Eqn]]
    ) -> list[Node]:
        """The nodes of a block; `jaxprs`' inputs must be bound."""
        sizes = list(jaxprs)
        nodes: list[Node] = []
        if len({len(eqns) for eqns in all_eqns}) > 1:
            _refuse_structure(sizes, all_eqns)
        for i, group in enumerate(zip(*all_eqns, strict=True)):
            eqns = dict(zip(sizes, group, strict=True))
            if len({_signature(eqn) for eqn in group}) > 1:
                _refuse_structure(sizes, all_eqns)
            nodes.extend(self._node(f"{path}{i}", eqns))
        return nodes

    def _node(self, path: str, eqns: Mapping[Extent, Eqn]) -> list[Node]:
        eqn = next(iter(eqns.values()))
        components = components_of(eqn) or self._component
        touched = {self._fragment_of(c) for c in components}
        if eqn.primitive is not host_call_p and contains_host_call(eqn):
            return self._around_host(path, eqns)
        if component_of(eqn) is None:
            is_scan = eqn.primitive.name == "scan"
            is_call = not is_scan and called_by(eqn) is not None
            opens = len(touched) > (0 if self._open_all else 1)
            if is_call and (opens or contains_all_reduce(eqn)):
                return self._inline(path, eqns)
            if is_scan and opens:
                return self._loop(path, eqns)
            if len(touched) > 1:
                raise GraphError(
                    f"the {eqn.primitive.name} at {source_line(eqn)} contains components of "
                    f"several fragments ({_listing(components, self._fragment_of)}). Only lax.scan "
                    "can be cut: move the components out of it, or place them together."
                )
        inputs = tuple(self._name(k, eqns) for k in range(len(eqn.invars)))
        forwarded = _forwarded_in_all(list(eqns.values()))
        names = [
            (inputs[forwarded[k]] if k in forwarded else None) or f"{path}.{k}"
            for k in range(len(eqn.outvars))
        ]
        for n, e in eqns.items():
            self.bind(n, e.outvars, names)
        return [
            Op(
                path=path,
                eqns=eqns,
                inputs=inputs,
                outputs=tuple(
                    None if isinstance(v, DropVar) or name in inputs else name
                    for v, name in zip(eqn.outvars, names, strict=True)
                ),
                components=components,
            )
        ]

    def _around_host(self, path: str, eqns: Mapping[Extent, Eqn]) -> list[Node]:
        """Opens what surrounds a call of the host, down to the call: workers carry it out."""
        eqn = next(iter(eqns.values()))
        if eqn.primitive.name == "scan":
            return self._loop(path, eqns)
        if called_by(eqn) is None:
            raise GraphError(
                f"the {eqn.primitive.name} at {source_line(eqn)} contains env.step of an "
                "environment that runs on the host. Only lax.scan can: move env.step out of it."
            )
        name = component_of(eqn)
        before = self._component
        self._component = frozenset({name}) if name else before
        nodes = self._inline(path, eqns)
        self._component = before
        return nodes

    def _name(self, position: int, eqns: Mapping[Extent, Eqn]) -> Value | None:
        """The value that an equation reads, which must be one in every trace; None for literals."""
        found = {n: self._name_of(n, eqn.invars[position]) for n, eqn in eqns.items()}
        first = next(iter(found.values()))
        for n, name in found.items():
            if name != first:
                line = source_line(next(iter(eqns.values())))
                _refuse(f"at {line} other values are used", next(iter(found)), n)
        return first

    def _name_of(self, n: Extent, variable: Any) -> Value | None:
        return None if isinstance(variable, Literal) else self._names[n][variable]

    def references(
        self,
        jaxprs: Mapping[Extent, Jaxpr],
        variables: Mapping[Extent, Sequence[Any]],
        path: str,
        nodes: list[Node],
    ) -> list[Value]:
        """Names for variables that may be literals; a literal becomes a constant in `nodes`."""
        names: list[Value] = []
        first = next(iter(jaxprs))
        for k, variable in enumerate(variables[first]):
            for n in jaxprs:
                if self._name_of(n, variables[n][k]) != self._name_of(first, variable):
                    line = next(
                        (x for e in reversed(jaxprs[first].eqns) if (x := source_line(e))), ""
                    )
                    _refuse(f"at {line} another value is used", first, n)
            if isinstance(variable, Literal):
                name = f"{path}:{k}"
                values = {n: variables[n][k] for n in jaxprs}
                nodes.append(Constant(output=name, arrays={n: v.val for n, v in values.items()}))
                for n, literal in values.items():
                    self.avals[n][name] = literal.aval
                names.append(name)
            else:
                names.append(self._names[first][variable])
        return names

    def _inline(self, path: str, eqns: Mapping[Extent, Eqn]) -> list[Node]:
        closed = {n: c for n, eqn in eqns.items() if (c := called_by(eqn)) is not None}
        nodes: list[Node] = []
        args = self.references(
            {n: c.jaxpr for n, c in closed.items()},
            {n: e.invars for n, e in eqns.items()},
            f"{path}/in",
            nodes,
        )
        saved = {n: dict(names) for n, names in self._names.items()}
        jaxprs = {n: c.jaxpr for n, c in closed.items()}
        for n, jaxpr in jaxprs.items():
            self.bind(n, jaxpr.invars, args)
            self.bind_consts(n, closed, f"{path}/const")
        nodes += self.block(jaxprs, f"{path}/", [j.eqns for j in jaxprs.values()])
        results = self.references(
            jaxprs, {n: j.outvars for n, j in jaxprs.items()}, f"{path}/out", nodes
        )
        for n, eqn in eqns.items():
            self._names[n] = saved[n]
            self.bind(n, eqn.outvars, results)
        return nodes

    def _loop(self, path: str, eqns: Mapping[Extent, Eqn]) -> list[Node]:
        nodes: list[Node] = []
        scans = {n: scan_of(eqn) for n, eqn in eqns.items()}
        first = next(iter(scans.values()))
        num_consts, num_carry = first.consts, first.carries
        closed = {n: scan.body for n, scan in scans.items()}
        jaxprs = {n: c.jaxpr for n, c in closed.items()}
        args = self.references(jaxprs, {n: e.invars for n, e in eqns.items()}, f"{path}/in", nodes)
        inner = [
            *args[:num_consts],
            *(f"{path}/carry{k}" for k in range(num_carry)),
            *(f"{path}/slice{k}" for k in range(len(args) - num_consts - num_carry)),
        ]
        saved = {n: dict(names) for n, names in self._names.items()}
        for n, jaxpr in jaxprs.items():
            self.bind(n, jaxpr.invars, inner)
            self.bind_consts(n, closed, f"{path}/const")
        body = self.block(jaxprs, f"{path}/", [j.eqns for j in jaxprs.values()])
        results = self.references(
            jaxprs, {n: j.outvars for n, j in jaxprs.items()}, f"{path}/out", body
        )
        outer = [f"{path}.{k}" for k in range(len(results))]
        for n, eqn in eqns.items():
            self._names[n] = saved[n]
            self.bind(n, eqn.outvars, outer)
        split = num_consts + num_carry
        nodes.append(
            Loop(
                path=path,
                length=first.length,
                reverse=first.reverse,
                carries=tuple(
                    Carry(inside=i, init=a, next=r, final=o)
                    for i, a, r, o in zip(
                        inner[num_consts:split],
                        args[num_consts:split],
                        results[:num_carry],
                        outer[:num_carry],
                        strict=True,
                    )
                ),
                slices=tuple(
                    Slice(inside=i, outside=a)
                    for i, a in zip(inner[split:], args[split:], strict=True)
                ),
                stacks=tuple(
                    Stack(element=r, outside=o)
                    for r, o in zip(results[num_carry:], outer[num_carry:], strict=True)
                ),
                body=tuple(body),
            )
        )
        return nodes


def _forwarded_in_all(eqns: Sequence[Eqn]) -> dict[int, int]:
    first, *others = (_forwarded(eqn) for eqn in eqns)
    return {k: i for k, i in first.items() if all(other.get(k) == i for other in others)}


def _forwarded(eqn: Eqn) -> dict[int, int]:
    """Results of a call that are just one of its inputs: {result: input}."""
    closed = called_by(eqn) if eqn.primitive.name in ("jit", "pjit") else None
    if closed is None:
        return {}
    position = {v: i for i, v in enumerate(closed.jaxpr.invars)}
    return {
        k: position[v]
        for k, v in enumerate(closed.jaxpr.outvars)
        if not isinstance(v, Literal) and v in position
    }


def _signature(eqn: Eqn) -> tuple[Any, ...]:
    """The part of an equation that must be equal in every trace, down to component boundaries."""
    name = component_of(eqn)
    own = (eqn.primitive.name, name, len(eqn.invars), len(eqn.outvars), num_turns(eqn))
    if name is not None or not components_of(eqn):
        return own
    return (*own, tuple(_signature(e) for j in inner_jaxprs(eqn) for e in j.eqns))


def _refuse_structure(sizes: Sequence[Extent], all_eqns: Sequence[Sequence[Eqn]]) -> NoReturn:
    longest = max(len(eqns) for eqns in all_eqns)
    for i in range(longest):
        rows = [eqns[i] if i < len(eqns) else None for eqns in all_eqns]
        signatures = [None if e is None else _signature(e) for e in rows]
        if len(set(signatures)) > 1:
            seen = ", ".join(
                f"{_describe(eqn)} with {extent}" for extent, eqn in zip(sizes, rows, strict=True)
            )
            line = next(source_line(e) for e in rows if e is not None)
            other = next(e for e, s in zip(sizes, signatures, strict=True) if s != signatures[0])
            _refuse(f"at {line} it is {seen}", sizes[0], other)
    line = next((x for eqns in all_eqns for e in eqns if (x := source_line(e))), "")
    _refuse(f"at {line} other constants are used", sizes[0], sizes[-1])


def _refuse(what: str, first: Extent, other: Extent) -> NoReturn:
    """Refuses traces that are not one program."""
    if other.envs == first.envs:
        raise TraceError(
            f"the algorithm's structure depends on how many agents are here: {what}. Write it so "
            "that only shapes depend on env.teams; use env.total_teams for counts."
        )
    raise TraceError(
        f"the algorithm's structure depends on num_envs: {what}. Write it so that only shapes "
        "depend on env.num_envs; use env.per_env for counts."
    )


def _describe(eqn: Eqn | None) -> str:
    if eqn is None:
        return "nothing"
    length = num_turns(eqn)
    return f"{component_of(eqn) or eqn.primitive.name}{f' of length {length}' if length else ''}"


def _listing(components: frozenset[str], fragment_of: Callable[[str], str]) -> str:
    return ", ".join(f"{c} in {fragment_of(c)}" for c in sorted(components))
