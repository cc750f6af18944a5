"""The optimisations that a user switches off, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from fragflow.errors import ConfigError
from fragflow.graph.optimisations import Optimisations, all_but

OF_MESSAGES = ("hoist", "sink", "coalesce")
"""those that `optimise` switched, before each had a name of its own"""


def names_without(without: str | Sequence[str]) -> tuple[str, ...]:
    """The names in `pack,donate`, or in a sequence of names."""
    words = without.split(",") if isinstance(without, str) else without
    is_listed = isinstance(words, Sequence)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not (is_listed and all(isinstance(word, str) for word in words)):
        raise ConfigError(
            f"without is {without!r}: expected names of optimisations, like 'pack,donate'"
        )
    return tuple(word.strip() for word in words if word.strip())


def optimisations_without(without: str | Sequence[str]) -> Optimisations:
    """All optimisations but those named."""
    return all_but(names_without(without))


def renewed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration whose `optimise` says by name what is switched off."""
    settings = dict(content)
    if isinstance(settings.get("optimise"), bool):
        optimise = settings.pop("optimise")
        settings.setdefault("without", [] if optimise else list(OF_MESSAGES))
    return settings
