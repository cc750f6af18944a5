"""Options of the command line: typed, with help, from a table or from an algorithm's fields."""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import json
import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from fragflow.errors import ConfigError, did_you_mean
from fragflow.tools.inputs.switched_off import renewed
from fragflow.tools.inputs.values import is_expressible, metavar_for, parser_for

NOT_IN_A_FILE = ("config", "trust_config")
"""options of the command line alone: a file does not say that it is to be trusted"""
NARROWEST = 40
"""Columns of a help text. In fewer, tyro writes it letter by letter, and below six never ends."""


class BadValue(Exception):
    """A value that an option cannot have. (Not a ValueError: tyro would print those itself.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, `--like-this`."""

    name: str
    """with underscores"""
    kind: Any
    """its type: bool, int, float, str, Literal, a tuple of these, or one of these and None"""
    help: str
    default: Any = None
    metavar: str | None = None
    shown_default: str | None = None
    """text of the help in place of a default that itself tells nothing"""
    required: bool = False
    has_no_form: bool = True
    """True if a bool can also be switched off, by `--no-like-this`"""
    is_repeatable: bool = False
    """True if it can be given several times, each time with a further value"""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, words: Sequence[str]) -> Any:
        """The value that `words` on the command line mean."""
        try:
            return parser_for(self.kind)(words)
        except ValueError as error:
            given = " ".join(words)
            raise BadValue(
                f"{self.flag} {given}: {error}" if given else f"{self.flag} needs a value: {error}"
            ) from error

    def from_json(self, value: Any) -> Any:
        """The value that `value` in a configuration file means."""
        if self.kind is bool:
            if not isinstance(value, bool):
                raise BadValue(f"{self.flag} {value!r}: expected true or false")
            return value
        if isinstance(value, Mapping):
            value = [f"{key}={json.dumps(item)}" for key, item in value.items()]
        words = value if isinstance(value, list) else [value]
        return self.parse([word if isinstance(word, str) else json.dumps(word) for word in words])


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """Options under one heading of the help text."""

    title: str
    options: tuple[Option, ...]
    summary: str = ""


def hyperparameters(algorithm: Any) -> OptionGroup:
    """The fields of an algorithm's dataclass that a command line can express."""
    cls = algorithm if isinstance(algorithm, type) else type(algorithm)
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise ConfigError(
            f"the types of {cls.__name__}'s fields, which become options, are not known: {error}. "
            "Import these types at run time, not for type checkers only."
        ) from error
    docs = field_docs(cls)
    options = []
    for field in dataclasses.fields(cls):
        if not field.init or not is_expressible(hints[field.name]):
            continue
        options.append(
            Option(
                name=field.name,
                kind=hints[field.name],
                help=docs.get(field.name, ""),
                default=_default(algorithm, field),
                required=_is_required(algorithm, field),
            )
        )
    return OptionGroup(title="hyperparameter", options=tuple(options), summary=first_line(cls))


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a class, own or inherited."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, following in itertools.pairwise(body):
            match statement, following:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return docs


@contextlib.contextmanager
def _wide_enough() -> Iterator[None]:
    """A terminal of a width that help can be read in; tyro asks only this variable."""
    before = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = before


def parse(
    prog: str, summary: str, groups: Sequence[OptionGroup], words: Sequence[str]
) -> dict[str, Any]:
    """Values of all options by name. Prints the help and exits if asked for it."""
    import tyro

    options = _unique(groups)
    words = _normalised(words)
    for option in options.values():
        if option.is_repeatable:
            words = _gather_repeated(option.flag, words)
    kinds = []
    for group in groups:
        group_type = dataclasses.make_dataclass(
            group.title, [_field(option) for option in group.options]
        )
        group_type.__doc__ = group.summary or group.title
        kinds.append((group.title, group_type))
    everything = dataclasses.make_dataclass("Options", kinds)
    everything.__doc__ = summary
    try:
        with _wide_enough():
            parsed, rest = tyro.cli(
                tyro.conf.OmitArgPrefixes[everything],
                args=words,
                prog=prog,
                description=summary,
                return_unknown_args=True,
            )
    except BadValue as error:
        raise ConfigError(str(error)) from error
    if rest:
        raise _unknown_words(prog, options, rest)
    values = {
        option.name: getattr(getattr(parsed, group.title), option.name)
        for group in groups
        for option in group.options
    }
    for option in options.values():
        if option.required and values[option.name] is None:
            raise ConfigError(f"{option.flag} is missing: {option.help}")
    return values


