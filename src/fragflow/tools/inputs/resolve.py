"""From names to things: built in, or the user's own as `module:attribute`."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, get_type_hints

from fragflow.errors import ConfigError, FragflowError, PolicyError, did_you_mean, unknown
from fragflow.policies import Policy, named_policy, synchronisation

DEFAULT_POLICY = "gpu-only"
DEFAULT_POLICY_ON_HOST = "single-learner-coarse"


def why_default(policy: Policy) -> str:
    """The reason that `policy` was taken when none was asked for."""
    if policy.name == DEFAULT_POLICY:
        return "the default where the environment compiles with the algorithm"
    return "the default where the environment runs on the host"


def find_algorithm(name: str) -> Any:
    """The algorithm called `name`, a class; or what `module:attribute` is, class or instance."""
    from fragflow.algorithms import algorithm_class
    from fragflow.api import Algorithm

    if ":" not in name:
        return algorithm_class(name)
    found = import_attribute("algorithm", name, ConfigError)
    if isinstance(found, Algorithm) or (isinstance(found, type) and issubclass(found, Algorithm)):
        return found
    raise ConfigError(
        f"algorithm {name!r} is of type {type(found).__name__}: expected a subclass of "
        "fragflow.Algorithm or an instance of one"
    )


def make_algorithm(algorithm: Any, hyperparameters: Mapping[str, Any] | None = None) -> Any:
    """An algorithm from its name, class or instance, with some hyperparameters replaced."""
    from fragflow.api import Algorithm

    found: Any = find_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    cls: Any = found if isinstance(found, type) else type(found)
    if not issubclass(cls, Algorithm):
        raise ConfigError(
            f"algorithm is of type {cls.__name__}: expected a name, a subclass of "
            "fragflow.Algorithm or an instance of one"
        )
    changes = dict(hyperparameters or {})
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    for name in changes:
        if name not in known:
            raise ConfigError(unknown(f"hyperparameter of {cls.__name__}", name, known))
    _check_types(cls, changes)
    try:
        made = cls(**changes) if isinstance(found, type) else dataclasses.replace(found, **changes)
    except TypeError as error:
        raise ConfigError(f"cannot make {cls.__name__}: {error}") from error
    _check_types(cls, {name: getattr(made, name) for name in known})
    return made


def _check_types(cls: type, values: Mapping[str, Any]) -> None:
    """Refuses values that do not fit their declared type: later they would fail far from here."""
    try:
        hints = get_type_hints(cls)
    except NameError:  # somebody's annotations are for type checkers only
        return
    for name, value in values.items():
        holds, expected = _EXPECTED.get(hints.get(name), (lambda _: True, ""))
        if not holds(value):
            raise ConfigError(f"{name} of {cls.__name__} is {value!r}: expected {expected}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**31


_EXPECTED: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (_is_whole, "a whole number below 2^31"),
    float: (lambda x: isinstance(x, Real) and not isinstance(x, bool), "a number"),
    bool: (lambda x: isinstance(x, bool), "True or False"),
    tuple[int, ...]: (
        lambda x: isinstance(x, tuple | list) and all(map(_is_whole, x)),
        "a tuple of whole numbers",
    ),
}
"""by the type of a hyperparameter"""


def builtin_algorithm_name(algorithm: Any) -> str | None:
    """The name a built-in algorithm is known by; None for anybody else's."""
    from fragflow.algorithms import ALGORITHMS

    cls = type(algorithm)
    home = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for name, where in ALGORITHMS.items() if where == home), None)


