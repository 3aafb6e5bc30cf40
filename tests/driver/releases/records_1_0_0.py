# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The code with which release 1.0.0 wrote and read records. It refuses unknown fields. Never change what it does."""

from __future__ import annotations

import dataclasses
import json
import types
import typing as t
from dataclasses import dataclass, field

SCHEMA = 1

#: All devices are on the node, in their original state.
PREPARED = "prepared"
#: Devices may be anywhere between the node and the pod.
ATTACHING = "attaching"
#: Devices are in the pod, and configured.
ATTACHED = "attached"
#: Devices may be anywhere between the pod and the node, and have to return to the node.
DETACHING = "detaching"
PHASES = (PREPARED, ATTACHING, ATTACHED, DETACHING)

Object = dict[str, t.Any]


@dataclass
class Pod:
    """The pod of a claim."""

    namespace: str
    name: str
    uid: str


@dataclass
class DeviceRecord:
    """One allocated device.

    `request` is that of the allocation (`nic`, or `nic/fast` for a subrequest). `known` is the inventory.Device at
    allocation, or after a later boot, with the names of RDMA devices at the last prepare. `config` has the merged
    fields of its InterfaceConfigs. While the device may be away from the node, `host` is its state on the node, and
    `rdma` names the RDMA devices that move with it (`moves`) and those that containers may open (`nodes`). `network`
    and `leases` are results of attach. `interface` is the name in the pod, empty without a network interface. `admin`
    devices are never moved. Devices with the same `lock` (functions of one port) are not changed at the same time.
    """

    device: str
    pool: str
    request: str
    known: Object
    config: Object = field(default_factory=dict)
    interface: str = ""
    admin: bool = False
    share_id: str = ""
    lock: str = ""
    host: Object | None = None
    rdma: Object | None = None
    network: Object | None = None
    leases: list[Object] = field(default_factory=list)

    @property
    def main_request(self) -> str:
        """The name of the request for kubelet."""
        return self.request.partition("/")[0]


@dataclass
class Record:
    """One claim.

    `pod` is None if all devices are for admin access, by any pod. `netns` is `[st_dev, st_ino]` of the network
    namespace to which devices were moved, or should be. `boot` is the boot in which the record was written: after the
    next boot all devices are on the node. `since` is the time at which this phase began, in the format of the API.
    `pod_claim_name` is the name, in the pod, of a claim from a template.
    """

    uid: str
    namespace: str
    name: str
    pod: Pod | None
    boot: str
    devices: list[DeviceRecord]
    phase: str = PREPARED
    netns: list[int] | None = None
    since: str = ""
    pod_claim_name: str = ""
    schema: int = SCHEMA

    @property
    def held(self) -> list[DeviceRecord]:
        """The devices that no other claim may use."""
        return [device for device in self.devices if not device.admin]


def encode(record: Record) -> bytes:
    return (json.dumps(dataclasses.asdict(record), sort_keys=True, indent=1) + "\n").encode()


def decode(content: bytes) -> Record:
    """Raises ValueError if the content is not a record of this schema."""
    value = json.loads(content)
    if not isinstance(value, dict) or value.get("schema").__class__ is not int:
        raise ValueError("it is no mapping with a schema")
    if value["schema"] > SCHEMA:
        raise NewerSchema(f"its schema is {value['schema']}, and this driver knows up to {SCHEMA}")
    record = t.cast(Record, _decode(Record, value, "record"))
    if record.schema != SCHEMA or record.phase not in PHASES:
        raise ValueError(f"schema {record.schema} with phase {record.phase!r} is not known")
    if record.netns is not None and len(record.netns) != 2:
        raise ValueError("netns must be two numbers")
    return record


class NewerSchema(ValueError):
    """A newer driver wrote the record."""


def _decode(form: t.Any, value: t.Any, path: str) -> t.Any:
    """A value of the type `form`, which is one of those in this module's dataclasses."""
    if form is t.Any:
        return value
    origin, inner = t.get_origin(form), t.get_args(form)
    if origin in (t.Union, types.UnionType):
        return None if value is None else _decode(inner[0], value, path)
    if dataclasses.is_dataclass(form):
        if not isinstance(value, dict):
            raise ValueError(f"{path} must be a mapping")
        hints = t.get_type_hints(form)
        fields = {entry.name: entry for entry in dataclasses.fields(form)}
        if unknown := set(value) - set(fields):
            raise ValueError(f"{path} has unknown keys {', '.join(sorted(unknown))}")
        required = {
            name for name, entry in fields.items() if entry.default is entry.default_factory is dataclasses.MISSING
        }
        if missing := required - set(value):
            raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
        made = {name: _decode(hints[name], item, f"{path}.{name}") for name, item in value.items()}
        return t.cast(t.Callable[..., t.Any], form)(**made)
    if not isinstance(value, origin or form) or (form is int and isinstance(value, bool)):
        raise ValueError(f"{path} must be of type {form}")
    if origin is list:
        return [_decode(inner[0], item, f"{path}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        return {key: _decode(inner[1], item, f"{path}.{key}") for key, item in value.items()}
    return value
