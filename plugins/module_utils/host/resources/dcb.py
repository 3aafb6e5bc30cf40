# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Data Center Bridging: priority flow control, traffic classes, DSCP trust, buffers (linux/dcbnl.h)."""

from __future__ import annotations

import errno
import re
import typing as t
from dataclasses import dataclass, field

from ..access.pyroute2_types import Message
from ..access.system import HostError, System
from ..engine.change import Change, Refusal, State, Value
from ..engine.node import Node
from ..engine.resource import Resource
from ..engine.settings import DcbSettings
from .ethtool import Ethtool

_IEEE_SET, _IEEE_GET, _IEEE_DEL = 20, 21, 27
_SELECTOR_DSCP = 5
_TSA = {0: "strict", 1: "cb_shaper", 2: "ets", 255: "vendor"}
#: The size of a buffer is a multiple of a cell. The reported size may be smaller than the requested one by less than
#: this.
_CELL_BYTES = 256
SETTINGS = ("trust", "ets", "pfc", "buffer")
#: The parts of IEEE 802.1Qaz in the kernel's messages, by name.
_Parts = dict[str, Message]
#: The lists of `ets` and `buffer`, each with one value for each priority, class or buffer.
_LISTS = {"ets": ("priority_tc", "tsa", "bandwidth"), "buffer": ("priority_buffer", "size")}
#: `ets` and `buffer`: lists of numbers, and for `tsa` of names.
_Lists = dict[str, list[t.Any]]


@dataclass(frozen=True)
class Trust(Value):
    """The source of a packet's priority: its DSCP, mapped by `priorities`. Without these, its VLAN tag (PCP)."""

    priorities: t.Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """`pcp`, or the ranges of DSCPs with their priorities: `dscp 0-7:0 8-15:1`."""
        runs: list[list[int]] = []
        for code, priority in sorted(self.priorities.items()):
            if runs and runs[-1][1] == code - 1 and runs[-1][2] == priority:
                runs[-1][1] = code
            else:
                runs.append([code, code, priority])
        texts = [f"{first}-{last}:{number}" if last > first else f"{first}:{number}" for first, last, number in runs]
        return " ".join(["dscp", *texts]) if texts else "pcp"

    @classmethod
    def parse(cls, text: str) -> Trust:
        """Parse the text in a file. Raises ValueError."""
        priorities: dict[int, int] = {}
        for part in text.split()[1:]:
            codes, _colon, priority = part.partition(":")
            first, _dash, last = codes.partition("-")
            priorities.update({code: int(priority) for code in range(int(first), int(last or first) + 1)})
        return cls(priorities)


