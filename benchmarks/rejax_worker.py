"""The rival's side of `fused.py` and `replay.py`, run by the interpreter that has it installed."""

import argparse
import time
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from measure import serve
from rejax import DQN, PPO, SAC


def ppo(options: argparse.Namespace) -> Any:
    return PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        **_same(options),
    )


def dqn(options: argparse.Namespace) -> Any:
    network = {"activation": "relu"}  # its two layers of 64 cannot be changed
    return DQN.create(env="CartPole-v1", agent_kwargs=network, **_same(options), **_replay(options))


def sac(options: argparse.Namespace) -> Any:
    sizes = (64, 64)
    return SAC.create(
        env="Pendulum-v1", hidden_layer_sizes=sizes, **_same(options), **_replay(options)
    )


def _same(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "num_envs": options.envs,
        "total_timesteps": options.steps,
        # One evaluation at the end, which does nothing.
        "eval_freq": options.steps,
        "skip_initial_evaluation": True,
    }


def _replay(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "num_epochs": options.updates,
        "batch_size": options.batch,
        "buffer_size": options.buffer,
        "fill_buffer": 1024,
        "learning_rate": 1e-3,
        "max_grad_norm": 10.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps per order")
    parser.add_argument("--algorithm", choices=("ppo", "dqn", "sac"), default="ppo")
    parser.add_argument("--updates", type=int, help="gradient steps per step of all environments")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--buffer", type=int)
    options = parser.parse_args()
    agent = {"ppo": ppo, "dqn": dqn, "sac": sac}[options.algorithm](options)
    agent = agent.replace(eval_callback=lambda *_: jnp.zeros(()))
    state: Any = jax.tree.map(jnp.asarray, agent.init_state(jax.random.key(0)))
    train = jax.jit(lambda state: agent.train(train_state=state)[0])

    def run() -> None:
        nonlocal state
        before = int(state.global_step)
        state = jax.block_until_ready(train(state))
        assert int(state.global_step) - before == options.steps

    began = time.perf_counter()
    run()
    packages = ("rejax", "gymnax", "jax", "jaxlib", "flax", "optax", "distrax", "numpy")
    serve(
        {"go": run},
        {
            "first_run_seconds": time.perf_counter() - began,
            "environment": f"{type(agent.env).__module__} {version('gymnax')}",
            "versions": {name: version(name) for name in packages},
        },
    )


if __name__ == "__main__":
    main()
