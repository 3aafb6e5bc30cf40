# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Firmware settings of NVIDIA ConnectX cards (mstconfig(1) in the package mstflint)."""

from __future__ import annotations

import re
import typing as t

from ..access.system import System
from ..engine.change import NODE, Change, Plan, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

_PROGRAM = "mstconfig"
_NVIDIA = "15b3"
_NAME = re.compile(r"^[A-Z][A-Z0-9_]*$", re.ASCII)
_COLUMNS = re.compile(r"^Configurations:\s+(.*)$")
_ROW = re.compile(r"^\s*\*?\s+([A-Z][A-Z0-9_]*(?:\[\S+\])?)\s+(\S.*)$", re.ASCII)
_NUMBERED = re.compile(r"^(?:.*\()?(-?\d+|0x[0-9a-fA-F]+)\)?$", re.ASCII)
#: The file with the ID of the boot in which the last firmware setting of any card was written by this collection. It
#: shows whether the node was rebooted since.
BOOT_ID_FILE = "/var/lib/lanewise/firmware-boot"


def parse(text: str) -> dict[str, dict[str, str]]:
    """The settings of `mstconfig -e query`: default, current and next value of each.

    If there is only one column, it is `next`. Values are as printed: `True(1)`, `ETH(2)`, `16`.
    """
    settings: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in text.splitlines():
        header = _COLUMNS.match(line)
        if header:
            columns = [column.lower() for column in re.sub(r"Next Boot", "Next", header.group(1)).split()]
            continue
        row = _ROW.match(line)
        if not columns or not row:
            continue
        cells = row.group(2).split()
        if len(cells) == len(columns):
            settings[row.group(1)] = dict(zip(columns, cells))
    return settings


def number_or_name(value: object) -> str:
    """The number of a value, else its name in capitals: `1` for `True` and `True(1)`, `2` for `ETH(2)`."""
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return "1" if text.lower() == "true" else "0"
    match = _NUMBERED.match(text)
    if not match:
        return text.upper()
    return str(int(match.group(1), 16 if match.group(1).startswith("0x") else 10))


class Firmware(Resource):
    """`firmware` of a PF: a mapping of settings to values, with the names of `mstconfig`.

    A value takes effect when the card is reset. Settings that the ports of a card share, such as NUM_OF_VFS, must be
    the same in the rules of all ports.
    """

    name = "firmware"
    boot = False

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._tables: dict[str, dict[str, dict[str, str]]] = {}

    def wanted(self, node: Node) -> State:
        return {
            key: t.cast("dict[str, object]", dict(settings["firmware"]))
            for key, settings in node.settings.items()
            if settings.get("firmware")
        }

    def _table(self, address: str, refresh: bool = False) -> dict[str, dict[str, str]]:
        if refresh or address not in self._tables:
            argv = [_PROGRAM, "-d", address, "-e", "query"]
            fix = "install mstflint; if the host is restricted (mstprivhost), the card refuses the query"
            self._tables[address] = parse(self.system.query(argv, f"read the firmware settings of {address}", fix))
        return self._tables[address]

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key, settings in wanted.items():
            device = node.devices.get(key)
            if device is None or device.address is None or device.vendor_id != _NVIDIA or device.physfn:
                continue
            table = self._table(key, refresh=True)
            state[key] = {name: table.get(name, {}).get("next") for name in settings}
        return state

    def same(self, setting: str, before: object, after: object) -> bool:
        if before is None or after is None:
            return before is after
        current, wanted = number_or_name(before), number_or_name(after)
        return current == wanted or str(before).partition("(")[0].upper() == wanted

    def check(self, node: Node, change: Change) -> Refusal | None:
        device = node.device(change.device)
        if device.vendor_id != _NVIDIA or device.address is None:
            return Refusal(
                change.device,
                change.setting,
                "the device is not an NVIDIA NIC with a PCI address",
                "choose with vendor_id: 15b3",
            )
        if device.physfn:
            return Refusal(
                change.device, change.setting, f"the device is a VF of {device.physfn}", "choose PFs: type: pf"
            )
        if not _NAME.match(change.setting.partition("[")[0]):
            return Refusal(change.device, change.setting, "this is not a valid name of a firmware setting")
        if change.before is None:
            fix = (
                "'mstconfig query' lists the names; some only appear after ADVANCED_PCI_SETTINGS was set and the card "
                "was reset"
            )
            return Refusal(change.device, change.setting, "this card's firmware has no such setting", fix)
        for other, settings in node.settings.items():
            other_value = (settings.get("firmware") or {}).get(change.setting)
            if other_value is None or other == change.device or not _same_card(other, change.device):
                continue
            if not change.setting.endswith(("_P1", "_P2")) and not self.same(change.setting, other_value, change.after):
                message = f"the ports of a card share this setting, but the rules set {other_value} for {other}"
                return Refusal(change.device, change.setting, message, "set the same value for all ports of the card")
        return None

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        """As for any resource, but if a reboot has not brought a written value into effect, the run is refused."""
        wanted = self.wanted(node) if wanted is None else wanted
        plan = super().plan(node, wanted)
        recorded_boot_id = self.system.text(BOOT_ID_FILE)
        if wanted and plan.reboot and not plan.changes and recorded_boot_id and recorded_boot_id != self._boot_id():
            for reason in plan.reboot:
                message = f"the node was rebooted since a firmware setting was last written here, but {reason}"
                fix = (
                    "some cards need a power cycle or 'mstfwreset', and BlueField in DPU mode needs a power cycle; if "
                    "another program has written the setting since the boot, reboot the node yourself"
                )
                plan.refusals.append(Refusal(NODE, "firmware", message, fix))
            plan.reboot.clear()
        return plan

    def _boot_id(self) -> str:
        return self.system.text("/proc/sys/kernel/random/boot_id") or "unknown"

    def pending(self, node: Node, wanted: State, state: State) -> list[str]:
        reasons = []
        for key, settings in wanted.items():
            table = self._tables.get(key, {})
            for name, value in settings.items():
                row = table.get(name, {})
                if not self.same(name, row.get("next"), value) or "current" not in row:
                    continue  # a change is planned, or the firmware is old and does not report the current value
                if not self.same(name, row["current"], value):
                    reasons.append(f"the firmware of {key} runs with {name}={row['current']}, not {value}")
        return reasons

    def after_reboot(self, change: Change) -> str:
        row = self._tables.get(change.device, {}).get(change.setting, {})
        if "current" in row and self.same(change.setting, row["current"], change.after):
            return ""
        return f"the firmware of {change.device} applies {change.setting}={change.after} when the card is reset"

    def apply(self, node: Node, change: Change) -> None:
        step = f"set {change.setting} of {change.device} to {change.after}"
        value = number_or_name(change.after)
        argv = [_PROGRAM, "-y", "-d", change.device, "set", f"{change.setting}={value}"]
        self.system.command(argv, step, "the card may not support the value, see 'mstconfig show_confs'")
        if self.system.text(BOOT_ID_FILE) != self._boot_id():
            self.system.install(BOOT_ID_FILE, self._boot_id() + "\n", "record the boot in which firmware was changed")


def _same_card(first: str, second: str) -> bool:
    return first.rpartition(".")[0] == second.rpartition(".")[0]
