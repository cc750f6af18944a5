"""A policy of one's own: environments, actors and the learner in three fragments.

The command line finds it too, from this directory:
    fragflow show ppo --env CartPole-v1 --policy own_policy:THREE_WAY --workers 2
"""

import fragflow as ff
from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.graph.show import render
from fragflow.run import Experiment, graph

THREE_WAY = ff.Policy(
    name="three-way",
    summary="workers step environments, others act for them, one learner learns",
    places=(
        ff.Place(name="environment", components=("environment",), replicas="workers", device="cpu"),
        ff.Place(name="actor", components=("actor",), replicas="workers"),
        ff.Place(name="learner", components=("learner",)),
    ),
)


def picture(workers=2):
    """The fragments and messages that the policy makes of PPO."""
    environment = make_environment("CartPole-v1")
    experiment = Experiment(
        algorithm=PPO(), environment=environment, num_envs=16, total_steps=65_536
    )
    return render(graph(experiment, THREE_WAY, ff.Deployment(workers=workers)))


if __name__ == "__main__":
    print(picture())
    result = ff.train("ppo", "CartPole-v1", policy=THREE_WAY, workers=2, total_steps=65_536)
    print(f"return {result.eval_return}, equality: {result.equality}")
