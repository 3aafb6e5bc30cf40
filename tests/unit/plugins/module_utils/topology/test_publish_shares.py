# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Devices for shares: what is published for divided NICs, and that a NIC is either shared or allocated whole."""

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


def devices(found: Publication) -> dict[str, Object]:
    return {one["name"]: one for one in found.devices}


def with_shares(found: Publication) -> dict[str, Object]:
    return {name: one for name, one in devices(found).items() if one.get("allowMultipleAllocations")}


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("rule", [BY_VFS, BY_MACVLAN])
def test_every_divided_nic_has_a_valid_device_for_its_shares(name: str, rule: ShareRule) -> None:
    facts = probed.facts(name)
    plain, found = publication(facts), publication(facts, shares=[rule])
    assert publication(facts, counters=False, shares=[rule]) == publication(facts, counters=False)
    nics = {device_name(nic["address"]): nic for nic in facts["nics"]}
    sets = {entry["name"]: entry["counters"] for entry in found.counter_sets}
    for share, device in with_shares(found).items():
        base = share.removesuffix("-share")
        card, nic = devices(found)[base], nics[base]
        # both consume the card whole
        assert device["consumesCounters"] == card["consumesCounters"]
        assert device["consumesCounters"] == [{"counterSet": base, "counters": sets[base]}]
        assert device["attributes"]["type"] == {"string": "share"} and device["attributes"]["shareFactor"] == {
            "string": "1.5"
        }
        standard = {key: value for key, value in card["attributes"].items() if "/" in key}
        assert standard.items() <= device["attributes"].items()
        assert card["capacity"] == devices(plain)[base]["capacity"]
        assert len(device["attributes"]) + len(device["capacity"]) <= limits.ATTRIBUTES_AND_CAPACITIES
        assert device["capacity"]["bandwidth"]["value"] == f"{nic['speed_mbps'] * 3 // 2000}G"
        assert nic["link_layer"] != "infiniband" and not limits.dns_label(share)
    for address, reason in found.withheld.items():
        assert address in plain.withheld or "share" in reason
    spec = {"driver": "lanewise.dev", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 2}}
    if found.devices and len(found.devices) <= 64 and len(found.counter_sets) <= 8:
        for body in ({"devices": found.devices}, {"sharedCounters": found.counter_sets}):
            if next(iter(body.values())):
                whole = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n"}}
                assert validate({**whole, "spec": {**spec, **body}}, "1.37") == []


def sriov() -> tuple[Object, str, list[str]]:
    """The facts of a machine, the address of a published PF that has VFs, and the addresses of these VFs."""
    facts = probed.facts("sriov")
    published = set(publication(facts, policy=Policy()).addresses.values())
    for nic in facts["nics"]:
        vfs = [one["address"] for one in facts["nics"] if one["physfn"] == nic["address"]]
        if nic["address"] in published and vfs and nic["link_layer"] == "ethernet" and nic["speed_mbps"]:
            return facts, nic["address"], vfs
    raise AssertionError("no PF with VFs")


def test_vfs_that_serve_shares_are_not_published() -> None:
    facts, pf, vfs = sriov()
    name = share_name(device_name(pf))
    found = publication(facts, policy=Policy(), shares=[BY_VFS])
    capacity = devices(found)[name]["capacity"]["vfs"]
    assert capacity == {"value": str(len(vfs)), "requestPolicy": {"default": "1", "validValues": ["1"]}}
    assert found.shared[name].vfs == tuple(vfs) and found.addresses[name] == pf
    assert all(device_name(vf) not in devices(found) and "shares" in found.withheld[vf] for vf in vfs)
    by_macvlan = publication(facts, policy=Policy(), shares=[BY_MACVLAN])
    assert "vfs" not in devices(by_macvlan)[name]["capacity"]
    part = devices(by_macvlan)[device_name(vfs[0])]["consumesCounters"]
    whole = devices(by_macvlan)[name]["consumesCounters"]
    assert part[0]["counterSet"] == whole[0]["counterSet"] and part[0]["counters"][COUNTER]["value"] == "1"
    assert whole[0]["counters"][COUNTER]["value"] == str(len(vfs))


def test_a_vf_in_a_pod_counts_if_it_belongs_to_a_share() -> None:
    facts, pf, vfs = sriov()
    name = share_name(device_name(pf))
    for nic in facts["nics"]:
        if nic["address"] == vfs[0]:
            nic["interfaces"] = []  # it is in a pod
    now = publication(facts, policy=Policy(), shares=[BY_VFS])
    assert now.shared[name].vfs == tuple(vfs[1:])
    held = {name: HeldShares(devices(now)[name], frozenset(vfs[:1]))}
    now = publication(facts, policy=Policy(held_shares=held), shares=[BY_VFS])
    assert now.shared[name].vfs == tuple(vfs)


def test_hard_shares_of_a_lower_factor_shrink_the_capacity() -> None:
    facts, pf, _vfs = sriov()
    name = share_name(device_name(pf))
    before = devices(publication(facts, policy=Policy(), shares=[BY_VFS]))[name]
    held = {name: HeldShares(before, less=lambda factor: 5 * 10**9)}
    after = devices(publication(facts, policy=Policy(held_shares=held), shares=[BY_VFS]))[name]

    def giga(device: Object) -> Fraction:
        text = device["capacity"]["bandwidth"]["value"]
        return Fraction(text[:-1]) / {"G": 1, "M": 1000}[text[-1]]

    assert giga(before) - giga(after) == 5


def test_a_device_with_shares_in_use_stays_with_a_taint_without_its_rule() -> None:
    facts, pf, _vfs = sriov()
    name = share_name(device_name(pf))
    before = devices(publication(facts, policy=Policy(), shares=[BY_VFS]))[name]
    found = publication(facts, policy=Policy(held_shares={name: HeldShares(before)}))
    device = devices(found)[name]
    assert device["taints"] == [{"key": WITHDRAWN, "effect": "NoSchedule"}]
    assert device["consumesCounters"] == devices(found)[device_name(pf)]["consumesCounters"]
    assert name not in found.shared
    assert {**device, "taints": 0, "consumesCounters": 0} == {**before, "taints": 0, "consumesCounters": 0}


def test_the_reason_why_a_nic_has_no_shares_is_given() -> None:
    facts, pf, _vfs = sriov()
    (nic,) = [one for one in facts["nics"] if one["address"] == pf]
    nic["speed_mbps"] = None
    found = publication(facts, policy=Policy(), shares=[BY_VFS])
    assert "the speed of its link is unknown" in found.withheld[f"{pf}-share"]
    known = dataclasses.replace(BY_VFS, bandwidth=10**10)
    assert device_name(f"{pf}-share") in devices(publication(facts, policy=Policy(), shares=[known]))
    nic["speed_mbps"], nic["link_layer"] = 100000, "infiniband"
    assert "InfiniBand" in publication(facts, policy=Policy(), shares=[BY_VFS]).withheld[f"{pf}-share"]
    nic["speed_mbps"], nic["link_layer"] = 100, "ethernet"
    assert "less than min" in publication(facts, policy=Policy(), shares=[BY_VFS]).withheld[f"{pf}-share"]
