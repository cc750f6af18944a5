"""Several agents in one environment: what they must have in common."""

from collections.abc import Mapping

from fragflow.api.spaces import Space
from fragflow.errors import ConfigError


def same_space(name: str, what: str, spaces: Mapping[str, Space]) -> Space:
    """The one space of all agents."""
    if not spaces:
        raise ConfigError(f"{name} has no agents")
    first = next(iter(spaces))
    for agent, space in spaces.items():
        if space != spaces[first]:
            raise ConfigError(
                f"agents of {name} have different {what}: {first} has {spaces[first]}, {agent} has "
                f"{space}. Agents share one network, so their spaces must be equal."
            )
    return spaces[first]
