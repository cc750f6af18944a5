"""Finds calls that XLA's CPU compiler gets wrong: the same buffer as two operands.

Inside a call that is not inlined, XLA assumes that operands are different buffers. If one is read
out of order (reversed, gathered, transposed) while the result is written over the other, and both
are the same buffer, the result is wrong. It is rare, because operands are the same only if they are
computed alike; where it can happen, components are inlined instead.
"""

import re

_DEFINITION = re.compile(r"^\s*(?:ROOT )?(%[\w.\-]+) = \S+.*? (\S+?)\((.*)$")
_NAME = re.compile(r"%[\w.\-]+")
_VIEWS = ("bitcast", "reshape", "copy-done", "optimization-barrier")


def has_call_with_shared_operands(hlo: str) -> bool:
    """Whether some call in an optimised program gets one buffer twice."""
    origin: dict[str, str] = {}
    operands: list[str]
    for line in hlo.splitlines():
        if line and not line[0].isspace():
            origin = {}  # a new computation
            continue
        found = _DEFINITION.match(line)
        if found is None:
            continue
        name, opcode, rest = str(found[1]), found[2], str(found[3])
        operands = _NAME.findall(rest.split(")", 1)[0])
        if opcode in _VIEWS and len(operands) == 1:
            origin[name] = origin.get(operands[0], operands[0])
        if opcode == "get-tuple-element":
            index = "".join(re.findall(r"index=(\d+)", rest)[:1])
            origin[name] = f"{origin.get(operands[0], operands[0])}[{index}]"
        if opcode == "call":
            buffers = [origin.get(operand, operand) for operand in operands]
            if len(set(buffers)) < len(buffers):
                return True
    return False
