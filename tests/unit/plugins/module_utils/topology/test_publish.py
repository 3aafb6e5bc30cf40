# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is published of the example machines, and what the node keeps."""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish import (
    COUNTER,
    INTERFACE_ATTRIBUTES,
    LINK_DOWN,
    Policy,
    Selector,
    device_name,
    interface_device_name,
    publication,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils import probed

Facts = dict[str, t.Any]


def values(device: dict[str, t.Any]) -> dict[str, t.Any]:
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


@pytest.mark.parametrize("name", names())
def test_every_nic_of_every_machine_is_published_or_withheld(name: str) -> None:
    facts = probed.facts(name)
    result = publication(facts)
    nics = {nic["address"]: nic for nic in facts["nics"]}
    assert set(result.addresses.values()) | set(result.withheld) == set(nics)
    assert not set(result.addresses.values()) & set(result.withheld)
    assert all(result.withheld.values())
    total = {entry["name"]: entry["counters"][COUNTER]["value"] for entry in result.counter_sets}
    for device in result.devices:
        nic = nics[result.addresses[device["name"]]]
        assert not nic["default_route"]
        assert device["name"] == device_name(nic["address"]) and not limits.dns_label(device["name"])
        attributes = device["attributes"]
        assert len(attributes) + len(device.get("capacity", {})) <= limits.ATTRIBUTES_AND_CAPACITIES
        for key, typed in attributes.items():
            assert not limits.qualified_name(key)
            ((kind, value),) = typed.items()
            assert {"string": str, "int": int, "bool": bool}[kind] is type(value)
            assert value != "" and len(str(value).encode()) <= limits.ATTRIBUTE_VALUE_BYTES
        read = values(device)
        kubernetes = facts["functions"][nic["address"]]["kubernetes"]
        assert {k: read.get(f"resource.kubernetes.io/{k}") for k in ("pcieRoot", "pciBusID", "numaNode")} == {
            k: kubernetes.get(k) for k in ("pcieRoot", "pciBusID", "numaNode")
        }
        assert read["type"] == ("vf" if nic["physfn"] else "pf")
        assert (read.get("pfPciBusID"), read["rdma"]) == (nic["physfn"], bool(nic["rdma_devices"]))
        assert ("bandwidth" in device.get("capacity", {})) == bool(nic["speed_mbps"] and not nic["physfn"])
        assert bool(device.get("taints")) == (nic["up"] is False)
        for used in device.get("consumesCounters", ()):
            # a PF takes the whole counter, a VF a part of it
            whole = used["counters"][COUNTER]["value"] == total[used["counterSet"]]
            assert whole == (nic["physfn"] is None or total[used["counterSet"]] == "1")


def test_a_nic_is_published_with_its_nearest_gpu() -> None:
    result = publication(probed.facts("hgx-h100"))
    device = next(device for device in result.devices if device["name"] == "pci-0000-19-00-0")
    read = values(device)
    assert read["resource.kubernetes.io/pcieRoot"] == "pci0000:15"
    assert (read["linkSpeedMbps"], read["linkLayer"], read["rail"]) == (400000, "infiniband", 0)
    assert (read["pcieSwitch"], read["nearestGPU"]) == ("0000:16:00.0", "0000:18:00.0")
    assert (read["nearestGPUs"], read["nearestGPULevel"]) == ("0000:18:00.0", "PIX")
    assert device["capacity"] == {"bandwidth": {"value": "400G"}}
    assert (read["resource.kubernetes.io/numaNode"], read["dra.net/numaNode"]) == (0, 0)


@pytest.mark.parametrize("name", names())
def test_every_nic_publishes_the_board_and_its_nearest_gpus(name: str) -> None:
    """The shape of the board is the same for all, and the GPUs are those of the map; VFs have those of their PF."""
    facts = probed.facts(name)
    board = board_map(facts)
    result = publication(facts)
    for device in result.devices:
        read = values(device)
        nic = read.get("pfPciBusID") or result.addresses[device["name"]]
        level, nearest = board.nearest_gpus(nic)
        text = ",".join(nearest)
        assert read.get("nearestGPUs") == (text if 0 < len(text) <= 64 else None)
        assert read.get("nearestGPULevel") == (level if nearest else None)
        assert read.get("board") == (board.shape if board.levels else None)
        if "nearestGPU" in read:
            assert read["nearestGPU"] in nearest


