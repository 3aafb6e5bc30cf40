# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Rings, channels, interrupt coalescing, pause frames, features and private flags (linux/ethtool_netlink.h)."""

from __future__ import annotations

import struct
import typing as t

from . import netlink
from .node import Node
from .resource import Change, Refusal, Resource, State
from .system import HostError

_FAMILY = "ethtool"
_HEADER, _DEV_NAME = 1, 2
#: By group: messages to get and to set, and attributes with their width; where there is a maximum, its attribute too.
_NUMBERS: dict[str, tuple[int, int, dict[str, tuple[int, int, int]]]] = {
    # driver changes of queues come first: they may reset what stands on them
    "channels": (17, 18, {"rx": (6, 4, 2), "tx": (7, 4, 3), "other": (8, 4, 4), "combined": (9, 4, 5)}),
    "rings": (15, 16, {"rx": (6, 4, 2), "rx_mini": (7, 4, 3), "rx_jumbo": (8, 4, 4), "tx": (9, 4, 5)}),
    "coalesce": (
        19,
        20,
        {
            # adaptive first: while it is on, drivers choose the rest by themselves
            **{"adaptive_rx": (11, 1, 0), "adaptive_tx": (12, 1, 0)},
            **{"rx_usecs": (2, 4, 0), "rx_frames": (3, 4, 0), "rx_usecs_irq": (4, 4, 0), "rx_frames_irq": (5, 4, 0)},
            **{"tx_usecs": (6, 4, 0), "tx_frames": (7, 4, 0), "tx_usecs_irq": (8, 4, 0), "tx_frames_irq": (9, 4, 0)},
            **{"cqe_mode_tx": (24, 1, 0), "cqe_mode_rx": (25, 1, 0)},
        },
    ),
    "pause": (21, 22, {"autoneg": (2, 1, 0), "rx": (3, 1, 0), "tx": (4, 1, 0)}),
}
#: By group of switches with names of the driver: messages to get and to set, and attributes of the bitset that can be
#: changed (0: all), that is set, that tells what is, and that tells what never changes (0: none).
_SWITCHES = {"features": (11, 12, 2, 3, 4, 5), "private_flags": (13, 14, 0, 2, 2, 0)}
_BITS, _BIT, _BIT_NAME, _BIT_VALUE = 3, 1, 2, 3
_NAMES = {"cqe_mode_tx": "TX CQE mode", "cqe_mode_rx": "RX CQE mode"}
#: Changing these makes most drivers take their queues down and up.
_INTERRUPTING = ("channels", "rings")


