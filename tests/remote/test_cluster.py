"""Where a cluster is and what fragments need there; which processes belong on one host."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.errors import ConfigError
from fragflow.policies import Deployment, Policy, named_policy
from fragflow.remote.coordinator.processes import WorkerProcesses
from fragflow.remote.launch.cleanup import employ
from fragflow.remote.launch.cluster import (
    Cluster,
    Need,
    check_needs,
    find_cluster,
    need_of,
    read_cluster,
)
from fragflow.remote.launch.launcher import Demand, Launcher, label_of
from fragflow.remote.launch.placement import Placement
from fragflow.run import Experiment, plan_run

GOOD = """
[ray]
address = "10.0.0.1:6379"
token-file = "~/token"
ports = "20000-20100"

[fragments.learner]
cpus = 4
gpus = 1

[fragments.environment]
resources = { simulator = 2 }
"""


def written(path: Path, text: str) -> str:
    file = path / "cluster.toml"
    file.write_text(text)
    return str(file)


def test_a_file(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, GOOD))
    assert cluster == Cluster(
        address="10.0.0.1:6379",
        token_file="~/token",
        ports=(20000, 20100),
        needs={
            "learner": Need(cpus=4.0, gpus=1.0),
            "environment": Need(resources={"simulator": 2.0}),
        },
    )
    elsewhere = find_cluster(written(tmp_path, GOOD), "host:1")
    assert elsewhere is not None
    assert (elsewhere.address, elsewhere.ports) == ("host:1", (20000, 20100))
    assert find_cluster(None, None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ray", "not valid TOML"),
        ("[rays]", r"unknown key 'rays'. Did you mean 'ray'\?"),
        ("[ray]\nadress = 'a:1'", r"\[ray\]: unknown key 'adress'. Did you mean 'address'\?"),
        ("[ray]\naddress = 1", "address is 1: expected a str"),
        ("[ray]\nports = '80-90'", "ports is '80-90': expected FIRST-LAST, from 1024"),
        ("[ray]\nports = '2000'", "expected FIRST-LAST"),
        ("ray = 3", r"ray is 3: expected a table \[ray\]"),
        ("[fragments]\nlearner = 1", r"\[fragments.learner\]: expected a table with cpus, gpus"),
        ("[fragments.learner]\ncpus = -1", "cpus is -1: expected a number from 0 on"),
        ("[fragments.learner]\ncpus = inf", "cpus is inf: expected a number from 0 on"),
        ("[fragments.learner]\ngpus = nan", "gpus is nan: expected a number from 0 on"),
        ("[fragments.learner]\ncpus = 0.00001", "expected a number .* with four decimals at most"),
        ("[fragments.learner]\nresources = { memory = 1 }", "has 'memory', which is Ray's own"),
        ("[fragments.learner]\ncpu = 1", r"unknown key 'cpu'. Did you mean 'cpus'\?"),
        ("[fragments.learner]\nresources = 1", "resources is 1: expected { name = amount }"),
    ],
)
def test_a_bad_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_cluster(written(tmp_path, text))


def test_no_file() -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        read_cluster("nowhere.toml")


def test_needs() -> None:
    cluster = Cluster(
        needs={"learner": Need(cpus=4), "actor": Need(cpus=2, resources={"simulator": 1})}
    )
    together = {"environment+actor", "environment", "actor"}
    assert need_of(cluster, {"learner"}, {"gpu": 2}) == Need(cpus=4, gpus=2)
    assert need_of(cluster, together, {"cpu": 1}) == Need(
        cpus=2, gpus=0, resources={"simulator": 1}
    )
    assert need_of(cluster, {"environment"}, {"cpu": 1}) == Need(cpus=1, gpus=0)
    assert need_of(cluster, {"environment+actor"}, {"cpu": 1}) == Need(cpus=1, gpus=0)
    check_needs(cluster, ["environment+actor", "learner"], together | {"learner"})
    with pytest.raises(
        ConfigError,
        match=r"fragment 'actor', which this policy does not make. Its fragments: learner\.",
    ):
        check_needs(cluster, ["learner"], {"learner"})


class Enough(Exception):
    """No process is needed."""


class Asked(Launcher):
    """Starts nothing."""

    def start(self, demands: Mapping[str, Demand], placement: Placement) -> None:
        self.demands, self.placement = demands, placement
        raise Enough

    def _launch(self, name: str, demand: Demand, incarnation: int) -> None:  # pyright: ignore
        raise AssertionError

    def _clear_up(self) -> None:
        pass


def start(
    experiment: Experiment, policy: Policy, deployment: Deployment, launcher: Launcher
) -> None:
    graph = plan_run(experiment, policy, deployment).cut_graph
    WorkerProcesses(graph.fdg, graph.plan, launcher)


@pytest.mark.parametrize(
    ("policy", "sites", "is_packed"),
    [
        (
            "single-learner-coarse",
            {("environment_actor_0",), ("environment_actor_1",), ("learner",)},
            False,
        ),
        ("single-learner-fine", {("environment_0",), ("environment_1",), ("learner",)}, True),
        ("multi-learner", {("environment_0", "learner_0"), ("environment_1", "learner_1")}, True),
    ],
)
def test_placement(policy: str, sites: set[tuple[str, ...]], is_packed: bool) -> None:
    experiment = Experiment(
        algorithm=PPO(rollout_length=4, epochs=1, minibatches=1, hidden=(8,)),
        environment=make_environment("CartPole-v1"),
        num_envs=4,
        total_steps=1,
    )
    launcher = Asked()
    with pytest.raises(Enough):
        start(experiment, named_policy(policy), Deployment(workers=2), launcher)
    assert (set(launcher.placement.sites), launcher.placement.is_packed) == (sites, is_packed)


def test_a_file_may_name_a_fragment_or_a_place_in_it() -> None:
    launcher = Asked()
    with pytest.raises(Enough):
        start(
            Experiment(
                algorithm=PPO(rollout_length=4, epochs=1, minibatches=1, hidden=(8,)),
                environment=make_environment("CartPole-v1"),
                num_envs=4,
                total_steps=1,
            ),
            named_policy("single-learner-coarse"),
            Deployment(),
            launcher,
        )
    names = {demand.fragments: demand.names for demand in launcher.demands.values()}
    assert names == {
        ("environment+actor", "learner"): {
            "environment+actor",
            "environment",
            "actor",
            "learner",
        },
    }


def test_names_of_files_are_short_and_different() -> None:
    many = [f"environment_actor{'_learner_of_a_team' * 9}_{k}" for k in range(3)]
    labels = [label_of(name, 1) for name in ("learner", *many)]
    assert labels[0] == "learner.1"
    assert len(set(labels)) == 4
    assert max(map(len, labels)) < 50


def test_a_directory_goes_with_its_last_user(tmp_path: Path) -> None:
    directory = tmp_path / "used"
    directory.mkdir()
    program = (
        "import sys, time; from pathlib import Path; "
        "from fragflow.remote.launch.cleanup import employ; "
        "employ(Path(sys.argv[1])); print('here', flush=True); time.sleep(60)"
    )
    users = [
        subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for user in users:
        assert user.stdout is not None
        assert user.stdout.readline() == b"here\n"
    for user, is_left in zip(users, (True, False), strict=True):
        os.kill(user.pid, signal.SIGKILL)
        user.communicate()
        deadline = time.monotonic() + (2 if is_left else 10)
        while directory.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert directory.exists() is is_left


def test_a_directory_that_is_gone_needs_no_janitor(tmp_path: Path) -> None:
    directory = tmp_path / "used"
    directory.mkdir()
    employ(directory)
    (directory / f"{os.getpid()}.user").unlink()
    directory.rmdir()
