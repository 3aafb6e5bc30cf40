# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What a PF keeps for each of its VFs (linux/if_link.h, IFLA_VF_*)."""

from __future__ import annotations

import re
import struct
import typing as t

from . import links, netlink
from .node import Node
from .resource import Change, Refusal, Resource, State
from .system import HostError, System
from .usage import users
from .vfs import address, made_anew, number_of_vfs, per_vf, split

_DEVICES = "/sys/bus/pci/devices"
_INFO = 1
_MAC, _VLAN, _SPOOF_CHECK, _LINK_STATE, _RATE, _TRUST, _NODE_GUID, _PORT_GUID, _VLAN_LIST = 1, 2, 4, 5, 6, 9, 10, 11, 12
#: Length of an address in struct ifla_vf_mac, which is room for the longest one.
_MAC_ROOM = 32
_VLAN_INFO = struct.Struct("=III2s2x")
_UNTOLD = 2**32 - 1
_LINK_STATES = ("auto", "enable", "disable")
_PROTOCOLS = {"802.1Q": b"\x81\x00", "802.1ad": b"\x88\xa8"}
#: Drivers that read a VF's address and GUIDs only when they start.
_READ_AT_START = ("mlx5_core",)

#: Settings of the state, in the order in which they are made: an untrusted VF may be refused another address.
SETTINGS = ("trust", "mac", "node_guid", "port_guid", "vlan", "rate", "spoof_check", "link_state")


class Vf(Resource):
    """C(vf), for all VFs of a PF, and C(vfs), for those of an index. A VF that is in use is never changed.

    C(vlan), C(qos) and C(vlan_protocol) are one setting of the kernel, and so are C(min_rate) and C(max_rate).
    """

    name = "vf"

    def wanted(self, node: Node) -> State:
        found: State = {}
        for key, settings in node.settings.items():
            for number, asked in per_vf(self.system, key, settings).items():
                one = _normal(f"{key} vf {number}", asked)
                if one:
                    found[f"{key} vf {number}"] = {name: one[name] for name in SETTINGS if name in one}
        return found

    def read(self, node: Node, wanted: State) -> State:
        found: State = {}
        told: dict[str, dict[int, dict[str, t.Any]]] = {}
        for name in wanted:
            key, number = split(name)
            if key not in told:
                there = number_of_vfs(self.system, key) and not made_anew(self.system, node, key)
                told[key] = read(self.system, node.device(key).interface) if there else {}
            found[name] = dict(told[key].get(number, {}))
        return found

    def same(self, setting: str, before: t.Any, after: t.Any) -> bool:
        return after is None or before == after  # a VF that was not there before goes as it came

    def check(self, node: Node, change: Change) -> Refusal | None:
        def refusal(message: str, fix: str = "", drain: bool = False) -> Refusal:
            return Refusal(change.device, change.setting, message, fix, drain)

        key, number = split(change.device)
        device = node.device(key)
        if device.physfn:
            return refusal(f"{key} is a VF itself, of {device.physfn}", "choose PFs only: type: pf")
        count = node.settings.get(key, {}).get("num_vfs", number_of_vfs(self.system, key))
        if number >= count:
            return refusal(f"the PF has {count} VFs", f"raise num_vfs to {number + 1}, or leave this VF out")
        infiniband = device.link_layer == "infiniband"
        if infiniband != change.setting.endswith("guid") and (infiniband or change.setting.endswith("guid")):
            if change.setting in ("mac", "vlan", "spoof_check", "node_guid", "port_guid"):
                other = "node_guid and port_guid" if infiniband else "mac"
                return refusal(f"a VF of {device.link_layer or 'this link layer'} has none", f"use {other}")
        if number >= number_of_vfs(self.system, key) or made_anew(self.system, node, key):
            return None  # the VF is yet to be made
        if change.before is None:
            return refusal("the PF's driver does not tell it, so it could not be checked", "leave it out for this NIC")
        vf = address(self.system, key, number)
        reason = users(self.system, vf) if vf else ""
        return refusal(f"{vf} is in use: {reason}", "drain the node first", drain=True) if reason else None

    def interrupts(self, node: Node, change: Change) -> str:
        key, number = split(change.device)
        vf = address(self.system, key, number) if change.before is not None else None
        if vf and self._starts_anew(vf, change.setting):
            return f"the driver of {vf} starts anew, and its interface with it"
        return ""

    def apply(self, node: Node, change: Change) -> None:
        if change.after is None:
            return
        key, number = split(change.device)
        device = node.device(key)
        step = f"set {change.setting} of VF {number} of {device} to {change.after}"
        message = netlink.nest(
            links.IFLA_VFINFO_LIST, netlink.nest(_INFO, encoded(number, change.setting, change.after))
        )
        links.change(self.system, device.interface, message, step)
        vf = address(self.system, key, number)
        if vf and self._starts_anew(vf, change.setting):
            driver = f"/sys/bus/pci/drivers/{self.system.link(f'{_DEVICES}/{vf}/driver')}"
            self.system.write(f"{driver}/unbind", vf, f"stop the driver of {vf}, to {step}")
            self.system.write(f"{driver}/bind", vf, f"start the driver of {vf}, to {step}")

    def _starts_anew(self, vf: str, setting: str) -> bool:
        if setting not in ("mac", "node_guid", "port_guid"):
            return False
        return self.system.link(f"{_DEVICES}/{vf}/driver") in _READ_AT_START


