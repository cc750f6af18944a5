"""Renders a graph: as text, as a Mermaid picture, or as JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fragflow._jax import plain_aval, result_name
from fragflow.errors import ConfigError, unknown
from fragflow.graph.analyses.replaceable import Recovery, kept_bytes, recovery_of
from fragflow.graph.ir import FDG, Fragment, Loop, Op, Parcel, Program, Transfer, Value, walk
from fragflow.graph.passes.collectives import crossings, parcel_bytes, transfer_bytes
from fragflow.policies.policy import Over

Format = Literal["text", "mermaid", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


Picks = Mapping[str, Mapping[str, str]]
"""by fragment, for each kernel or component: the name of its implementation"""


def render(
    fdg: FDG, format: Format = "text", title: str = "", implementations: Picks | None = None
) -> str:
    """The graph in one of the `FORMATS`, with the implementations that fragments use."""
    renderers: dict[str, Callable[[FDG, str, Picks], str]]
    renderers = {"text": _text, "mermaid": _mermaid, "json": _json}
    if format not in renderers:
        raise ConfigError(unknown("format", format, FORMATS))
    return renderers[format](fdg, title, implementations or {})


def value_names(program: Program) -> Mapping[Value, str]:
    """A name for each value: the state leaf it becomes, or the component it comes from."""
    names: dict[Value, str] = dict(program.labels)
    nodes = list(walk((program.loop,)))
    for node in nodes:
        if isinstance(node, Op):
            for k, value in enumerate(node.outputs):
                if value is not None:
                    names.setdefault(value, result_name(node.eqn, k))
    for node in nodes:
        if isinstance(node, Loop):
            for carry in node.carries:
                if node is program.loop:
                    names[carry.next] = program.labels[carry.inside]
                else:
                    names.setdefault(carry.final, names.get(carry.next, carry.next))
            for slice_ in node.slices:
                names.setdefault(slice_.inside, names.get(slice_.outside, slice_.outside))
    # A loop's result is named as its body's; the training loop's names come first.
    loops = [node for node in nodes if isinstance(node, Loop) and node is not program.loop]
    for loop in loops:
        for carry in loop.carries:
            if carry.final in names and carry.next in names:
                names[carry.next] = names[carry.final]
            names.setdefault(carry.inside, names.get(carry.next, carry.inside))
    for loop in reversed(loops):  # what an outer loop collects, an inner one may have collected
        for stack in loop.stacks:
            names.setdefault(stack.outside, names.get(stack.element, stack.element))
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One value of a message, as it is shown."""

    name: str
    type: str
    collective: str
    bytes: int


def _lines(fdg: FDG, transfer: Transfer, names: Mapping[Value, str]) -> list[_Line]:
    program = fdg.program
    over = fdg.fragments[transfer.source].over, fdg.fragments[transfer.target].over
    return [
        _Line(
            name=names.get(parcel.value, parcel.value),
            type=_type(program, parcel, over),
            collective=parcel.collective,
            bytes=parcel_bytes(fdg, transfer, parcel),
        )
        for parcel in transfer.parcels
    ]


def _type(program: Program, parcel: Parcel, over: tuple[Over, Over]) -> str:
    aval = plain_aval(program.avals[program.extent][parcel.value])
    dims = [str(d) for d in aval.shape]
    for axis, what in zip((parcel.join, parcel.cut), over, strict=True):
        if axis is not None:
            dims[axis] += " envs" if what == "environments" else " agents"
    return f"{aval.dtype}[{', '.join(dims)}]"


