"""Generated drivers can be read: names say what is held, lines are short, errors find their line.

What is driven is always the same: with other names, or in longer lines, it is the same program.
"""

import ast
import functools
import itertools
import keyword
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fragflow.algorithms.dqn import DQN
from fragflow.algorithms.ippo import IPPO
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.graph.cut import cut
from fragflow.graph.ir import FDG
from fragflow.graph.tracing.trace import Tracer, tracer
from fragflow.policies import Deployment, named_policy
from fragflow.runtime.drivers import codegen
from fragflow.runtime.drivers.codegen import DriverSource, fragments_by_thread, generate, render
from fragflow.runtime.drivers.variable_names import unique_names
from fragflow.runtime.drivers.wrap_lines import Group, flat, lines_of
from fragflow.runtime.planning.instructions import Ask, Get, Keep, Put, Run, RunOutOfOrder
from fragflow.runtime.planning.message_pieces import incoming
from fragflow.runtime.planning.plan import Plan, make_plan
from graph.toy import Drift, Toy

GOLDEN = Path(__file__).parents[1] / "golden"
MAKERS: Mapping[str, Callable[[], Any]] = {"ppo": PPO, "dqn": DQN, "ippo": IPPO, "toy": Toy}
ENVIRONMENTS = {"ppo": "CartPole-v1", "dqn": "gymnasium:CartPole-v1", "ippo": "Tag"}
FINE = "single-learner-fine"
CASES = [
    ("ppo", FINE, 1),
    ("ppo", FINE, 2),
    ("ppo", "multi-learner", 2),
    ("dqn", "environments", 1),
    ("dqn", "central", 2),
    ("ippo", "agents", 2),
]


@functools.cache
def traced(name: str) -> Tracer:
    environment = make_environment(ENVIRONMENTS[name]) if name in ENVIRONMENTS else Drift()
    return tracer(MAKERS[name](), environment, 8)


@functools.cache
def planned(name: str, policy: str, workers: int) -> tuple[FDG, Plan]:
    fdg = cut(traced(name), named_policy(policy), Deployment(workers=workers))
    return fdg, make_plan(fdg)


def drivers(name: str, policy: str, workers: int) -> list[DriverSource]:
    fdg, plan = planned(name, policy, workers)
    return [
        generate(fdg, plan, team)
        for team in fragments_by_thread(fdg, plan)
        if not plan.parts[team[0]].fused
    ]


def test_a_small_driver_is_as_before(update_golden: bool) -> None:
    found = render(*planned("toy", FINE, 1))
    path = GOLDEN / "toy-single-learner-fine-1.driver.txt"
    if update_golden:
        path.write_text(found)
    assert path.read_text() == found


@pytest.mark.parametrize("case", CASES)
def test_lines_have_at_most_100_columns(case: tuple[str, str, int]) -> None:
    for driver in drivers(*case):
        assert max(map(len, driver.text.splitlines())) <= 100


def renamed(tree: ast.AST) -> tuple[str, list[str]]:
    """A program with every name left out, and its names."""
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = "_"
    return ast.dump(tree), names


