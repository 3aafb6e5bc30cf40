# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Registers of PCI functions: a NIC's read requests and ordering, and the access control services of ports.

PCI Express Base Specification 6.0, sections 7.5.3.4 (Device Control) and 7.7.11 (Access Control Services).
"""

from __future__ import annotations

import typing as t

from ...topology.config_space import ACS_NAMES, find_capability
from ...topology.model import as_dict
from ...topology.probe import probe
from ..access.system import HostError, System
from ..engine.change import NODE, Change, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource
from .vfs import is_vfio, per_vf

if t.TYPE_CHECKING:
    from ...topology.facts import NodeFacts

_DEVICES = "/sys/bus/pci/devices"
_CAP_EXPRESS = 0x10
_EXT_CAP_ACS = 0x000D
_DEVICE_CONTROL = 0x08
_RELAXED_ORDERING = 0x0010
_READ_REQUEST_SHIFT, _READ_REQUEST_MASK = 12, 0x7000
_SIZES = (128, 256, 512, 1024, 2048, 4096)
_UNREADABLE = "its configuration space cannot be read"


def _reader(system: System, address: str) -> t.Callable[[int, int], bytes | None]:
    return lambda offset, size: system.reader.data(f"{_DEVICES}/{address}/config", size, offset)


def _word(system: System, address: str, offset: int) -> int | None:
    data = _reader(system, address)(offset, 2)
    return int.from_bytes(data, "little") if data is not None and len(data) == 2 else None


def _change_bits(system: System, address: str, offset: int, mask: int, bits: int, step: str) -> None:
    """Change only those bits of a word that are in `mask`. Raises HostError."""
    current = _word(system, address, offset)
    if current is None or current == 0xFFFF:
        raise HostError(step, f"{_UNREADABLE}: the device does not answer", "look at 'dmesg' for PCIe errors")
    value = current & ~mask & 0xFFFF | bits & mask
    system.write_at(f"{_DEVICES}/{address}/config", offset, value.to_bytes(2, "little"), step)


class Pcie(Resource):
    """`max_read_request_bytes` and `relaxed_ordering` of a PF, which its VFs share."""

    name = "pcie"
    settings = ("max_read_request_bytes", "relaxed_ordering")

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            requested: t.Mapping[str, object] = settings
            state[key] = {name: requested[name] for name in self.settings if requested.get(name) is not None}
        return {key: values for key, values in state.items() if values}

    def _register(self, address: str) -> int | None:
        """The offset of the Device Control register; None if it cannot be found."""
        capability = find_capability(_reader(self.system, address), _CAP_EXPRESS)
        return None if capability is None else capability + _DEVICE_CONTROL

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key in wanted:
            register = self._register(key)
            word = None if register is None else _word(self.system, key, register)
            if word is None or word == 0xFFFF:
                continue
            code = (word & _READ_REQUEST_MASK) >> _READ_REQUEST_SHIFT
            state[key] = {
                "max_read_request_bytes": _SIZES[code] if code < len(_SIZES) else None,
                "relaxed_ordering": bool(word & _RELAXED_ORDERING),
            }
        return state

    def check(self, node: Node, change: Change) -> Refusal | None:
        device = node.device(change.device)
        if device.address is None:
            return Refusal(change.device, change.setting, "is not a PCI function")
        if device.physfn:
            return Refusal(
                change.device, change.setting, f"a VF uses the setting of its PF {device.physfn}", "choose the PF"
            )
        if change.before is None:
            return Refusal(change.device, change.setting, f"{_UNREADABLE}, or it is not a PCI Express function")
        if change.setting == "max_read_request_bytes" and change.after not in _SIZES:
            return Refusal(change.device, change.setting, f"must be one of {', '.join(map(str, _SIZES))}")
        return None

    def apply(self, node: Node, change: Change) -> None:
        step = f"set {change.setting} of {change.device} to {change.after}"
        register = self._register(change.device)
        if register is None:
            raise HostError(step, _UNREADABLE)
        if change.setting == "relaxed_ordering":
            mask, bits = _RELAXED_ORDERING, _RELAXED_ORDERING if change.after else 0
        else:
            mask, bits = _READ_REQUEST_MASK, _SIZES.index(change.after) << _READ_REQUEST_SHIFT
        _change_bits(self.system, change.device, register, mask, bits, step)


class AcsForGpudirect(Resource):
    """`acs` of the node: `gpudirect` lets GPUs and NICs below one switch reach each other without the processor.

    Only ports on the path between a GPU and its nearest NIC are changed, each as the board requires. The value of a
    port is the list of its enabled controls, as in `topology.model.Acs`.
    """

    name = "acs"

    def wanted(self, node: Node) -> State:
        if node.general.get("acs") is None:
            return {}
        if node.general["acs"] != "gpudirect":
            raise HostError("set ACS", f"{node.general['acs']!r} is not a known profile", "use gpudirect")
        settings: dict[str, object] = {}
        for port, bits in ports(self._facts(node)).items():
            registers = self._registers(port)
            if registers is None:
                continue  # a port without ACS redirects nothing
            _offset, capable, enabled = registers
            mask = sum(1 << ACS_NAMES.index(name) for name in bits)
            value = sum(1 << ACS_NAMES.index(name) for name, on in bits.items() if on)
            settings[_setting(port)] = _names((enabled & ~mask | value) & capable)
        return {NODE: settings or {"acs": "gpudirect"}}

    def _facts(self, node: Node) -> NodeFacts:
        """The node's facts, with vital product data if it is needed to pair NICs and data-direct functions."""
        if any(function["kind"] == "data_direct" for function in node.facts["functions"].values()):
            facts: NodeFacts = as_dict(probe(self.system.reader.root, with_gids=False))
            return facts
        return node.facts

    def _registers(self, port: str) -> tuple[int, int, int] | None:
        """The offset of the ACS control register, and the values of the capability and the control register."""
        read = _reader(self.system, port)
        offset, seen = 0x100, set()
        while offset >= 0x100 and offset not in seen:
            seen.add(offset)
            data = read(offset, 8)
            if data is None or len(data) < 8:
                return None
            header = int.from_bytes(data[:4], "little")
            if header in (0, 0xFFFFFFFF):
                return None
            if header & 0xFFFF == _EXT_CAP_ACS:
                return offset + 6, int.from_bytes(data[4:6], "little"), int.from_bytes(data[6:8], "little")
            offset = header >> 20 & 0xFFC
        return None

    def read(self, node: Node, wanted: State) -> State:
        current: dict[str, object] = {}
        for setting in wanted.get(NODE, {}):
            registers = self._registers(setting.rpartition(" ")[2]) if " " in setting else None
            if registers is not None:
                current[setting] = _names(registers[2])
        return {NODE: current}

    def check(self, node: Node, change: Change) -> Refusal | None:
        if change.setting == "acs":
            fix = "leave acs out; topology_info shows the paths between GPUs and NICs"
            return Refusal(NODE, "acs", "no GPU and NIC of this node meet below a switch whose ports have ACS", fix)
        if node.facts["system"]["virtual"]:
            fix = "set it on the hypervisor's host, as a guest cannot change the switches"
            return Refusal(NODE, change.setting, "this node is a virtual machine", fix)
        functions = node.facts["functions"]
        port = change.setting.rpartition(" ")[2]
        if not set(change.before or ()) - set(change.after):
            return None  # it only isolates
        unknown = _unknown_board(self._facts(node))
        if unknown:
            return Refusal(NODE, change.setting, unknown, "set it as rdma-core's rdma_topo states for this board")
        fix = (
            "isolation of guests and direct traffic exclude each other: bind the function to its own driver, or leave "
            "acs out"
        )
        for address, function in functions.items():
            if port not in function["bridges"]:
                continue
            if is_vfio(function["driver"]):
                message = f"{address} below this port belongs to a guest ({function['driver']})"
                return Refusal(NODE, change.setting, message, fix)
            vfs = per_vf(self.system, address, node.settings.get(address, {}))
            if any(is_vfio(settings.get("driver")) for settings in vfs.values()):
                message = f"VFs of {address} below this port are to belong to guests"
                return Refusal(NODE, change.setting, message, fix)
        return None

    def same(self, setting: str, before: object, after: object) -> bool:
        port = setting.rpartition(" ")[2]
        if before is None and setting != "acs" and not self.system.exists(f"{_DEVICES}/{port}"):
            return True  # a recorded port that was removed or renumbered
        return before == after

    def apply(self, node: Node, change: Change) -> None:
        port = change.setting.rpartition(" ")[2]
        step = f"set {change.setting} to {' '.join(change.after) or 'nothing'}"
        registers = self._registers(port)
        if registers is None:
            raise HostError(step, "the port no longer has ACS")
        bits = sum(1 << ACS_NAMES.index(name) for name in change.after)
        _change_bits(self.system, port, registers[0], registers[1] & 0x7F, bits, step)