class Dcb(Resource):
    """`dcb` of a PF: `trust`, `dscp_priorities`, `ets`, `pfc`, `buffer`.

    The application table decides whether DSCPs are trusted: a driver trusts them if the table has an entry. Values that
    are missing in `ets` and `buffer` are not changed.
    """

    name = "dcb"

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            requested = settings.get("dcb") or DcbSettings()
            priorities = requested.get("dscp_priorities")
            values: dict[str, object] = {}
            if requested.get("trust") in ("pcp", "dscp") or priorities is not None:
                step = f"set dcb dscp_priorities of {key}"
                by_dscp = {
                    _integer(code, step): _integer(priority, step) for code, priority in (priorities or {}).items()
                }
                if requested.get("trust") == "pcp" and by_dscp:
                    fix = "remove dscp_priorities, or set trust to dscp"
                    raise HostError(f"set dcb trust of {key}", "dscp_priorities is set, but trust is pcp", fix)
                is_pcp = requested.get("trust") == "pcp"
                values["trust"] = Trust() if is_pcp else Trust({**_class_selector_priorities(), **by_dscp})
            for name, parts in (("ets", requested.get("ets")), ("buffer", requested.get("buffer"))):
                if parts is not None:
                    values[name] = _requested_lists(key, name, parts)
            pfc = requested.get("pfc")
            if pfc is not None:
                values["pfc"] = sorted(set(pfc))
            if values:
                state[key] = {name: values[name] for name in SETTINGS if name in values}
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key, settings in wanted.items():
            parts = _read_parts(self.system, node.device(key).interface)
            current = decoded(parts)
            state[key] = {name: current.get(name) for name in settings}
        return state

    def from_stored(self, setting: str, value: object) -> object:
        return Trust.parse(value) if setting == "trust" and isinstance(value, str) else value

    def same(self, setting: str, before: object, after: object) -> bool:
        if not isinstance(before, dict) or not isinstance(after, dict):
            return bool(before == after)
        return all(_same_part(part, before.get(part), value) for part, value in after.items())

    def check(self, node: Node, change: Change) -> Refusal | None:
        def refusal(message: str, fix: str = "") -> Refusal:
            return Refusal(change.device, change.setting, message, fix)

        device = node.device(change.device)
        if device.physfn:
            return refusal(f"is a VF: set it for its PF {device.physfn}", "choose PFs only: type: pf")
        if change.before is None:
            return refusal(
                f"the driver of {device.interface} does not support this part of DCB", "leave it out for this NIC"
            )
        reason = _invalid(change.after)
        if reason:
            return refusal(reason)
        if change.setting == "pfc" and change.after:
            pause = Ethtool(self.system).read_group(device.interface, "pause")[0]
            planned = (node.settings.get(change.device, {}).get("ethtool") or {}).get("pause") or {}
            if any(planned.get(direction, pause.get(direction)) for direction in ("rx", "tx")):
                fix = "switch it off: ethtool: {pause: {rx: false, tx: false}}"
                return refusal("global pause is on, and replaces priority flow control", fix)
        return None

    def interrupts(self, node: Node, change: Change) -> str:
        return f"lossless traffic of {node.device(change.device)} may lose packets while its buffers are reconfigured"

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        interface = device.interface
        step = f"set dcb {change.setting} of {device} to {change.after}"
        parts = _read_parts(self.system, interface)
        if change.setting not in decoded(parts):
            raise HostError(step, f"the driver of {interface} no longer reports it", "look at 'dmesg'")
        if change.setting == "trust":
            self._trust(interface, t.cast(Trust, decoded(parts)["trust"]), change.after, step)
            return
        self._send(interface, _IEEE_SET, (change.setting, changed(parts, change.setting, change.after)), step)

    def _trust(self, interface: str, before: Trust, after: Trust, step: str) -> None:
        old, new = before.priorities, after.priorities
        # new entries first, as a driver falls back to PCP while the table is empty
        self._send_apps(interface, _IEEE_SET, set(new.items()) - set(old.items()), step)
        removed = set(old.items()) - set(new.items())
        # a driver may have replaced an old entry by the new entry of the same DSCP
        self._send_apps(interface, _IEEE_DEL, removed & _apps(_read_parts(self.system, interface)), step)

    def _send_apps(self, interface: str, command: int, entries: set[tuple[int, int]], step: str) -> None:
        if entries:
            apps = [
                ("app", {"selector": _SELECTOR_DSCP, "priority": priority, "protocol": code})
                for code, priority in sorted(entries)
            ]
            self._send(interface, command, ("apps", {"attrs": apps}), step)

    def _send(self, interface: str, command: int, part: tuple[str, object], step: str) -> None:
        socket = self.system.socket("ROUTE")
        from ..access import messages

        attributes = [("ifname", interface), ("ieee", {"attrs": [part]})]

        def request() -> None:
            for reply in messages.exchange(socket, messages.SET_DCB, messages.Dcb, attributes, cmd=command):
                status = reply.get_attr("status")
                if status:  # the negative error number as a byte
                    raise OSError(256 - status, "")

        self.system.request_change(step, request)


def _read_parts(system: System, interface: str) -> _Parts:
    """The parts of IEEE 802.1Qaz that a driver reports (`messages.Dcb`); empty if it reports none. Raises HostError."""
    socket = system.socket("ROUTE")
    from ..access import messages

    message = (messages.GET_DCB, messages.Dcb, [("ifname", interface)])
    try:
        replies = system.read(f"read dcb of {interface}", lambda: messages.exchange(socket, *message, cmd=_IEEE_GET))
    except HostError as error:
        if error.code == errno.EOPNOTSUPP:
            return {}
        raise
    ieee = replies[0].get_attr("ieee") if replies else None
    return {attribute[0]: attribute[1] for attribute in ieee["attrs"]} if ieee else {}