@pytest.mark.parametrize("case", CASES)
def test_every_value_has_a_name_of_its_own(
    case: tuple[str, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With numbers for names it is the same program, and each number has one name."""
    read = drivers(*case)
    monkeypatch.setattr(
        codegen, "unique_names", lambda keys, _: {key: f"n{k}" for k, key in enumerate(keys)}
    )
    for with_names, with_numbers in zip(read, drivers(*case), strict=True):
        program, names = renamed(ast.parse(with_names.text))
        same, numbers = renamed(ast.parse(with_numbers.text))
        assert program == same
        pairs = set(zip(names, numbers, strict=True))
        assert len(pairs) == len(set(names)) == len(set(numbers))


def test_a_name_says_what_is_held() -> None:
    (together,) = drivers("ppo", FINE, 1)
    held = {value: variable for variable, (_, value) in together.first.items()}
    assert held["state:params.actor.layers.0.bias"] == "params_actor_layers_0_bias"
    assert "kept_return_sum.append(return_sum)" in together.text
    assert " = run_actor(" in together.text
    environment, learner = drivers("ppo", FINE, 2)
    # Only where two fragments of a thread say the same is a fragment's name in front.
    assert "environment_obs" in together.text
    assert "environment_obs" not in environment.text
    assert "send_2_to_learner(obs_next)" in environment.text
    assert "receive_2_from_environment()" in learner.text


@st.composite
def statements(draw: st.DrawFn) -> tuple[Any, ...]:
    """Assignments, calls and returns of many names, some of them long."""
    name = st.text("ab_", min_size=1, max_size=60).filter(str.isidentifier)
    names = st.lists(name, max_size=12).map(tuple)
    nested = st.lists(st.one_of(name, names.map(lambda n: Group(n, is_tuple=True))), max_size=4)
    targets = Group(draw(names), is_tuple=True, is_bare=True)
    match draw(st.sampled_from(["call", "assignment", "return"])):
        case "call":
            return (targets, " = ", draw(name), Group(draw(names)))
        case "assignment":
            return (targets, " = ", draw(name), " = ", targets)
    return ("return ", Group(tuple(draw(nested)), is_tuple=True, is_bare=True))


@given(statements(), st.integers(0, 4), st.text("word ,", max_size=150).map(str.strip))
def test_broken_lines_say_the_same(statement: tuple[Any, ...], depth: int, comment: str) -> None:
    blocks = ["def drive():", *("    " * k + "if True:" for k in range(1, depth + 1))]
    whole = "    " * (depth + 1) + "".join(map(flat, statement))
    lines = lines_of(statement, depth + 1, comment)
    assert max(map(len, lines)) <= 100
    same, broken = ("\n".join([*blocks, *body]) for body in ([whole], lines))
    assert ast.dump(ast.parse(same)) == ast.dump(ast.parse(broken))


TEMPLATES = st.sampled_from(["{}obs", "{}while", "run_{}glue", "{}obs_2", "{}b_obs", "{}range"])


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b", "a+b"]), st.integers()), TEMPLATES))
def test_names_can_be_told_apart(templates: Mapping[Any, str]) -> None:
    names = unique_names(templates, {"obs"}).values()
    assert len(set(names)) == len(templates)
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    assert not {"obs", "range"} & set(names)


class TornError(Exception):
    """Something of the user's failed."""


def outputs_of(plan: Plan, fdg: FDG, fragment: str, instruction: Any) -> int:
    part = plan.parts[fragment]
    match instruction:
        case Run(segment):
            return len(part.segments[segment].outputs)
        case Ask(call):
            return len(part.host_calls[call].outputs)
        case RunOutOfOrder(loop):
            return len(part.out_of_order[loop].outputs)
        case Get(transfer):
            return sum(map(len, incoming(fdg, transfer)))
        case Put():
            return 0
    raise AssertionError(instruction)


def blamed(
    driver: DriverSource, outputs: Mapping[str, int], failing: str, fails: Callable[..., Any]
) -> Any:
    """What an error is put down to if one function of the driver fails."""
    scope: dict[str, Any] = defaultdict(lambda: lambda *_: defaultdict(int))
    for name, count in outputs.items():
        scope[name] = functools.partial(lambda count, *_: (0,) * count, count)
    scope[failing] = fails
    scope |= dict.fromkeys(driver.numbers, int)
    for name, loops in driver.steps.items():
        scope[name] = [(0,) * (1 + len(loops))]
    for name in driver.rows:
        scope.setdefault(name, dict)
    scope["range"] = range
    exec(compile(driver.text, "<driver>", "exec"), scope)
    with pytest.raises((TornError, ValueError)) as error:
        scope["drive"]((0,) * len(driver.first), 0, 1)
    frames = traceback.extract_tb(error.value.__traceback__)
    (line,) = [frame.lineno for frame in frames if frame.filename == "<driver>"]
    return driver.doing.get(line or 0)


def fail(*_: Any) -> Sequence[Any]:
    raise TornError


class Full(dict[int, Any]):
    """Rows that nothing can be added to."""

    def __setitem__(self, row: int, value: Any) -> None:
        raise TornError


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_put_down_to_what_failed(case: tuple[str, str, int]) -> None:
    fdg, plan = planned(*case)
    for driver in drivers(*case):
        outputs = {name: outputs_of(plan, fdg, *what) for name, what in driver.functions.items()}
        for name, what in driver.functions.items():
            assert blamed(driver, outputs, name, fail) == what
            if outputs[name] > 1:  # too few results are noticed where they are assigned
                assert blamed(driver, outputs, name, lambda *_: (0,)) == what
        for name, (fragment, value) in driver.rows.items():
            loops = plan.parts[fragment].loops
            places = [
                Keep(k, r)
                for k, p in enumerate(loops)
                for r, row in enumerate(p.rows)
                if row.outside == value
            ]
            found = blamed(driver, outputs, name, Full)
            assert found in list(itertools.product([fragment], places))


def test_the_cases_break_lines_of_every_kind() -> None:
    broken: set[type] = set()
    for driver in itertools.chain.from_iterable(itertools.starmap(drivers, CASES)):
        for line, (fragment, instruction) in driver.doing.items():
            if driver.doing.get(line + 1) == (fragment, instruction):
                broken.add(type(instruction))
    assert broken >= {Run, Ask, Get, Put}
