# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which devices of the example machines are published, with which attributes, and which are withheld."""

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


def attribute_values(device: dict[str, t.Any]) -> dict[str, t.Any]:
    """The attributes of a device, without their types."""
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
        assert len(device["attributes"]) + len(device.get("capacity", {})) <= limits.ATTRIBUTES_AND_CAPACITIES
        for key, typed_value in device["attributes"].items():
            assert not limits.qualified_name(key)
            ((kind, value),) = typed_value.items()
            assert {"string": str, "int": int, "bool": bool}[kind] is type(value)
            assert value != "" and len(str(value).encode()) <= limits.ATTRIBUTE_VALUE_BYTES
        attributes = attribute_values(device)
        kubernetes = facts["functions"][nic["address"]]["kubernetes"]
        assert {k: attributes.get(f"resource.kubernetes.io/{k}") for k in ("pcieRoot", "pciBusID", "numaNode")} == {
            k: kubernetes.get(k) for k in ("pcieRoot", "pciBusID", "numaNode")
        }
        assert attributes["type"] == ("vf" if nic["physfn"] else "pf")
        assert (attributes.get("pfPciBusID"), attributes["rdma"]) == (nic["physfn"], bool(nic["rdma_devices"]))
        assert ("bandwidth" in device.get("capacity", {})) == bool(nic["speed_mbps"] and not nic["physfn"])
        assert bool(device.get("taints")) == (nic["up"] is False)
        for used in device.get("consumesCounters", ()):
            # a PF takes the whole counter, a VF a part of it
            whole = used["counters"][COUNTER]["value"] == total[used["counterSet"]]
            assert whole == (nic["physfn"] is None or total[used["counterSet"]] == "1")


def test_a_nic_is_published_with_its_nearest_gpu() -> None:
    result = publication(probed.facts("hgx-h100"))
    device = next(device for device in result.devices if device["name"] == "pci-0000-19-00-0")
    attributes = attribute_values(device)
    assert attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:15"
    assert (attributes["linkSpeedMbps"], attributes["linkLayer"], attributes["rail"]) == (400000, "infiniband", 0)
    assert (attributes["pcieSwitch"], attributes["nearestGPU"]) == ("0000:16:00.0", "0000:18:00.0")
    assert (attributes["nearestGPUs"], attributes["nearestGPULevel"]) == ("0000:18:00.0", "PIX")
    assert device["capacity"] == {"bandwidth": {"value": "400G"}}
    assert (attributes["resource.kubernetes.io/numaNode"], attributes["dra.net/numaNode"]) == (0, 0)


@pytest.mark.parametrize("name", names())
def test_every_nic_is_published_with_its_board_and_its_nearest_gpus(name: str) -> None:
    """The shape of the board and the nearest GPUs are those of the board's map. VFs have the values of their PF."""
    facts = probed.facts(name)
    board = board_map(facts)
    result = publication(facts)
    for device in result.devices:
        attributes = attribute_values(device)
        nic = attributes.get("pfPciBusID") or result.addresses[device["name"]]
        level, nearest = board.nearest_gpus(nic)
        text = ",".join(nearest)
        assert attributes.get("nearestGPUs") == (text if 0 < len(text) <= 64 else None)
        assert attributes.get("nearestGPULevel") == (level if nearest else None)
        assert attributes.get("board") == (board.shape if board.levels else None)
        if "nearestGPU" in attributes:
            assert attributes["nearestGPU"] in nearest


def test_a_data_direct_nic_is_published_with_the_pcie_roots_of_both_functions() -> None:
    """The root of the data-direct function is that of the GPU, in a separate attribute."""
    facts = probed.facts("gb300")
    functions = facts["functions"]
    data_direct_nics = 0
    for device in publication(facts).devices:
        attributes = attribute_values(device)
        (nic,) = [nic for nic in facts["nics"] if device_name(nic["address"]) == device["name"]]
        assert attributes["resource.kubernetes.io/pcieRoot"] == functions[nic["address"]]["root_complex"]
        assert attributes.get("dataDirectPciBusID") == nic["data_direct"]
        if nic["data_direct"]:
            data_direct_nics += 1
            assert attributes["dataDirectPcieRoot"] == functions[nic["data_direct"]]["root_complex"]
            assert attributes["dataDirectPcieRoot"] == functions[attributes["nearestGPUs"]]["root_complex"]
            assert attributes["dataDirectPcieRoot"] != attributes["resource.kubernetes.io/pcieRoot"]
            assert attributes["nearestGPULevel"] == "PXB"
    assert data_direct_nics == 4


def test_data_direct_functions_are_not_assigned_without_vpd(tmp_path: Path) -> None:
    """The NIC of a data-direct function is only known from the VPD."""
    root = build("gb300", tmp_path / "gb300")
    facts = as_dict(probe(str(root), with_vpd=False))
    for device in publication(facts).devices:
        assert not {"nearestGPUs", "nearestGPULevel", "dataDirectPciBusID", "dataDirectPcieRoot"} & set(
            attribute_values(device)
        )


