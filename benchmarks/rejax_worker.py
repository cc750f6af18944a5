"""The rival's side of `fused.py`: PPO of rejax, run by the interpreter that has it installed."""

import argparse
import time
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from measure import serve
from rejax import PPO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps per order")
    options = parser.parse_args()
    ppo = PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=options.envs,
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        total_timesteps=options.steps,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        # One evaluation at the end, which does nothing.
        eval_freq=options.steps,
        skip_initial_evaluation=True,
    )
    ppo = ppo.replace(eval_callback=lambda *_: jnp.zeros(()))
    state: Any = jax.tree.map(jnp.asarray, ppo.init_state(jax.random.key(0)))
    train = jax.jit(lambda state: ppo.train(train_state=state)[0])

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
            "versions": {name: version(name) for name in packages},
        },
    )


if __name__ == "__main__":
    main()
