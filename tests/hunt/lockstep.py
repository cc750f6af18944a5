"""Runs the programs of several replicas together, equation by equation, and reduces where they do.

Equations are computed by NumPy (numbers.py); what is not there is bound, and JAX compiles it once
for its shapes. In double precision every float is a float64, whatever the program's types say: then
what differs by more than 1e-9 is not the order of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragflow._jax import (
    Eqn,
    Literal,
    bind,
    branches_of,
    called_by,
    closed_jaxpr,
    contains_all_reduce,
    is_key,
    scan_of,
    while_of,
)
from hunt.in_numpy import TABLE

MAX_EQUATIONS = 20_000
"""that are computed one by one: loops that draw random numbers until some fit may take for ever"""


class TooLongError(RuntimeError):
    """A program cannot be computed equation by equation in a sensible time."""


Parts = list[list[Any]]
"""for each replica its values"""


@dataclass
class Lockstep:
    """How equations are computed."""

    double: bool = False
    rounded: set[str] = field(default_factory=set)
    """primitives that were computed in their own types, not in double precision"""
    left: int = MAX_EQUATIONS

    def run(self, closed: Any, parts: Sequence[Sequence[Any]]) -> Parts:
        """The results of every replica."""
        closed = closed_jaxpr(closed)
        consts = [self._given(c) for c in closed.consts]
        envs = [
            dict(zip(closed.jaxpr.constvars, consts, strict=True))
            | dict(zip(closed.jaxpr.invars, args, strict=True))
            for args in parts
        ]

        def read(env: dict[Any, Any], v: Any) -> Any:
            return self._given(v.val) if isinstance(v, Literal) else env[v]

        self.left -= len(closed.jaxpr.eqns)
        if self.left < 0:
            raise TooLongError("a program that takes too long")
        for eqn in closed.jaxpr.eqns:
            args = [[read(env, v) for v in eqn.invars] for env in envs]
            for env, results in zip(envs, self._equation(eqn, args), strict=True):
                env.update(zip(eqn.outvars, results, strict=True))
        return [[read(env, v) for v in closed.jaxpr.outvars] for env in envs]

    def _given(self, value: Any) -> Any:
        if hasattr(value, "dtype") and (is_key(value) or not self.double):
            return value
        array = np.asarray(value)  # a literal may be a number of Python's
        return array.astype(self._type(array.dtype))

    def _type(self, dtype: Any) -> Any:
        if self.double and jnp.issubdtype(dtype, jnp.floating):
            return np.dtype(np.float64)
        if self.double and jnp.issubdtype(dtype, jnp.complexfloating):
            return np.dtype(np.complex128)
        return dtype

    def _equation(self, eqn: Eqn, args: Parts) -> Parts:
        name = eqn.primitive.name
        if name == "all_reduce":
            results = [reduced(eqn.params["operation"], list(x)) for x in zip(*args, strict=True)]
            return [results] * len(args)
        called = called_by(eqn)
        if called is not None:
            return self.run(called, args)
        together = contains_all_reduce(eqn)
        if name == "scan":
            return self._scan(eqn, args)
        if name == "while":
            assert not together, "a loop of unknown length reduces over replicas"
            return [self._while(eqn, part) for part in args]
        if name == "cond":
            return self._cond(eqn, args, together)
        return [self._results(eqn, part) for part in args]

    def _results(self, eqn: Eqn, args: list[Any]) -> list[Any]:
        function = TABLE.get(eqn.primitive.name)
        if function is None or not all(map(_is_plain, (*eqn.invars, *eqn.outvars))):
            return self._bound(eqn, args)
        params = eqn.params
        if "new_dtype" in params:
            params = {**params, "new_dtype": self._type(params["new_dtype"])}
        try:
            results = function(params, *[np.asarray(a) for a in args])
        except NotImplementedError:
            return self._bound(eqn, args)
        results = results if eqn.primitive.multiple_results else [results]
        made = [
            np.asarray(r, self._type(v.aval.dtype))
            for r, v in zip(results, eqn.outvars, strict=True)
        ]
        shapes = [v.aval.shape for v in eqn.outvars]
        assert [m.shape for m in made] == shapes, f"{eqn} is of another shape than {made}"
        return made

    def _bound(self, eqn: Eqn, args: list[Any]) -> list[Any]:
        if not self.double:
            return bind(eqn, args)
        if any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.invars):
            self.rounded.add(eqn.primitive.name)
        down = [
            a if is_key(v.aval) else jnp.asarray(a, v.aval.dtype)
            for a, v in zip(args, eqn.invars, strict=True)
        ]
        return [self._given(r) for r in bind(eqn, down)]

    def _scan(self, eqn: Eqn, args: Parts) -> Parts:
        scan = scan_of(eqn)
        first = scan.consts + scan.carries
        carries = [part[scan.consts : first] for part in args]
        rows: list[Parts] = []
        order = range(scan.length)
        for t in reversed(order) if scan.reverse else order:
            given = [
                [*part[: scan.consts], *carry, *(x[t] for x in part[first:])]
                for part, carry in zip(args, carries, strict=True)
            ]
            out = self.run(scan.body, given)
            carries = [o[: scan.carries] for o in out]
            rows.append([o[scan.carries :] for o in out])
        if scan.reverse:
            rows.reverse()
        made = eqn.outvars[scan.carries :]
        if not rows:
            empty = [np.zeros(v.aval.shape, self._type(v.aval.dtype)) for v in made]
            return [[*carry, *empty] for carry in carries]
        return [
            [*carry, *(_stacked([row[r][i] for row in rows]) for i in range(len(made)))]
            for r, carry in enumerate(carries)
        ]

    def _while(self, eqn: Eqn, args: list[Any]) -> list[Any]:
        loop = while_of(eqn)
        tests = args[: loop.test_consts]
        consts = args[loop.test_consts : loop.test_consts + loop.consts]
        carry = args[loop.test_consts + loop.consts :]
        while True:
            going = np.asarray(self.run(loop.test, [[*tests, *carry]])[0][0])
            if not going.any():
                return list(carry)
            new = self.run(loop.body, [[*consts, *carry]])[0]
            # With a condition per row, those that have ended stay as they are.
            carry = [_chosen(going, n, c) for n, c in zip(new, carry, strict=True)]

    def _cond(self, eqn: Eqn, args: Parts, together: bool) -> Parts:
        branches = branches_of(eqn)
        which = [min(max(int(np.asarray(p[0])), 0), len(branches) - 1) for p in args]
        if together:
            assert len(set(which)) == 1, "replicas reduce in different branches"
            return self.run(branches[which[0]], [p[1:] for p in args])
        return [self.run(branches[w], [p[1:]])[0] for w, p in zip(which, args, strict=True)]


def reduced(operation: str, parts: list[Any]) -> Any:
    """What `all_...` gives to every replica."""
    stacked = np.stack([np.asarray(p) for p in parts])
    # A mean of whole numbers is that of equal ones, in a run too: their sum may wrap around.
    if operation == "max" or (operation == "mean" and stacked.dtype.kind in "biu"):
        return stacked.max(0)
    total = stacked.sum(0, dtype=stacked.dtype)
    return total if operation == "sum" else np.asarray(total / len(parts)).astype(stacked.dtype)


def _is_plain(variable: Any) -> bool:
    """Whether NumPy calculates with values of this type as JAX does."""
    aval = variable.aval
    return hasattr(aval, "dtype") and not is_key(aval) and aval.dtype.kind in "biufc"


def _stacked(rows: list[Any]) -> Any:
    if is_key(rows[0]):
        return jnp.stack(rows)
    return np.stack([np.asarray(r) for r in rows])


def _chosen(going: np.ndarray, new: Any, old: Any) -> Any:
    if going.ndim == 0 or is_key(new):
        return new
    shape = (*going.shape, *(1,) * (np.ndim(new) - going.ndim))
    return np.where(going.reshape(shape), np.asarray(new), np.asarray(old))


def as_parts(value: Any, replicas: int, is_sized: bool) -> list[Any]:
    """What each replica has of a value of the whole: its rows, or the same."""
    if not is_sized:
        return [value] * replicas
    if is_key(value):
        return [jax.numpy.split(value, replicas)[i] for i in range(replicas)]
    return np.split(np.asarray(value), replicas)
