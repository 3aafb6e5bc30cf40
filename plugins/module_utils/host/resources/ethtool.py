# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Rings, channels, interrupt coalescing, pause frames, features and private flags (linux/ethtool_netlink.h)."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping

from ..access.pyroute2_types import Message
from ..access.system import HostError
from ..engine.change import Change, Plan, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

#: The numbers and switches of each group, in the order in which they are written.
_NUMBERS = {
    # channels first: a driver that changes its queues may reset the settings that depend on them
    "channels": ("rx", "tx", "other", "combined"),
    "rings": ("rx", "rx_mini", "rx_jumbo", "tx"),
    "coalesce": (
        # adaptive first: while it is on, drivers choose the other values themselves
        *("adaptive_rx", "adaptive_tx"),
        *("rx_usecs", "rx_frames", "rx_usecs_irq", "rx_frames_irq"),
        *("tx_usecs", "tx_frames", "tx_usecs_irq", "tx_frames_irq"),
        *("cqe_mode_tx", "cqe_mode_rx"),
    ),
    "pause": ("autoneg", "rx", "tx"),
}
#: Groups of switches whose names the kernel or the driver defines, and the attribute that sets them.
_SWITCHES = {"features": "wanted", "private_flags": "active"}
#: The flag for a reply with only success or failure.
_OMIT_REPLY = 2
_NAMES = {"cqe_mode_tx": "TX CQE mode", "cqe_mode_rx": "RX CQE mode"}
#: Numbers of groups that are switches, by the start of their names.
_SWITCH_NAMES = ("adaptive_", "cqe_mode_")
_SWITCH_VALUES = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
#: Changing these makes most drivers take their queues down and up.
_INTERRUPTING = ("channels", "rings")


