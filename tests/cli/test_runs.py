"""What a run leaves behind, and that it can be used again."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fragflow as ff
from cli.tiny import TINY, Finished
from fragflow.algorithms.ppo import PPO
from fragflow.errors import ConfigError
from fragflow.tools.cli.main import main
from fragflow.tools.experiment.run_directory import json_text, sha256_of

SUMMARY_FIELDS = {
    *("algorithm", "env", "policy", "runtime", "workers", "learners", "seed", "env_steps"),
    *(
        "iterations",
        "compile_seconds",
        "trial_seconds",
        "train_seconds",
        "steps_per_second",
        "mean_return",
    ),
    *(
        "mean_return",
        "eval_return",
        "episodes",
        "params_sha256",
        "programs",
        "messages",
        "bytes_moved",
    ),
    *("replacements", "equality", "load", "interrupted", "versions", "sync", "implementations"),
    *("probe", "devices"),
}


def summary_of(path: Path) -> dict[str, object]:
    return json.loads((path / "summary.json").read_text())


def test_files_of_a_run(finished: Finished) -> None:
    names = {path.name for path in finished.path.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "summary.json", "weights.safetensors"}


def test_summary(finished: Finished) -> None:
    summary = summary_of(finished.path)
    assert set(summary) == SUMMARY_FIELDS
    assert summary["algorithm"] == "ppo"
    assert summary["policy"] == "gpu-only"
    assert summary["env_steps"] == 128
    assert summary["interrupted"] is False
    assert summary["devices"] == {"loop": ["cpu:0"]}


def test_config_says_what_was_resolved(finished: Finished) -> None:
    config = json.loads((finished.path / "config.json").read_text())
    assert config["iterations"] == 4
    assert config["steps_per_iteration"] == 32
    assert "rounded up to 128" in config["rounding"]
    assert config["hyperparameters"]["hidden"] == [8]
    assert config["hyperparameters"]["gamma"] == PPO().gamma
    assert {"jax", "fragflow", "python"} <= set(config["versions"])


def test_metrics_have_a_line_per_iteration(finished: Finished) -> None:
    lines = (finished.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert [row["env_steps"] for row in rows] == [32, 64, 96, 128]
    assert all("value_loss" in row and "seconds" in row for row in rows)
    assert all((row["mean_return"] is None) == (row["episodes"] == 0) for row in rows)
    assert sum(row["episodes"] for row in rows) == summary_of(finished.path)["episodes"]
    assert 1 <= sum("eval_return" in row for row in rows) <= 2


def test_plain_progress(finished: Finished) -> None:
    lines = finished.output.splitlines()
    assert "policy gpu-only (the default where the environment compiles" in lines[1]
    assert "tracing" in lines
    assert "fragments: loop x1 @cpu" in lines
    assert "equality with one undivided program: bitwise" in lines
    assert any("100 is not a whole number" in line and "up to 128" in line for line in lines)
    assert any(line.startswith("100 %  128 steps") for line in lines)
    assert lines[-1] == f"saved in {finished.path}"
    assert "\x1b" not in finished.output


@pytest.mark.optimised
def test_policy_does_not_change_what_is_learned() -> None:
    words = [*TINY, "--total-steps", "100", "--quiet"]
    assert main([*words, "--run-dir", "whole"]) == 0
    in_parts = ("--policy", "single-learner-coarse", "--without", "hoist,sink,coalesce")
    assert main([*words, *in_parts, "--run-dir", "cut"]) == 0
    cut, whole = summary_of(Path("cut")), summary_of(Path("whole"))
    assert cut["params_sha256"] == whole["params_sha256"]
    assert cut["messages"] != 0


def test_loaded_agent_acts_like_its_parameters(finished: Finished) -> None:
    agent = ff.load(finished.path)
    assert agent.algorithm == PPO(rollout_length=8, hidden=(8,), epochs=1, minibatches=2)
    assert sha256_of(agent.params) == summary_of(finished.path)["params_sha256"]
    key = jax.random.key(0)
    for obs in np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32):
        expected, _ = agent.algorithm.policy(agent.params, jax.numpy.asarray(obs), None, key)
        action = agent.act(obs)
        assert isinstance(action, np.ndarray)
        assert action == expected
    with pytest.raises(ConfigError, match=r"shape \[2, 4\]: expected \[4\]"):
        agent.act(np.zeros((2, 4)))


def test_eval_command(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(finished.path), "--episodes", "4"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"return {summary_of(finished.path)['eval_return']:.2f} ")
    assert "4 episodes" in output


def test_statistics_of_observations_are_saved_with_the_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"rollout_length": 8, "hidden": (8,), "epochs": 1, "minibatches": 1}
    result = ff.train(
        "ppo",
        "CartPole-v1",
        num_envs=4,
        total_steps=32,
        eval_episodes=0,
        quiet=True,
        run_dir="run",
        hyperparameters={**small, "normalise_observations": True},
    )
    assert "obs_stats" not in result.state.params
    stats = ff.load("run").params["obs_stats"]
    np.testing.assert_array_equal(stats.mean, result.state.obs_stats.mean)
    assert float(stats.number) == 32
    # As they were saved when statistics were among the parameters.
    weights = load_file("run/weights.safetensors")
    save_file(
        {name.replace("obs_stats", "seen"): x for name, x in weights.items()},
        "run/weights.safetensors",
    )
    with pytest.raises(ConfigError, match=r"does not fit .* \['obs_stats'\].mean is missing"):
        ff.load("run")


def copy_run(source: Path, target: str) -> Path:
    path = Path(target)
    path.mkdir()
    for name in ("config.json", "weights.safetensors"):
        (path / name).write_bytes((source / name).read_bytes())
    return path


def test_weights_must_fit_exactly(finished: Finished) -> None:
    path = copy_run(finished.path, "changed")
    with pytest.raises(ConfigError, match=r"does not fit the algorithm.*expected float32\[4, 16\]"):
        ff.load(path, algorithm=PPO(hidden=(16,)))
    weights = load_file(path / "weights.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name].astype(np.float64)}, path / "weights.safetensors")
    with pytest.raises(ConfigError, match="is float64"):
        ff.load(path)
    (path / "weights.safetensors").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match="cannot be read"):
        ff.load(path)


def test_configuration_that_is_not_one(finished: Finished) -> None:
    path = copy_run(finished.path, "edited")
    config = json.loads((path / "config.json").read_text())
    for change in ({"hyperparameters": [1]}, {"env": 5}, {"env_args": None}, {"load_needs": 1}):
        (path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ConfigError, match=f"incomplete config.json: {next(iter(change))} is"):
            ff.load(path)


def test_code_named_in_a_file_is_never_imported(finished: Finished) -> None:
    path = copy_run(finished.path, "evil")
    Path("evil_module.py").write_text("raise SystemExit('imported')")
    config = json.loads((path / "config.json").read_text())
    for change in ({"algorithm": "evil_module:PPO"}, {"env": "evil_module:Env"}):
        (path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ConfigError, match="never imported"):
            ff.load(path)


def test_config_file_and_flags_that_override_it() -> None:
    values = {"env": "CartPole-v1", "num-envs": 4, "total_steps": 64, "hidden": [4, 4], "seed": 3}
    more = {"rollout-length": 8, "epochs": 1, "minibatches": 2, "anneal": False, "quiet": True}
    more |= {"env-arg": {"max_steps": 9}, "eval-episodes": 0}
    Path("a.json").write_text(json.dumps(values | more))
    words = ["train", "--seed", "5", "ppo", "--config", "a.json", "--hidden", "8", "--anneal"]
    assert main([*words, "--run-dir", "run", "--env-arg", "gravity=9.8"]) == 0
    config = json.loads(Path("run/config.json").read_text())
    assert config["seed"] == 5
    assert config["hyperparameters"]["hidden"] == [8]
    assert config["hyperparameters"]["anneal"] is True
    assert config["num_envs"] == 4
    assert config["env_args"] == {"gravity": 9.8}, "a flag replaces the file's value"
    assert summary_of(Path("run"))["eval_return"] is None


def test_wrappers_are_kept_and_put_on_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "--wrap", "frame-stack=2", "--env", "Pendulum-v1", "--wrap", "scale-actions"]
    assert main([*words, "--wrap=time-limit=5", "--run-dir", "run"]) == 0
    assert "Pendulum-v1 (frame-stack=2, scale-actions, time-limit=5)" in capsys.readouterr().out
    config = json.loads(Path("run/config.json").read_text())
    wrap = {"frame_stack": 2, "scale_actions": True, "time_limit": 5}
    assert config["wrap"] == wrap
    assert list(config["wrap"]) == list(wrap), "in the order given"
    agent = ff.load("run")
    assert agent.environment.observation.shape == (6,)
    assert agent.environment.action == ff.Box(shape=(1,), low=-1.0, high=1.0)
    assert main(["eval", "run", "--episodes", "3"]) == 0
    assert "length 5.0, 3 episodes" in capsys.readouterr().out
    values = dict(zip([w.lstrip("-") for w in TINY[2::2]], TINY[3::2], strict=True))
    Path("a.json").write_text(json.dumps({**values, "env": "Pendulum-v1", "wrap": wrap}))
    assert main(["train", "ppo", "--config", "a.json", "--run-dir", "again", "--quiet"]) == 0
    assert summary_of(Path("again"))["params_sha256"] == summary_of(Path("run"))["params_sha256"]


def test_default_run_directory() -> None:
    assert main([*TINY, "--quiet", "--eval-episodes", "0", "--seed", "2"]) == 0
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("ppo-CartPole-v1-gpu-only-s2-")


def test_train_from_python_returns_the_facts() -> None:
    algorithm = PPO(rollout_length=8, hidden=(8,), epochs=1, minibatches=2)
    stopped: list[bool] = []

    def stop() -> bool:
        stopped.append(len(stopped) == 1)
        return stopped[-1]

    result = ff.train(algorithm, "CartPole-v1", num_envs=4, total_steps=64, quiet=True, stop=stop)
    assert result.interrupted
    assert result.env_steps == 32
    assert len(result.metrics) == result.iterations == 1
    assert result.run_dir is None
    assert set(result.summary) == SUMMARY_FIELDS
    assert sha256_of(result.state.params) == result.params_sha256


def test_json_has_no_nan() -> None:
    value = {"a": float("nan"), "b": [np.float32("inf"), np.int32(3)], "c": (1.5, None)}
    assert json.loads(json_text(value)) == {"a": None, "b": [None, 3], "c": [1.5, None]}