def _normal(name: str, asked: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Settings of the state, in the kernel's spelling, of what a site asks for. Raises HostError."""
    found: dict[str, t.Any] = {one: bool(asked[one]) for one in ("trust", "spoof_check") if one in asked}
    if "link_state" in asked:
        found["link_state"] = asked["link_state"]
    for one, length in (("mac", 6), ("node_guid", 8), ("port_guid", 8)):
        if one in asked:
            digits = re.sub(r"[:.-]", "", str(asked[one])).lower()
            if not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", digits):
                raise HostError(f"set {one} of {name}", f"{asked[one]!r} is none", f"write {length} bytes: 02:00:...")
            found[one] = ":".join(digits[at : at + 2] for at in range(0, 2 * length, 2))
    if "vlan" in asked:
        found["vlan"] = _vlan(asked["vlan"], asked.get("qos", 0), asked.get("vlan_protocol", "802.1Q"))
    elif "qos" in asked or "vlan_protocol" in asked:
        raise HostError(f"set the VLAN of {name}", "qos and vlan_protocol are a VLAN's", "set vlan, or 0 for none")
    if "min_rate" in asked or "max_rate" in asked:
        found["rate"] = f"{asked.get('min_rate', 0)} to {asked.get('max_rate', 0)} Mbit/s"
    return found


def _vlan(vlan: int, qos: int, protocol: str) -> str:
    return f"{vlan}" + (f" qos {qos}" if qos else "") + (f" {protocol}" if vlan and protocol != "802.1Q" else "")


def encoded(number: int, setting: str, value: t.Any) -> bytes:
    """The attribute that gives a setting of the state to the VF C(number)."""
    simple = {"trust": _TRUST, "spoof_check": _SPOOF_CHECK}
    if setting in simple:
        return netlink.attribute(simple[setting], struct.pack("=II", number, int(value)))
    if setting == "link_state":
        return netlink.attribute(_LINK_STATE, struct.pack("=II", number, _LINK_STATES.index(value)))
    if setting == "mac":
        raw = bytes.fromhex(value.replace(":", ""))
        return netlink.attribute(_MAC, struct.pack("=I", number) + raw.ljust(_MAC_ROOM, b"\0"))
    if setting.endswith("guid"):
        kind = _NODE_GUID if setting == "node_guid" else _PORT_GUID
        # struct ifla_vf_guid is aligned as the machine aligns a 64-bit number
        return netlink.attribute(kind, struct.pack("@IQ", number, int(value.replace(":", ""), 16)))
    if setting == "rate":
        low, high = (int(one) for one in re.findall(r"\d+", value)[:2])
        return netlink.attribute(_RATE, struct.pack("=III", number, low, high))
    vlan, qos, protocol = re.fullmatch(r"(\d+)(?: qos (\d+))?(?: (\S+))?", value).groups()  # type: ignore[union-attr]
    if protocol:
        entry = _VLAN_INFO.pack(number, int(vlan), int(qos or 0), _PROTOCOLS[protocol])
        return netlink.nest(_VLAN_LIST, netlink.attribute(_INFO, entry))
    return netlink.attribute(_VLAN, struct.pack("=III", number, int(vlan), int(qos or 0)))


def read(system: System, interface: str) -> dict[int, dict[str, t.Any]]:
    """The settings of all VFs of a PF by index; without those that its driver does not tell. Raises HostError."""
    told = links.attributes(system, interface, with_vfs=True)
    width = len(told.get(links.IFLA_ADDRESS, b"")) or 6
    return decoded(told.get(links.IFLA_VFINFO_LIST, b""), width)


def decoded(raw: bytes, width: int = 6) -> dict[int, dict[str, t.Any]]:
    """The same from the attribute IFLA_VFINFO_LIST; C(width) is the length of the PF's link-layer address."""
    found: dict[int, dict[str, t.Any]] = {}
    for _unused, info in netlink.pairs(raw):
        one = {kind: value for kind, value in netlink.pairs(info) if len(value) >= 8}
        if _MAC not in one:
            continue
        state: dict[str, t.Any] = {}
        if width == 6:  # of InfiniBand it is 20 bytes, which nothing sets
            state["mac"] = ":".join(f"{byte:02x}" for byte in one[_MAC][4:10])
        if len(one.get(_VLAN, b"")) >= 12:
            _number, vlan, qos = struct.unpack_from("=III", one[_VLAN])
            state["vlan"] = _vlan(vlan, qos, "802.1Q")
        for _unused, entry in netlink.pairs(one.get(_VLAN_LIST, b"")):
            if len(entry) >= _VLAN_INFO.size - 2:
                _number, vlan, qos, protocol = _VLAN_INFO.unpack(entry[:14].ljust(16, b"\0"))
                names = {code: name for name, code in _PROTOCOLS.items()}
                state["vlan"] = _vlan(vlan, qos, names.get(protocol, "802.1Q"))
        if len(one.get(_RATE, b"")) >= 12:
            _number, low, high = struct.unpack_from("=III", one[_RATE])
            state["rate"] = f"{low} to {high} Mbit/s"
        for kind, name in ((_SPOOF_CHECK, "spoof_check"), (_TRUST, "trust")):
            value = struct.unpack_from("=II", one[kind])[1] if kind in one else _UNTOLD
            if value != _UNTOLD:
                state[name] = bool(value)
        value = struct.unpack_from("=II", one[_LINK_STATE])[1] if _LINK_STATE in one else _UNTOLD
        if value < len(_LINK_STATES):
            state["link_state"] = _LINK_STATES[value]
        for kind, name in ((_NODE_GUID, "node_guid"), (_PORT_GUID, "port_guid")):
            if len(one.get(kind, b"")) >= struct.calcsize("@IQ"):
                digits = f"{struct.unpack_from('@IQ', one[kind])[1]:016x}"
                state[name] = ":".join(digits[at : at + 2] for at in range(0, 16, 2))
        found[struct.unpack_from("=I", one[_MAC])[0]] = state
    return found
