"""The rival's side of `pixels.py`: PPO of rejax on images, in an environment of its own."""

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.initializers import orthogonal, zeros
from measure import serve
from rejax import PPO
from rejax.networks import DiscretePolicy

ROOT_TWO = 2.0**0.5


class Convolution(nn.Module):
    """3 x 3 with 16 channels, as a product with patches.

    `nn.Conv` computes the same, and on a CPU the gradients take XLA fifty times as long.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", orthogonal(ROOT_TWO), (9 * x.shape[-1], 16))
        bias = self.param("bias", zeros, (16,))
        rows, columns = x.shape[1] - 2, x.shape[2] - 2
        shifted = [x[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
        return jnp.concatenate(shifted, -1) @ kernel + bias


class Tower(nn.Module):
    """Like the network that fragflow's PPO puts on small images."""

    outputs: int
    scale: float
    """of the last layer's weights"""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(Convolution()(x)).reshape(x.shape[0], -1)
        for size in (64, 64):
            x = nn.tanh(nn.Dense(size, kernel_init=orthogonal(ROOT_TWO))(x))
        return nn.Dense(self.outputs, kernel_init=orthogonal(self.scale))(x)


class Actor(DiscretePolicy):
    def setup(self) -> None:
        self.tower = Tower(self.action_dim, 0.01)

    def _action_dist(self, obs: jax.Array) -> distrax.Categorical:
        return distrax.Categorical(logits=self.tower(obs))


class Critic(nn.Module):
    def setup(self) -> None:
        self.tower = Tower(1, 1.0)

    def __call__(self, obs: jax.Array) -> jax.Array:
        return self.tower(obs)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--env", required=True)
    add("--network", choices=("convolutions", "flat"), required=True)
    add("--steps", type=int, required=True)
    add("--seeds", type=int, nargs="+", required=True)
    add("--folder", type=Path, required=True, help="where trained actors go")
    add("--settings", type=json.loads, required=True)
    options = parser.parse_args()
    ppo = PPO.create(
        env=options.env,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        total_timesteps=options.steps,
        # One evaluation at the end, which does nothing: both sides are evaluated elsewhere.
        eval_freq=options.steps,
        skip_initial_evaluation=True,
        **options.settings,
    )
    ppo = ppo.replace(eval_callback=lambda *_: jnp.zeros(()))
    if options.network == "convolutions":
        ppo = ppo.replace(actor=Actor(ppo.action_dim, (), nn.tanh), critic=Critic())
    train = jax.jit(lambda key: ppo.train(key)[0]).lower(jax.random.key(0)).compile()

    def run(seed: int) -> None:
        began = time.perf_counter()
        state: Any = jax.block_until_ready(train(jax.random.key(seed)))
        seconds = time.perf_counter() - began
        leaves = _arrays(state.actor_ts.params["params"], options.network)
        assert int(state.global_step) == options.steps
        np.savez(options.folder / f"rejax-{seed}.npz", seconds=seconds, **leaves)

    packages = ("rejax", "gymnax", "jax", "jaxlib", "flax", "optax", "distrax", "numpy")
    serve(
        {str(seed): (lambda s=seed: run(s)) for seed in options.seeds},
        {"versions": {name: version(name) for name in packages}},
    )


def _arrays(params: Any, network: str) -> dict[str, np.ndarray]:
    """The actor's weights by the names that fragflow gives them."""
    if network == "convolutions":
        tower = params["tower"]
        convolution = tower["Convolution_0"]
        kernel = convolution["kernel"].reshape(3, 3, -1, 16)
        arrays = {
            "convolutions.0.kernel": kernel,
            "convolutions.0.bias": convolution["bias"],
        }
        dense = [tower[f"Dense_{k}"] for k in range(3)]
    else:
        arrays = {}
        features = params["features"]
        dense = [features["Dense_0"], features["Dense_1"], params["action_logits"]]
    for k, layer in enumerate(dense):
        arrays |= {f"layers.{k}.{name}": layer[name] for name in ("kernel", "bias")}
    return {name: np.asarray(array) for name, array in arrays.items()}


if __name__ == "__main__":
    main()
