"""A hash of a graph: of all it computes, constants included, and of how it is cut."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from fragflow._jax import (
    ClosedJaxpr,
    Eqn,
    Literal,
    calls_back,
    constants_of,
    is_key,
    raw_key,
)
from fragflow.graph.ir import FDG, Constant, Loop, Node, Op, Receive, Send, walk

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(fdg: FDG) -> str | None:
    """A graph's hash, equal in every process; None if it calls Python, which may do anything."""
    nodes = [*fdg.program.constants, *walk((fdg.program.loop,))]
    if any(isinstance(n, Op) and calls_back(n.eqn) for n in nodes):
        return None
    digest = hashlib.sha256()
    for node in nodes:
        for words in _words(node):
            digest.update(words)
            digest.update(b"\0")
    for name, fragment in sorted(fdg.fragments.items()):
        digest.update(f"{name} {fragment.replicas} {fragment.over} {fragment.extent}\n".encode())
        for node in walk((fragment.loop,)):
            digest.update(f"{_place(node)}\n".encode())
    return digest.hexdigest()


def of_programs(programs: Iterable[ClosedJaxpr]) -> str | None:
    """The hash of programs alone; None if they call Python."""
    digest = hashlib.sha256()
    for closed in programs:
        if any(map(calls_back, closed.jaxpr.eqns)):
            return None
        digest.update(_ADDRESS.sub("", str(closed.jaxpr)).encode())
        for constant in closed.consts:
            for words in _array(constant):
                digest.update(words)
        for eqn in closed.jaxpr.eqns:
            for words in _equation(eqn):
                digest.update(words)
    return digest.hexdigest()


def _place(node: Node) -> str:
    """A node of a fragment in words: what it does of the program there."""
    match node:
        case Send() | Receive():
            transfer = node.transfer
            parcels = [tuple(asdict(p).values()) for p in transfer.parcels]
            ends = f"{transfer.source} {transfer.target} {transfer.crossed}"
            return f"{type(node).__name__} {transfer.name} {ends} {parcels}"
        case Loop():
            kept = [c.inside for c in node.carries], [s.outside for s in node.stacks]
            return f"loop {node.path} {kept}"
        case Op():
            return node.path
        case _:
            return type(node).__name__


def _words(node: Node) -> Iterator[bytes]:
    match node:
        case Op():
            yield f"{node.path} {node.inputs} {node.outputs}".encode()
            for extent, eqn in node.eqns.items():
                yield str(extent).encode()
                yield from _equation(eqn)
        case Constant():
            yield node.output.encode()
            for array in node.arrays.values():
                yield from _array(array)
        case Loop():
            yield f"{node.path} {node.length} {node.reverse} {node.carries} {node.slices}".encode()
            yield f"{node.stacks}".encode()
        case _:
            yield repr(node).encode()


def _equation(eqn: Eqn) -> Iterator[bytes]:
    """An equation as JAX prints it, with all that is inside, and its constants' numbers."""
    yield _ADDRESS.sub("", str(eqn)).encode()
    for variable in eqn.invars:
        if isinstance(variable, Literal):
            yield from _array(variable.val)
    for constant in constants_of(eqn):
        yield from _array(constant)


def _array(value: Any) -> Iterator[bytes]:
    plain = np.asarray(raw_key(value) if hasattr(value, "dtype") and is_key(value) else value)
    yield f"{plain.dtype} {plain.shape}".encode()
    yield plain.tobytes()