def test_a_data_direct_nic_publishes_the_roots_of_both_functions() -> None:
    """The PF keeps its own root; the DMA function's is beside it, and is that of the GPU."""
    facts = probed.facts("gb300")
    functions = facts["functions"]
    found = 0
    for device in publication(facts).devices:
        read = values(device)
        (nic,) = [nic for nic in facts["nics"] if device_name(nic["address"]) == device["name"]]
        assert read["resource.kubernetes.io/pcieRoot"] == functions[nic["address"]]["root_complex"]
        assert read.get("dataDirectPciBusID") == nic["data_direct"]
        if nic["data_direct"]:
            found += 1
            assert read["dataDirectPcieRoot"] == functions[nic["data_direct"]]["root_complex"]
            assert read["dataDirectPcieRoot"] == functions[read["nearestGPUs"]]["root_complex"]
            assert read["dataDirectPcieRoot"] != read["resource.kubernetes.io/pcieRoot"]
            assert read["nearestGPULevel"] == "PXB"
    assert found == 4


def test_data_direct_that_cannot_be_read_is_not_guessed(tmp_path: Path) -> None:
    """Without the VPD nobody knows which NIC a DMA function belongs to."""
    root = build("gb300", tmp_path / "gb300")
    facts = as_dict(probe(str(root), with_vpd=False))
    for device in publication(facts).devices:
        assert not {"nearestGPUs", "nearestGPULevel", "dataDirectPciBusID", "dataDirectPcieRoot"} & set(values(device))


PAIR: Facts = {
    "name": "pair",
    "summary": "a GPU and a NIC with two VFs below one switch, a GPU and a NIC elsewhere",
    "system": {"vendor": "V", "product": "P", "kernel": "6.8.0"},
    "cpu": {"model": "C", "sockets": 1, "cores": 8, "threads": 1, "memory_gib": 64},
    "roots": {
        "0000:10": {
            "numa": 0,
            "01.0 spr-root-port": {
                "00.0 pex-usp": {
                    "00.0 pex-dsp": {"00.0 h100-sxm": {}},
                    "01.0 pex-dsp": {"00.0 cx7-eth": {"vfs": 2}},
                }
            },
        },
        "0000:40": {"numa": 0, "01.0 spr-root-port": {"00.0 h100-sxm": {}}},
        "0000:50": {"numa": 0, "01.0 spr-root-port": {"00.0 cx7-eth": {}}},
    },
}


def test_vfs_are_as_near_as_their_pf_and_follow_its_overrides(tmp_path: Path) -> None:
    root = str(build(PAIR, tmp_path / "pair"))
    facts = as_dict(probe(root))
    before = {one["name"]: values(one) for one in publication(facts).devices}
    near, far = (gpu["address"] for gpu in facts["gpus"])
    vfs = [nic for nic in facts["nics"] if nic["physfn"]]
    pf = vfs[0]["physfn"]
    (other,) = [nic["address"] for nic in facts["nics"] if nic["address"] != pf and not nic["physfn"]]
    names = [device_name(one) for one in (pf, *(vf["address"] for vf in vfs))]
    assert len(vfs) == 2
    for name in names:
        assert (before[name]["nearestGPUs"], before[name]["nearestGPULevel"]) == (near, "PIX")
    assert before[device_name(other)]["nearestGPUs"] == f"{near},{far}"
    assert before[device_name(other)]["nearestGPULevel"] == "NODE"

    stated = [{"address": pf, "numa_node": 7, "rail": 3}]
    stated += [{"address": one, "switch": "sw0"} for one in (other, far)]
    after = {one["name"]: values(one) for one in publication(as_dict(probe(root, stated))).devices}
    for name in names:
        read = after[name]
        assert (read["resource.kubernetes.io/numaNode"], read["dra.net/numaNode"], read["rail"]) == (7, 7, 3)
        assert (read["nearestGPUs"], read["nearestGPULevel"]) == (near, "PIX")
    read = after[device_name(other)]
    assert (read["pcieSwitch"], read["nearestGPUs"], read["nearestGPULevel"]) == ("sw0", far, "PIX")
    assert len({one["board"] for one in after.values()}) == 1
    assert read["board"] != before[device_name(other)]["board"]