class Ethtool(Resource):
    """`ethtool` of a NIC's interface, by group and name. A number above the device's limit is refused."""

    name = "ethtool"

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            requested_groups = settings.get("ethtool") or {}
            for group in (*_NUMBERS, *_SWITCHES):
                requested = {
                    name: value for name, value in (requested_groups.get(group) or {}).items() if value is not None
                }
                known = list(_NUMBERS[group]) if group in _NUMBERS else sorted(requested)
                unknown = sorted(set(requested) - set(known))
                if unknown:
                    fix = f"use {', '.join(known)}"
                    raise HostError(f"set ethtool {group} of {key}", f"{unknown[0]} is not known", fix)
                for name in known:
                    if name in requested:
                        step = f"set ethtool {group} {name} of {key}"
                        is_switch = group in (*_SWITCHES, "pause") or name.startswith(_SWITCH_NAMES)
                        value = _switch(requested[name], step) if is_switch else _number(requested[name], step)
                        state.setdefault(key, {})[f"{group}.{name}"] = value
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key, settings in wanted.items():
            interface = node.device(key).interface
            groups = dict.fromkeys(setting.partition(".")[0] for setting in settings)
            groups_read = {group: self.read_group(interface, group)[0] for group in groups}
            state[key] = {}
            for setting in settings:
                group, _dot, name = setting.partition(".")
                state[key][setting] = groups_read[group].get(name)
        return state

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """As for any resource. While coalescing is adaptive, some drivers refuse other values: so it is turned off
        before they change, and on after."""
        plan = super().plan(node, wanted)
        plan.changes.sort(key=lambda change: change.setting.startswith("coalesce.adaptive_") and bool(change.after))
        return plan

    def check(self, node: Node, change: Change) -> Refusal | None:
        group, _dot, name = change.setting.partition(".")
        interface = node.device(change.device).interface
        values, limits = self.read_group(interface, group)
        if change.before is None:
            names = ", ".join(sorted(values)) or "none"
            message = f"the driver of {interface} has no {group.rstrip('s')} {_NAMES.get(name, name)}"
            return Refusal(change.device, change.setting, message, f"it has {names}")
        limit = limits.get(name)
        if group in _SWITCHES:
            if limit:
                return None
            message = f"the driver of {interface} does not allow changing it"
            return Refusal(change.device, change.setting, message, "leave it out for this NIC")
        if limit is not None and change.after > limit:
            message = f"{change.after} is more than {interface} supports"
            return Refusal(change.device, change.setting, message, f"request at most {limit}")
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        if change.setting.partition(".")[0] not in _INTERRUPTING:
            return ""
        return f"traffic of {node.device(change.device)} stops while the driver recreates its queues"

    def apply(self, node: Node, change: Change) -> None:
        group, _dot, name = change.setting.partition(".")
        device = node.device(change.device)
        step = f"set ethtool {group} {name} of {device} to {change.after}"
        value = change.after
        if group in _SWITCHES:
            bit = [("ETHTOOL_A_BITSET_BIT_NAME", name), *([("ETHTOOL_A_BITSET_BIT_VALUE", True)] if value else [])]
            bits = {"attrs": [("ETHTOOL_A_BITSET_BITS_BIT", {"attrs": bit})]}
            name, value = _SWITCHES[group], {"attrs": [("ETHTOOL_A_BITSET_BITS", bits)]}
        socket = self.system.socket("ethtool")
        from ..access import messages

        command, message = messages.ETHTOOL[group]
        attributes = [_header(device.interface, _OMIT_REPLY), (name, value)]
        fix = "RDMA uses the queues: unload the RDMA driver first" if group == "channels" else ""
        self.system.request_change(
            step,
            lambda: messages.generic(socket, command + 1, message, attributes, change=True),
            fix if device.rdma_devices else "",
        )

    def read_group(self, interface: str, group: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """The current values of a group, and the largest allowed ones; for switches, whether they can be changed."""
        try:
            socket = self.system.socket("ethtool")
            from ..access import messages

            command, message = messages.ETHTOOL[group]
            replies = self.system.read(
                f"read ethtool {group} of {interface}",
                lambda: messages.generic(socket, command, message, [_header(interface)]),
            )
        except HostError as error:
            if error.code in (errno.ENOENT, errno.EOPNOTSUPP):  # Linux before 5.6, or a driver without the group
                return {}, {}
            raise
        parts = {attribute[0]: attribute[1] for attribute in replies[0]["attrs"]} if replies else {}
        if group in _NUMBERS:
            values = {name: parts[name] for name in _NUMBERS[group] if name in parts}
            return values, {name: parts[f"{name} max"] for name in values if f"{name} max" in parts}
        bits = _set_bits(parts.get("active"))
        if group == "private_flags":
            return bits, dict.fromkeys(bits, True)
        changeable, fixed = _set_bits(parts.get("changeable")), _set_bits(parts.get("fixed"))
        known = {*bits, *changeable, *fixed}
        can_change = {name: changeable.get(name, False) and not fixed.get(name) for name in known}
        return {name: bits.get(name, False) for name in known}, can_change


def _switch(value: object, step: str) -> bool:
    """A requested switch, which is text if it comes from a template. Raises HostError."""
    text = str(value).strip().lower()
    if text not in _SWITCH_VALUES:
        raise HostError(step, f"{value!r} is not a switch", "use true or false")
    return _SWITCH_VALUES[text]


def _number(value: object, step: str) -> int:
    """A requested number, which is text if it comes from a template. Raises HostError."""
    text = str(value).strip()
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII) or int(text) >= 2**32:
        raise HostError(step, f"{value!r} is not a number from 0 to {2**32 - 1}")
    return int(text)


def _header(interface: str, flags: int = 0) -> tuple[str, object]:
    attributes = [("ETHTOOL_A_HEADER_DEV_NAME", interface), ("ETHTOOL_A_HEADER_FLAGS", flags)]
    return "header", {"attrs": attributes}


def _set_bits(bitset: Message) -> dict[str, bool]:
    """The named bits of a bitset, and whether each is set. A bitset without a mask lists only the bits that are set."""
    bits = bitset.get_attr("ETHTOOL_A_BITSET_BITS") if bitset else None
    no_mask = bool(bits) and bitset.get_attr("ETHTOOL_A_BITSET_NOMASK") is not None
    return {
        bit.get_attr("ETHTOOL_A_BITSET_BIT_NAME"): no_mask or bit.get_attr("ETHTOOL_A_BITSET_BIT_VALUE") is not None
        for bit in (bits.get_attrs("ETHTOOL_A_BITSET_BITS_BIT") if bits else ())
    }