def _size(count: int) -> str:
    for unit, factor in (("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _heading(fdg: FDG, title: str) -> str:
    synchronised = "" if fdg.synchronisation == "lockstep" else f" · {fdg.synchronisation}"
    each = f" with each of {fdg.workers} workers" if fdg.workers > 1 else ""
    return (
        f"{title + ' · ' if title else ''}policy {fdg.policy}{synchronised} · "
        f"{fdg.program.num_envs} environments{each}"
    )


def fragment_label(fragment: Fragment) -> str:
    """A fragment, its replicas and the device they run on."""
    return f"{fragment.name} ×{fragment.replicas} @{fragment.device}"


def _text(fdg: FDG, title: str, implementations: Picks) -> str:
    names = value_names(fdg.program)
    times = crossings(fdg)
    out = [_heading(fdg, title)]
    for fragment in fdg.fragments.values():
        out += ["", f"fragment {fragment_label(fragment)}"]
        each = " each" if fragment.replicas > 1 else ""
        some = (
            f", a part in {fragment.replicas} of their agents" if fragment.over == "agents" else ""
        )
        out.append(f"  holds       {fragment.num_envs} environments{some}{each}")
        if fragment.first is not None:
            out.append(f"  acts on     the first {fragment.first} of them that have answered")
        out.append(f"  components  {', '.join(fragment.components)}")
        if implementations.get(fragment.name):
            out.append(f"  computes    {_ways(implementations[fragment.name])}")
        if fragment.asked_replicas != fragment.replicas:
            out.append(f"  fused       from {fragment.asked_replicas} replicas that share a place")
        if fragment.name == fdg.server:
            out.append("  server      handles each worker's message as it comes")
        if fragment.group:
            out.append("  group       replicas reduce among themselves, as one program over a mesh")
        way = recovery_of(fdg, fragment)
        if way is not None and fragment.replicas * fdg.workers > 1:
            out.append(f"  when lost   {_way_back(fdg, fragment, way)}")
        for heading, ours in (("entry", "target"), ("exit", "source")):
            for transfer in fdg.transfers:
                if getattr(transfer, ours) == fragment.name:
                    other = transfer.source if ours == "target" else transfer.target
                    word = "from" if ours == "target" else "to"
                    out.append(f"  {heading:10}  {transfer.name}, {word} {other}")
    for transfer in fdg.transfers:
        source, target = fdg.fragments[transfer.source], fdg.fragments[transfer.target]
        size = transfer_bytes(fdg, transfer)
        crossing = times[transfer.name]
        out += [
            "",
            f"message {transfer.name}: {source.name} ×{source.replicas} → {target.name} "
            f"×{target.replicas}, {crossing} per iteration, {_size(size)} each, "
            f"{_size(size * crossing)} per iteration{_lateness(fdg, transfer)}",
        ]
        rows = _lines(fdg, transfer, names)
        width = max(len(row.type) for row in rows)
        out += [
            f"  {row.collective:12} {row.type:{width}}  {_size(row.bytes):>9}  {row.name}"
            for row in rows
        ]
    total = sum(transfer_bytes(fdg, t) * times[t.name] for t in fdg.transfers)
    if fdg.transfers:
        count = sum(times[t.name] for t in fdg.transfers)
        out += ["", f"in all {count} crossings and {_size(total)} per iteration"]
    else:
        out += ["", "one program, no messages"]
    return "\n".join(out) + "\n"


def _ways(chosen: Mapping[str, str]) -> str:
    return ", ".join(f"{name} by {how}" for name, how in chosen.items())


def _way_back(fdg: FDG, fragment: Fragment, way: Recovery) -> str:
    each = " each" if fragment.replicas > 1 else ""
    if way == "replay":
        return f"replayed, from {_size(kept_bytes(fdg, fragment))}{each} kept after every iteration"
    return "restarted, with new episodes"


def _lateness(fdg: FDG, transfer: Transfer) -> str:
    lag = fdg.delays.get(transfer.name, 0)
    return f", {lag} iteration{'s' * (lag > 1)} late" if lag else ""


def _mermaid(fdg: FDG, title: str, _: Picks) -> str:
    times = crossings(fdg)
    ids = {name: f"f{i}" for i, name in enumerate(fdg.fragments)}
    out = ["---", f"title: {_heading(fdg, title)}", "---", "flowchart LR"]
    for name, fragment in fdg.fragments.items():
        components = "<br/>".join(fragment.components)
        out.append(f'  {ids[name]}["<b>{fragment_label(fragment)}</b><br/>{components}"]')
    for transfer in fdg.transfers:
        kinds = ", ".join(dict.fromkeys(p.collective for p in transfer.parcels))
        crossing = times[transfer.name]
        size = _size(transfer_bytes(fdg, transfer))
        label = f"{kinds}<br/>{len(transfer.parcels)} values, {size}<br/>{crossing} per iteration"
        label += _lateness(fdg, transfer)
        out.append(f'  {ids[transfer.source]} -->|"{label}"| {ids[transfer.target]}')
    return "\n".join(out) + "\n"


def _json(fdg: FDG, title: str, implementations: Picks) -> str:
    names = value_names(fdg.program)
    times = crossings(fdg)
    data: dict[str, Any] = {
        "title": title,
        "policy": fdg.policy,
        "num_envs": fdg.program.num_envs,
        "fragments": [
            {
                "name": f.name,
                "components": list(f.components),
                "replicas": f.replicas,
                "asked_replicas": f.asked_replicas,
                "device": f.device,
                "num_envs": f.num_envs,
                "over": f.over,
                "group": f.group,
                "when_lost": recovery_of(fdg, f),
                "kept_bytes": kept_bytes(fdg, f) if recovery_of(fdg, f) == "replay" else 0,
                "implementations": dict(implementations.get(f.name, {})),
                "entries": [t.name for t in fdg.transfers if t.target == f.name],
                "exits": [t.name for t in fdg.transfers if t.source == f.name],
            }
            for f in fdg.fragments.values()
        ],
        "messages": [
            {
                "name": t.name,
                "source": t.source,
                "target": t.target,
                "crossings_per_iteration": times[t.name],
                "bytes": transfer_bytes(fdg, t),
                "values": [
                    {
                        "name": row.name,
                        "type": row.type,
                        "collective": row.collective,
                        "bytes": row.bytes,
                    }
                    for row in _lines(fdg, t, names)
                ],
            }
            for t in fdg.transfers
        ],
    }
    if fdg.synchronisation != "lockstep":
        data["synchronisation"] = {
            "kind": fdg.synchronisation,
            "late_messages": dict(fdg.delays),
            "server": fdg.server,
            "workers": fdg.workers,
        }
    return json.dumps(data, indent=2) + "\n"