SMALL_MACHINE: Facts = {
    "name": "small",
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
    root = str(build(SMALL_MACHINE, tmp_path / "small"))
    facts = as_dict(probe(root))
    before = {device["name"]: attribute_values(device) for device in publication(facts).devices}
    near, far = (gpu["address"] for gpu in facts["gpus"])
    vfs = [nic for nic in facts["nics"] if nic["physfn"]]
    pf = vfs[0]["physfn"]
    (other,) = [nic["address"] for nic in facts["nics"] if nic["address"] != pf and not nic["physfn"]]
    pf_and_vfs = [device_name(address) for address in (pf, *(vf["address"] for vf in vfs))]
    assert len(vfs) == 2
    for name in pf_and_vfs:
        assert (before[name]["nearestGPUs"], before[name]["nearestGPULevel"]) == (near, "PIX")
    assert before[device_name(other)]["nearestGPUs"] == f"{near},{far}"
    assert before[device_name(other)]["nearestGPULevel"] == "NODE"

    overrides = [{"address": pf, "numa_node": 7, "rail": 3}]
    overrides += [{"address": address, "switch": "sw0"} for address in (other, far)]
    after = {
        device["name"]: attribute_values(device) for device in publication(as_dict(probe(root, overrides))).devices
    }
    for name in pf_and_vfs:
        attributes = after[name]
        assert attributes["resource.kubernetes.io/numaNode"] == attributes["dra.net/numaNode"] == 7
        assert attributes["rail"] == 3
        assert (attributes["nearestGPUs"], attributes["nearestGPULevel"]) == (near, "PIX")
    attributes = after[device_name(other)]
    assert (attributes["pcieSwitch"], attributes["nearestGPUs"], attributes["nearestGPULevel"]) == ("sw0", far, "PIX")
    assert len({published["board"] for published in after.values()}) == 1
    assert attributes["board"] != before[device_name(other)]["board"]


def test_devices_that_the_node_needs_are_withheld() -> None:
    result = publication(probed.facts("sriov"))
    reasons = {address: reason.split()[0:3] for address, reason in result.withheld.items()}
    assert reasons["0000:01:00.0"] == ["it", "carries", "the"]  # below bond0.100, which has the default route
    assert "0000:16:00.7" in result.withheld["0000:16:00.0"]  # the VF is bound to vfio-pci
    assert "vfio-pci" in result.withheld["0000:16:00.7"]
    assert result.withheld["0000:16:01.1"] == "no kernel driver is bound"
    assert "switchdev" in result.withheld["0000:98:00.0"]


def test_a_pf_excludes_its_vfs() -> None:
    result = publication(probed.facts("sriov"))
    devices = {device["name"]: device for device in result.devices}
    pf = devices["pci-0000-c9-00-1"]
    assert pf["consumesCounters"] == [{"counterSet": pf["name"], "counters": {COUNTER: {"value": "128"}}}]
    vfs = [vf for vf in result.devices if attribute_values(vf).get("pfPciBusID") == "0000:c9:00.1"]
    assert len(vfs) == 128
    for vf in vfs:
        assert vf["consumesCounters"] == [{"counterSet": pf["name"], "counters": {COUNTER: {"value": "1"}}}]
    assert "consumesCounters" not in devices["pci-0000-c9-00-0"]  # no VFs
    assert "consumesCounters" not in devices["pci-0000-16-00-2"]  # its PF is withheld


def test_without_counters_a_pf_with_published_vfs_is_withheld() -> None:
    result = publication(probed.facts("sriov"), counters=False)
    assert not result.counter_sets and not any("consumesCounters" in device for device in result.devices)
    published = {result.addresses[device["name"]] for device in result.devices}
    assert not published & {attribute_values(device).get("pfPciBusID") for device in result.devices}


def test_a_link_that_is_down_is_tainted() -> None:
    result = publication(probed.facts("sriov"))
    device = next(device for device in result.devices if device["name"] == "pci-0000-16-00-1")
    assert device["taints"] == [{"key": LINK_DOWN, "effect": "NoSchedule"}]
    assert attribute_values(device)["up"] is False


def _without_default_route(facts: Facts) -> Facts:
    for nic in facts["nics"]:
        nic["default_route"] = False
    return facts


def test_interfaces_below_bonds_and_vlans_are_withheld() -> None:
    facts = _without_default_route(probed.facts("sriov"))
    assert publication(facts).withheld["0000:01:00.0"] == "its interface enp1s0f0 is part of bond0"
    interface = next(entry for entry in facts["interfaces"] if entry["name"] == "enp1s0f1")
    interface["master"] = None
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
    # the running driver has its own records of devices in pods, so with a policy the function is withheld
    assert publication(facts, policy=Policy()).withheld["0000:19:00.0"] == reason


def test_long_and_unknown_values_are_left_out() -> None:
    facts = probed.facts("hgx-h100")
    nic = next(nic for nic in facts["nics"] if nic["address"] == "0000:19:00.0")
    nic["model"], nic["speed_mbps"] = "x" * 65, None
    device = next(device for device in publication(facts).devices if device["name"] == "pci-0000-19-00-0")
    assert "model" not in device["attributes"] and "linkSpeedMbps" not in device["attributes"]
    assert "capacity" not in device


# Policies, which only the running driver passes.


@pytest.mark.parametrize("name", names())
def test_a_policy_only_withholds_devices_or_adds_aliases(name: str) -> None:
    facts = probed.facts(name)
    policy = Policy(aliases=dict.fromkeys(_addresses(facts), "x"))
    without_policy, with_policy = publication(facts), publication(facts, policy=policy)
    assert set(with_policy.addresses) <= set(without_policy.addresses)
    assert set(without_policy.withheld) <= set(with_policy.withheld)
    attributes = {device["name"]: dict(device["attributes"]) for device in with_policy.devices}
    for device in without_policy.devices:
        if device["name"] in attributes:
            assert attributes[device["name"]].pop("alias") == {"string": "x"}
            assert attributes[device["name"]] == device["attributes"]
    for device in with_policy.devices:
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
    uplink, bonded, partitioned, excluded = (nic["address"] for nic in infiniband[:4])
    infiniband[2]["interfaces"] = [*infiniband[2]["interfaces"], "ib9.8001"]
    for entry in facts["interfaces"]:
        if entry["name"] == infiniband[1]["interfaces"][0]:
            entry["master"] = "bond9"
    uplinks = {infiniband[0]["interfaces"][0]: "it carries storage"}
    policy = Policy(uplinks=uplinks, exclude=(Selector(address=(excluded,)),))
    assert {uplink, bonded, partitioned, excluded} <= set(publication(facts, policy=policy).withheld)
    kept = publication(facts, policy=dataclasses.replace(policy, keep_ib=True))
    assert {uplink, bonded, partitioned} <= set(kept.addresses.values())
    assert kept.withheld[excluded] == "the settings exclude it"
    exclusive = publication(facts, policy=dataclasses.replace(policy, keep_ib=True, exclusive=True))
    assert "exclusive mode" in exclusive.withheld[uplink]
    others = {nic["address"] for nic in facts["nics"]} - {nic["address"] for nic in infiniband}
    assert {address: exclusive.withheld.get(address) for address in others} == {
        address: kept.withheld.get(address) for address in others
    }


def test_interfaces_without_a_function_are_published_if_the_policy_names_them() -> None:
    facts = probed.facts("sriov")
    policy = Policy(virtual=("bond*", "lo", "enp*"))
    result = publication(facts, policy=policy)
    assert not result.interfaces and "default route" in result.withheld["bond0.100"]
    assert "lo" not in result.withheld and "enp201s0f0" not in result.withheld
    for entry in facts["interfaces"]:
        entry["default_route"] = False
    result = publication(facts, policy=policy)
    assert result.interfaces == {interface_device_name("bond0.100"): "bond0.100"}
    assert result.withheld["bond0"] == "it is part of bond0.100"
    device = next(device for device in result.devices if device["name"] in result.interfaces)
    assert attribute_values(device)["type"] == "virtual" and attribute_values(device)["kind"] == "vlan"
    assert interface_device_name("bond0.100") not in publication(facts, policy=Policy()).interfaces


@pytest.mark.parametrize("name", ["eth0", "a" * 15, "Eth0", "bond0.100", "eth0-", "ü", "a_b"])
def test_device_names_of_interfaces_are_valid_labels(name: str) -> None:
    assert not limits.dns_label(interface_device_name(name))


def test_a_device_in_a_pod_is_not_replaced_by_a_new_interface_of_the_same_name() -> None:
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
    (vlan,) = [entry for entry in facts["interfaces"] if entry["name"] == "bond0.100"]
    names = ["rail2", "rail", "rail10", "up", "rail1", "rail1b"]
    facts["interfaces"] += [{**vlan, "name": name, "default_route": False, "lower": []} for name in names]
    policy = Policy(virtual=("rail*", "up"))
    before = publication(facts, policy=policy).devices
    published = [device["name"] for device in before if device["name"].startswith("net-")]
    assert published == ["net-rail", "net-rail1", "net-rail1b", "net-rail2", "net-rail10", "net-up"]
    for name_in_pod in names:
        held = {device["name"]: device for device in before if device["name"] == f"net-{name_in_pod}"}
        remaining = {**facts, "interfaces": [entry for entry in facts["interfaces"] if entry["name"] != name_in_pod]}
        after = publication(remaining, policy=Policy(virtual=policy.virtual, held=held)).devices
        assert [device["name"] for device in after] == [device["name"] for device in before]


def test_a_selector_matches_if_all_of_its_keys_match() -> None:
    nic = {"address": "0000:8a:00.0", "interface": ["eth0"], "driver": "mlx5_core", "rail": 0, "speed_mbps": None}
    assert Selector(address=("0000:8a:*",), interface=("eth[01]",), rail=(0, 1)).matches(nic)
    assert not Selector(address=("0000:8a:*",), interface=("ib*",)).matches(nic)
    assert not Selector(min_speed_mbps=1).matches(nic) and not Selector(model=("*",)).matches(nic)
    assert not Selector(rail=(1,)).matches(nic) and not Selector(numa_node=(0,)).matches(nic)
    assert not Selector(interface=("*",)).matches({**nic, "interface": []})