def test_devices_that_the_node_needs_are_withheld() -> None:
    result = publication(probed.facts("sriov"))
    reasons = {address: reason.split()[0:3] for address, reason in result.withheld.items()}
    assert reasons["0000:01:00.0"] == ["it", "carries", "the"]  # below bond0.100, which has the default route
    assert "0000:16:00.7" in result.withheld["0000:16:00.0"]  # a guest has this VF
    assert "vfio-pci" in result.withheld["0000:16:00.7"]
    assert result.withheld["0000:16:01.1"] == "no kernel driver is bound"
    assert "switchdev" in result.withheld["0000:98:00.0"]


def test_a_pf_excludes_its_vfs() -> None:
    result = publication(probed.facts("sriov"))
    devices = {device["name"]: device for device in result.devices}
    pf = devices["pci-0000-c9-00-1"]
    assert pf["consumesCounters"] == [{"counterSet": pf["name"], "counters": {COUNTER: {"value": "128"}}}]
    vfs = [d for d in result.devices if values(d).get("pfPciBusID") == "0000:c9:00.1"]
    assert len(vfs) == 128
    for vf in vfs:
        assert vf["consumesCounters"] == [{"counterSet": pf["name"], "counters": {COUNTER: {"value": "1"}}}]
    assert "consumesCounters" not in devices["pci-0000-c9-00-0"]  # no VFs
    assert "consumesCounters" not in devices["pci-0000-16-00-2"]  # its PF is withheld


def test_without_counters_a_pf_with_published_vfs_is_withheld() -> None:
    result = publication(probed.facts("sriov"), counters=False)
    assert not result.counter_sets and not any("consumesCounters" in device for device in result.devices)
    published = {result.addresses[device["name"]] for device in result.devices}
    assert not published & {values(device).get("pfPciBusID") for device in result.devices}


def test_a_link_that_is_down_is_tainted() -> None:
    result = publication(probed.facts("sriov"))
    device = next(device for device in result.devices if device["name"] == "pci-0000-16-00-1")
    assert device["taints"] == [{"key": LINK_DOWN, "effect": "NoSchedule"}]
    assert values(device)["up"] is False


def _without_default_route(facts: Facts) -> Facts:
    for nic in facts["nics"]:
        nic["default_route"] = False
    return facts


def test_interfaces_below_bonds_and_vlans_are_withheld() -> None:
    facts = _without_default_route(probed.facts("sriov"))
    assert publication(facts).withheld["0000:01:00.0"] == "its interface enp1s0f0 is part of bond0"
    free = next(entry for entry in facts["interfaces"] if entry["name"] == "enp1s0f1")
    free["master"] = None
    next(entry for entry in facts["interfaces"] if entry["name"] == "bond0")["lower"].remove("enp1s0f1")
    assert "0000:01:00.1" not in publication(facts).withheld
    vlan = next(entry for entry in facts["interfaces"] if entry["kind"] == "vlan")
    vlan["lower"] = ["enp1s0f1"]
    assert publication(facts).withheld["0000:01:00.1"] == f"its interface enp1s0f1 is part of {vlan['name']}"


def test_the_pf_of_a_vf_that_carries_the_default_route_is_withheld() -> None:
    facts = probed.facts("sriov")
    vf = next(nic for nic in facts["nics"] if nic["physfn"] == "0000:c9:00.1")
    vf["default_route"] = True
    withheld = publication(facts).withheld
    assert withheld[vf["address"]] == "it carries the node's default route"
    assert vf["address"] in withheld["0000:c9:00.1"]


