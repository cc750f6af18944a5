"""Where replicas are, when there are fewer places than a policy asks for; what is said of it."""

import json
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from fragflow.errors import ConfigError
from fragflow.policies import LOCKSTEP, Deployment, named_policy
from fragflow.run import Experiment, run
from fragflow.runtime.programs import devices, prepare_workers
from fragflow.tools.cli.main import main
from fragflow.tools.experiment.progress import fragments_text
from graph.toy import Drift, OneUpdate, Toy
from remote.training import COARSE, train

pytestmark = pytest.mark.quick


def test_show_has_the_replicas_that_a_run_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "places", lambda: {"cpu": 2})
    words = ["show", "graph.toy:Toy", "--env", "graph.toy:Drift", "--num-envs", "8"]
    assert main([*words, "--policy", "multi-learner", "--workers", "4", "--format", "json"]) == 0
    shown = {f["name"]: f["replicas"] for f in json.loads(capsys.readouterr().out)["fragments"]}
    outcome = train(Toy(), "multi-learner", workers=4, runtime="local")
    assert shown == {name: len(there) for name, there in outcome.start.devices.items()}
    assert set(shown.values()) == {2}


def test_learners_that_share_a_place_learn_the_same() -> None:
    fused, whole = (
        train(Toy(), "multi-learner", workers=4, runtime="local", slots=slots)
        for slots in ({"cpu": 2}, None)
    )
    assert [len(o.start.devices["learner"]) for o in (fused, whole)] == [2, 4]
    np.testing.assert_allclose(
        np.asarray(fused.state.params["w"]), np.asarray(whole.state.params["w"]), rtol=1e-4
    )


def test_what_is_said_is_where_workers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = jax.devices()[1]
    monkeypatch.setattr(prepare_workers, "devices_for", lambda f: [elsewhere] * f.replicas)
    outcome = train(Toy(), runtime="local")
    assert outcome.start.devices == {"environment+actor": ["cpu:1"] * 2, "learner": ["cpu:1"]}


def test_asynchronous_workers_are_all_named() -> None:
    outcome = train(OneUpdate(), "central", sync="async", workers=2, runtime="local")
    assert fragments_text(outcome.start.devices) == "worker x2 @cpu · server x1 @cpu"


def test_accelerators_may_be_shared_unless_they_are_one_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "accelerator", lambda: "gpu")
    many: Any = Deployment(workers=16)
    devices.prepare_devices(named_policy("gpu-only"), many)
    devices.prepare_devices(named_policy(COARSE), many)
    with pytest.raises(ConfigError, match="needs 17 devices"):
        devices.prepare_devices(named_policy("split-device"), many)


def test_fragments_with_devices_of_their_own_do_not_share_a_thread() -> None:
    """Messages within a thread are handed over as they are, and these have to change the device."""
    policy = replace(named_policy("split-device"), synchronisation=LOCKSTEP)
    experiment = Experiment(algorithm=Toy(), environment=Drift(), num_envs=4, total_steps=32)
    apart = run(experiment, policy, probe=False)
    assert sorted(map(list, apart.start.devices.values())) == [["cpu:0"], ["cpu:1"]]
    together = run(experiment, named_policy("gpu-only"), probe=False)
    jax.tree.map(np.testing.assert_allclose, apart.state.params, together.state.params)
