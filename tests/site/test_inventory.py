# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hosts and variables that the inventory plugin derives from a cluster's objects."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_nodes import describe, has_name_of_controller


def node(name: str) -> Object:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def slice_of(
    driver: str, pool: str, node_name: str | None, *devices: Object, generation: int = 1, count: int = 1
) -> Object:
    """A ResourceSlice of a node, or of all nodes if `node_name` is None."""
    nodes = {"nodeName": node_name} if node_name else {"allNodes": True}
    members = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{pool}-{driver}-{node_name}", "annotations": {f"{driver}/version": "1.0.0"}},
        "spec": {"driver": driver, "pool": members, **nodes, "devices": list(devices)},
    }


def device(name: str, **attributes: t.Any) -> Object:
    typed = {key: {"int" if isinstance(value, int) else "string": value} for key, value in attributes.items()}
    return {"name": name, "attributes": typed}


def test_drivers_that_were_not_requested_add_no_devices_or_findings() -> None:
    """Variables that are derived from devices do not contain them, either. A node with only such drivers has no
    devices."""
    nodes = [node("both"), node("foreign")]
    tainted = {**device("gpu-0", model="H100", numaNode=1), "taints": [{"key": "x", "effect": "NoSchedule"}]}
    nic = device("nic-0", model="ConnectX-7", numaNode=0, rail=3)
    slices = [slice_of("gpu.nvidia.com", name, name, tainted) for name in ("both", "foreign")]
    slices.append(slice_of("lanewise.dev", "both", "both", nic))
    found = describe(nodes, slices, [], ["lanewise.dev"])
    both, foreign = found["both"], found["foreign"]
    assert [entry["name"] for entry in both["devices"]] == ["nic-0"] and both["drivers"] == ["lanewise.dev"]
    assert (both["models"], both["numa_nodes"], both["rails"]) == (["ConnectX-7"], [0], [3])
    assert both["findings"] == [] and both["driver_versions"] == {"lanewise.dev": "1.0.0"}
    assert not foreign["devices"] and not foreign["drivers"] and not foreign["findings"]
    everything = describe(nodes, slices, [])
    assert everything["both"]["drivers"] == ["gpu.nvidia.com", "lanewise.dev"]
    assert everything["foreign"]["models"] == ["H100"] and len(everything["foreign"]["findings"]) == 1


def node_with(name: str, *addresses: tuple[str, str]) -> Object:
    result = node(name)
    result["status"]["addresses"] = [{"type": kind, "address": address} for kind, address in addresses]
    return result


@pytest.mark.parametrize(
    "address",
    [
        *("-oProxyCommand=touch /tmp/x", "-l", "a b", "a;b", "$(x)", "a/b", "user@host", "", "a" * 254, "a\nb"),
        *("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.1.1", "fe80::1", "224.0.0.1"),
        *("localhost", "LocalHost", "localhost.localdomain"),
    ],
)
@pytest.mark.parametrize("kind", ["InternalIP", "Hostname"])
def test_an_address_that_is_not_another_machine_is_not_used(address: str, kind: str) -> None:
    """A node reports its own addresses. SSH would interpret some of these as options, and others as the controller."""
    found = describe([node_with("one", (kind, address))], [], [])["one"]
    assert found["address"] is None
    assert len(found["findings"]) == bool(address) and all(
        "cannot be the address of another machine" in finding for finding in found["findings"]
    )


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7", "gpu-07", "gpu-07.example.org", "7.example"])
def test_an_address_of_a_machine_is_used(address: str) -> None:
    found = describe([node_with("one", ("InternalIP", address)), node_with("two", ("InternalIP", "10.0.0.8"))], [], [])
    assert (found["one"]["address"], found["two"]["address"]) == (address, "10.0.0.8")


@pytest.mark.parametrize("spelt", ["10.0.0.7", "::ffff:10.0.0.7"])
def test_an_address_that_two_nodes_state_is_used_for_neither(spelt: str) -> None:
    """Otherwise a change for one node could be made on the other."""
    stated = [("good", "10.0.0.7"), ("bad", spelt), ("other", "10.0.0.8")]
    found = describe([node_with(name, ("InternalIP", address)) for name, address in stated], [], [])
    assert [found[name]["address"] for name, _address in stated] == [None, None, "10.0.0.8"]
    assert found["good"]["findings"] == ["its address 10.0.0.7 is also that of bad, so it is not used"]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "gpu-01", "localhost-2"])
def test_a_node_with_the_name_of_the_controller_is_recognised(name: str) -> None:
    assert has_name_of_controller(name) == (name in ("localhost", "127.0.0.1"))


def test_a_pool_may_have_slices_of_several_nodes() -> None:
    """The pool is complete if all its slices exist. Each node has its own devices."""
    nodes = [node("one"), node("two")]
    slices = [slice_of("fabric.example.com", "rack", name, device(f"nic-{name}"), count=3) for name in ("one", "two")]
    slices.append(slice_of("fabric.example.com", "rack", None, device("switch"), count=3))
    found = describe(nodes, slices, [])
    for name in ("one", "two"):
        assert [entry["name"] for entry in found[name]["devices"]] == [f"nic-{name}"] and not found[name]["findings"]
    incomplete = describe(nodes, slices[1:], [])
    assert not incomplete["two"]["devices"] and incomplete["two"]["drivers"] == ["fabric.example.com"]
    assert incomplete["two"]["findings"] == [
        "fabric.example.com: pool rack has 2 of 3 slices: none of its devices can be allocated"
    ]
    # the devices of an older generation are not listed
    slices.append(slice_of("fabric.example.com", "rack", "one", device("nic-new"), generation=2))
    newer = describe(nodes, slices, [])
    assert [entry["name"] for entry in newer["one"]["devices"]] == ["nic-new"] and not newer["two"]["devices"]


def test_a_device_may_have_several_claims() -> None:
    """All claims that share the device are listed. A claim with two shares is listed once."""
    nic = {**device("nic-0"), "allowMultipleAllocations": True}
    shared = slice_of("lanewise.dev", "one", "one", nic, device("nic-1"))

    def claim(name: str, *shares: str) -> Object:
        results = [{"driver": "lanewise.dev", "pool": "one", "device": "nic-0", "shareID": share} for share in shares]
        status = {"allocation": {"devices": {"results": results}}}
        return {"metadata": {"namespace": "training", "name": name}, "status": status}

    claims = [claim("b", "1"), claim("a", "2", "3"), claim("waits")]
    first, second = describe([node("one")], [shared], claims)["one"]["devices"]
    assert (first["claims"], first["claim"]) == (["training/a", "training/b"], "training/a")
    assert (second["claims"], second["claim"]) == ([], None)