def importable_name(cls: type) -> str | None:
    """`module:class`, if another process can find it by that."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        return None
    return f"{cls.__module__}:{cls.__qualname__}"


def default_name(thing: Any) -> str | None:
    """`module:class`, if that makes the like of `thing` without being told more."""
    if dataclasses.is_dataclass(thing):
        fields = [field for field in dataclasses.fields(thing) if field.init]
        is_default = all(getattr(thing, field.name) is field.default for field in fields)
    else:
        is_default = getattr(thing, "__dict__", None) == {}
    return importable_name(type(thing)) if is_default else None


def is_builtin_environment(name: str) -> bool:
    """True if the built-in adapters resolve `name`, which is then not a `module:attribute`."""
    from fragflow.environments import ADAPTERS

    library, colon, _ = name.partition(":")
    return not colon or library in ADAPTERS


def find_environment(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """The environment called `name`, or what `module:attribute` is or makes."""
    from fragflow.api import Environment, HostEnvironment
    from fragflow.environments import ADAPTERS, environment_names, make_environment

    if is_builtin_environment(name):
        if name.count(":") > 1:
            _find_modules_here()
        try:
            return make_environment(name, **(arguments or {}))
        except ConfigError as error:
            library, _, rest = name.rpartition(":")
            names = [full.rpartition(":")[2] for full in environment_names()]
            if rest in names or library:
                raise
            raise ConfigError(
                f"unknown environment {name!r}.{_nearest(name, names)} "
                "`fragflow list` shows the known ones."
            ) from error
    module = name.partition(":")[0]
    try:
        found = import_attribute("environment", name, ConfigError)
    except ConfigError as error:
        hint = did_you_mean(module, ADAPTERS)
        raise ConfigError(f"{error}.{hint}" if hint else str(error)) from error
    if isinstance(found, type) or not isinstance(found, Environment | HostEnvironment):
        if not callable(found):
            raise _not_an_environment(name, found)
        found = _made(name, found, arguments)
    elif arguments:
        raise ConfigError(f"environment {name!r} is already an object: it takes no arguments")
    return check_environment(name, found)


def given_environment(env: Any, arguments: Mapping[str, Any] | None = None) -> Any:
    """The environment that somebody gave: as an object, its class, or a name."""
    if isinstance(env, str):
        return find_environment(env, arguments)
    if isinstance(env, type):
        return check_environment(env.__name__, _made(env.__name__, env, arguments))
    return check_environment(type(env).__name__, env)


def _made(name: str, make: Callable[..., Any], arguments: Mapping[str, Any] | None) -> Any:
    try:
        return make(**(arguments or {}))
    except TypeError as error:
        raise ConfigError(f"cannot make environment {name!r}: {error}") from error


def check_environment(name: str, environment: Any) -> Any:
    """`environment` itself if it has all that an environment needs."""
    from fragflow.api import Environment, HostEnvironment

    is_one = isinstance(environment, Environment | HostEnvironment)
    if isinstance(environment, type) or not is_one:
        raise _not_an_environment(name, environment)
    return environment


def runs_on_host(env: Any) -> bool:
    """True if an environment, or the one of this name, is not a JAX program."""
    from fragflow.api import HostEnvironment
    from fragflow.environments import ON_HOST, library_of

    if isinstance(env, str) and is_builtin_environment(env):
        return library_of(env) in ON_HOST
    return isinstance(find_environment(env) if isinstance(env, str) else env, HostEnvironment)


def find_policy(policy: Any, env: Any, sync: Any = None, first: int | None = None) -> Policy:
    """A policy from its name, from `module:attribute`, or as it is; for None what suits `env`.

    `sync` replaces how it is synchronised, `first` how many environments are acted on at a time.
    """
    found = _find_policy(policy, env)
    if first is not None:
        found = dataclasses.replace(found, first=first)
    if sync is None:
        return found
    return dataclasses.replace(
        found, synchronisation=synchronisation(sync) if isinstance(sync, str) else sync
    )


def _find_policy(policy: Any, env: Any) -> Policy:
    if policy is None:
        return named_policy(DEFAULT_POLICY_ON_HOST if runs_on_host(env) else DEFAULT_POLICY)
    found = policy
    if isinstance(policy, str):
        if ":" not in policy:
            return named_policy(policy)
        found = import_attribute("policy", policy, PolicyError)
    if not isinstance(found, Policy):
        name = repr(policy) if isinstance(policy, str) else "given"
        raise PolicyError(
            f"policy {name} is of type {type(found).__name__}: expected a name or a fragflow.Policy"
        )
    return found


def _find_modules_here() -> None:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def import_attribute(kind: str, name: str, error: type[FragflowError]) -> Any:
    """The object that `module:attribute` names; modules of the current directory are found too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise error(f"{kind} {name!r}: expected a name, or module:attribute for one of your own")
    _find_modules_here()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise error(f"{kind} {name!r}: importing {module_name} failed: {missing}") from missing
        raise error(f"{kind} {name!r}: there is no module {missing.name!r} here") from missing
    except Exception as failure:
        raise error(
            f"{kind} {name!r}: importing {module_name} failed: {type(failure).__name__}: {failure}"
        ) from failure
    for part in attribute.split("."):
        if part not in dir(found):
            public = [word for word in dir(found) if not word.startswith("_")]
            raise error(
                f"{kind} {name!r}: {module_name} has no attribute {part!r}."
                f"{did_you_mean(part, public)}"
            )
        found = getattr(found, part)
    return found


def parse_arguments(pairs: Sequence[str], flag: str = "--env-arg") -> dict[str, Any]:
    """`K=V` pairs; a value is read as JSON where it is that, else as text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{flag} {pair!r}: expected NAME=VALUE")
        arguments[key] = _json_or_text(value)
    return arguments


def parse_wrappers(words: Sequence[str]) -> dict[str, Any]:
    """`NAME` or `NAME=VALUE` each, as arguments of `ff.wrap` in the same order."""
    from fragflow.environments.wrapping.wrappers import WRAPPERS, takes_value

    named: dict[str, Any] = {}
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.replace("-", "_")
        if name not in WRAPPERS:
            known = [wrapper.replace("_", "-") for wrapper in WRAPPERS]
            raise ConfigError(f"--wrap {word}: {unknown('wrapper', flag, known)}")
        if name in named:
            raise ConfigError(f"--wrap {word}: {flag} is given twice")
        if takes_value(name) and not value:
            raise ConfigError(f"--wrap {word}: expected {flag}=NUMBER")
        named[name] = _json_or_text(value) if equals else True
    return named


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _not_an_environment(name: str, found: Any) -> ConfigError:
    needs = ("name", "observation", "action", "reset", "step")
    missing = [word for word in needs if word not in dir(found)]
    return ConfigError(
        f"environment {name!r} is of type {type(found).__name__}"
        + (f" without {', '.join(missing)}" if missing else "")
        + ": expected an object with name, observation, action, reset and step"
    )


def _nearest(word: str, names: Sequence[str]) -> str:
    """Did-you-mean that does not mind case, nor a missing version at the end."""
    by_lower = {name.lower(): name for name in names}
    for name in by_lower:
        if name.rpartition("-")[0] == word.lower():
            return f" Did you mean {by_lower[name]!r}?"
    hint = did_you_mean(word.lower(), by_lower)
    for lower, name in by_lower.items():
        hint = hint.replace(repr(lower), repr(name))
    return hint
