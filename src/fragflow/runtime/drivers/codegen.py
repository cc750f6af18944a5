"""Writes the Python function that drives the fragments of one thread.

Values become local variables, compiled programs calls, loops `for` statements, and a message
between two fragments of the thread an assignment: at run time nothing is looked up or decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fragflow.graph.ir import FDG, Value
from fragflow.runtime.drivers.interleave import Block, DriverStep, SharedLoop, thread_order
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

    Fragments of one replica on one device take turns: separate threads would only cost time. If
    messages are late, fragments work at the same time, and each has its own thread.
    """
    if fdg.delays:
        return tuple((name,) for name in fdg.fragments)
    single = [f for f in fdg.fragments.values() if f.replicas == 1]
    together = [f.name for f in single if not plan.parts[f.name].fused]
    if len({f.device for f in single}) > 1:
        together = []
    alone = tuple((name,) for name in fdg.fragments if name not in together)
    return (*alone, tuple(together)) if together else alone


def generate(fdg: FDG, plan: Plan, fragments: Sequence[str]) -> DriverSource:
    """Generates the source of one thread, which drives `fragments`."""
    writer = _Writer(fdg, {f: plan.parts[f] for f in fragments})
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


@dataclass(slots=True)
class _Writer:
    fdg: FDG
    parts: Mapping[str, FragmentPlan]
    lines: list[str] = field(default_factory=list)
    functions: dict[str, tuple[str, Work | Message]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    doing: dict[int, tuple[str, Work | Message]] = field(default_factory=dict)
    steps: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    rows: dict[str, tuple[str, Value]] = field(default_factory=dict)
    row_numbers: dict[tuple[str, int], str] = field(default_factory=dict)
    variables: dict[tuple[str, Value], str] = field(default_factory=dict)
    messages: int = 0
    """within the thread"""

    def script(self, block: Block) -> DriverSource:
        body = self._body(block)
        first = {
            variable: (fragment, value)
            for (fragment, value), variable in self.variables.items()
            if value in self._known_before(fragment)
        }
        kept = {
            f: [f"{identifier(f)}_kept_{k}" for k, _ in enumerate(part.fragment.loop.stacks)]
            for f, part in self.parts.items()
        }
        head = [
            "def drive(first, start, count):",
            f"    ({''.join(f'{variable}, ' for variable in first)}) = first",
            *(f"    {variable} = []" for names in kept.values() for variable in names),
            *(f"    times_{k}, message_{k} = 0, ()" for k in range(self.messages)),
            "    for index in range(start, start + count):",
        ]
        results = "".join(f"[{', '.join(names)}], " for names in kept.values())
        handed = "".join(f"(times_{k}, message_{k}), " for k in range(self.messages))
        tail = [f"    return ({results}), ({''.join(f'{v}, ' for v in first)}), ({handed})"]
        return DriverSource(
            text="\n".join([*head, *(f"        {line}" for line in body), *tail, ""]),
            fragments=tuple(self.parts),
            functions=self.functions,
            numbers=self.numbers,
            doing={number + len(head): what for number, what in self.doing.items()},
            first=first,
            steps=self.steps,
            rows=self.rows,
        )

    def _known_before(self, fragment: str) -> set[Value]:
        """The values that a fragment has before its first iteration."""
        known = {constant.output for constant in self.parts[fragment].fragment.constants}
        known |= set(self.fdg.program.sources.values())
        for carry in self.parts[fragment].fragment.loop.carries:
            known |= {carry.init, carry.inside}
        return known

    def _body(self, block: Block) -> list[str]:
        for fragment, part in self.parts.items():
            counter = part.fragment.loop.counter
            if counter is not None:
                number = f"number_{len(self.numbers)}"
                self.numbers[number] = fragment
                self._add(0, f"{self._name(fragment, counter)} = {number}(index)")
        self._block(block, 0)
        for fragment, part in self.parts.items():
            loop = part.fragment.loop
            for k, stack in enumerate(loop.stacks):
                kept = f"{identifier(fragment)}_kept_{k}"
                self._add(0, f"{kept}.append({self._name(fragment, stack.element)})")
            self._assign(fragment, [(c.inside, c.next) for c in loop.carries], 0)
        return self.lines

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
                function = f"rows_{len(self.rows)}_{identifier(fragment)}"
                self.rows[function] = (fragment, row.outside)
                self._add(depth, f"{self._name(fragment, row.outside)} = {function}()")
        number = len(self.steps)
        steps, row_number = f"steps_{number}", f"row_{number}"
        self.steps[steps] = list(shared.loops.items())
        self.row_numbers |= dict.fromkeys(shared.loops.items(), row_number)
        counters = ", ".join(self._name(f, plan.counter) for f, plan in plans.items())
        self._add(depth, f"for {row_number}, {counters} in {steps}:")
        self._block(shared.body, depth + 1)
        for fragment, plan in plans.items():
            self._assign(fragment, plan.step, depth + 1)
        for fragment, plan in plans.items():
            self._assign(fragment, plan.exit, depth)
            for row in plan.rows if self.parts[fragment].fragment.group else ():
                name = self._name(fragment, row.outside)
                self._add(depth, f"{name} = spread_{identifier(fragment)}({name})")

    def _step(self, step: DriverStep, depth: int) -> None:
        fragment, instruction = step.fragment, step.instruction
        match instruction:
            case Run():
                segment = self.parts[fragment].segments[instruction.segment]
                line = self._call(step, "run", segment.outputs, segment.inputs)
            case Ask():
                call = self.parts[fragment].host_calls[instruction.call]
                line = self._call(step, "ask", call.outputs, call.inputs)
            case RunOutOfOrder():
                out_of_order = self.parts[fragment].out_of_order[instruction.out_of_order]
                line = self._call(step, "turn", out_of_order.outputs, out_of_order.inputs)
            case Keep():
                stack = self.parts[fragment].loops[instruction.loop].rows[instruction.row]
                row = self.row_numbers[fragment, instruction.loop]
                line = f"{self._name(fragment, stack.outside)}[{row}] = "
                line += self._name(fragment, stack.element)
            case Put():
                if instruction.transfer.target in self.parts:
                    return  # the receiving fragment's instruction assigns it
                line = self._call(step, "send", (), _flat(outgoing(self.fdg, instruction.transfer)))
            case Get():
                transfer = instruction.transfer
                targets = _flat(incoming(self.fdg, transfer))
                if transfer.source in self.parts:
                    sources = _flat(outgoing(self.fdg, transfer))
                    self._add(depth, f"times_{self.messages} += 1")
                    line = f"{self._tuple(fragment, targets)} = message_{self.messages} = "
                    line += self._tuple(transfer.source, sources)
                    self.messages += 1
                else:
                    line = self._call(step, "receive", targets, ())
        self._add(depth, f"{line}  # {self._comment(fragment, instruction)}")
        self.doing[len(self.lines)] = (fragment, instruction)

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
        self, step: DriverStep, verb: str, outputs: Sequence[Value | None], inputs: Sequence[Value]
    ) -> str:
        function = f"{verb}_{len(self.functions)}_{identifier(step.fragment)}"
        self.functions[function] = (step.fragment, step.instruction)
        arguments = ", ".join(self._name(step.fragment, v) for v in inputs)
        call = f"{function}({arguments})"
        return f"{self._tuple(step.fragment, outputs)} = {call}" if outputs else call

    def _assign(self, fragment: str, pairs: Sequence[tuple[Value, Value]], depth: int) -> None:
        pairs = [(target, source) for target, source in pairs if target != source]
        if pairs:
            targets, sources = zip(*pairs, strict=True)
            left, right = self._tuple(fragment, targets), self._tuple(fragment, sources)
            self._add(depth, f"{left} = {right}")

    def _tuple(self, fragment: str, values: Sequence[Value | None]) -> str:
        names = ("_" if v is None else self._name(fragment, v) for v in values)
        return "(" + "".join(f"{name}, " for name in names) + ")"

    def _name(self, fragment: str, value: Value) -> str:
        variable = f"{identifier(fragment)}_v{len(self.variables)}"
        return self.variables.setdefault((fragment, value), variable)

    def _add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)
