# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims that request addresses of rails, from prepare to unprepare.

The addresses of NICs, macvlan children and shares are in the claim's status, in the device metadata and in the pod map.
They are released when the claim ends.
"""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import ipv6
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox, host_state, ip
from ansible_collections.lanewise.dra.tests.driver.plan_claims import config
from ansible_collections.lanewise.dra.tests.driver.rail_node import NICS, RailNode
from lanewise_driver.base.calls import ClaimRef

pytestmark = pytest.mark.namespaces

RANGES = [
    {"rail": 0, "range": "10.100.0.16/28", "pool": "10.100.0.0/16"},
    {"rail": 0, "range": "fd00:100::10/124", "pool": "fd00:100::/64"},
    {"rail": 1, "range": "10.101.0.16/28", "pool": "10.101.0.0/16", "prefix": 28, "gateway": "10.101.0.17"},
]
SHARES = {
    "select": {"interface": NICS[0]},
    "mechanism": "macvlan",
    "namespace": "team-a",
    "bandwidth": "1G",
    "step": "1M",
}
FIRST_ADDRESSES = ["10.100.0.16/16", "fd00:100::10/64"]


@pytest.fixture(scope="module", autouse=True)
def _nics() -> None:
    for name in NICS:
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-far")
        ip("link", "set", f"{name}-far", "up")
        ip("link", "set", name, "up")
    ipv6.wait(lambda words: ip(*words.split()))


def reported_addresses(node: RailNode, claim: ClaimRef, request: str = "nic") -> tuple[list[str], list[str], list[str]]:
    """The addresses in the claim's status, in the device metadata of a request, and in the pod map."""
    statuses = node.cluster.statuses
    until(lambda: any("networkData" in device for device in statuses.get(claim.name, ())), 60)
    status = [address for device in statuses[claim.name] for address in device["networkData"]["ips"]]
    path = node.paths.metadata_dir / claim.uid / request / "metadata.json"
    newest_version, *_older_versions = path.read_text().splitlines()
    devices = json.loads(newest_version)["requests"][0]["devices"]
    metadata = [address for device in devices for address in device["networkData"]["ips"]]
    nics = json.loads(node.paths.pod_map(claim.uid).read_text())["nics"]
    return status, metadata, [address for nic in nics for address in nic["addresses"]]


@pytest.mark.parametrize("kind", ["the NIC itself", "macvlan", "a share"])
def test_addresses_are_in_the_pod_and_reported_until_the_claim_ends(tmp_path: Path, kind: str) -> None:
    before = host_state()
    node = RailNode(tmp_path, RANGES, **({"shares": [SHARES]} if kind == "a share" else {}))
    node.status.start()
    fields: dict[str, t.Any] = {"name": "net1", "railAddresses": True, "dad": "none"}
    if kind == "macvlan":
        fields["child"] = {"type": "macvlan"}
    more = {"shareID": "share-1", "consumedCapacity": {"bandwidth": "100M"}} if kind == "a share" else {}
    device = "net-nic0-share" if kind == "a share" else "net-nic0"
    claim = node.allocate("one", {"nic": device}, config(fields), **more)
    pod = Sandbox()
    try:
        node.attach(claim, pod.path)
        assert reported_addresses(node, claim) == (FIRST_ADDRESSES, FIRST_ADDRESSES, FIRST_ADDRESSES)
        inside = [address["local"] for address in pod.links()["net1"]["addr_info"] if address["scope"] == "global"]
        assert inside == ["10.100.0.16", "fd00:100::10"]
        assert "10.100.0.16" in ip("rule", netns=pod.pid) and "fd00:100::10" in ip("-6", "rule", netns=pod.pid)
        table = ip("route", "show", "table", "2000000", netns=pod.pid)
        assert "10.100.0.0/16 dev net1" in table and "unreachable default" in table
        node.service.unprepare(claim)
        assert json.loads(node.paths.rail_addresses.read_text())["freed"] == ["10.100.0.16", "fd00:100::10"]
    finally:
        pod.end()
        node.status.stop()
    assert host_state() == before


def test_a_claim_with_both_nics_gets_an_address_of_each_rail(tmp_path: Path) -> None:
    node = RailNode(tmp_path, RANGES)
    pod = Sandbox()
    try:
        assert node.attach_job("two", pod.path) == [*FIRST_ADDRESSES, "10.101.0.18/28"]
        node.service.unprepare(ClaimRef("team-a", "two", "0000-two"))
    finally:
        pod.end()


def test_a_claim_with_its_own_addresses_gets_none_from_the_rail(tmp_path: Path) -> None:
    """For sites with their own IPAM. No rule or route is added either."""
    node = RailNode(tmp_path, RANGES)
    claim = node.allocate("own", {"nic": "net-nic0"}, config({"name": "net1", "addresses": ["192.0.2.7/24"]}))
    pod = Sandbox()
    try:
        node.attach(claim, pod.path)
        assert [address["local"] for address in pod.links()["net1"]["addr_info"] if address["family"] == "inet"] == [
            "192.0.2.7"
        ]
        assert "192.0.2" not in ip("rule", netns=pod.pid) and not node.paths.rail_addresses.exists()
        assert "table 20" not in ip("route", "show", "table", "all", netns=pod.pid)
        node.service.unprepare(claim)
    finally:
        pod.end()
