"""How the cost of training grows with agents: IPPO on Tag, everything in one program.

Whole training iterations (acting, stepping, learning) are timed:

- the same number of agents in all, in few large games or many small ones: what an agent-step costs
  may at most double from 5 agents in a game to 1,000;
- from one game to 2,000 of them.

Points are visited in turn, several times; the median of each is reported.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engines
import measure
from engines import Driver, Task
from measure import print_table, timed

from fragflow.algorithms.ippo import IPPO
from fragflow.environments import make_environment

AGENTS = (5, 10, 50, 100, 500, 1000)
GAMES = (1, 10, 100, 1000, 2000)
IN_ALL = 10_000
"""agents, in however many games"""
MOST = 100_000
"""agents in all that fit into memory with a rollout"""
ROLLOUT = 16


@dataclass
class Point:
    """Games of one size, being trained."""

    agents: int
    games: int

    def __post_init__(self) -> None:
        neighbours = min(4, self.agents - 1)
        environment = make_environment("Tag", agents=self.agents, neighbours=neighbours)
        algorithm = IPPO(rollout_length=ROLLOUT)
        self.driver = Driver(Task(self.games, algorithm, environment).runtime("gpu-only"))
        self.samples: list[measure.Sample] = []

    @property
    def agent_steps(self) -> int:
        return self.agents * self.games * ROLLOUT

    def sample(self, seconds: float) -> None:
        once = timed(lambda: self.driver.advance(1)).seconds
        count = max(1, round(seconds / once))
        sample = timed(lambda: self.driver.advance(count))
        shares = {"seconds": sample.seconds / count, "cpu_seconds": None}
        self.samples.append(measure.Sample(**{**vars(sample), **shares}))

    @property
    def microseconds(self) -> float:
        """Per agent-step."""
        return 1e6 * statistics.median(s.seconds for s in self.samples) / self.agent_steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--repeats", type=int, default=3, help="samples of each point")
    add("--seconds", type=float, default=2.0, help="about how long a sample takes")
    add("--json", type=Path, help="where to write the results as data")
    add("--plot", type=Path, help="where to draw the curves (SVG)")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": measure.machine(), "versions": engines.versions()}
    sizes = measured([(a, IN_ALL // a) for a in AGENTS], options)
    table(f"{IN_ALL:,} agents in all", sizes)
    rise = sizes[-1].microseconds / sizes[0].microseconds
    text = measure.verdict(rise, 2.0, "x")
    print(f"  an agent-step with {AGENTS[-1]} agents against {AGENTS[0]}: {text}")
    pairs = [(a, g) for a in (5, 100, 1000) for g in GAMES if a * g <= MOST]
    numbers = measured(pairs, options)
    table("from one game to many", numbers)
    results["sizes"], results["games"] = as_data(sizes), as_data(numbers)
    results["rise"] = rise
    measure.write(options.json, results)
    if options.plot:
        draw(options.plot, sizes, numbers)


def measured(pairs: Sequence[tuple[int, int]], options: argparse.Namespace) -> list[Point]:
    points = [Point(*pair) for pair in pairs]
    for _ in range(options.repeats):
        for point in points:
            point.sample(options.seconds)
    for point in points:
        point.driver.runtime.close()
    return points


def table(title: str, points: Sequence[Point]) -> None:
    rows = [
        (
            f"{p.agents:,} agents x {p.games:,} games",
            f"{1e6 / p.microseconds:,.0f}",
            f"{p.microseconds:.2f}",
        )
        for p in points
    ]
    print_table(title, ("", "agent-steps/s", "us per agent-step"), rows)
    print(f"  {measure.quiet({str(k): p.samples for k, p in enumerate(points)})}")


def as_data(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [
        {
            "agents": p.agents,
            "games": p.games,
            "agent_steps_per_second": 1e6 / p.microseconds,
            "samples": [vars(s) for s in p.samples],
        }
        for p in points
    ]


def draw(path: Path, sizes: Sequence[Point], numbers: Sequence[Point]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fragflow"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    left.plot([p.agents for p in sizes], [1e6 / p.microseconds for p in sizes], "o-")
    left.set(xscale="log", yscale="log", xlabel="agents in a game", ylabel="agent-steps per second")
    left.set_title(f"{IN_ALL:,} agents in all", fontsize=10)
    for agents in dict.fromkeys(p.agents for p in numbers):
        line = [p for p in numbers if p.agents == agents]
        speeds = [1e6 / p.microseconds for p in line]
        right.plot([p.games for p in line], speeds, "o-", label=f"{agents:,} agents each")
    right.set(xscale="log", xlabel="games")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