def decoded(parts: _Parts) -> dict[str, object]:
    """The settings in the kernel's parts, without those that the driver does not report."""
    settings: dict[str, object] = {}
    if parts:
        settings["trust"] = Trust(dict(sorted(_apps(parts))))
    if "pfc" in parts:
        settings["pfc"] = [priority for priority in range(8) if parts["pfc"]["enabled"] >> priority & 1]
    if "ets" in parts:
        ets = {part: list(parts["ets"][part]) for part in ("priority_tc", "tsa", "bandwidth")}
        settings["ets"] = {**ets, "tsa": [_TSA.get(code, str(code)) for code in ets["tsa"]]}
    if "buffer" in parts:
        settings["buffer"] = {part: list(parts["buffer"][part]) for part in ("priority_buffer", "size")}
    return settings


def changed(parts: _Parts, setting: str, value: object) -> dict[str, object]:
    """The kernel's part for a setting, with a new value."""
    fields = {name: current for name, current in parts[setting].items() if name not in ("header", "attrs", "value")}
    if isinstance(value, list):  # of pfc
        return {**fields, "enabled": sum(1 << priority for priority in value)}
    by_name = {name: code for code, name in _TSA.items()}
    wanted = t.cast(_Lists, value)
    new = {
        part: tuple(by_name[item] if item in by_name else int(item) for item in items) for part, items in wanted.items()
    }
    return {**fields, **new}


def _apps(parts: _Parts) -> set[tuple[int, int]]:
    """Pairs of a DSCP and its priority in the application table."""
    apps = parts["apps"].get_attrs("app") if "apps" in parts else ()
    return {(app["protocol"], app["priority"]) for app in apps if app["selector"] == _SELECTOR_DSCP}


def _class_selector_priorities() -> dict[int, int]:
    """The priority of each DSCP according to its class selector, as devices map it by default."""
    return {code: code >> 3 for code in range(64)}


def _requested_lists(key: str, name: str, parts: t.Mapping[str, object]) -> _Lists:
    """The requested lists of `ets` or `buffer`. Numbers are texts if they come from a template. Raises HostError."""
    lists: _Lists = {}
    for part, items in parts.items():
        step = f"set dcb {name} {part} of {key}"
        if part not in _LISTS[name]:
            raise HostError(step, f"{name} has no {part}", f"use {', '.join(_LISTS[name])}")
        if items is None:
            continue
        if not isinstance(items, list):
            raise HostError(step, f"{items!r} is not a list", "write a list of 8 values")
        lists[part] = list(map(str, items)) if part == "tsa" else [_integer(item, step) for item in items]
    return lists


def _integer(value: object, step: str) -> int:
    """A requested integer, which is text if it comes from a template. Raises HostError."""
    if not re.fullmatch(r"-?\d{1,10}", str(value).strip(), re.ASCII):
        raise HostError(step, f"{value!r} is not a number")
    return int(str(value))


def _same_part(part: str, before: object, after: object) -> bool:
    if part != "size" or not isinstance(before, list) or not isinstance(after, list):
        return bool(before == after)
    pairs = zip(before, after)
    return len(before) == len(after) and all(0 <= requested - current < _CELL_BYTES for current, requested in pairs)


def _invalid(value: object) -> str:
    """Why a wanted value is not valid; empty if it is."""
    if isinstance(value, list):  # of pfc
        return "" if all(0 <= priority <= 7 for priority in value) else "priorities are 0 to 7"
    if isinstance(value, Trust):
        bad = [
            f"{code}: {priority}"
            for code, priority in value.priorities.items()
            if not (0 <= code <= 63 and 0 <= priority <= 7)
        ]
        return f"{bad[0]} is not a DSCP (0 to 63) with a priority (0 to 7)" if bad else ""
    lists = t.cast(_Lists, value)
    for part, items in lists.items():
        if len(items) != 8:
            return f"{part} has {len(items)} values, but needs 8"
        maximum = {"priority_tc": 7, "priority_buffer": 7, "bandwidth": 100, "size": 2**32 - 1}.get(part)
        if maximum is not None and not all(0 <= item <= maximum for item in items):
            return f"values of {part} are 0 to {maximum}"
    names = [name for name in lists.get("tsa", ()) if name not in _TSA.values()]
    if names:
        return f"{names[0]} is not a tsa: use one of {', '.join(_TSA.values())}"
    ets_shares = [share for share, kind in zip(lists.get("bandwidth", ()), lists.get("tsa", ())) if kind == "ets"]
    return (
        f"bandwidth of classes with ets adds up to {sum(ets_shares)}, but must add up to 100"
        if ets_shares and sum(ets_shares) != 100
        else ""
    )
