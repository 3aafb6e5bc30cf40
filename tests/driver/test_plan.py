# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver turns a claim into a record, or reports an error that names the wrong field."""

from __future__ import annotations

import tracemalloc
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver.plan_claims import (
    INFINIBAND,
    KNOWN,
    NODE,
    OPEN,
    OTHER,
    PF,
    POD_UID,
    RDMA_ONLY,
    UID,
    VF,
    claim,
    config,
    device,
    planned,
    pod,
    policy,
    refused,
    result,
)
from lanewise_driver.base.errors import MESSAGE_LIMIT, Busy, Refused
from lanewise_driver.base.objects import Object
from lanewise_driver.claims import claim_status
from lanewise_driver.claims.metadata import POD_CLAIM_NAME
from lanewise_driver.claims.plan import check_pod, consumer, plan
from lanewise_driver.claims.records import ATTACHED, Pod, decode, encode


def test_a_record_has_everything_that_attach_needs() -> None:
    allocated = claim(
        [result("nic", PF), result("fast/vf", VF, shareID="s-1")], [config({"name": "net1", "mtu": 9000}, "nic")]
    )
    record = planned(allocated)
    assert record.pod == Pod("ns", "pod", POD_UID) and record.uid == UID and record.phase == "prepared"
    first, second = record.devices
    assert (first.device, first.pool, first.request, first.main_request) == (PF, NODE, "nic", "nic")
    assert (first.config, first.interface, first.lock) == ({"name": "net1", "mtu": 9000}, "net1", "0000:8a:00.0")
    assert (second.request, second.main_request, second.share_id) == ("fast/vf", "fast", "s-1")
    # a VF shares the lock of its PF
    assert (second.config, second.interface, second.lock) == ({}, "eth1v0", "0000:8a:00.0")
    assert first.known == KNOWN[PF]
    assert decode(encode(record)) == record


def test_messages_of_conditions_are_bounded() -> None:
    """The API server rejects a status with a longer message than 32768 bytes."""
    record = planned(claim([result("nic", PF)]))
    record.phase = ATTACHED
    problem = claim_status.HealthProblem("ü" * 40000, "2026-01-01T00:00:00Z")
    for statuses in (
        claim_status.devices(record, failure="ü" * 40000),
        claim_status.devices(record, problems={record.devices[0].key: problem}),
    ):
        messages = {condition["message"] for condition in statuses[0]["conditions"]}
        assert messages == {"ü" * 512}


def test_a_later_configuration_replaces_fields_of_an_earlier_one() -> None:
    configs = [
        config({"mtu": 1500, "routes": [{"destination": "10.0.0.0/8", "gateway": "192.0.2.1"}]}),
        config({"gsoMaxSize": 1400, "name": "class"}, source="FromClass"),
        config({"routes": []}, "a"),
        config({"mtu": 9000}, "b"),
        config({"unknown": "field"}, driver="other.example.com"),
        config({"name": "other"}, "a/sub"),
    ]
    record = planned(claim([result("a/sub", PF), result("c/sub", OTHER)], [*configs[:1], *configs[2:]]))
    assert record.devices[0].config == {"mtu": 1500, "routes": [], "name": "other"}
    assert record.devices[1].config["mtu"] == 1500 and "name" not in record.devices[1].config
    # the configuration of the class is applied first, whatever its position in the list
    record = planned(claim([result("b", PF)], configs))
    assert record.devices[0].config["mtu"] == 9000 and record.devices[0].config["name"] == "class"


def test_each_configuration_is_validated_whatever_was_accepted_before() -> None:
    for fields, valid in (
        ({"gsoMaxSize": 1400, "mtu": 1500}, True),
        ({"mtu": 1500}, True),
        ({"mtu": "1500"}, False),
        ({"mtu": 1500, "more": 1}, False),
        ({"mtu": True}, False),
        ({"mtu": 1500}, True),
        ({"mtu": "1500"}, False),
    ):
        allocated = claim([result("nic", PF)], [config(fields)])
        if valid:
            assert planned(allocated).devices[0].config == fields
        else:
            refused(allocated, "spec.devices.config[0]")


