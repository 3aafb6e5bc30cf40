# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Devices for shares of NICs: their attributes and capacities. A NIC is either shared or allocated whole."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish import (
    COUNTER,
    Policy,
    Publication,
    device_name,
    publication,
)
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish_shares import (
    MACVLAN,
    WITHDRAWN,
    HeldShares,
    ShareRule,
    share_name,
)
from ansible_collections.lanewise.dra.plugins.module_utils.topology.selector import Selector
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils import probed

BY_VFS = ShareRule(Selector(type=("pf",)), factor=Fraction(3, 2))
BY_MACVLAN = dataclasses.replace(BY_VFS, mechanism=MACVLAN, namespace="team-a")


def devices_by_name(result: Publication) -> dict[str, Object]:
    return {device["name"]: device for device in result.devices}


def share_devices(result: Publication) -> dict[str, Object]:
    return {name: device for name, device in devices_by_name(result).items() if device.get("allowMultipleAllocations")}


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("rule", [BY_VFS, BY_MACVLAN])
def test_every_divided_nic_has_a_valid_device_for_its_shares(name: str, rule: ShareRule) -> None:
    facts = probed.facts(name)
    without_shares, result = publication(facts), publication(facts, shares=[rule])
    assert publication(facts, counters=False, shares=[rule]) == publication(facts, counters=False)
    nics = {device_name(nic["address"]): nic for nic in facts["nics"]}
    sets = {entry["name"]: entry["counters"] for entry in result.counter_sets}
    for share, device in share_devices(result).items():
        base = share.removesuffix("-share")
        whole_nic, nic = devices_by_name(result)[base], nics[base]
        # each consumes all counters of the NIC, so only one of them can be allocated
        assert device["consumesCounters"] == whole_nic["consumesCounters"]
        assert device["consumesCounters"] == [{"counterSet": base, "counters": sets[base]}]
        assert device["attributes"]["type"] == {"string": "share"} and device["attributes"]["shareFactor"] == {
            "string": "1.5"
        }
        standard = {key: value for key, value in whole_nic["attributes"].items() if "/" in key}
        assert standard.items() <= device["attributes"].items()
        assert whole_nic["capacity"] == devices_by_name(without_shares)[base]["capacity"]
        assert len(device["attributes"]) + len(device["capacity"]) <= limits.ATTRIBUTES_AND_CAPACITIES
        assert device["capacity"]["bandwidth"]["value"] == f"{nic['speed_mbps'] * 3 // 2000}G"
        assert nic["link_layer"] != "infiniband" and not limits.dns_label(share)
    for address, reason in result.withheld.items():
        assert address in without_shares.withheld or "share" in reason
    spec = {"driver": "lanewise.dev", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}}
    if result.devices and len(result.devices) <= 64 and len(result.counter_sets) <= 8:
        for body in ({"devices": result.devices}, {"sharedCounters": result.counter_sets}):
            if next(iter(body.values())):
                resource_slice = {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": "n"},
                }
                assert validate({**resource_slice, "spec": {**spec, **body}}, "1.37") == []


def facts_with_vfs() -> tuple[Object, str, list[str]]:
    """The facts of a machine, the address of a published PF that has VFs, and the addresses of these VFs."""
    facts = probed.facts("sriov")
    published = set(publication(facts, policy=Policy()).addresses.values())
    for nic in facts["nics"]:
        vfs = [vf["address"] for vf in facts["nics"] if vf["physfn"] == nic["address"]]
        if nic["address"] in published and vfs and nic["link_layer"] == "ethernet" and nic["speed_mbps"]:
            return facts, nic["address"], vfs
    raise AssertionError("no PF with VFs")


def test_vfs_that_serve_shares_are_not_published() -> None:
    facts, pf, vfs = facts_with_vfs()
    name = share_name(device_name(pf))
    result = publication(facts, policy=Policy(), shares=[BY_VFS])
    capacity = devices_by_name(result)[name]["capacity"]["vfs"]
    assert capacity == {"value": str(len(vfs)), "requestPolicy": {"default": "1", "validValues": ["1"]}}
    assert result.shared[name].vfs == tuple(vfs) and result.addresses[name] == pf
    assert all(device_name(vf) not in devices_by_name(result) and "shares" in result.withheld[vf] for vf in vfs)
    by_macvlan = publication(facts, policy=Policy(), shares=[BY_MACVLAN])
    assert "vfs" not in devices_by_name(by_macvlan)[name]["capacity"]
    vf_counters = devices_by_name(by_macvlan)[device_name(vfs[0])]["consumesCounters"]
    share_counters = devices_by_name(by_macvlan)[name]["consumesCounters"]
    assert vf_counters[0]["counterSet"] == share_counters[0]["counterSet"]
    assert vf_counters[0]["counters"][COUNTER]["value"] == "1"
    assert share_counters[0]["counters"][COUNTER]["value"] == str(len(vfs))


