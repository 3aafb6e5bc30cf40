# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changes of PCI registers on example machines, whose configuration space is that of real devices."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.pcie import AcsForGpudirect, Pcie, ports
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.machines.builder import build


def _converge(root: Path, settings: t.Any = None, check_mode: bool = False, **general: t.Any) -> Outcome:
    system = System(str(root))
    rules = [Rule("rails", selector({"type": ["pf", "vf"]}), settings)] if settings else []
    node = Node(system, rules, general, allow_management=True)
    return converge(node, [Pcie(system), AcsForGpudirect(system)], check_mode)


def _config(root: Path, address: str) -> bytes:
    return (root / f"sys/bus/pci/devices/{address}/config").read_bytes()


def _build(tmp_path: Path, name: str) -> Path:
    return build(name, tmp_path / "machine")


def test_only_the_two_requested_register_fields_change(tmp_path: Path) -> None:
    root = _build(tmp_path, "hgx-h100")
    addresses = list(Node(System(str(root))).devices)
    before = {address: _config(root, address) for address in addresses if address.startswith("0000")}
    settings = {"max_read_request_bytes": 4096, "relaxed_ordering": True}
    predicted = _converge(root, settings, check_mode=True)
    assert predicted.changes and {address: _config(root, address) for address in before} == before
    done = _converge(root, settings)
    assert done.after == predicted.after and not _converge(root, settings).changes
    for address, old in before.items():
        new = _config(root, address)
        differing = [offset for offset in range(len(old)) if old[offset] != new[offset]]
        assert len(new) == len(old) and set(range(differing[0], differing[-1] + 1)) <= {differing[0], differing[0] + 1}
        register = differing[-1] - 1
        word = int.from_bytes(new[register : register + 2], "little")
        # Max_Read_Request_Size is in bits 14:12 (5: 4096 bytes), and Enable Relaxed Ordering is bit 4
        assert word & 0x7010 == 0x5010
        assert word & ~0x7010 == int.from_bytes(old[register : register + 2], "little") & ~0x7010
    converge(Node(System(str(root)), allow_management=True), [Pcie(System(str(root)))], wanted=done.before)
    assert {address: _config(root, address) for address in before} == before


def test_a_setting_that_a_vf_shares_with_its_pf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a VF uses the setting of its PF .*"):
        _converge(_build(tmp_path, "sriov"), {"relaxed_ordering": True})


def test_an_invalid_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="128, 256, 512, 1024, 2048, 4096"):
        _converge(_build(tmp_path, "hgx-h100"), {"max_read_request_bytes": 8192})


def _findings(root: Path) -> set[str]:
    return {finding.id for finding in probe(str(root), diagnose=diagnose).findings}


def _enable(root: Path, *names: str) -> set[str]:
    """Enable ACS flags on all ports between GPUs and NICs, as firmware or the kernel may. Returns the ports."""
    system = System(str(root))
    node = Node(system)
    resource = AcsForGpudirect(system)
    ports_between = ports(resource._facts(node))
    with_flags = {f"acs of {port}": list(names) for port in ports_between if node.facts["functions"][port]["acs"]}
    assert converge(node, [resource], wanted={"acs": {"node": with_flags}}).changes
    return set(ports_between)


def test_only_ports_between_a_gpu_and_its_nic_lose_their_redirects(tmp_path: Path) -> None:
    root = _build(tmp_path, "mi300x")
    ports_between = _enable(root, "SV", "RR", "CR", "UF")
    node = Node(System(str(root)))
    functions = node.facts["functions"]
    before = {address: functions[address]["acs"]["enabled"] for address in functions if functions[address]["acs"]}
    assert len(ports_between) < len(before)
    assert "acs-redirect" in _findings(root)
    done = _converge(root, acs="gpudirect")
    now = Node(System(str(root))).facts
    for address, enabled in before.items():
        removed = {"RR", "CR"} if address in ports_between else set()
        assert set(now["functions"][address]["acs"]["enabled"]) == set(enabled) - removed
    assert "acs-redirect" not in _findings(root)
    assert not _converge(root, acs="gpudirect").changes
    system = System(str(root))
    assert converge(Node(system), [AcsForGpudirect(system)], wanted={"acs": done.before["acs"]}).changes
    restored = Node(System(str(root))).facts["functions"]
    assert {address: restored[address]["acs"]["enabled"] for address in before} == before


def test_a_data_direct_board_keeps_the_redirects_that_it_needs(tmp_path: Path) -> None:
    root = _build(tmp_path, "gb300")
    assert not _converge(root, acs="gpudirect").changes, "the description is that of a board set up by rdma_topo"
    _enable(root, "UF")
    done = _converge(root, acs="gpudirect")
    flags = {tuple(change.after) for change in done.changes}
    assert flags == {("SV", "RR", "UF"), ("SV", "CR", "UF"), ("RR", "CR", "UF")}


def _bind(root: Path, address: str, driver: str) -> None:
    uevent = root / f"sys/bus/pci/devices/{address}/uevent"
    lines = [line for line in uevent.read_text().splitlines() if not line.startswith("DRIVER=")]
    uevent.write_text("\n".join([f"DRIVER={driver}", *lines, ""]))


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci"])
def test_devices_of_guests_keep_their_isolation(tmp_path: Path, driver: str) -> None:
    root = _build(tmp_path, "mi300x")
    port = min(_enable(root, "SV", "RR", "CR", "UF"))
    node = Node(System(str(root)))
    address = next(address for address, function in node.facts["functions"].items() if port in function["bridges"])
    _bind(root, address, driver)
    with pytest.raises(Refused, match=f"belongs to a guest .{driver}."):
        _converge(root, acs="gpudirect")


def test_isolation_of_devices_of_guests_can_be_restored(tmp_path: Path) -> None:
    root = _build(tmp_path, "mi300x")
    port = min(_enable(root, "SV", "RR", "CR", "UF"))
    done = _converge(root, acs="gpudirect")
    node = Node(System(str(root)))
    _bind(root, next(name for name, found in node.facts["functions"].items() if port in found["bridges"]), "vfio-pci")
    system = System(str(root))
    before = {NODE: {**done.before["acs"][NODE], "acs of 0000:ff:00.0": ["SV"]}}  # a port that no longer exists
    assert converge(Node(system), [AcsForGpudirect(system)], wanted={"acs": before}).changes


@pytest.mark.parametrize(("name", "reason"), [("azure-vm", "virtual machine|meet below"), ("gb200", "meet below")])
def test_machines_without_ports_to_change_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        _converge(_build(tmp_path, name), acs="gpudirect")
