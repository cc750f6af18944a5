"""Mistakes that users make, each a small module, and what is said of it."""

from dataclasses import dataclass
from pathlib import Path

BASE = '''
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fragflow as ff


@dataclass(frozen=True)
class Hill:
    """The action is the reward; an episode has three steps."""

    name = "hill"
    observation = ff.Box(shape=(2,))
    action = ff.Box(shape=())

    def reset(self, key):
        return jnp.int32(3), jnp.zeros(2)

    def step(self, state, action, key):
        over = state == 1
        return ff.Step(state - 1, jnp.zeros(2), action, over, jnp.bool_(False))


class Slope:
    """The same on the host."""

    def __init__(self, ids):
        self.count = len(ids)

    def reset(self, seeds):
        return np.zeros((self.count, 2), np.float32)

    def step(self, action):
        obs, no = np.zeros((self.count, 2), np.float32), np.zeros(self.count, bool)
        return ff.HostStep(obs, obs, action.astype(np.float32), no, no)

    def close(self):
        pass


@dataclass(frozen=True)
class OnHost:
    name = "slope"
    observation = ff.Box(shape=(2,))
    action = ff.Box(shape=())
    has_mask = False
    draws_apart = True

    def open(self, ids):
        return Slope(ids)


class State(NamedTuple):
    params: Any
    env: Any
    obs: jax.Array


@dataclass(frozen=True)
class Climber(ff.Algorithm):
    def init(self, env, key):
        env_state, t = env.reset(key)
        return State({"w": jnp.ones(2)}, env_state, t.obs)

    def step(self, env, state, clock):
        action = self.act(state.params, state.obs)
        env_state, t = env.step(state.env, action)
        return State(self.learn(state.params, t.reward), env_state, t.obs), {}

    @ff.component("actor")
    def act(self, params, obs):
        return obs @ params["w"]

    @ff.component("learner.update")
    def learn(self, params, reward):
        return {"w": params["w"] + ff.all_mean(reward.mean())}
'''


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """What is wrong, and what the one line says besides the file and the line marked `# here`."""

    code: str
    says: tuple[str, ...]
    exit_code: int = 2
    algorithm: str = "Climber"
    env: str = "Hill"
    policy: str = "single-learner-coarse"
    more: tuple[str, ...] = ()
    has_report: bool = True
    """whether the traceback is kept: not for what was foreseen"""
    has_place: bool = True
    travels: bool = True
    """whether processes can be told to make it"""

    def write(self, folder: Path, name: str) -> str:
        """Writes the module; `file:line` of the mistake."""
        text = f"{BASE}\n\n{self.code}"
        file = folder / f"{name}.py"
        file.write_text(text)
        (line,) = [k for k, row in enumerate(text.splitlines(), 1) if row.endswith("# here")]
        return f"{file}:{line}"

    def words(self, module: str) -> list[str]:
        """The command line."""
        policy = f"{module}:{self.policy}" if self.policy.isupper() else self.policy
        algorithm = self.algorithm if self.algorithm.islower() else f"{module}:{self.algorithm}"
        return [
            *("train", algorithm, "--env", f"{module}:{self.env}", "--policy", policy),
            *("--workers", "2", "--num-envs", "4", "--total-steps", "24", "--quiet"),
            *("--eval-episodes", "0", "--run-dir", "run", *self.more),
        ]


SOUND = Mistake(code="# here", says=())
"""nothing is wrong"""

