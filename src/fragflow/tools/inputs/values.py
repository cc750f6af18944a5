"""From words on the command line to values of a type."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from fragflow.errors import ConfigError, did_you_mean

Parser = Callable[[Sequence[str]], Any]


def parser_for(kind: Any) -> Parser:
    """Makes a value of type `kind` from words; a ValueError says what was expected."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return lambda words: _SCALARS[kind](_single(words))
    if origin is Literal:
        return lambda words: _choice(_single(words), arguments)
    if origin in (Union, types.UnionType):
        inner = next(argument for argument in arguments if argument is not types.NoneType)
        return lambda words: (
            None
            if [word.lower() for word in words] in (["none"], ["null"])
            else parser_for(inner)(words)
        )
    if origin is tuple and arguments[1:] == (...,):
        return lambda words: tuple(parser_for(arguments[0])([item]) for item in _items(words))
    return lambda words: _fixed_tuple(_items(words), arguments)


def is_expressible(kind: Any) -> bool:
    """True if words can express values of type `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is bool or kind in _SCALARS:
        return True
    if origin is Literal:
        return all(isinstance(argument, str | int) for argument in arguments)
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not types.NoneType]
        return (
            len(inner) == 1
            and len(arguments) == 2
            and inner[0] is not bool
            and is_expressible(inner[0])
        )
    if origin is tuple:
        return all(
            argument is ... or (argument in _SCALARS or get_origin(argument) is Literal)
            for argument in arguments
        )
    return False


def metavar_for(kind: Any) -> str:
    """The placeholder of such a value in the help text."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return {int: "INT", float: "FLOAT", str: "TEXT"}[kind]
    if origin is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if origin is tuple:
        inner = [metavar_for(argument) for argument in arguments if argument is not ...]
        return f"{inner[0]},..." if arguments[1:] == (...,) else ",".join(inner)
    inner = [argument for argument in arguments if argument is not types.NoneType]
    return f"{metavar_for(inner[0])}|none"


def _single(words: Sequence[str]) -> str:
    if len(words) != 1:
        raise ValueError(f"expected one value, not {len(words)}" if words else "none was given")
    return words[0]


def _items(words: Sequence[str]) -> list[str]:
    return [item for word in words for item in word.strip("()[]").split(",") if item.strip()]


def _fixed_tuple(items: Sequence[str], kinds: Sequence[Any]) -> tuple[Any, ...]:
    if len(items) != len(kinds):
        raise ValueError(f"expected {len(kinds)} values, not {len(items)}")
    return tuple(parser_for(kind)([item]) for item, kind in zip(items, kinds, strict=True))


def _choice(word: str, choices: Sequence[Any]) -> Any:
    by_text = {str(choice): choice for choice in choices}
    if word not in by_text:
        raise ValueError(f"expected one of {', '.join(by_text)}.{did_you_mean(word, by_text)}")
    return by_text[word]


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        pass
    try:
        number = float(word)  # 1e6 is a whole number too
    except ValueError:
        raise ValueError("expected a whole number") from None
    if not number.is_integer():
        raise ValueError("expected a whole number")
    return int(number)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError("expected a number") from None


_SCALARS: dict[Any, Callable[[str], Any]] = {int: _whole, float: _number, str: str}


def require_whole(name: str, value: Any, least: int) -> None:
    """Refuses anything but a whole number of a size that JAX can take."""
    most = 2**32 - 1 if name == "seed" else 2**31 - 1
    if value is None and name in ("first", "num-envs", "eval-every"):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}: expected a whole number from {least} to {most}")