def test_a_function_whose_interface_is_in_a_pod_is_published_with_its_known_attributes() -> None:
    facts = probed.facts("hgx-h100")
    whole = {device["name"]: device for device in publication(facts).devices}
    nic = next(nic for nic in facts["nics"] if nic["address"] == "0000:19:00.0")
    nic.update(interfaces=[], rdma_devices=[], link_layer=None, speed_mbps=None, up=None)
    reason = "it has neither a network interface nor an RDMA device"
    assert publication(facts).withheld["0000:19:00.0"] == reason
    nic["elsewhere"] = ["interface", "rdma_device"]
    result = publication(facts)
    (name,) = result.away
    assert name == "pci-0000-19-00-0"
    (device,) = [device for device in result.devices if device["name"] == name]
    left_out = set(whole[name]["attributes"]) - set(device["attributes"])
    assert left_out and left_out <= set(INTERFACE_ATTRIBUTES) and "capacity" not in device
    assert all(value == whole[name]["attributes"][key] for key, value in device["attributes"].items())
    # the running driver knows what its pods have, so to it the function has nothing to publish
    assert publication(facts, policy=Policy()).withheld["0000:19:00.0"] == reason


def test_long_and_unknown_values_are_left_out() -> None:
    facts = probed.facts("hgx-h100")
    nic = next(nic for nic in facts["nics"] if nic["address"] == "0000:19:00.0")
    nic["model"], nic["speed_mbps"] = "x" * 65, None
    device = next(d for d in publication(facts).devices if d["name"] == "pci-0000-19-00-0")
    assert "model" not in device["attributes"] and "linkSpeedMbps" not in device["attributes"]
    assert "capacity" not in device


# What only the running driver knows.


@pytest.mark.parametrize("name", names())
def test_a_policy_only_withholds_devices_or_adds_aliases(name: str) -> None:
    facts = probed.facts(name)
    plain, strict = publication(facts), publication(facts, policy=Policy(aliases=dict.fromkeys(_addresses(facts), "x")))
    assert set(strict.addresses) <= set(plain.addresses) and set(plain.withheld) <= set(strict.withheld)
    attributes = {device["name"]: dict(device["attributes"]) for device in strict.devices}
    for device in plain.devices:
        if device["name"] in attributes:
            assert attributes[device["name"]].pop("alias") == {"string": "x"}
            assert attributes[device["name"]] == device["attributes"]
    for device in strict.devices:
        assert len(device["attributes"]) + len(device.get("capacity", {})) <= limits.ATTRIBUTES_AND_CAPACITIES


def _addresses(facts: Facts) -> list[str]:
    return [nic["address"] for nic in facts["nics"]]


def test_functions_and_pfs_of_uplinks_are_withheld() -> None:
    facts = probed.facts("sriov")
    vf = next(nic for nic in facts["nics"] if nic["physfn"] == "0000:c9:00.1")
    (interface,) = vf["interfaces"]
    withheld = publication(facts, policy=Policy(uplinks={interface: "an SSH session is on it"})).withheld
    assert withheld[vf["address"]] == "an SSH session is on it"
    assert withheld["0000:c9:00.1"] == f"its VF {vf['address']} is in use: an SSH session is on it"


def test_a_function_with_several_interfaces_is_withheld() -> None:
    facts = probed.facts("hgx-h100")
    nic = next(nic for nic in facts["nics"] if nic["address"] == "0000:19:00.0")
    nic["interfaces"] = [*nic["interfaces"], "ib9"]
    assert "0000:19:00.0" in publication(facts).addresses.values()
    assert "several interfaces" in publication(facts, policy=Policy()).withheld["0000:19:00.0"]


def test_infiniband_interfaces_that_stay_do_not_withhold_their_rdma_devices() -> None:
    """An uplink, a port of a bond and a parent of partitions: `keep_ib` publishes their RDMA devices all the same."""
    facts = probed.facts("hgx-h100")
    infiniband = [nic for nic in facts["nics"] if nic["link_layer"] == "infiniband"]
    uplink, bonded, parted, excluded = (nic["address"] for nic in infiniband[:4])
    infiniband[2]["interfaces"] = [*infiniband[2]["interfaces"], "ib9.8001"]
    for entry in facts["interfaces"]:
        if entry["name"] == infiniband[1]["interfaces"][0]:
            entry["master"] = "bond9"
    uplinks = {infiniband[0]["interfaces"][0]: "it carries storage"}
    policy = Policy(uplinks=uplinks, exclude=(Selector(address=(excluded,)),))
    assert {uplink, bonded, parted, excluded} <= set(publication(facts, policy=policy).withheld)
    kept = publication(facts, policy=dataclasses.replace(policy, keep_ib=True))
    assert {uplink, bonded, parted} <= set(kept.addresses.values())
    assert kept.withheld[excluded] == "the settings exclude it"
    exclusive = publication(facts, policy=dataclasses.replace(policy, keep_ib=True, exclusive=True))
    assert "exclusive mode" in exclusive.withheld[uplink]
    others = {nic["address"] for nic in facts["nics"]} - {nic["address"] for nic in infiniband}
    assert {one: exclusive.withheld.get(one) for one in others} == {one: kept.withheld.get(one) for one in others}


