"""Writes the Python function that drives the fragments of one thread.

Values become local variables named after what they hold, compiled programs calls, loops `for`
statements, and a message between two fragments of the thread an assignment: at run time nothing is
looked up or decided.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from fragflow.graph.ir import FDG, Transfer, Value
from fragflow.runtime.drivers.interleave import Block, DriverStep, SharedLoop, thread_order
from fragflow.runtime.drivers.variable_names import (
    LONGEST_PREFIX,
    Key,
    component_words,
    unique_names,
    value_words,
    words_for,
)
from fragflow.runtime.drivers.wrap_lines import (
    Group,
    Part,
    Slot,
    Statement,
    filled_in,
    lines_of,
)
from fragflow.runtime.planning.instructions import (
    Ask,
    Get,
    Keep,
    Message,
    Put,
    Run,
    RunOutOfOrder,
    Work,
)
from fragflow.runtime.planning.message_pieces import incoming, outgoing
from fragflow.runtime.planning.plan import FragmentPlan, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSource:
    """A function `drive(first, start, count) -> (metrics, last, handed)` as text, and its names.

    `handed` has, for each message within the thread, the number of times it was handed over, and
    its arrays.
    """

    text: str
    fragments: tuple[str, ...]
    functions: Mapping[str, tuple[str, Work | Message]]
    """by name, the (fragment, instruction) of each function that it calls"""
    numbers: Mapping[str, str]
    """by name, the fragment of each function that makes an iteration's number a value"""
    doing: Mapping[int, tuple[str, Work | Message]]
    """by line, the (fragment, instruction) that it carries out"""
    first: Mapping[str, tuple[str, Value]]
    """by variable, the (fragment, value) that the function takes and returns"""
    steps: Mapping[str, Sequence[tuple[str, int]]]
    """by variable, the (fragment, loop) pairs whose step numbers it holds, after the row number"""
    rows: Mapping[str, tuple[str, Value]]
    """by name, the (fragment, value) of each function that makes the array for rows of the host"""