def _setting(port: str) -> str:
    return f"acs of {port}"


def _names(word: int) -> list[str]:
    return [name for bit, name in enumerate(ACS_NAMES) if word >> bit & 1]


def _unknown_board(facts: NodeFacts) -> str:
    """Why the board is unknown; empty if it is not.

    It is unknown if a GPU is below the switch of a ConnectX NIC, and there is no data-direct function.
    """
    functions = facts["functions"]
    data_direct = {nic["data_direct"] for nic in facts["nics"] if nic["data_direct"]}
    roots = {tuple(functions[address]["bridges"][:1]) for address in data_direct}
    for gpu in facts["gpus"]:
        bridges = functions[gpu["address"]]["bridges"]
        upstream = [functions[bridge] for bridge in bridges if bridge in functions]
        if any(function["vendor_id"] == "15b3" for function in upstream) and tuple(bridges[:1]) not in roots:
            return f"GPU {gpu['address']} is below a switch of a NIC, without a data-direct function"
    return ""


def ports(facts: NodeFacts) -> dict[str, dict[str, bool]]:
    """The controls that each port needs on or off for traffic between the GPUs and their nearest NICs.

    On ordinary switches, the first ports below the last common bridge must redirect neither requests nor completions.
    If a NIC has a data-direct function (ConnectX-8 with Grace), these ports need one redirect each, and their root port
    must not validate sources, so that the kernel puts the whole segment into one IOMMU group (rdma-core,
    kernel-boot/rdma_topo).
    """
    functions = facts["functions"]
    controls: dict[str, dict[str, bool]] = {}
    for gpu in facts["gpus"]:
        nearest = gpu["nearest_nics"]
        if nearest["level"] not in ("PIX", "PXB"):
            continue
        for nic in nearest["devices"]:
            end = nearest["via"].get(nic, nic)
            paths = [functions[address]["bridges"] for address in (gpu["address"], end)]
            common = [bridge for bridge, other in zip(*paths) if bridge == other]
            if not common:
                continue
            below = [bridges[len(common) : len(common) + 1] for bridges in paths]
            if end == nic:
                for port in (*below[0], *below[1]):
                    controls[port] = {"RR": False, "CR": False}
                continue
            for port in below[0]:
                controls[port] = {"SV": True, "RR": True, "CR": False, "UF": True}
            for port in below[1]:
                controls[port] = {"SV": True, "RR": False, "CR": True, "UF": True}
            controls[common[0]] = {"SV": False, "RR": True, "CR": True, "UF": True}
    return dict(sorted(controls.items()))
