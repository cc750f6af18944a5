"""Names that a file may give, and names that only the user may; nothing is imported to decide.

A file is somebody's data, perhaps a stranger's. It may name what fragflow brings: an algorithm of
the table, an environment that a known library calls by a plain name, numbers as its settings. All
else is the user's own, and is named again by the user, or the user trusts the file.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fragflow.environments import ADAPTERS
from fragflow.errors import ConfigError

PLAIN = re.compile(r"[A-Za-z0-9_]+(?:[-/][A-Za-z0-9_]+)*")
"""Names that are looked up in a table and nowhere else. A colon would have Gymnasium import what is
before it; dots are for modules and files."""
NAMES = {"pettingzoo": re.compile(r"[a-z0-9_]+_v[0-9]+")}
"""Names by library, where they are its modules: only those of games, which have a version."""
WORDS = {
    "gymnasium": frozenset({"vectorization", "render_mode", "map_name", "obs_type"}),
    "brax": frozenset({"backend"}),
    "playground": frozenset({"impl"}),
    "jaxmarl": frozenset({"backend", "act_type", "action_type", "observation_type"}),
    "pettingzoo": frozenset({"render_mode", "obs_method"}),
}
"""Settings, by library, that are one word of a few. Any other text could be a file to load, as
`xml_file` of MuJoCo's is, or a class to import, as other libraries have it."""
ANYWHERE = frozenset({"observation_bounds"})
"""a setting of ours, for environments of every library"""
LONGEST = 200
"""characters of a name that is worth repeating"""


@dataclass(frozen=True, slots=True)
class Own:
    """Something that a file names and only the user may."""

    kind: str
    name: str
    """its name in the file"""
    words: tuple[str, ...]
    """the words that name it on the command line"""


class NotNamed(ConfigError):
    """A file names what is the user's own, and the user does not."""

    def __init__(self, file: str, things: Sequence[Own], command: Sequence[str], or_else: str):
        what = " and ".join(f"{thing.kind}, {_shown(thing.name)}" for thing in things)
        words = [word for thing in things for word in thing.words]
        super().__init__(
            f"{file} names {what}. Code that a file names is never imported: if it is yours, name "
            f"it too, `{shlex.join([*command, *words])}`{or_else}"
        )
        self.file, self.things, self.or_else = file, tuple(things), or_else

    def instead_of(self, command: Sequence[str]) -> "NotNamed":
        """The same error for the command that was given."""
        return NotNamed(self.file, self.things, command, self.or_else)


def is_known_environment(name: str) -> bool:
    """True if a known library finds `name` without importing anything that the name says."""
    library, colon, rest = name.partition(":")
    if not colon:
        return bool(PLAIN.fullmatch(name))
    return library in ADAPTERS and bool(NAMES.get(library, PLAIN).fullmatch(rest))


def is_known_algorithm(name: str) -> bool:
    """True if `name` is one of fragflow's own algorithms."""
    from fragflow.algorithms import ALGORITHMS

    return name.lower() in ALGORITHMS


def own_of_run(
    config: Mapping[str, Any], *, algorithm: bool, env: str | None, settings: bool
) -> list[Own]:
    """Things of the user's own that a run's configuration names, and that are needed.

    `env` is what the user calls the environment, if that was said; `settings` go to it, or to the
    run's.
    """
    own: list[Own] = []
    name = config["env"]
    if env is None and ("env" in config["load_needs"] or not is_known_environment(name)):
        own.append(Own("an environment of your own", name, ("--env", own_name(config, "env"))))
    if settings:
        own += own_settings(name if env is None else env, config["env_args"])
    name = config["algorithm"]
    if algorithm and ("algorithm" in config["load_needs"] or not is_known_algorithm(name)):
        words = ("--algorithm", own_name(config, "algorithm"))
        own.append(Own("an algorithm of your own", name, words))
    return own


def require_named(
    path: str, values: Mapping[str, Any], from_file: Iterable[str], command: Sequence[str]
) -> None:
    """Refuses what a file of options names of the user's own; `from_file` are those it gives."""
    own = own_of_options(values, frozenset(from_file))
    if own:
        or_else = ", or say --trust-config if you know who wrote the file"
        raise NotNamed(f"--config {path}", own, command, or_else)


def own_of_options(values: Mapping[str, Any], from_file: frozenset[str]) -> list[Own]:
    """Things of the user's own that a file of options names."""
    own: list[Own] = []
    for option, kind in (
        ("env", "an environment of your own"),
        ("policy", "a policy of your own"),
        # Whoever answers there is sent a program, and answers with one.
        ("ray_address", "a cluster"),
        ("cluster", "a cluster"),
    ):
        name = values[option]
        if option not in from_file or name is None:
            continue
        is_known = {"env": is_known_environment, "policy": PLAIN.fullmatch}.get(option)
        if not (is_known and is_known(name)):
            flag = "--" + option.replace("_", "-")
            own.append(Own(kind, name, (flag, _typed(name, "MODULE:ATTRIBUTE"))))
    if "env_arg" in from_file:
        from fragflow.tools.inputs.resolve import parse_arguments

        own += own_settings(values["env"], parse_arguments(values["env_arg"]))
    return own


def own_settings(env: str, settings: Mapping[str, Any]) -> list[Own]:
    """Settings of an environment that a file must not give: texts, but for known words.

    Those that it may give are told along: the user names all of them, or none.
    """
    library, colon, _ = env.partition(":")
    words = ANYWHERE | WORDS.get(library if colon else "gymnasium", frozenset())

    def is_harmless(name: str, value: Any) -> bool:
        if isinstance(value, str):
            return name in words and bool(PLAIN.fullmatch(value))
        return name.isidentifier() and is_numbers(value)

    refused = [name for name, value in settings.items() if not is_harmless(name, value)]
    if not refused:
        return []
    pairs = [_pair(name, value) for name, value in settings.items()]
    flags = tuple(word for pair in pairs for word in ("--env-arg", _typed(pair, "NAME=VALUE")))
    shown = ", ".join(_pair(name, settings[name]) for name in refused)
    return [Own("settings that may be files or code", shown, flags)]


def is_numbers(value: Any) -> bool:
    """True if `value` is made of numbers, true, false and null only."""
    if isinstance(value, Mapping):
        return all(map(is_numbers, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_numbers, value))
    return value is None or isinstance(value, bool | int | float)


def own_name(config: Mapping[str, Any], key: str) -> str:
    """The name for a command line of a run's own environment or algorithm."""
    named = config.get("named")
    found = named.get(key) if isinstance(named, Mapping) else None
    name = found if isinstance(found, str) else config[key]
    return _typed(name, "MODULE:ATTRIBUTE") if ":" in name else "MODULE:ATTRIBUTE"


def _pair(name: str, value: Any) -> str:
    return f"{name}={value if isinstance(value, str) and _is_no_json(value) else json.dumps(value)}"


def _is_no_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _typed(word: str, otherwise: str) -> str:
    """`word` if somebody could type it, and a terminal shows all of it."""
    is_fit = word.isprintable() and not word.startswith("-") and " ".join(word.split()) == word
    return word if word and is_fit and len(word) <= LONGEST else otherwise


def _shown(name: str) -> str:
    """`name` with every character that a terminal would obey written out."""
    return repr(name if len(name) <= LONGEST else name[:LONGEST] + "...")
