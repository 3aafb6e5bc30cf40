# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which NICs rules choose, how rules combine, and which NICs are protected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import desired
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.device import Device
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, Unfit, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.settings import merged
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot
from ansible_collections.lanewise.dra.tests.machines.builder import move_to_container
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode


def chosen_devices(node: Node) -> list[Device]:
    assert node.settings
    return [node.devices[key] for key in node.settings]


def test_rails_are_chosen_by_their_properties(make_node: MakeNode) -> None:
    node = make_node("hgx-h100", {"near_gpu": "PIX", "min_speed_mbps": 400000}, {"mtu": 4200})
    assert len(node.settings) == 8
    assert all(node.devices[key].address and not node.devices[key].physfn for key in node.settings)
    assert not set(node.settings) & {
        key for key, device in node.devices.items() if set(device.interfaces) & set(node.management)
    }


def test_an_unknown_distance_is_not_near(make_node: MakeNode) -> None:
    assert not make_node("cpu-rdma", {"near_gpu": "NODE"}, {"mtu": 9000}).settings


def test_vfs_and_virtual_interfaces_are_chosen_by_type_only(make_node: MakeNode) -> None:
    assert not any(device.physfn for device in chosen_devices(make_node("sriov", {"driver": "*"}, {"mtu": 9000})))
    assert all(device.physfn for device in chosen_devices(make_node("sriov", {"type": "vf"}, {"mtu": 9000})))
    assert [
        device.key
        for device in chosen_devices(make_node("sriov", {"type": "virtual", "interface": "bond0"}, {"mtu": 9000}))
    ] == ["bond0"]


def test_a_rule_may_require_a_count_of_nics(make_node: MakeNode) -> None:
    node = make_node("hgx-h100")
    rails = selector({"near_gpu": "PIX"})
    with pytest.raises(Unfit) as failure:
        Node(node.system, [Rule("rails", rails, {}, count=9), Rule("more", rails, {}, at_least=10)])
    first, second = failure.value.problems
    assert "rails: chooses 8 NICs of this node, not 9: 0000:" in first
    assert "more: chooses 8 NICs of this node, not at least 10" in second
    Node(node.system, [Rule("rails", rails, {}, count=8, at_least=8)])


def test_at_boot_nics_are_chosen_by_their_recorded_rate(make_node: MakeNode) -> None:
    """The kernel reports the rate of an interface only while it is up, and at boot it may still be down."""
    selected = {"near_gpu": "PIX", "min_speed_mbps": 400000}
    running = make_node("hgx-h100", selected, {"mtu": 4200})
    written = json.loads(json.dumps(desired(running, running.rules, {})))
    root = Path(running.system.reader.root)
    for path in (*root.glob("sys/devices/**/net/*/speed"), *root.glob("sys/devices/**/infiniband/*/ports/*/rate")):
        path.unlink()
    assert not Node(running.system, running.rules).settings
    booted = Node(running.system, boot.rules(written["nics"]))
    assert booted.settings == running.settings and len(booted.settings) == 8
    # a file of an older release has no `fast` NICs, and no NIC is fast enough for a rule with a higher rate
    assert not Node(running.system, boot.rules([{**written["nics"][0], "fast": []}])).settings
    faster = Rule("faster", selector({**selected, "min_speed_mbps": 800000}), {"mtu": 4200})
    assert not desired(running, [faster], {})["nics"][0]["fast"]


def test_vfs_are_chosen_by_rate_if_their_pf_is_recorded_as_fast(make_node: MakeNode) -> None:
    node = make_node("sriov", {"type": "vf"}, {"mtu": 9000})
    (first, *_more) = chosen_devices(node)
    assert first.physfn
    rule = Rule("vfs", selector({"type": "vf", "min_speed_mbps": 10**9}), {"mtu": 9000}, fast=(first.physfn,))
    found = chosen_devices(Node(node.system, [rule]))
    assert {device.physfn for device in found} == {first.physfn}


CLAIM = "5f0c1b9e-0000-4000-8000-000000000001"


def test_a_nic_in_a_pod_is_counted_but_not_configured(make_node: MakeNode) -> None:
    selected = {"near_gpu": "PIX", "min_speed_mbps": 400000, "interface": "ib*"}
    free = make_node("hgx-h100", selected, {"mtu": 4200})
    first, second, *others = free.settings
    root = Path(free.system.reader.root)
    attributes = {"ifName": {"string": "ibp25s0"}, "linkSpeedMbps": {"int": 400000}}
    for address in (first, second):
        move_to_container(root, address)
    records = root / "var/lib/kubelet/plugins/lanewise.dev/state"
    records.mkdir(parents=True)
    known = {"address": first, "device": {"name": "pci", "attributes": attributes}}
    (records / f"{CLAIM}.json").write_text(json.dumps({"devices": [{"known": known}]}))

    node = Node(free.system, [Rule("rails", selector(selected), {"mtu": 4200}, count=8)])
    assert list(node.settings) == others
    assert node.left_alone == {
        first: f"a pod has it through the resource claim with UID {CLAIM}",
        second: "its interface is in another network namespace, such as that of a container",
    }
    # the driver's record has the attributes of the first NIC, which a probe cannot read
    assert Node(free.system, [Rule("slow", selector({**selected, "interface": "eth*"}), {})]).left_alone.keys() == {
        second
    }
    (records / f"{CLAIM}.json").write_text(json.dumps({"devices": first}))
    assert Node(free.system, [Rule("slow", selector({"interface": "eth*"}), {})]).left_alone.keys() == {first, second}


def test_a_later_rule_replaces_only_the_settings_that_it_contains() -> None:
    base = {"mtu": 9000, "rings": {"rx": 1, "tx": 2}, "num_vfs": None}
    assert merged(base, {"rings": {"rx": 3}}) == {"mtu": 9000, "rings": {"rx": 3, "tx": 2}}
    assert merged(base, {"rings": {"tx": None}, "mtu": None}) == {"rings": {"rx": 1}}
    assert base["rings"] == {"rx": 1, "tx": 2}


@pytest.mark.parametrize(
    ("values", "message"), [({"near_gpu": "SYS"}, "one of PIX"), ({"name": "x"}, "is not a field")]
)
def test_invalid_selectors_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(Unfit, match=message):
        selector(values)
