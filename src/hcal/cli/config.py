"""``--config``: options of commands in a TOML file.

A table holds the options of one command, such as ``[fit]``. What stands above the tables holds for every command that
has the option. What the command line says wins. Paths are as written: they begin where the command runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Final, get_type_hints

from typer import Argument, BadParameter, Context, Option

from hcal.cli import console
from hcal.cli.options import Command
from hcal.io.files import open_regular
from hcal.text import JsonObject, one_line, quoted

#: A larger file is no configuration.
_LARGEST: Final = 2**16
#: A key with more dots than this is none of an option, and Python's reader takes long for thousands.
_MOST_DOTS: Final = 4
#: The option that names the file itself.
_ITSELF: Final = "config"


def read_config(context: Context, path: Path) -> Path:
    """Take from a file what the command line leaves open; refuse a file with unknown options."""
    # The commands register themselves with the application, which knows them all when one is called.
    from hcal.cli.options import Command, app

    callbacks = {str(info.name): info.callback for info in app.registered_commands}
    commands = {
        title: callback
        for title, callback in callbacks.items()
        if isinstance(callback, type) and issubclass(callback, Command)
    }
    name = str(context.info_name)
    try:
        content = _parsed(path)
        shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in content.items() if isinstance(value, dict)}
        _check_names(tables, commands, "command")
        anywhere = {option for command in commands.values() for option in options_of(command)}
        _check_names(shared, anywhere, "option")
        for table, values in tables.items():
            _check_names(values, options_of(commands[table]), f"option of hcal {table}")
        options = options_of(commands[name])
        chosen = {key: value for key, value in shared.items() if _plain(key) in options}
        chosen |= tables.get(name, {})
        context.default_map = {
            options[_plain(key)].name: options[_plain(key)].value_of(key, value)
            for key, value in chosen.items()
        }
    except (ValueError, OSError) as error:
        raise BadParameter(f"{path.name}: {one_line(error, 400)}") from None
    return path


class ConfigOption:
    """One option of a command, as its dataclass declares it."""

    def __init__(self, field: Field[object], kind: object, declared: object) -> None:
        self.name = field.name
        self.default = field.default
        self.is_list = "list[" in str(kind)
        self.is_flag = kind is bool
        infos = getattr(declared, "__metadata__", ())
        self.is_argument = any(isinstance(info, type(Argument())) for info in infos)

    def words(self, key: str, value: object) -> list[str]:
        """Return the option with its value as the command line has it."""
        if self.is_flag:
            return [f"--{key}" if value else f"--no-{key}"]
        parts = value if isinstance(value, list) else [value]
        words = []
        for part in parts:
            words += [f"--{key}", _word(part)]
        return words

    def value_of(self, key: str, value: object) -> bool | str | list[str]:
        """Return a value of the file as the command line would hand it on."""
        parts = value if isinstance(value, list) else [value]
        if any(isinstance(part, dict | list) for part in parts):
            raise ValueError(f"{key} must be text, a number or a list of them")
        if self.is_flag != (len(parts) == 1 and isinstance(parts[0], bool)):
            kind = "true or false" if self.is_flag else "text or a number"
            raise ValueError(f"{key} must be {kind}, got {quoted(value)}")
        if self.is_flag:
            return bool(parts[0])
        texts = [str(part) for part in parts]
        # Names are separated by commas on the command line, and may be a list in the file.
        return texts if self.is_list else ",".join(texts)


def _word(value: object) -> str:
    """Return a value as one word of a command; standard input is - again."""
    return console.title_of(value) if isinstance(value, Path) else str(value)


def options_of(command: type[Command]) -> dict[str, ConfigOption]:
    """Return the options of a command by the names that a file may use."""
    hints = get_type_hints(command)
    extras = get_type_hints(command, include_extras=True)
    options = {}
    for field in fields(command):
        if field.name != _ITSELF:
            declared = extras[field.name]
            option = ConfigOption(field, hints[field.name], declared)
            options[_long_name(field.name, declared)] = option
    return options


def arguments_of(name: str, command: Command) -> list[str]:
    """Return the arguments that repeat a command without its file of options."""
    words = ["hcal", name]
    options = []
    for key, option in options_of(type(command)).items():
        value = getattr(command, option.name)
        if option.is_argument:
            parts = value if isinstance(value, list) else [value]
            words += [_word(part) for part in parts]
        elif value != option.default:
            options += option.words(key.replace("_", "-"), value)
    return words + options


def _long_name(name: str, annotation: object) -> str:
    """Return the name of an option without its dashes: as declared, or that of the field."""
    declared = [
        text
        for info in getattr(annotation, "__metadata__", ())
        if isinstance(info, type(Option()))
        for text in (info.default, *(info.param_decls or ()))
        if isinstance(text, str) and text.startswith("--")
    ]
    # A flag may be declared with its opposite: --browser/--no-browser.
    return _plain(declared[0].partition("/")[0].removeprefix("--") if declared else name)


def _plain(key: str) -> str:
    """Return the name of an option as it is compared: ``half-life`` and ``half_life`` are one."""
    return key.replace("-", "_")


def _parsed(path: Path) -> JsonObject:
    with open_regular(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it holds more than {_LARGEST:,} bytes: a configuration is shorter")
    try:
        text = content.decode("utf-8")
        if any(line.partition("=")[0].count(".") > _MOST_DOTS for line in text.splitlines()):
            raise ValueError("a key has several dots: a table such as [fit] holds plain options")
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is no TOML: {error}") from None


def _check_names(keys: Mapping[str, object], valid: Collection[str], what: str) -> None:
    """Refuse a name that is not known, and say which one is the nearest."""
    for key in keys:
        if _plain(key) not in valid:
            near = get_close_matches(_plain(key), list(valid), n=1, cutoff=0.5)
            advice = (
                f"did you mean {near[0].replace('_', '-')!r}?"
                if near
                else (f"there are {', '.join(sorted(name.replace('_', '-') for name in valid))}")
            )
            raise ValueError(f"{quoted(key)} is no {what}; {advice}")
