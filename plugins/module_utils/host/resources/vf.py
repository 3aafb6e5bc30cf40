# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Settings of VFs that their PF applies (linux/if_link.h, IFLA_VF_*)."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ..access import links
from ..access.pyroute2_types import Message
from ..access.system import HostError, System
from ..access.usage import users
from ..engine.change import Change, Refusal, SideEffects, State, Value
from ..engine.node import Node
from ..engine.resource import Resource
from ..engine.settings import VfSettings
from .vfs import (
    address,
    number_of_vfs,
    per_vf,
    refusal_if_missing,
    require_vf_unused,
    split_name,
    will_be_recreated,
)

_DEVICES = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
_ETHERNET = 1
_NOT_REPORTED = 2**32 - 1
_LINK_STATES = ("auto", "enable", "disable")
_VLAN = "802.1Q"
_PROTOCOLS = {_VLAN: 0x8100, "802.1ad": 0x88A8}
#: The largest values of numbers. The smallest is 0.
_MAXIMA = {"vlan": 4095, "qos": 7, "min_rate": 2**32 - 1, "max_rate": 2**32 - 1}
_KINDS = {"mac": "a MAC address", "node_guid": "a GUID", "port_guid": "a GUID"}
#: The text of a `Vlan`.
_STORED_VLAN = re.compile(r"(\d+)(?: qos (\d+))?(?: (\S+))?", re.ASCII)
#: Drivers of VFs that read the address and the GUIDs only when they start.
_READ_AT_START = ("mlx5_core",)

#: Settings of the state in the order in which they are applied. `trust` is first, as an untrusted VF may not be
#: allowed another address.
SETTINGS = ("trust", "mac", "node_guid", "port_guid", "vlan", "rate", "spoof_check", "link_state")


@dataclass(frozen=True)
class Vlan(Value):
    """The VLAN tag that the card adds and removes. Number 0 means no tag."""

    number: int
    priority: int = 0
    protocol: str = _VLAN

    def __post_init__(self) -> None:
        if not self.number:  # there is no tag that could have a protocol
            object.__setattr__(self, "protocol", _VLAN)

    def __str__(self) -> str:
        priority = f" qos {self.priority}" if self.priority else ""
        return f"{self.number}{priority}" + (f" {self.protocol}" if self.protocol != _VLAN else "")


@dataclass(frozen=True)
class Rate(Value):
    """The minimum (guaranteed) and the maximum rate of a VF in Mbit/s; 0 if there is none."""

    minimum: int
    maximum: int

    def __str__(self) -> str:
        return f"{self.minimum} to {self.maximum} Mbit/s"


