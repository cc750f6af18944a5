"""A policy of one's own: environments, actors and the learner in three fragments.

The command line finds it too, from this directory:
    fragflow show ppo --env CartPole-v1 --policy own_policy:THREE_WAY --workers 2
"""

import fragflow as ff

THREE_WAY = ff.Policy(
    name="three-way",
    summary="workers step environments, others act for them, one learner learns",
    places=(
        ff.Place(name="environment", components=("environment",), replicas="workers", device="cpu"),
        ff.Place(name="actor", components=("actor",), replicas="workers"),
        ff.Place(name="learner", components=("learner",)),
    ),
)


def compiled(workers=2):
    """The fragments and messages that the policy makes of PPO."""
    return ff.compile("ppo", "CartPole-v1", policy=THREE_WAY, workers=workers, total_steps=65_536)


if __name__ == "__main__":
    three_way = compiled()
    print(three_way.show())
    result = three_way.run()
    print(f"return {result.eval_return}, equality: {result.equality}")