def test_a_claim_cannot_change_settings_of_its_class() -> None:
    """The administrator decides which VLAN and MAC address a tenant uses on the network."""
    class_vf = {"vlan": 100, "trust": False, "spoofchk": True, "mac": "02:00:00:00:00:01"}
    of_class = config(
        {"vf": class_vf, "mtu": 9000, "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 1}}, source="FromClass"
    )
    wrong: list[Object] = [{"vf": {**class_vf, "vlan": 200}}, {"vf": {}}, {"vf": {"maxTxRate": 1}}, {"mtu": 1500}]
    wrong += [{"vf": {key: value for key, value in class_vf.items() if key != missing}} for missing in class_vf]
    wrong += [{"vf": {**class_vf, "linkState": "enable"}}, {"sysctls": {}}, {"vf": {**class_vf, "trust": True}}]
    for fields in wrong:
        name = next(iter(fields))
        for configs in (
            [of_class, config(fields)],
            [config(fields, "nic"), of_class],
            [of_class, config({}), config(fields)],
        ):
            refused(
                claim([result("nic", VF)], configs),
                f"config[{len(configs) - 2}].opaque.parameters.{name}",
                "DeviceClass",
            )
    unchanged = [of_class, config({"vf": dict(reversed(class_vf.items())), "mtu": 9000, "name": "net1"})]
    found = planned(claim([result("nic", VF)], unchanged)).devices[0].config
    assert (found["vf"], found["mtu"], found["name"]) == (class_vf, 9000, "net1")
    # `mac` has the same effect as `vf.mac`
    other_mac = [of_class, OPEN, config({"mac": "02:00:00:00:00:02"})]
    refused(claim([result("nic", VF)], other_mac), "vf.mac must be the same")
    # if a class has two configurations, the later one applies
    later = [
        config({"mtu": 1400}, source="FromClass"),
        config({"mtu": 1300}, source="FromClass"),
        config({"mtu": 1300}),
    ]
    assert planned(claim([result("nic", VF)], later)).devices[0].config["mtu"] == 1300
    assert planned(claim([result("nic", VF)], [OPEN, config({"vf": {"vlan": 5, "trust": True}})])).devices[0].config


def test_a_claim_may_set_only_what_its_class_allows() -> None:
    nic = [result("nic", VF)]
    restricted: list[Object] = [{"mac": "02:00:00:00:00:01"}, {"ethtool": {"privateFlags": {"x": True}}}]
    restricted += [{"vf": {name: value}} for name, value in (("vlan", 5), ("trust", True), ("spoofchk", False))]
    restricted += [{"vf": {"maxTxRate": 0}}, {"sysctls": {"net.ipv4.conf.IFNAME.proxy_arp": 1}}]
    for fields in restricted:
        refused(claim(nic, [config(fields)]), "config[0].opaque.parameters", "DeviceClass of request nic")
        assert planned(claim(nic, [OPEN, config(fields)]))
    allow = {
        "addresses": {"within": ["10.1.0.0/16", "fd00::/16"]},
        "mac": {"prefixes": ["02:aa"]},
        "mtu": {"most": 1500},
    }
    limited = policy({"namespaces": ["other"], "allow": {}}, {"namespaces": ["ns"], "allow": allow})
    for fields in ({"addresses": ["10.1.2.3/24", "fd00:1::1/64"]}, {"mac": "02:AA:00:00:00:01"}, {"mtu": 1500}):
        assert planned(claim(nic, [limited, config(fields)]))
    for fields in (
        {"addresses": ["10.1.2.3/24", "10.2.0.1/24"]},
        {"addresses": ["10.1.2.3/8"]},
        {"mac": "02:ab:00:00:00:01"},
        {"mtu": 1501},
        {"dhcp": ["ipv4"]},
    ):
        refused(claim(nic, [limited, config(fields)]), f"parameters.{next(iter(fields))}", "DeviceClass")
    refused(claim(nic, [limited], namespace="third"), "results[0]", "not for claims of namespace third")
    refused(claim(nic, [limited, policy()]), "more than one policy")
    # a claim cannot contain a policy, and an invalid policy allows nothing
    refused(claim(nic, [{**OPEN, "source": "FromClaim"}]), "kind")
    refused(claim(nic, [policy({"allow": {"mtu": 1}})]), "tenants[0].allow.mtu")
    # a configuration for all requests must be allowed by the class of each request, whatever its driver
    gpu = {"request": "gpu", "driver": "gpu.example.com", "pool": "x", "device": "gpu-0"}
    of_nic = {**OPEN, "requests": ["nic"]}
    vlan = {"vf": {"vlan": 5}}
    refused(claim([*nic, gpu], [of_nic, config(vlan)]), "DeviceClass of request gpu")
    assert planned(claim([*nic, gpu], [of_nic, config(vlan, "nic")]))


def test_another_claim_or_allocation_is_refused() -> None:
    good = claim([result("nic", PF)])
    refused({**good, "metadata": {**good["metadata"], "uid": "new"}}, "metadata.uid", "new", UID)
    refused({**good, "status": {}}, "status.allocation", "not allocated")
    refused({"metadata": good["metadata"]}, "status.allocation")
    refused(claim([result("nic", "x", driver="other.example.com")]), "results", "lanewise.dev")
    refused(claim([]), "status.allocation.devices.results")
    refused(None, "claim")
    refused(claim([result("nic", PF, pool="node-2")]), "results[0].pool", "node-2", NODE)
    refused(claim([result("nic", PF), result("x", "pci-none")]), "results[1].device", "pci-none", kind=Busy)
    withheld = {"pci-none": "it carries the node's default route"}
    refused(claim([result("x", "pci-none")]), "default route", kind=Busy, withheld=withheld)


def test_a_claim_that_is_not_for_one_pod_of_this_node_is_refused() -> None:
    good = claim([result("nic", PF)])

    def reserved(*entries: t.Any) -> Object:
        return {**good, "status": {**good["status"], "reservedFor": list(entries)}}

    owner = {"resource": "pods", "name": "pod", "uid": POD_UID}
    refused(reserved(), "status.reservedFor")
    refused(reserved(owner, {**owner, "uid": "other", "name": "two"}), "status.reservedFor", "2 consumers")
    refused(reserved({**owner, "resource": "podgroups", "apiGroup": "scheduling.k8s.io"}), "reservedFor[0].resource")
    refused(reserved({**owner, "apiGroup": "example.com"}), "pods.example.com")
    refused(good, "status.reservedFor[0].uid", claim_pod={**pod(), "metadata": {"uid": "new"}})
    refused(good, "pod.spec.hostNetwork", claim_pod=pod(hostNetwork=True))
    refused(good, "pod.spec.nodeName", "node-2", claim_pod=pod(nodeName="node-2"))
    refused(good, "pod.spec.nodeName", "no node", claim_pod={**pod(), "spec": {}})
    with pytest.raises(Refused, match="does not exist"):
        check_pod(None, Pod("ns", "pod", POD_UID), NODE)


def test_admin_access_takes_no_device() -> None:
    """Such a claim may be for several pods, and another claim or request may have the device."""
    allocated = claim([result("all", PF, adminAccess=True)], [config({"mtu": 1400}, "all", source="FromClass")])
    allocated["status"]["reservedFor"] *= 2
    other = planned(claim([result("nic", PF)], uid="other"), uid="other")
    record = plan(allocated, uid=UID, node=NODE, known=KNOWN, records=[other], boot="b")
    assert consumer(allocated, UID) is None and record.pod is None
    assert record.held == [] and record.devices[0].config == {} and record.devices[0].interface == ""
    assert planned(claim([result("all", PF, adminAccess=True), result("nic", PF)])).held[0].request == "nic"
    # other claims can still have the device
    assert planned(claim([result("nic", PF)], uid="other"), uid="other", records=[record]).held
    refused(
        claim([result("all", PF, adminAccess=True)], [config({"mtu": 1400}, "all")]), "spec.devices.config[0]", "admin"
    )


def test_a_device_goes_to_one_request_of_one_claim() -> None:
    other = planned(claim([result("nic", PF)], uid="other"), uid="other")
    refused(claim([result("nic", OTHER), result("b", PF)]), "results[1].device", "ns/claim", kind=Busy, records=[other])
    older = planned(claim([result("nic", PF)]))
    assert planned(claim([result("nic", PF)]), records=[older])  # a record of the same claim does not count
    refused(claim([result("a", PF), result("b", PF)]), "results[1].device", "twice")


def test_interfaces_of_a_pod_must_have_different_names() -> None:
    allocated = claim(
        [result("a", PF), result("b", OTHER)], [config({"name": "net1"}, "a"), config({"name": "net1"}, "b")]
    )
    refused(allocated, "spec.devices.config[1].opaque.parameters.name", "net1", PF)
    refused(claim([result("a", PF), result("b", OTHER)], [config({"name": "eth2"}, "a")]), "results[1].device", "eth2")
    refused(claim([result("a", PF)], [config({"name": "eth0"})]), "config[0].opaque.parameters.name", "cluster")
    eth0 = {"pci-x": device("pci-x", "eth0")}
    refused(claim([result("a", "pci-x")]), "results[0].device", "eth0", known=eth0)
    assert planned(claim([result("a", "pci-x")], [config({"name": "net0"})]), known=eth0).devices[0].interface == "net0"
    # also in different claims of a pod, but not in different pods
    other = planned(claim([result("nic", OTHER)], [config({"name": "net1"})], uid="other", name="second"), uid="other")
    conflicting = claim([result("a", PF)], [config({"name": "net1"}, source="FromClass")])
    refused(conflicting, "status.allocation.devices.config[0].opaque.parameters.name", "ns/second", records=[other])
    assert other.pod
    other.pod.uid = "another pod"
    assert planned(conflicting, records=[other])


def test_conflicting_vrfs_of_a_pod_are_refused() -> None:
    red = {"vrf": {"name": "red", "table": 100}}
    both = [result("a", PF), result("b", OTHER)]
    assert planned(claim(both, [config(red)])).devices[1].config == red
    refused(
        claim(both, [config(red, "a"), config({"vrf": {"name": "red", "table": 101}}, "b")]),
        "spec.devices.config[1].opaque.parameters.vrf.table",
        "100",
    )
    refused(
        claim(both, [config(red, "a"), config({"name": "red"}, "b")]), "config[0].opaque.parameters.vrf.name", "red"
    )
    refused(claim(both, [config({"vrf": {"name": "eth0", "table": 7}})]), "vrf.name", "eth0")
    other = planned(claim([result("nic", OTHER)], [config(red)], uid="other"), uid="other")
    assert planned(claim([result("nic", PF)], [config(red)]), records=[other])
    refused(claim([result("nic", PF)], [config({"vrf": {"name": "red", "table": 9}})]), "vrf.table", records=[other])
    refused(claim([result("nic", PF)], [config({"name": "red"})]), "parameters.name", "VRF", records=[other])


def test_the_default_table_of_a_vrf_follows_from_its_name() -> None:
    both = [result("a", PF), result("b", OTHER)]
    first, second = planned(
        claim(both, [config({"vrf": {"name": "red"}}, "a"), config({"vrf": {"name": "red"}}, "b")])
    ).devices
    assert first.config["vrf"] == second.config["vrf"] and first.config["vrf"]["table"] >= 1000
    (blue,) = planned(claim([result("a", PF)], [config({"vrf": {"name": "blue"}})])).devices
    assert blue.config["vrf"]["table"] not in (first.config["vrf"]["table"], 253, 254, 255)


def test_settings_that_a_device_cannot_have_are_refused() -> None:
    refused(claim([result("r", RDMA_ONLY)], [config({"mtu": 1500})]), "config[0].opaque.parameters.mtu", RDMA_ONLY)
    assert planned(claim([result("r", RDMA_ONLY)], [config({})])).devices[0].interface == ""
    refused(claim([result("r", PF)], [OPEN, config({"vf": {"vlan": 5}})]), "parameters.vf", "not a virtual function")
    assert planned(claim([result("r", VF)], [OPEN, config({"vf": {"vlan": 5}})]))
    mac = [OPEN, config({"mac": "02:00:00:00:00:01"})]
    refused(claim([result("r", INFINIBAND)], mac), "parameters.mac", "InfiniBand")
    refused(claim([result("r", INFINIBAND)], [config({"child": {"type": "macvlan"}})]), "parameters.child.type")
    assert planned(claim([result("r", INFINIBAND)], [config({"child": {"type": "ipvlan"}})]))


@pytest.mark.parametrize(
    "fields",
    [{"name": "net1"}, {"addresses": ["192.0.2.1/24"]}, {"mac": "02:00:00:00:00:01"}],
    ids=lambda fields: next(iter(fields)),
)
def test_one_configuration_cannot_give_two_devices_the_same_name_or_address(fields: Object) -> None:
    both = [result("a", PF), result("a", OTHER)]
    shared = claim(both, [OPEN, config(fields)])
    refused(shared, f"spec.devices.config[0].opaque.parameters.{next(iter(fields))}", PF, OTHER)
    assert planned(claim([result("a", PF), result("b", OTHER)], [OPEN, config(fields, "a")]))


def test_all_errors_are_reported_with_their_paths() -> None:
    configs = [
        config({"mtu": 1, "routs": []}, source="FromClass"),
        config({"routes": [{"destination": "10.0.0.0/8"}], "ethtool": {"rings": {"rx": "many"}}}),
    ]
    message = refused(claim([result("nic", PF)], configs))
    for path in (
        "status.allocation.devices.config[0].opaque.parameters.mtu",
        "status.allocation.devices.config[0].opaque.parameters.routs",
        "spec.devices.config[0].opaque.parameters.routes[0]",
        "spec.devices.config[0].opaque.parameters.ethtool.rings.rx",
    ):
        assert f"{path}: " in message


def test_valid_configurations_that_contradict_each_other_are_refused() -> None:
    configs = [config({"dhcp": ["ipv4"]}, source="FromClass"), config({"addresses": ["192.0.2.1/24"]})]
    refused(
        claim([result("nic", PF)], configs), "spec.devices.config[0]", "dhcp", "status.allocation.devices.config[0]"
    )


def test_the_configuration_of_an_unallocated_request_is_ignored() -> None:
    configs = [config({"mtu": 1}, "nic/slow"), config({"mtu": 9000}, "nic/fast")]
    assert planned(claim([result("nic/fast", PF)], configs)).devices[0].config == {"mtu": 9000}


# hostile claims


def test_an_invalid_claim_of_maximum_size_is_refused_with_a_short_message() -> None:
    """An API server accepts at most 32 configurations of 10 KiB. These have up to one error per two bytes."""
    configs = [config({"addresses": [0] * 5060}) for _number in range(32)]
    configs[5] = config({f"{number:x}": 0 for number in range(1200)})
    configs[6] = config({"sysctls": {f"{number:x}": 0 for number in range(1200)}})
    configs[7] = config({"x" * 10_000: 0, "addresses": ["x" * 100] * 90})
    for chosen in (configs, configs[5:], configs[6:], configs[7:]):
        tracemalloc.start()
        message = refused(claim([result("nic", PF)], chosen), "more errors")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(message) <= MESSAGE_LIMIT and peak < 4_000_000


def test_valid_configurations_are_refused_if_their_total_size_is_too_large() -> None:
    route = {"destination": "fd00:aaaa:bbbb:cccc::/64", "gateway": "fd00:aaaa:bbbb:cccc::1"}
    large = [config({"routes": [{**route, "metric": metric} for metric in range(64)]}) for _number in range(32)]
    assert planned(claim([result("nic", PF)], large[:16]))
    refused(claim([result("nic", PF)], large), "opaque.parameters", "bytes together")


@pytest.mark.parametrize("depth", [100, 990, 5000])
def test_a_deeply_nested_claim_is_refused(depth: int) -> None:
    nested: t.Any = 0
    for _level in range(depth):
        nested = {"a": [nested]}
    refused(claim([result("nic", PF)], [config(nested)]), "claim: ", "nested")
    refused(claim([result("nic", PF)], [config({"routes": [nested, nested]})]), "claim: ", "nested")


@pytest.mark.parametrize(
    "name",
    ["../../../etc", "/etc", "a/b", "..", "a\n{}", "a\0", "Upper", "x" * 64, "x" * 200_000, "\ud800", " "],
    ids=lambda name: ascii(name[:20]),  # a lone surrogate could not be printed
)
def test_the_name_of_a_claim_in_its_pod_cannot_be_a_path(name: str) -> None:
    allocated = claim([result("nic", PF)])
    allocated["metadata"]["annotations"] = {POD_CLAIM_NAME: name}
    assert len(refused(allocated, f"metadata.annotations['{POD_CLAIM_NAME}']", "must not have it")) < 500
    allocated["metadata"]["annotations"] = {POD_CLAIM_NAME: "nics-0"}
    assert planned(allocated).pod_claim_name == "nics-0"


@pytest.mark.parametrize("name", ["..", "../x", "a/b/c", "a/..", "a\n", "A", "x" * 64])
def test_neither_the_name_of_a_request_nor_a_share_id_can_be_a_path(name: str) -> None:
    refused(claim([result(name, PF)]), "results[0].request")
    refused(claim([result("nic", PF, shareID=f"{name}/")]), "results[0].shareID")