MISTAKES = {
    "matrix shape": Mistake(
        code="""
class Mine(Climber):
    @ff.component("learner.update")
    def learn(self, params, reward):
        return {"w": params["w"] @ jnp.ones((3, 2))}  # here
""",
        algorithm="Mine",
        says=("in learn: TypeError", "(2,) and (3,)"),
    ),
    "dtype": Mistake(
        code="""
class Mine(Climber):
    def step(self, env, state, clock):  # here
        state, metrics = super().step(env, state, clock)
        return state._replace(params={"w": state.params["w"].astype(int)}), metrics
""",
        algorithm="Mine",
        says=("Mine.step changes the state's params.w from float32[2] to int32[2]",),
        has_report=False,
    ),
    "step": Mistake(
        code="""
class Mine(Climber):
    def step(self, env, state, clock):
        return {}["nothing"]  # here
""",
        algorithm="Mine",
        says=("in step: KeyError: 'nothing'",),
    ),
    "init": Mistake(
        code="""
class Mine(Climber):
    def init(self, env, key):
        raise RuntimeError("no weights")  # here
""",
        algorithm="Mine",
        says=("in init: RuntimeError: no weights",),
    ),
    "an exit": Mistake(
        code="""
class Mine(Climber):
    def step(self, env, state, clock):
        raise SystemExit("nothing  to do\\n\\x1b[2J")  # here
""",
        algorithm="Mine",
        says=("in step: SystemExit: nothing to do \\x1b[2J (",),
        travels=False,
    ),
    "no Exception": Mistake(
        code="""
class Fall(BaseException):
    pass


class Slippery(Slope):
    def step(self, action):
        raise Fall("deep")  # here


class Mine(OnHost):
    def open(self, ids):
        return Slippery(ids)
""",
        env="Mine",
        exit_code=3,
        says=("in step: Fall: deep",),
        travels=False,
    ),
    "arguments": Mistake(
        code="""
class Mine(Climber):
    def step(self, env, state):  # here
        return Climber.step(self, env, state, None)
""",
        algorithm="Mine",
        says=("Mine.step cannot be called as fragflow does, with 3 arguments",),
        has_report=False,
    ),
    "host environment": Mistake(
        code="""
class Slippery(Slope):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise ValueError("slipped")  # here
        return super().step(action)


class Mine(OnHost):
    def open(self, ids):
        return Slippery(ids)
""",
        env="Mine",
        exit_code=3,
        says=("slope: an environment failed in step at step 3: ValueError: slipped",),
    ),
    "host environment's answer": Mistake(
        code="""
class Loose(Slope):
    def step(self, action):  # here
        return tuple(super().step(action))


class Mine(OnHost):
    def open(self, ids):
        return Loose(ids)
""",
        env="Mine",
        exit_code=3,
        says=("slope returned tuple from step at step 1: expected fragflow.HostStep",),
        has_report=False,
    ),
    "environment": Mistake(
        code="""
class Mine(Hill):
    def step(self, state, action, key):
        if action > 0:  # here
            return super().step(state, action, key)
""",
        env="Mine",
        says=("in step: TracerBoolConversionError",),
    ),
    "environment of ours": Mistake(
        code="""
class Mine(Hill):
    action = ff.Box(shape=(2,))

    def step(self, state, action, key):
        return super().step(state, action @ jnp.ones(5), key)  # here
""",
        algorithm="a2c",
        env="Mine",
        says=("in step: TypeError", "(5,)"),
    ),
    "environment's state": Mistake(
        code="""
class Mine(Hill):
    action = ff.Box(shape=(1,))

    def step(self, state, action, key):  # here
        return super().step(state, action[0], key)._replace(state=state * 0.5)
""",
        algorithm="a2c",
        env="Mine",
        says=("step makes the state float32[], but reset makes it int32[]",),
        has_report=False,
    ),
    "environment's ends": Mistake(
        code="""
class Mine(Hill):
    def step(self, state, action, key):  # here
        return super().step(state, action, key)._replace(terminated=jnp.zeros(2, bool))
""",
        env="Mine",
        says=("step gives terminated of shape [2], expected []",),
        has_report=False,
        travels=False,
    ),
    "environment's space": Mistake(
        code="""
class Mine(Hill):
    action = "up or down"  # here
""",
        algorithm="a2c",
        env="Mine",
        says=("environment 'hill': its action is 'up or down', expected a space",),
        has_report=False,
        has_place=False,
        travels=False,
    ),
    "no network": Mistake(
        code="""
from fragflow.algorithms.ppo import PPO

MINE = PPO(rollout_length=4, epochs=1, minibatches=1, network=5)  # here
""",
        algorithm="MINE",
        says=("the network is 5: expected an object with init, policy, value",),
        has_report=False,
        has_place=False,
        travels=False,
    ),
    "network's distributions": Mistake(
        code="""
@dataclass(frozen=True)
class Net:
    def init(self, key, observation, action):
        return {"actor": jnp.ones((2, 1)), "critic": jnp.ones(2)}

    def policy(self, actor, obs):  # here
        return ff.ops.Normal(jnp.zeros((7, 1)), jnp.ones(1))

    def value(self, critic, obs):
        return obs @ critic


from fragflow.algorithms.ppo import PPO

MINE = PPO(rollout_length=4, epochs=1, minibatches=1, network=Net())
""",
        algorithm="MINE",
        says=("Net.policy returned distributions of shape [7]: expected one for each",),
        has_report=False,
        travels=False,
    ),
    "network": Mistake(
        code="""
@dataclass(frozen=True)
class Net:
    def init(self, key, observation, action):
        return {"actor": jnp.ones(3), "critic": jnp.ones(2)}

    def policy(self, actor, obs):
        return ff.ops.Normal(obs @ actor, jnp.ones(()))  # here

    def value(self, critic, obs):
        return obs @ critic


from fragflow.algorithms.ppo import PPO

MINE = PPO(rollout_length=4, epochs=1, minibatches=1, network=Net())
""",
        algorithm="MINE",
        says=("in policy: TypeError", "(2,) and (3,)"),
    ),
    "network's answer": Mistake(
        code="""
@dataclass(frozen=True)
class Net:
    def init(self, key, observation, action):
        return {"actor": jnp.ones((2, 1)), "critic": jnp.ones((2, 1))}

    def policy(self, actor, obs):
        return ff.ops.Normal(obs @ actor, jnp.ones(1))

    def value(self, critic, obs):  # here
        return obs @ critic


class Mine(Hill):
    action = ff.Box(shape=(1,))

    def step(self, state, action, key):
        return super().step(state, action[0], key)


from fragflow.algorithms.ppo import PPO

MINE = PPO(rollout_length=4, epochs=1, minibatches=1, network=Net())
""",
        algorithm="MINE",
        env="Mine",
        says=("Net.value returned float32[", ", 1]: expected one number for each observation of "),
        has_report=False,
        travels=False,
    ),
    "policy at import": Mistake(
        code="""
MINE = ff.Policy(name="mine", places=operator.index(None))  # here
""",
        policy="MINE",
        says=("importing", "TypeError: 'NoneType' object cannot be interpreted as an integer"),
    ),
    "policy's syntax": Mistake(
        code="""
MINE = = 3  # here
""",
        policy="MINE",
        says=("importing", "SyntaxError"),
    ),
    "policy that is a function": Mistake(
        code="""
def MINE():  # here
    return ff.Policy(name="mine", places=())
""",
        policy="MINE",
        says=("is of type function: expected a name or a fragflow.Policy",),
        has_report=False,
        has_place=False,
    ),
    "acting": Mistake(
        code="""
class Mine(Climber):
    def policy(self, params, obs, memory, key, explore=False):
        return params["v"], None  # here
""",
        algorithm="Mine",
        more=("--eval-episodes", "1"),
        exit_code=3,
        says=("in policy: KeyError: 'v'",),
    ),
    "kernel": Mistake(
        code="""
@ff.kernel("mistakes.double")
def double(x):
    return x + x


@double.implementation("other", picked_on=("cpu",))
def other(x, platform):
    raise NotImplementedError("not on " + platform)  # here


class Mine(Climber):
    @ff.component("learner.update")
    def learn(self, params, reward):
        return {"w": double(params["w"])}
""",
        algorithm="Mine",
        says=("in other: NotImplementedError: not on cpu",),
    ),
    "callback": Mistake(
        code="""
def look(w):
    if w[0] == 1:
        raise ArithmeticError("seen enough")  # here
    return w


class Mine(Climber):
    @ff.component("learner.update")
    def learn(self, params, reward):
        return {"w": jax.pure_callback(look, params["w"], params["w"])}
""",
        algorithm="Mine",
        exit_code=3,
        says=("in look: ArithmeticError: seen enough", "fragment learner[0]"),
        travels=False,
    ),
    "number of actions": Mistake(
        code="""
class Mine(Climber):
    def step(self, env, state, clock):
        action = self.act(state.params, state.obs)
        env_state, t = env.step(state.env, action[:-1])  # here
        return State(self.learn(state.params, t.reward), env_state, t.obs), {}
""",
        algorithm="Mine",
        says=("in step: ValueError", "inconsistent sizes"),
    ),
    "pytree": Mistake(
        code="""
class Mine(Climber):
    def step(self, env, state, clock):  # here
        state, metrics = super().step(env, state, clock)
        return state._replace(params=(state.params["w"],)), metrics
""",
        algorithm="Mine",
        says=("Mine.step returns a state of another structure than Mine.init",),
        has_report=False,
    ),
    "text in the state": Mistake(
        code="""
class Mine(Climber):
    def init(self, env, key):  # here
        return Climber.init(self, env, key)._replace(params={"w": "zeros"})
""",
        algorithm="Mine",
        says=("Mine.init returned a state whose params.w is of type str",),
        has_report=False,
    ),
}


def module_name(case: str) -> str:
    return "mistake_" + "".join(c if c.isalnum() else "_" for c in case)