def fragments_by_thread(fdg: FDG, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Groups the fragments whose workers share a thread.

    Fragments of one replica that share a device take turns: separate threads would only cost time.
    Those with devices of their own work at the same time, and all do if messages are late: then
    each has its own thread.
    """
    if fdg.delays or not plan.optimisations.share_threads:
        return tuple((name,) for name in fdg.fragments)
    single = [f for f in fdg.fragments.values() if f.replicas == 1 and not f.own_devices]
    together = [f.name for f in single if not plan.parts[f.name].fused]
    if len({f.device for f in single}) > 1:
        together = []
    alone = tuple((name,) for name in fdg.fragments if name not in together)
    return (*alone, tuple(together)) if together else alone


def generate(fdg: FDG, plan: Plan, fragments: Sequence[str]) -> DriverSource:
    """Generates the source of one thread, which drives `fragments`."""
    parts = {f: plan.parts[f] for f in fragments}
    writer = _Writer(fdg, parts, value_words(fdg, parts))
    return writer.script(thread_order(fdg, plan, fragments))


def render(fdg: FDG, plan: Plan) -> str:
    """The sources of all threads, for people to read."""
    texts = []
    for team in fragments_by_thread(fdg, plan):
        threads = " + ".join(f"{name} x{fdg.fragments[name].replicas}" for name in team)
        is_program = plan.parts[team[0]].fused
        body = "# one compiled program\n" if is_program else generate(fdg, plan, team).text
        texts.append(f"# {threads}\n{body}")
    return "\n".join(texts)


def _flat(names: Sequence[Sequence[Value]]) -> list[Value]:
    return [name for pieces in names for name in pieces]


def identifier(name: str) -> str:
    """`name` as a part of a variable's name."""
    return "".join(c if c.isalnum() else "_" for c in name)


@dataclass(frozen=True, slots=True)
class _Written:
    """A statement in its place."""

    statement: Statement
    depth: int
    comment: str = ""
    doing: tuple[str, Work | Message] | None = None


@dataclass(slots=True)
class _Writer:
    fdg: FDG
    parts: Mapping[str, FragmentPlan]
    words: Mapping[Value, str]
    """by value, what it is"""
    body: list[_Written] = field(default_factory=list)
    templates: dict[Key, str] = field(default_factory=dict)
    """by what has a name in the source, how it is made (`unique_names`)"""
    variables: dict[tuple[str, Value], Slot] = field(default_factory=dict)
    functions: dict[Slot, tuple[str, Work | Message]] = field(default_factory=dict)
    numbers: dict[Slot, str] = field(default_factory=dict)
    steps: dict[Slot, list[tuple[str, int]]] = field(default_factory=dict)
    rows: dict[Slot, tuple[str, Value]] = field(default_factory=dict)
    row_numbers: dict[tuple[str, int], Slot] = field(default_factory=dict)
    handed: list[tuple[Slot, Slot]] = field(default_factory=list)
    """of each message within the thread, the variables for the number of times and the arrays"""

    def script(self, block: Block) -> DriverSource:
        kept = {f: self._lists(f) for f in self.parts}
        self._body(block, kept)
        first = {
            slot: (fragment, value)
            for (fragment, value), slot in self.variables.items()
            if value in self._known_before(fragment)
        }
        lists = [Group(tuple(slots), "[]") for slots in kept.values()]
        handed = tuple(_tuple(pair) for pair in self.handed)
        script = [
            _Written(("def drive(first, start, count):",), 0),
            _Written((_bare(tuple(first)), " = first"), 1),
            *(_Written((slot, " = []"), 1) for slots in kept.values() for slot in slots),
            *(_Written((times, ", ", message, " = 0, ()"), 1) for times, message in self.handed),
            _Written(("for index in range(start, start + count):",), 1),
            *self.body,
            _Written(
                ("return ", _bare((_tuple(lists), _tuple(tuple(first)), _tuple(handed)))),
                1,
            ),
        ]
        reserved = {"drive", "first", "start", "count", "index"}
        reserved |= {_spread(fragment) for fragment in self.parts}
        names: dict[Hashable, str] = {**unique_names(self.templates, reserved)}
        lines: list[str] = []
        doing: dict[int, tuple[str, Work | Message]] = {}
        for written in script:
            statement = tuple(filled_in(part, names) for part in written.statement)
            made = lines_of(statement, written.depth, written.comment)
            if written.doing is not None:
                doing |= {len(lines) + 1 + k: written.doing for k in range(len(made))}
            lines += made
        return DriverSource(
            text="\n".join([*lines, ""]),
            fragments=tuple(self.parts),
            functions={names[slot.key]: what for slot, what in self.functions.items()},
            numbers={names[slot.key]: fragment for slot, fragment in self.numbers.items()},
            doing=doing,
            first={names[slot.key]: place for slot, place in first.items()},
            steps={names[slot.key]: loops for slot, loops in self.steps.items()},
            rows={names[slot.key]: place for slot, place in self.rows.items()},
        )

    def _lists(self, fragment: str) -> list[Slot]:
        """The lists in which a fragment keeps what its iterations return."""
        stacks = self.parts[fragment].fragment.loop.stacks
        return [
            self._named((fragment, ("kept", stack.outside)), "kept_{}" + self._word(stack.outside))
            for stack in stacks
        ]

    def _known_before(self, fragment: str) -> set[Value]:
        """The values that a fragment has before its first iteration."""
        known = {constant.output for constant in self.parts[fragment].fragment.constants}
        known |= set(self.fdg.program.sources.values())
        for carry in self.parts[fragment].fragment.loop.carries:
            known |= {carry.init, carry.inside}
        return known

    def _body(self, block: Block, kept: Mapping[str, Sequence[Slot]]) -> None:
        for fragment, part in self.parts.items():
            counter = part.fragment.loop.counter
            if counter is not None:
                number = self._named((fragment, "number"), "place_{}number")
                self.numbers[number] = fragment
                self._add(0, self._variable(fragment, counter), " = ", number, "(index)")
        self._block(block, 0)
        for fragment, part in self.parts.items():
            loop = part.fragment.loop
            for slot, stack in zip(kept[fragment], loop.stacks, strict=True):
                element = self._variable(fragment, stack.element)
                self._add(0, slot, ".append", Group((element,)))
            self._assign(fragment, [(c.inside, c.next) for c in loop.carries], 0)

    def _block(self, block: Block, depth: int) -> None:
        for item in block:
            if isinstance(item, SharedLoop):
                self._loop(item, depth)
            else:
                self._step(item, depth)

    def _loop(self, shared: SharedLoop, depth: int) -> None:
        plans = {f: self.parts[f].loops[index] for f, index in shared.loops.items()}
        for fragment, plan in plans.items():
            self._assign(fragment, plan.entry, depth)
            for row in plan.rows:
                word = self._word(row.outside)
                function = self._named((fragment, ("room", row.outside)), "room_for_{}" + word)
                self.rows[function] = (fragment, row.outside)
                self._add(depth, self._variable(fragment, row.outside), " = ", function, "()")
        number = len(self.steps)
        steps = self._named(("", ("steps", number)), "steps")
        row_number = self._named(("", ("row", number)), "row")
        self.steps[steps] = list(shared.loops.items())
        self.row_numbers |= dict.fromkeys(shared.loops.items(), row_number)
        counters = [self._variable(f, plan.counter) for f, plan in plans.items()]
        self._add(depth, "for ", _bare((row_number, *counters)), " in ", steps, ":")
        self._block(shared.body, depth + 1)
        for fragment, plan in plans.items():
            self._assign(fragment, plan.step, depth + 1)
        for fragment, plan in plans.items():
            self._assign(fragment, plan.exit, depth)
            for row in plan.rows if self.parts[fragment].fragment.group else ():
                rows = self._variable(fragment, row.outside)
                self._add(depth, rows, " = ", _spread(fragment), Group((rows,)))

    def _step(self, step: DriverStep, depth: int) -> None:
        fragment, instruction = step.fragment, step.instruction
        part = self.parts[fragment]
        match instruction:
            case Run():
                segment = part.segments[instruction.segment]
                verb = "run_{}" + component_words(segment.components)
                line = self._call(step, verb, segment.outputs, segment.inputs)
            case Ask():
                call = part.host_calls[instruction.call]
                verb = "ask_{}" + words_for(call.method)
                line = self._call(step, verb, call.outputs, call.inputs)
            case RunOutOfOrder():
                loop = part.out_of_order[instruction.out_of_order]
                line = self._call(step, "run_{}out_of_order", loop.outputs, loop.inputs)
            case Keep():
                stack = part.loops[instruction.loop].rows[instruction.row]
                row = self.row_numbers[fragment, instruction.loop]
                rows = self._variable(fragment, stack.outside)
                element = Group((self._variable(fragment, stack.element),), is_bare=True)
                line = (rows, "[", row, "] = ", element)
            case Put():
                transfer = instruction.transfer
                if transfer.target in self.parts:
                    return  # the receiving fragment's instruction assigns it
                verb = f"send_{self._number(transfer)}_to_{_owner(transfer.target)}"
                line = self._call(step, verb, (), _flat(outgoing(self.fdg, transfer)))
            case Get():
                transfer = instruction.transfer
                targets = _flat(incoming(self.fdg, transfer))
                if transfer.source in self.parts:
                    line = self._hand_over(fragment, transfer, targets, depth)
                else:
                    verb = f"receive_{self._number(transfer)}_from_{_owner(transfer.source)}"
                    line = self._call(step, verb, targets, ())
        self.body.append(
            _Written(line, depth + 2, self._comment(fragment, instruction), (fragment, instruction))
        )

    def _hand_over(
        self, fragment: str, transfer: Transfer, targets: Sequence[Value], depth: int
    ) -> Statement:
        """Counts a message within the thread; the assignment that delivers it."""
        number = self._number(transfer)
        times = self._named(("", ("times", transfer.name)), f"times_{number}")
        message = self._named(("", ("message", transfer.name)), f"message_{number}")
        self.handed.append((times, message))
        self._add(depth, times, " += 1")
        sources = self._variables(transfer.source, _flat(outgoing(self.fdg, transfer)))
        received = self._variables(fragment, targets)
        return (_bare(received), " = ", message, " = ", _bare(sources))

    def _number(self, transfer: Transfer) -> int:
        """The number of a message, as in its name."""
        return [t.name for t in self.fdg.transfers].index(transfer.name) + 1

    def _comment(self, fragment: str, instruction: Work | Message) -> str:
        match instruction:
            case Run(segment):
                components = ", ".join(self.parts[fragment].segments[segment].components)
                return f"{fragment}/{segment}: {components or 'glue'}"
            case Ask(call):
                return f"{fragment}: {', '.join(self.parts[fragment].host_calls[call].components)}"
            case RunOutOfOrder(out_of_order):
                loop = self.parts[fragment].out_of_order[out_of_order]
                components = sorted({*loop.before.components, *loop.call.components})
                return f"{fragment}: the first that answer: {', '.join(components)}"
            case Keep():
                return "collected on the host"
            case Put(transfer) | Get(transfer):
                return f"message {transfer.name}"

    def _call(
        self,
        step: DriverStep,
        verb: str,
        outputs: Sequence[Value | None],
        inputs: Sequence[Value],
    ) -> Statement:
        function = self._named((step.fragment, step.instruction), verb)
        self.functions[function] = (step.fragment, step.instruction)
        call = (function, Group(self._variables(step.fragment, inputs)))
        if not outputs:
            return call
        return (_bare(self._variables(step.fragment, outputs)), " = ", *call)

    def _assign(self, fragment: str, pairs: Sequence[tuple[Value, Value]], depth: int) -> None:
        pairs = [(target, source) for target, source in pairs if target != source]
        if pairs:
            left, right = (self._variables(fragment, side) for side in zip(*pairs, strict=True))
            is_tuple = len(pairs) > 1
            sides = [Group(side, is_tuple=is_tuple, is_bare=True) for side in (left, right)]
            self._add(depth, sides[0], " = ", sides[1])

    def _variables(self, fragment: str, values: Sequence[Value | None]) -> tuple[Part, ...]:
        return tuple("_" if v is None else self._variable(fragment, v) for v in values)

    def _variable(self, fragment: str, value: Value) -> Slot:
        slot = self._named((fragment, value), "{}" + self._word(value))
        return self.variables.setdefault((fragment, value), slot)

    def _word(self, value: Value) -> str:
        return self.words.get(value, "value")

    def _named(self, key: Key, template: str) -> Slot:
        self.templates.setdefault(key, template)
        return Slot(key)

    def _add(self, depth: int, *statement: Part) -> None:
        self.body.append(_Written(statement, depth + 2))


def _owner(fragment: str) -> str:
    return words_for(fragment, LONGEST_PREFIX) or "fragment"


def _spread(fragment: str) -> str:
    """The function that makes rows of the host a value of a group."""
    return f"spread_{identifier(fragment)}"


def _tuple(items: Sequence[Part]) -> Group:
    return Group(tuple(items), is_tuple=True)


def _bare(items: Sequence[Part]) -> Group:
    return Group(tuple(items), is_tuple=True, is_bare=True)