class Vf(Resource):
    """`vf` for all VFs of a PF, and `vfs` for VFs by index. A VF that is in use is never changed,
    not even to undo a change: it then keeps the new value.

    `vlan`, `qos` and `vlan_protocol` are one setting of the kernel, and so are `min_rate` and `max_rate`.
    """

    name = "vf"

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            for number, requested in per_vf(self.system, key, settings).items():
                values = _normalized(f"{key} vf {number}", requested)
                if values:
                    state[f"{key} vf {number}"] = {name: values[name] for name in SETTINGS if name in values}
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        settings_by_pf: dict[str, dict[int, dict[str, object]]] = {}
        for name in wanted:
            key, number = split_name(name)
            if key not in settings_by_pf:
                vfs_exist = number_of_vfs(self.system, key) and not will_be_recreated(self.system, node, key)
                settings_by_pf[key] = read(self.system, node.device(key).interface) if vfs_exist else {}
            state[name] = dict(settings_by_pf[key].get(number, {}))
        return state

    def from_stored(self, setting: str, value: object) -> object:
        if value is None or setting not in ("vlan", "rate"):
            return value
        if setting == "rate":
            minimum, _to, maximum, _unit = str(value).split()
            return Rate(int(minimum), int(maximum))
        match = _STORED_VLAN.fullmatch(str(value))
        if not match:
            raise ValueError(f"{value!r} is not a VLAN")
        return Vlan(int(match[1]), int(match[2] or 0), match[3] or _VLAN)

    def same(self, setting: str, before: object, after: object) -> bool:
        return after is None or before == after  # None: the VF did not exist, so its settings are removed with it

    def check(self, node: Node, change: Change) -> Refusal | None:
        def refusal(message: str, fix: str = "", drain: bool = False) -> Refusal:
            return Refusal(change.device, change.setting, message, fix, drain)

        missing = refusal_if_missing(self.system, node, change)
        if missing:
            return missing
        key, number = split_name(change.device)
        device = node.device(key)
        if device.link_layer == "infiniband" and change.setting in ("mac", "vlan", "spoof_check"):
            fix = "use node_guid and port_guid" if change.setting == "mac" else "leave it out for this NIC"
            return refusal("a VF of an InfiniBand NIC does not have this setting", fix)
        if device.link_layer != "infiniband" and change.setting.endswith("guid"):
            return refusal("only a VF of an InfiniBand NIC has this setting", "use mac")
        if number >= number_of_vfs(self.system, key) or will_be_recreated(self.system, node, key):
            return None  # the VF does not exist yet
        if change.before is None:
            return refusal(
                "the PF's driver does not report it, so a change could not be checked", "leave it out for this NIC"
            )
        vf = address(self.system, key, number)
        reason = users(self.system, vf) if vf else ""
        return refusal(f"{vf} is in use: {reason}", "drain the node first", drain=True) if reason else None

    def interrupts(self, node: Node, change: Change) -> str:
        key, number = split_name(change.device)
        vf = address(self.system, key, number) if change.before is not None else None
        if vf and self._restarts_driver(vf, change.setting):
            return f"the driver of {vf} restarts, and its interface is recreated"
        return ""

    def apply(self, node: Node, change: Change) -> None:
        if change.after is None:
            return
        key, number = split_name(change.device)
        device = node.device(key)
        step = f"set {change.setting} of VF {number} of {device} to {change.after}"
        vf = address(self.system, key, number)
        if vf:
            require_vf_unused(self.system, vf, step)
        send(self.system, device.interface, number, change.setting, change.after, step)
        if vf and self._restarts_driver(vf, change.setting):
            driver = f"{_DRIVERS}/{self.system.link(f'{_DEVICES}/{vf}/driver')}"
            self.system.write(f"{driver}/unbind", vf, f"stop the driver of {vf}, to {step}")
            self.system.write(f"{driver}/bind", vf, f"start the driver of {vf}, to {step}")

    def side_effects(self, node: Node, change: Change) -> SideEffects:
        """The driver of a VF, if it must be restarted, as a failure in the restart leaves the VF without a driver."""
        vf = address(self.system, *split_name(change.device)) if change.before is not None else None
        if not vf or not self._restarts_driver(vf, change.setting):
            return {}
        return {"driver": self.system.link(f"{_DEVICES}/{vf}/driver")}

    def restore_side_effects(self, node: Node, change: Change, effects: SideEffects) -> None:
        vf = address(self.system, *split_name(change.device))
        if vf and not self.system.link(f"{_DEVICES}/{vf}/driver"):
            path = f"{_DRIVERS}/{effects['driver']}/bind"
            self.system.write(path, vf, f"start the driver {effects['driver']} of {vf} again")

    def _restarts_driver(self, vf: str, setting: str) -> bool:
        """Whether the driver of a VF must be restarted to read a changed setting."""
        if setting not in ("mac", "node_guid", "port_guid"):
            return False
        return self.system.link(f"{_DEVICES}/{vf}/driver") in _READ_AT_START


def _normalized(name: str, settings: VfSettings) -> dict[str, object]:
    """A site's settings of a VF as settings of the state, normalized as the kernel reports them. Raises HostError."""
    values: t.Mapping[str, object] = settings
    normalized: dict[str, object] = {
        setting: bool(values[setting]) for setting in ("trust", "spoof_check") if setting in values
    }
    if "link_state" in settings:
        normalized["link_state"] = settings["link_state"]
    for setting, length in (("mac", 6), ("node_guid", 8), ("port_guid", 8)):
        if setting in values:
            digits = re.sub(r"[:.-]", "", str(values[setting])).lower()
            if not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", digits):
                raise HostError(
                    f"set {setting} of {name}",
                    f"{values[setting]!r} is not {_KINDS[setting]}",
                    f"write {length} bytes: 02:00:...",
                )
            normalized[setting] = ":".join(digits[start : start + 2] for start in range(0, 2 * length, 2))
    for setting, maximum in _MAXIMA.items():
        if not 0 <= t.cast(int, values.get(setting, 0)) <= maximum:
            raise HostError(f"set {setting} of {name}", f"{values[setting]} is not in the range 0 to {maximum}")
    if "vlan" in settings:
        normalized["vlan"] = Vlan(settings["vlan"], settings.get("qos", 0), settings.get("vlan_protocol", _VLAN))
    elif "qos" in settings or "vlan_protocol" in settings:
        raise HostError(f"set the VLAN of {name}", "qos and vlan_protocol need a VLAN", "set vlan, or 0 for none")
    if "min_rate" in settings or "max_rate" in settings:
        normalized["rate"] = Rate(settings.get("min_rate", 0), settings.get("max_rate", 0))
    return normalized


