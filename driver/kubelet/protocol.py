# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gRPC messages and services between kubelet and the driver, as tables from which the message classes are built.

Source: k8s.io/kubelet pkg/apis: pluginregistration/v1, dra/v1, dra/v1beta1, dra-health/v1, dra-health/v1alpha1
(the file api.proto of each). dra/v1beta1 is v1 without share IDs, and dra-health/v1alpha1 is the same as v1.
"""

from __future__ import annotations

import typing as t

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as _Field

REGISTRATION = "pluginregistration.Registration"
DRA = {"v1": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1beta1": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"}
HEALTH = {"v1": "v1.DRAResourceHealth", "v1alpha1": "v1alpha1.DRAResourceHealth"}

#: The services that GetInfo lists. Kubelet uses the first version of each that it knows, so newer versions come first.
SUPPORTED = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

#: The values of a device's health in dra-health.
HEALTH_STATUS = {"unknown": 0, "healthy": 1, "unhealthy": 2}

#: Name and type of each field by number. A type is the name of a scalar, message or enum, optionally after "repeated ",
#: "optional " or "map " (with string keys).
_Message = dict[int, tuple[str, str]]


class _File(t.NamedTuple):
    """One file api.proto. Each method is its name, its request, its response, and whether the response is a stream."""

    package: str
    messages: dict[str, _Message]
    services: dict[str, list[tuple[str, str, str, bool]]]
    enumerations: dict[str, dict[str, int]] = {}


_REGISTRATION = _File(
    "pluginregistration",
    {
        "PluginInfo": {
            1: ("type", "string"),
            2: ("name", "string"),
            3: ("endpoint", "string"),
            4: ("supported_versions", "repeated string"),
        },
        "RegistrationStatus": {1: ("plugin_registered", "bool"), 2: ("error", "string")},
        "RegistrationStatusResponse": {},
        "InfoRequest": {},
    },
    {
        "Registration": [
            ("GetInfo", "InfoRequest", "PluginInfo", False),
            ("NotifyRegistrationStatus", "RegistrationStatus", "RegistrationStatusResponse", False),
        ]
    },
)


def _dra(version: str, device: _Message) -> _File:
    return _File(
        f"k8s.io.kubelet.pkg.apis.dra.{version}",
        {
            "NodePrepareResourcesRequest": {1: ("claims", "repeated Claim")},
            "NodePrepareResourcesResponse": {1: ("claims", "map NodePrepareResourceResponse")},
            "NodePrepareResourceResponse": {1: ("devices", "repeated Device"), 2: ("error", "string")},
            "Device": device,
            "NodeUnprepareResourcesRequest": {1: ("claims", "repeated Claim")},
            "NodeUnprepareResourcesResponse": {1: ("claims", "map NodeUnprepareResourceResponse")},
            "NodeUnprepareResourceResponse": {1: ("error", "string")},
            "Claim": {1: ("namespace", "string"), 2: ("uid", "string"), 3: ("name", "string")},
        },
        {
            "DRAPlugin": [
                ("NodePrepareResources", "NodePrepareResourcesRequest", "NodePrepareResourcesResponse", False),
                ("NodeUnprepareResources", "NodeUnprepareResourcesRequest", "NodeUnprepareResourcesResponse", False),
            ]
        },
    )


_DEVICE: _Message = {
    1: ("request_names", "repeated string"),
    2: ("pool_name", "string"),
    3: ("device_name", "string"),
    4: ("cdi_device_ids", "repeated string"),
}


def _health(version: str) -> _File:
    return _File(
        version,
        {
            "NodeWatchResourcesRequest": {},
            "DeviceIdentifier": {1: ("pool_name", "string"), 2: ("device_name", "string")},
            "DeviceHealth": {
                1: ("device", "DeviceIdentifier"),
                2: ("health", "HealthStatus"),
                3: ("last_updated_time", "int64"),
                4: ("health_check_timeout_seconds", "int64"),
                5: ("message", "string"),
            },
            "NodeWatchResourcesResponse": {1: ("devices", "repeated DeviceHealth")},
        },
        {
            "DRAResourceHealth": [
                ("NodeWatchResources", "NodeWatchResourcesRequest", "NodeWatchResourcesResponse", True)
            ]
        },
        {"HealthStatus": {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}},
    )


_FILES = (
    _REGISTRATION,
    _dra("v1", {**_DEVICE, 5: ("share_id", "optional string")}),
    _dra("v1beta1", _DEVICE),
    _health("v1"),
    _health("v1alpha1"),
)

_SCALARS = {"string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL, "int64": _Field.TYPE_INT64}


def _file_descriptor(file: _File) -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto(
        name=f"{file.package.replace('.', '/')}/api.proto", package=file.package, syntax="proto3"
    )
    for name, fields in file.messages.items():
        message = proto.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            _add_field(file, message, number, field, kind)
    for name, values in file.enumerations.items():
        enumeration = proto.enum_type.add(name=name)
        for value, number in values.items():
            enumeration.value.add(name=value, number=number)
    for name, methods in file.services.items():
        service = proto.service.add(name=name)
        for method, request, response, stream in methods:
            service.method.add(
                name=method,
                input_type=f".{file.package}.{request}",
                output_type=f".{file.package}.{response}",
                server_streaming=stream,
            )
    return proto


def _add_field(file: _File, message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
    label, _unused, kind = kind.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if label == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(file, entry, 1, "key", "string")
        _add_field(file, entry, 2, "value", kind)
        kind = f"{message.name}.{entry.name}"
    if label in ("repeated", "map"):
        field.label = _Field.LABEL_REPEATED
    if label == "optional":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in file.enumerations else _Field.TYPE_MESSAGE
        field.type_name = f".{file.package}.{kind}"


# a separate pool: in the default pool, names such as v1.DeviceHealth could collide
pool = descriptor_pool.DescriptorPool()
for _file in _FILES:
    pool.Add(_file_descriptor(_file))


#: A message, or the class of one. The classes are built at run time, so a type checker does not know their fields.
Message = t.Any


class Method(t.NamedTuple):
    """A method of a service, with the classes of its messages."""

    request: Message
    response: Message
    stream: bool


def methods(service: str) -> dict[str, Method]:
    """The methods of a service by name. Raises KeyError for an unknown service."""
    descriptor = pool.FindServiceByName(service)
    return {
        method.name: Method(
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.server_streaming,
        )
        for method in descriptor.methods
    }


def message(name: str) -> Message:
    """The class of a message by its full name. Raises KeyError for an unknown message."""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