def with_config_file(groups: Sequence[OptionGroup], path: str) -> list[OptionGroup]:
    """The same options with the values of a JSON file as defaults."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot read it ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: expected a JSON object of option names and values")
    content = renewed(content)
    values = {key.replace("-", "_"): value for key, value in content.items()}
    options = _unique(groups)
    flags = [option.flag.removeprefix("--") for option in options.values()]
    for key in content:
        name = key.replace("-", "_")
        if name in NOT_IN_A_FILE:
            raise ConfigError(f"--config {path}: {key!r} can only be given on the command line")
        if name not in options:
            raise ConfigError(f"--config {path}: unknown option {key!r}.{did_you_mean(key, flags)}")

    def filled(option: Option) -> Option:
        if option.name not in values:
            return option
        try:
            value = option.from_json(values[option.name])
        except BadValue as error:
            raise ConfigError(f"--config {path}: {error}") from error
        return dataclasses.replace(option, default=value, shown_default=None, required=False)

    return [
        dataclasses.replace(group, options=tuple(map(filled, group.options))) for group in groups
    ]


def given_by_file(
    groups: Sequence[OptionGroup], filled: Sequence[OptionGroup], words: Sequence[str]
) -> set[str]:
    """Names of the options that `filled` has from a file, and `words` say nothing of."""
    said = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    before, after = _unique(groups), _unique(filled)
    return {n for n, option in after.items() if option is not before[n] and option.flag not in said}


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """The value given for `flag` among `words`, without looking at anything else."""
    for index, word in enumerate(words):
        if word == flag:
            return words[index + 1] if index + 1 < len(words) else None
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _field(option: Option) -> tuple[str, Any, Any]:
    import tyro

    shown = "required" if option.required else option.shown_default
    hint = None if shown is None else f"({shown})"
    if option.kind is bool:
        argument = tyro.conf.arg(help=option.help, help_behavior_hint=hint)
        kind: Any = Annotated[bool, argument]
        if not option.has_no_form:
            kind = tyro.conf.FlagCreatePairsOff[kind]
        return option.name, kind, dataclasses.field(default=option.default or False)
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=option.metavar or metavar_for(option.kind),
        instance_from_str=option.parse,
        is_instance=lambda _: True,
        str_from_instance=lambda value: [_shown(value)],
    )
    argument = tyro.conf.arg(help=option.help, help_behavior_hint=hint)
    kind = Annotated[Any, spec, argument]
    return option.name, kind, dataclasses.field(default=option.default)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _unique(groups: Sequence[OptionGroup]) -> dict[str, Option]:
    options: dict[str, Option] = {}
    for group in groups:
        for option in group.options:
            if option.name in options:
                raise ConfigError(
                    f"the hyperparameter {option.name!r} has the same name as an option of the "
                    "command line: rename it"
                )
            options[option.name] = option
    return options


def _normalised(words: Sequence[str]) -> list[str]:
    """`--flag=value` as two words."""
    normal: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        normal += [flag, value] if word.startswith("--") and equals else [word]
    return normal


def _gather_repeated(flag: str, words: Sequence[str]) -> list[str]:
    """All values of a repeated option behind its first mention."""
    rest: list[str] = []
    gathered: list[str] = []
    collecting = False
    for word in words:
        if word == flag:
            collecting = True
            continue
        collecting = collecting and not word.startswith("-")
        (gathered if collecting else rest).append(word)
    return [*rest, flag, *gathered] if flag in words else rest


def _unknown_words(prog: str, options: Mapping[str, Option], words: Sequence[str]) -> ConfigError:
    flags = [option.flag for option in options.values()]
    flags += [f"--no-{o.flag[2:]}" for o in options.values() if o.kind is bool and o.has_no_form]
    first = next((word for word in words if word.startswith("-")), words[0])
    if first.startswith("-"):
        hint = did_you_mean(first.replace("_", "-"), flags)
        return ConfigError(f"unknown option {first}.{hint} `{prog} --help` shows all options.")
    return ConfigError(f"unexpected argument {first!r}. `{prog} --help` shows all options.")


def _is_required(algorithm: Any, field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return isinstance(algorithm, type) and field.default is missing is field.default_factory


def _default(algorithm: Any, field: dataclasses.Field[Any]) -> Any:
    if not isinstance(algorithm, type):
        return getattr(algorithm, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None