def send(system: System, interface: str, number: int, setting: str, value: t.Any, step: str) -> None:
    """Apply a setting of the state to the VF `number` of a PF. Raises HostError."""
    socket = system.socket("ROUTE")
    from ..access import messages

    vfs = [("vf", {"attrs": [encoded(number, setting, value)]})]
    attributes = [("IFLA_IFNAME", interface), ("IFLA_VFINFO_LIST", {"attrs": vfs})]
    message = (messages.NEW_LINK, messages.Link, attributes)
    system.request_change(step, lambda: messages.exchange(socket, *message, change=True))


def encoded(number: int, setting: str, value: t.Any) -> tuple[str, object]:
    """The attribute of `messages.Link` that applies a setting of the state to the VF `number`."""
    if setting in ("trust", "spoof_check"):
        return setting, {"vf": number, "number": int(value)}
    if setting == "link_state":
        return setting, {"vf": number, "number": _LINK_STATES.index(value)}
    if setting == "mac":
        return setting, {"vf": number, "mac": bytes.fromhex(value.replace(":", ""))}
    if setting.endswith("guid"):
        return setting, {"vf": number, "guid": int(value.replace(":", ""), 16)}
    if setting == "rate":
        return setting, {"vf": number, "low": value.minimum, "high": value.maximum}
    entry = {"vf": number, "vlan": value.number, "qos": value.priority}
    if value.protocol != _VLAN:
        return "vlans", {"attrs": [("vlan", {**entry, "protocol": _PROTOCOLS[value.protocol]})]}
    return "vlan", entry


def read(system: System, interface: str) -> dict[int, dict[str, object]]:
    """The settings of all VFs of a PF by index; without those that its driver does not report. Raises HostError."""
    return decoded(links.read_link(system, interface, with_vfs=True))


def decoded(link: Message) -> dict[int, dict[str, object]]:
    """What `read` returns, from the kernel's reply (`messages.Link`)."""
    vfs = link.get_attr("IFLA_VFINFO_LIST")
    states: dict[int, dict[str, object]] = {}
    for info in vfs.get_attrs("vf") if vfs else ():
        parts = {attribute[0]: attribute[1] for attribute in info["attrs"]}
        if "mac" not in parts:
            continue
        state: dict[str, object] = {}
        if link["ifi_type"] == _ETHERNET:  # an InfiniBand address has 20 bytes, and cannot be set
            state["mac"] = _hexadecimal(parts["mac"]["mac"][:6])
        entries = [parts["vlan"]] if "vlan" in parts else []
        entries += parts["vlans"].get_attrs("vlan") if "vlans" in parts else []
        names = {code: name for name, code in _PROTOCOLS.items()}
        for entry in entries:
            state["vlan"] = Vlan(entry["vlan"], entry["qos"], names.get(entry.get("protocol"), _VLAN))
        if "rate" in parts:
            state["rate"] = Rate(parts["rate"]["low"], parts["rate"]["high"])
        for name in ("spoof_check", "trust"):
            if name in parts and parts[name]["number"] != _NOT_REPORTED:
                state[name] = bool(parts[name]["number"])
        if "link_state" in parts and parts["link_state"]["number"] < len(_LINK_STATES):
            state["link_state"] = _LINK_STATES[parts["link_state"]["number"]]
        for name in ("node_guid", "port_guid"):
            if name in parts:
                state[name] = _hexadecimal(parts[name]["guid"].to_bytes(8, "big"))
        states[parts["mac"]["vf"]] = state
    return states


def _hexadecimal(raw: bytes) -> str:
    return ":".join(f"{byte:02x}" for byte in raw)
