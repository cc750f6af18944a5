"""A rival's side of `channels.py`: arrays to a Ray actor and back."""

import sys
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
import ray


@ray.remote(num_cpus=1)
class Echo:
    """Sends back what it gets."""

    def call(self, array: np.ndarray) -> np.ndarray:
        return array

    def store(self, references: list[Any]) -> list[Any]:
        return [ray.put(ray.get(references[0]))]


def main() -> None:
    warnings.simplefilter("ignore")
    ray.init(address="local", include_dashboard=False, num_cpus=2, logging_level="ERROR")
    actor = Echo.remote()
    ray.get(actor.call.remote(np.zeros(1)))
    print("ready", f'{{"ray": "{version("ray")}"}}', flush=True)
    for line in sys.stdin:
        kind, size, rounds = line.split()
        array = np.arange(int(size) // 4, dtype=np.float32)
        for _ in range(int(rounds)):
            if kind == "actor":
                ray.get(actor.call.remote(array))
            else:
                (reference,) = ray.get(actor.store.remote([ray.put(array)]))
                ray.get(reference)
        print("done", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