def test_a_vf_in_a_pod_counts_if_it_belongs_to_a_share() -> None:
    facts, pf, vfs = facts_with_vfs()
    name = share_name(device_name(pf))
    for nic in facts["nics"]:
        if nic["address"] == vfs[0]:
            nic["interfaces"] = []  # it is in a pod
    result = publication(facts, policy=Policy(), shares=[BY_VFS])
    assert result.shared[name].vfs == tuple(vfs[1:])
    held = {name: HeldShares(devices_by_name(result)[name], frozenset(vfs[:1]))}
    result = publication(facts, policy=Policy(held_shares=held), shares=[BY_VFS])
    assert result.shared[name].vfs == tuple(vfs)


@pytest.mark.parametrize("setting", ["address", "interface", "exclude"])
def test_no_share_gets_a_vf_that_the_settings_reserve(setting: str) -> None:
    facts, pf, vfs = facts_with_vfs()
    pf_alone = (Selector(address=(pf,)),)
    interface = next(nic["interfaces"][0] for nic in facts["nics"] if nic["address"] == vfs[0])
    policy = {
        "address": Policy(include=pf_alone, management=(vfs[0],)),
        "interface": Policy(include=pf_alone, management=(interface,)),
        "exclude": Policy(include=pf_alone, exclude=(Selector(address=(vfs[0],)),)),
    }[setting]
    name = share_name(device_name(pf))
    result = publication(facts, policy=policy, shares=[BY_VFS])
    assert result.shared[name].vfs == tuple(vfs[1:])
    assert devices_by_name(result)[name]["capacity"]["vfs"]["value"] == str(len(vfs) - 1)
    assert "the settings" in result.withheld[vfs[0]] and "shares" in result.withheld[vfs[1]]
    held = {name: HeldShares(devices_by_name(result)[name], frozenset(vfs[:1]))}
    result = publication(facts, policy=dataclasses.replace(policy, held_shares=held), shares=[BY_VFS])
    assert result.shared[name].vfs == tuple(vfs)  # a share that a pod has keeps its VF


def test_an_interface_named_as_the_device_for_shares_of_another_has_a_name_of_its_own() -> None:
    facts = probed.facts("sriov")
    bond = next(entry for entry in facts["interfaces"] if entry["name"] == "bond0.100")
    added = [{**bond, "name": name, "lower": [], "default_route": False} for name in ("rail0", "rail0-share")]
    facts["interfaces"] += added
    rule = dataclasses.replace(BY_MACVLAN, select=Selector(interface=("rail0",)))
    result = publication(facts, policy=Policy(virtual=("rail*",)), shares=[rule])
    device_names = [device["name"] for device in result.devices]
    assert share_name("net-rail0") in device_names and len(set(device_names)) == len(device_names)
    assert {"net-rail0", "net-rail0-share"} < set(result.interfaces)
    assert sorted(result.interfaces.values()) == ["rail0", "rail0", "rail0-share"]


def test_hard_shares_of_a_lower_factor_shrink_the_capacity() -> None:
    facts, pf, _vfs = facts_with_vfs()
    name = share_name(device_name(pf))
    before = devices_by_name(publication(facts, policy=Policy(), shares=[BY_VFS]))[name]
    held = {name: HeldShares(before, less=lambda factor: 5 * 10**9)}
    after = devices_by_name(publication(facts, policy=Policy(held_shares=held), shares=[BY_VFS]))[name]

    def gigabits(device: Object) -> Fraction:
        text = device["capacity"]["bandwidth"]["value"]
        return Fraction(text[:-1]) / {"G": 1, "M": 1000}[text[-1]]

    assert gigabits(before) - gigabits(after) == 5


def test_a_device_whose_shares_are_in_use_stays_with_a_taint_if_its_rule_is_removed() -> None:
    facts, pf, _vfs = facts_with_vfs()
    name = share_name(device_name(pf))
    before = devices_by_name(publication(facts, policy=Policy(), shares=[BY_VFS]))[name]
    result = publication(facts, policy=Policy(held_shares={name: HeldShares(before)}))
    device = devices_by_name(result)[name]
    assert device["taints"] == [{"key": WITHDRAWN, "effect": "NoSchedule"}]
    assert device["consumesCounters"] == devices_by_name(result)[device_name(pf)]["consumesCounters"]
    assert name not in result.shared
    assert {**device, "taints": 0, "consumesCounters": 0} == {**before, "taints": 0, "consumesCounters": 0}


def test_the_reason_why_a_nic_has_no_shares_is_given() -> None:
    facts, pf, _vfs = facts_with_vfs()
    (nic,) = [nic for nic in facts["nics"] if nic["address"] == pf]
    nic["speed_mbps"] = None
    result = publication(facts, policy=Policy(), shares=[BY_VFS])
    assert "the speed of its link is unknown" in result.withheld[f"{pf}-share"]
    with_bandwidth = dataclasses.replace(BY_VFS, bandwidth=10**10)
    assert device_name(f"{pf}-share") in devices_by_name(publication(facts, policy=Policy(), shares=[with_bandwidth]))
    nic["speed_mbps"], nic["link_layer"] = 100000, "infiniband"
    assert "InfiniBand" in publication(facts, policy=Policy(), shares=[BY_VFS]).withheld[f"{pf}-share"]
    nic["speed_mbps"], nic["link_layer"] = 100, "ethernet"
    assert "less than min" in publication(facts, policy=Policy(), shares=[BY_VFS]).withheld[f"{pf}-share"]