class Ethtool(Resource):
    """C(ethtool) of a NIC's interface, by group and name. A number beyond what the device tells is refused."""

    name = "ethtool"

    def wanted(self, node: Node) -> State:
        found: State = {}
        for key, settings in node.settings.items():
            asked = settings.get("ethtool") or {}
            for group in (*_NUMBERS, *_SWITCHES):
                given = {name: value for name, value in (asked.get(group) or {}).items() if value is not None}
                known = list(_NUMBERS[group][2]) if group in _NUMBERS else sorted(given)
                strange = sorted(set(given) - set(known))
                if strange:
                    fix = f"use {', '.join(known)}"
                    raise HostError(f"set ethtool {group} of {key}", f"{strange[0]} is not known", fix)
                for name in known:
                    if name in given:
                        found.setdefault(key, {})[f"{group}.{name}"] = given[name]
        return found

    def read(self, node: Node, wanted: State) -> State:
        found: State = {}
        for key, settings in wanted.items():
            interface = node.device(key).interface
            groups = dict.fromkeys(setting.partition(".")[0] for setting in settings)
            told = {group: self.told(interface, group)[0] for group in groups}
            found[key] = {}
            for setting in settings:
                group, _dot, name = setting.partition(".")
                found[key][setting] = told[group].get(name)
        return found

    def check(self, node: Node, change: Change) -> Refusal | None:
        group, _dot, name = change.setting.partition(".")
        interface = node.device(change.device).interface
        values, limits = self.told(interface, group)
        if change.before is None:
            kinds = ", ".join(sorted(values)) or "none"
            message = f"the driver of {interface} has no {group.rstrip('s')} {_NAMES.get(name, name)}"
            return Refusal(change.device, change.setting, message, f"it has {kinds}")
        limit = limits.get(name)
        if group in _SWITCHES:
            if limit:
                return None
            message = f"the driver of {interface} does not let it be changed"
            return Refusal(change.device, change.setting, message, "leave it out for this NIC")
        if limit is not None and change.after > limit:
            message = f"{change.after} is more than {interface} has"
            return Refusal(change.device, change.setting, message, f"ask for {limit} at most")
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        if change.setting.partition(".")[0] not in _INTERRUPTING:
            return ""
        return f"traffic of {node.device(change.device)} stops while the driver makes its queues anew"

    def apply(self, node: Node, change: Change) -> None:
        group, _dot, name = change.setting.partition(".")
        device = node.device(change.device)
        step = f"set ethtool {group} {name} of {device} to {change.after}"
        if group in _NUMBERS:
            _get, command, names = _NUMBERS[group]
            kind, width, _limit = names[name]
            message = netlink.attribute(kind, struct.pack("=I" if width == 4 else "=B", int(change.after)))
        else:
            _get, command, _can, kind, _is, _never = _SWITCHES[group]
            value = (netlink.attribute(_BIT_VALUE),) if change.after else ()
            message = netlink.nest(kind, netlink.nest(_BITS, netlink.nest(_BIT, netlink.text(_BIT_NAME, name), *value)))
        body = netlink.nest(_HEADER, netlink.text(_DEV_NAME, device.interface)) + message
        kernel = self.system.netlink(netlink.GENERIC)
        fix = "RDMA uses the queues: unload the RDMA driver first" if group == "channels" else ""
        self.system.ask(step, lambda: kernel.generic(_FAMILY, command, body), fix if device.rdma_devices else "")

    def told(self, interface: str, group: str) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
        """What the driver has of a group, and the largest values, or of switches whether they can be changed."""
        command = _NUMBERS[group][0] if group in _NUMBERS else _SWITCHES[group][0]
        body = netlink.nest(_HEADER, netlink.text(_DEV_NAME, interface))
        kernel = self.system.netlink(netlink.GENERIC)
        try:
            answers = self.system.read(
                f"read ethtool {group} of {interface}", lambda: kernel.generic(_FAMILY, command, body)
            )
        except HostError as error:
            if error.code in (2, 95):  # the driver has none of it; a kernel before 5.7 has not the family
                return {}, {}
            raise
        told = answers[0] if answers else {}
        if group in _NUMBERS:
            names = _NUMBERS[group][2]
            values: dict[str, t.Any] = {}
            for name, (kind, width, _limit) in names.items():
                if kind in told:
                    value = netlink.number(told[kind])
                    values[name] = bool(value) if width == 1 else value
            limits = {
                name: netlink.number(told[limit]) for name, (_kind, _width, limit) in names.items() if limit in told
            }
            return values, limits
        _get, _set, can, _kind, shown, never = _SWITCHES[group]
        bits = bitset(told.get(shown, b""))
        if not can:
            return bits, dict.fromkeys(bits, True)
        changeable = {name for name, value in bitset(told.get(can, b"")).items() if value}
        fixed = {name for name, value in bitset(told.get(never, b"")).items() if value}
        known = {*bits, *changeable, *fixed}
        return {name: bits.get(name, False) for name in known}, {name: name in changeable - fixed for name in known}


def bitset(raw: bytes) -> dict[str, bool]:
    """The bits with names of a bitset, and whether each is set. In a set without a mask only those set are told."""
    told = netlink.attributes(raw)
    no_mask = 1 in told
    found: dict[str, bool] = {}
    for kind, entry in netlink.pairs(told.get(_BITS, b"")):
        bit = netlink.attributes(entry)
        if kind == _BIT and _BIT_NAME in bit:
            found[netlink.string(bit[_BIT_NAME])] = no_mask or _BIT_VALUE in bit
    return found
