# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Converts dataclasses to JSON and back, in the form in which records are stored.

Releases with more or fewer fields can read the same file: default values are not written, and unknown fields are
ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing as t

from ..base.objects import Object, ObjectView
from ..interface.host_state import HostState
from ..kernel import rdma
from ..publish.device import Device
from .cdi import DeviceNode

#: A type as `typing.get_type_hints` returns it.
_Hint = t.Any
#: Marks fields that are stored in the facts file of the claim (`Paths.pod_facts`) and not in its record.
IN_FACTS = {"facts": True}


class _Dataclass(t.Protocol):
    __dataclass_fields__: t.ClassVar[dict[str, dataclasses.Field[object]]]


def encoded(value: _Dataclass, facts: bool = False) -> Object:
    """A dataclass as JSON, without default values, because other releases may not know those fields. With `facts`,
    only the fields that are stored in the facts file; otherwise only the others."""
    content: Object = {}
    for name, default in _defaults(type(value), facts).items():
        item = getattr(value, name)
        if item != default:
            content[name] = _encode_value(item)
    return content


@functools.lru_cache(None)
def _defaults(hint: type[_Dataclass], facts: bool) -> dict[str, object]:
    """The default values of a dataclass' fields by name, of those that are stored in the facts file or of the others. A
    field without a default has MISSING."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(hint)
        if (field.metadata == IN_FACTS) is facts
    }


def _encode_value(value: object) -> object:
    if isinstance(value, Device):
        return value.as_json()
    if isinstance(value, DeviceNode):
        return dataclasses.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encoded(value)
    return [_encode_value(item) for item in value] if isinstance(value, list) else value


@functools.lru_cache(None)
def _fields(hint: _Hint, facts: bool) -> tuple[dict[str, _Hint], set[str]]:
    """The types of a dataclass' fields by name, and the names of those that have no default. With `facts`, only those
    that are stored in the facts file; otherwise only the others."""
    fields = [field for field in dataclasses.fields(hint) if (field.metadata == IN_FACTS) is facts]
    required = {field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING}
    hints = t.get_type_hints(hint)
    return {field.name: hints[field.name] for field in fields}, required


@functools.lru_cache(None)
def _keys(hint: _Hint) -> dict[str, _Hint]:
    """The types of a TypedDict's keys."""
    return t.get_type_hints(hint)


def decoded(hint: _Hint, value: object, path: str) -> t.Any:
    """Decode a JSON value as `hint`, one of the types of a record's fields. Raises ValueError with the path."""
    if hint in _CUSTOM_DECODERS:
        return _CUSTOM_DECODERS[hint](value, path)
    if t.is_typeddict(hint):
        return _decode_typed_dict(hint, value, path)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, path)
    origin: _Hint = t.get_origin(hint)
    inner = t.get_args(hint)
    if origin in (t.Union, types.UnionType):
        return None if value is None else decoded(inner[0], value, path)
    if not isinstance(value, origin or hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{path} must be of type {hint}")
    if origin is list:
        return [decoded(inner[0], item, f"{path}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        return {key: decoded(inner[1], item, f"{path}.{key}") for key, item in value.items()}
    return value


def decoded_facts(hint: _Hint, value: ObjectView) -> Object:
    """The values of a dataclass' fields that are stored in the facts file, as far as `value` contains them. Raises
    ValueError with the field's name."""
    hints, _required = _fields(hint, facts=True)
    return {name: decoded(hints[name], value[name], name) for name in hints if name in value}


def _decode_dataclass(hint: _Hint, value: object, path: str) -> t.Any:
    hints, required = _fields(hint, facts=False)
    # fields that are not in `hints` are those of another release
    fields = {name: item for name, item in _mapping(value, path).items() if name in hints}
    _check_keys(required, fields, path)
    return hint(**{name: decoded(hints[name], item, f"{path}.{name}") for name, item in fields.items()})


def _decode_typed_dict(hint: _Hint, value: object, path: str) -> t.Any:
    """Check a value and return it unchanged, with the keys of other releases."""
    mapping = _mapping(value, path)
    _check_keys(hint.__required_keys__, mapping, path)
    hints = _keys(hint)
    for name in hints.keys() & mapping.keys():
        decoded(hints[name], mapping[name], f"{path}.{name}")
    return mapping


def _check_keys(required: t.AbstractSet[str], value: ObjectView, path: str) -> None:
    if missing := required - value.keys():
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")


def _mapping(value: object, path: str) -> Object:
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a mapping")
    return value


def _number(value: object, path: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{path} must be a number")
    return value


#: The decoders of types that are not decoded field by field. The content of a host state and of an RDMA device's
#: identity is checked where it is used, because it differs between releases.
_CUSTOM_DECODERS: dict[_Hint, t.Callable[[object, str], object]] = {
    t.Any: lambda value, _path: value,
    float: _number,
    Device: lambda value, path: Device.from_json(_mapping(value, path)),
    HostState: _mapping,
    rdma.RdmaIdentity: _mapping,
}
