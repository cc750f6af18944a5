"""A network whose layers ONNX Runtime computes, as another implementation of a kernel.

python examples/onnx_network.py    (needs: pip install onnx onnxruntime)

It shows how to bring an engine of one's own, not how to be fast: small networks cost less than the
call. The graph is made once; parameters are inputs, since they change in every iteration.
"""

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fragflow as ff

GRAPH = """<ir_version: 10, opset_import: ["": 21]>
layers (float[n,i] x, float[i,h] w, float[h] b, float[h,o] v, float[o] c) => (float[n,o] y) {
    xw = MatMul(x, w)   sum = Add(xw, b)   hidden = Tanh(sum)
    hv = MatMul(hidden, v)   y = Add(hv, c)
}"""


@ff.kernel("example.layers")
def layers(x, w, b, v, c):
    """Two layers: the meaning, which is differentiated, and what ONNX Runtime must compute too."""
    return jnp.tanh(x @ w + b) @ v + c


def absent() -> str | None:
    missing = [m for m in ("onnx", "onnxruntime") if importlib.util.find_spec(m) is None]
    return f"{missing[0]} is not installed" if missing else None


@layers.implementation("onnx", absent=absent, fits=lambda types: types[0].ndim == 2)
def _(x, w, b, v, c, platform):
    assert platform == "cpu", "this session computes on CPUs"
    y = jax.ShapeDtypeStruct((x.shape[0], v.shape[1]), x.dtype)
    return jax.pure_callback(in_onnx_runtime, y, {"x": x, "w": w, "b": b, "v": v, "c": c})


def in_onnx_runtime(given: dict[str, Any]) -> Any:
    return session().run(None, {name: np.asarray(array) for name, array in given.items()})[0]


@functools.cache
def session() -> Any:
    import onnx.parser
    import onnxruntime

    graph = onnx.parser.parse_model(GRAPH).SerializeToString()
    return onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Network(ff.ops.MLPActorCritic):
    """An actor of two layers, by the kernel, for continuous actions."""

    hidden: tuple[int, ...] = (64,)

    def policy(self, actor: Any, obs: jax.Array) -> ff.ops.Normal:
        first, last = actor["layers"]
        mean = layers(obs, first["kernel"], first["bias"], last["kernel"], last["bias"])
        return ff.ops.Normal(mean, actor["log_std"])


def train(how: str, total_steps: int = 65536) -> ff.Result:
    by = {"example.layers": how}
    ppo, env = ff.PPO(network=Network()), "gymnasium:Pendulum-v1"
    return ff.train(ppo, env, total_steps=total_steps, implementations=by, eval_episodes=0)


if __name__ == "__main__":
    for result in map(train, ("xla", "onnx")):
        print(f"{result.implementations}: mean return {result.mean_return:.0f}")