def test_interfaces_without_a_function_are_published_if_the_policy_names_them() -> None:
    facts = probed.facts("sriov")
    wanted = Policy(virtual=("bond*", "lo", "enp*"))
    result = publication(facts, policy=wanted)
    assert not result.interfaces and "default route" in result.withheld["bond0.100"]
    assert "lo" not in result.withheld and "enp201s0f0" not in result.withheld
    for entry in facts["interfaces"]:
        entry["default_route"] = False
    result = publication(facts, policy=wanted)
    assert result.interfaces == {interface_device_name("bond0.100"): "bond0.100"}
    assert result.withheld["bond0"] == "it is part of bond0.100"
    device = next(one for one in result.devices if one["name"] in result.interfaces)
    assert values(device)["type"] == "virtual" and values(device)["kind"] == "vlan"
    assert interface_device_name("bond0.100") not in publication(facts, policy=Policy()).interfaces


@pytest.mark.parametrize("name", ["eth0", "a" * 15, "Eth0", "bond0.100", "eth0-", "ü", "a_b"])
def test_device_names_of_interfaces_are_valid_labels(name: str) -> None:
    assert not limits.dns_label(interface_device_name(name))


def test_a_held_device_is_not_replaced_by_a_new_interface_of_its_name() -> None:
    facts = probed.facts("sriov")
    for entry in facts["interfaces"]:
        entry["default_route"] = False
    name = interface_device_name("bond0.100")
    held = {"name": name, "attributes": {"ifName": {"string": "bond0.100"}}}
    result = publication(facts, policy=Policy(virtual=("bond0.100",), held={name: held}))
    assert [device for device in result.devices if device["name"] == name] == [held]
    assert result.withheld["bond0.100"] == "a pod has a device of this name"


def test_an_interface_that_a_pod_has_keeps_its_place_in_the_slice() -> None:
    """A slice whose devices only change their order is still an update for every scheduler."""
    facts = probed.facts("sriov")
    (like,) = [entry for entry in facts["interfaces"] if entry["name"] == "bond0.100"]
    names = ["rail2", "rail", "rail10", "up", "rail1", "rail1b"]
    facts["interfaces"] += [{**like, "name": name, "default_route": False, "lower": []} for name in names]
    policy = Policy(virtual=("rail*", "up"))
    before = publication(facts, policy=policy).devices
    shown = [one["name"] for one in before if one["name"].startswith("net-")]
    assert shown == ["net-rail", "net-rail1", "net-rail1b", "net-rail2", "net-rail10", "net-up"]
    for away in names:
        held = {one["name"]: one for one in before if one["name"] == f"net-{away}"}
        left = {**facts, "interfaces": [entry for entry in facts["interfaces"] if entry["name"] != away]}
        now = publication(left, policy=Policy(virtual=policy.virtual, held=held)).devices
        assert [one["name"] for one in now] == [one["name"] for one in before]


def test_a_selector_matches_if_all_of_its_keys_match() -> None:
    nic = {"address": "0000:8a:00.0", "interface": ["eth0"], "driver": "mlx5_core", "rail": 0, "speed_mbps": None}
    assert Selector(address=("0000:8a:*",), interface=("eth[01]",), rail=(0, 1)).matches(nic)
    assert not Selector(address=("0000:8a:*",), interface=("ib*",)).matches(nic)
    assert not Selector(min_speed_mbps=1).matches(nic) and not Selector(model=("*",)).matches(nic)
    assert not Selector(rail=(1,)).matches(nic) and not Selector(numa_node=(0,)).matches(nic)
    assert not Selector(interface=("*",)).matches({**nic, "interface": []})
