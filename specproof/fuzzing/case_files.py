"""Cases as JSON, and back: all that a case holds, whatever fields it has, by the types that its classes declare.

A folder of a built-in pair is written by the pair's name ("toy/draft"), so that a file means the same on another
machine; any other as its path. A transform is written as its class and what it holds.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from reference.errors import InvalidInput, InvalidSetting
from specproof import transforms
from specproof.engine import Case, LogitTransform
from specproof.exact_turns import TwoTurnCase
from specproof.pairs import tiny, toy

TRANSFORMS: Mapping[str, type[Any]] = {
    name: found for name, found in vars(transforms).items() if isinstance(found, type) and is_dataclass(found)
}
"""Every transform that a file may name."""


@cache
def _folders() -> dict[str, Path]:
    """The folders of the built-in pairs, by the names they have in a file."""
    return {
        f"{name}/{part}": getattr(pair, part)
        for name, pair in (("toy", toy()), ("tiny", tiny()))
        for part in ("target", "draft")
    }


def folder_name(folder: Path) -> str:
    """A folder as it is written: that of a built-in pair by its name, any other as its path."""
    return next((name for name, known in _folders().items() if known == folder), str(folder))


def to_json(case: Case) -> dict[str, Any]:
    """A case as `json.dumps` takes it.

    Raises:
        InvalidSetting: one of its models has a transform that is not of `specproof.transforms`.
    """
    return cast(dict[str, Any], _encode(case))


def from_json(data: Any) -> Case:
    """The case that `to_json` wrote.

    Raises:
        InvalidSetting: something is missing, unknown, or of another type; the message says where.
    """
    of_two_turns = isinstance(data, dict) and "second" in data
    return cast(Case, _decode(TwoTurnCase if of_two_turns else Case, data, "case"))


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return folder_name(value)
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
        return {"transform": type(value).__name__, **found} if type(value) in TRANSFORMS.values() else found
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(_encode(item) for item in value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidSetting(f"{value!r} cannot be written into a case file; use a transform of specproof.transforms")


def _decode(kind: Any, data: Any, where: str) -> Any:
    """`data` as a value of the type `kind`. `where` names the place in messages."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (present,) = (argument for argument in arguments if argument is not type(None))
        return None if data is None else _decode(present, data, where)
    if kind is LogitTransform:
        return _transform(data, where)
    if origin is Literal:
        return _checked(data, data in arguments, where, f"one of {', '.join(map(str, arguments))}")
    if kind is Path:
        name = cast(str, _checked(data, isinstance(data, str), where, "a folder"))
        return _folders().get(name) or Path(name)
    if is_dataclass(kind):
        return _instance(cast(type[Any], kind), data, where)
    if origin in (tuple, frozenset):
        items = _checked(data, isinstance(data, list), where, "a list")
        return origin(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is Mapping:
        pairs = _checked(data, isinstance(data, dict), where, "an object").items()
        return {_integer_key(key, where): _decode(arguments[1], item, f"{where}[{key}]") for key, item in pairs}
    is_bool = isinstance(data, bool)
    fits = is_bool if kind is bool else isinstance(data, int | float if kind is float else kind) and not is_bool
    return _checked(data, fits, where, f"a value of type {getattr(kind, '__name__', kind)}")


def _instance(kind: type[Any], data: Any, where: str) -> Any:
    """A dataclass from an object with exactly its fields; those that have a default may be missing."""
    given = _checked(data, isinstance(data, dict), where, "an object")
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    if unknown := given.keys() - set(names):
        raise InvalidSetting(f"{where} has no {' and no '.join(sorted(unknown))}; its fields are {', '.join(names)}")
    values = {name: _decode(hints[name], item, f"{where}.{name}") for name, item in given.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidSetting(f"{where} is incomplete: {error}") from error
    except InvalidInput as error:
        raise InvalidSetting(f"{where} is refused: {error}") from error


def _transform(data: Any, where: str) -> LogitTransform:
    given = dict(_checked(data, isinstance(data, dict) and "transform" in data, where, "an object with a transform"))
    name = given.pop("transform")
    fits = isinstance(name, str) and name in TRANSFORMS
    _checked(name, fits, f"{where}.transform", f"one of {', '.join(TRANSFORMS)}")
    return cast(LogitTransform, _instance(TRANSFORMS[name], given, where))


def _integer_key(key: str, where: str) -> int:
    digits = key.removeprefix("-")
    return int(_checked(key, digits.isdecimal(), where, "an object whose keys are integers"))


def _checked(data: Any, fits: bool, where: str, wanted: str) -> Any:
    if not fits:
        raise InvalidSetting(f"{where} is {data!r}; expected {wanted}")
    return data
