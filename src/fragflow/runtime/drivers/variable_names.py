"""Names for the variables and functions of a driver: what they hold, and what they do."""

import builtins
import keyword
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeAlias

from fragflow.graph.ir import FDG, Loop, Program, Value, walk
from fragflow.graph.show import value_names
from fragflow.runtime.planning.message_pieces import incoming, outgoing
from fragflow.runtime.planning.plan import FragmentPlan

LONGEST = 40
"""characters of a name; of longer ones the last words are kept"""
LONGEST_PREFIX = 20
"""characters of a fragment's name in front"""

Key: TypeAlias = tuple[str, Hashable]
"""a fragment, and what of it has a name"""


def words_for(name: str, longest: int = LONGEST) -> str:
    """The last words of `name`, joined by underscores; empty if there are none."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    while words and words[0][0].isdigit():
        words.pop(0)
    while len(words) > 1 and len("_".join(words)) > longest:
        words.pop(0)
        while len(words) > 1 and words[0][0].isdigit():
            words.pop(0)
    return "_".join(words)[:longest]


def value_words(fdg: FDG, parts: Mapping[str, FragmentPlan]) -> dict[Value, str]:
    """For each value that a driver of these fragments can hold, what it is."""
    program = fdg.program
    # A value without a name of its own goes by its position in the program, which says nothing.
    names = {value: name for value, name in value_names(program).items() if name != value}
    words = {value: _word(name) for value, name in names.items()}
    words |= {value: words_for(name) for name, value in program.sources.items()}
    words |= dict.fromkeys((c.output for c in program.constants), "constant")
    words = {value: word or "value" for value, word in words.items()}
    words |= _words_of_loops(program, words)
    for part in parts.values():
        words |= {loop.counter: "step" for loop in part.loops}
        words |= dict.fromkeys(part.packed_avals, "rows")
    for transfer in fdg.transfers:
        for pieces_of in (outgoing, incoming):
            ends = zip(transfer.parcels, pieces_of(fdg, transfer), strict=True)
            for parcel, pieces in ends:
                word = words.get(parcel.value, "value")
                words |= {p: f"{word}_part_{k}" for k, p in enumerate(pieces) if p != parcel.value}
    return words


def _word(name: str) -> str:
    """What is said of a value, without the component that made it where its field says enough."""
    component, colon, field = name.partition(":")
    if not colon:
        return words_for(name)
    maker = "" if component.startswith("environment.") else component.rpartition(".")[2]
    return words_for(f"{maker}.{field}") if words_for(field) else words_for(component)


def _words_of_loops(program: Program, words: Mapping[Value, str]) -> dict[Value, str]:
    """Of a value that changes from step to step, the moment at which it is taken."""
    found: dict[Value, str] = {}
    if program.loop.counter is not None:
        found[program.loop.counter] = "iteration"
    for carry in program.loop.carries:
        found[carry.inside] = found[carry.init] = words.get(carry.inside, "value")
    for node in walk(program.loop.body):
        if isinstance(node, Loop):
            for carry in node.carries:
                word = words.get(carry.inside) or words.get(carry.init) or "value"
                found.setdefault(carry.init, f"{word}_first")
                found.setdefault(carry.inside, f"{word}_now")
                found.setdefault(carry.next, f"{word}_next")
                found.setdefault(carry.final, f"{word}_last")
            for stack in node.stacks:
                found.setdefault(stack.outside, f"{words.get(stack.outside, 'value')}_rows")
    for carry in program.loop.carries:
        found.setdefault(carry.next, f"{words.get(carry.inside, 'value')}_new")
    for stack in program.loop.stacks:
        found.setdefault(stack.element, words.get(stack.outside, "value"))
    return found


def component_words(components: Sequence[str]) -> str:
    """What a program of these components is called."""
    if not components:
        return "glue"
    if len(components) == 1:
        return words_for(components[0])
    owners = dict.fromkeys(component.partition(".")[0] for component in components)
    return words_for("_and_".join(words_for(owner) for owner in owners))


def unique_names(templates: Mapping[Key, str], reserved: Collection[str]) -> dict[Key, str]:
    """A name for each key: its template with nothing, or with the fragment's name, in `{}`.

    The fragment is said where two fragments would use the same name, a number where one would.
    """
    users: dict[str, set[str]] = {}
    for (fragment, _), template in templates.items():
        users.setdefault(template, set()).add(fragment)
    taken = {*reserved, *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    names: dict[Key, str] = {}
    for key, template in templates.items():
        owner = words_for(key[0], LONGEST_PREFIX) or "fragment"
        name = template.format(f"{owner}_" if len(users[template]) > 1 else "")
        if keyword.iskeyword(name) or hasattr(builtins, name):
            name = f"{name}_value"
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        names[key] = candidate
    return names
