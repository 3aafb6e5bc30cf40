# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get the guaranteed bandwidth of their shares of a NIC, with real kubelet, containerd and scheduler. The test
sends traffic from the pods' namespaces."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.driver.traffic import Traffic

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.driver import API, Driver, add_rail, host_state

#: The pods' shares of 1,000 Mbit/s, in Mbit/s, and their addresses on the rail.
SHARES = {"big": (700, "203.0.113.2/28"), "small": (200, "203.0.113.3/28")}
SWITCH = "203.0.113.1"
SETTINGS: Object = {
    "shares": [
        {
            "select": {"interface": "rail0"},
            "mechanism": "macvlan",
            "namespace": "default",
            "bandwidth": "1G",
            "step": "1M",
        }
    ]
}


def template(name: str, bandwidth: int, interface: Object) -> Object:
    share = {"name": "nic", "kind": "nic", "share": {"bandwidth": f"{bandwidth}M"}, "interface": interface}
    return {"name": name, "namespace": "default", "devices": [share]}


def claim_of(driver: Driver, pod: str) -> Object:
    status = driver.plane.expect("GET", f"/api/v1/namespaces/default/pods/{pod}")["status"]
    name = status["resourceClaimStatuses"][0]["resourceClaimName"]
    return t.cast(Object, driver.plane.expect("GET", f"{API}/namespaces/default/resourceclaims/{name}"))


def share_in_status(driver: Driver, pod: str) -> Object:
    """The pod's share, according to the status of its claim."""

    def reported() -> Object | None:
        devices = claim_of(driver, pod)["status"].get("devices") or [{}]
        share: Object = devices[0].get("data", {}).get("share", {})
        return share if "inForce" in share else None

    return t.cast(Object, driver.plane.wait_for(reported, f"the share of {pod} in its claim's status", 30))


def waits(node: Node, pod: str) -> bool:
    conditions = node.plane.expect("GET", f"/api/v1/namespaces/default/pods/{pod}")["status"].get("conditions", ())
    return any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable" for condition in conditions
    )


def start(node: Node, name: str, wait: bool = True) -> None:
    pod = node.pod(name, resourceClaims=[{"name": "net", "resourceClaimTemplateName": name}])
    if wait:
        node.run_pod(pod)
    else:
        node.plane.expect("POST", "/api/v1/namespaces/default/pods", pod)


def test_pods_get_the_guarantees_of_their_shares(node: Node) -> None:
    """The shares are 700 and 200 of 1,000 Mbit/s. If both pods send, each gets its guaranteed bandwidth. If only one
    sends, it gets the whole ceiling."""
    rail = add_rail(0)
    ip(f"link set {rail} mtu 9000")  # with large packets, headers are less than 1 % of the traffic
    ip("-n switch link set wire0 mtu 9000")
    before = host_state(rail)
    driver = Driver(node, SETTINGS)
    driver.wait_ready()
    templates = [
        template(name, amount, {"name": "net1", "addresses": [address]}) for name, (amount, address) in SHARES.items()
    ]
    templates.append(template("late", 200, {"name": "net1"}))
    values = {"site": "rail", "drivers": {"lanewise.dev": {"version": "1.0.0"}}, "templates": templates}
    gpu_claims.apply(node, {f"dra_claims_{key}": value for key, value in values.items()})
    for name in SHARES:
        start(node, name)
    start(node, "late", wait=False)
    node.plane.wait_for(lambda: waits(node, "late"), "the scheduler to reject 200 Mbit/s when 100 are free", 30)
    node.delete_pod("late")
    for name, (amount, _address) in SHARES.items():
        share = share_in_status(driver, name)
        assert (share["bandwidth"], share["inForce"]) == (f"{amount}M", {"bandwidth": f"{amount}M", "ceiling": "1G"})
    pins = [Path("/run/lanewise/netns", claim_of(driver, name)["metadata"]["uid"]) for name in SHARES]
    with Traffic(SWITCH, pins, prefix=("ip", "netns", "exec", "switch")) as traffic:
        rounds: list[tuple[tuple[int, ...], t.Callable[[list[float]], bool]]] = [
            ((0, 1), lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200),
            ((0,), lambda rates: rates[0] >= 0.95 * 1000),
            ((0, 1), lambda rates: rates[0] >= 0.95 * 700 and rates[1] >= 0.95 * 200),
            ((1,), lambda rates: rates[1] >= 0.95 * 1000),
        ]
        for senders, enough in rounds:
            traffic.send(*senders)
            rates, delay = traffic.reach(enough, seconds=1)
            print(f"pods {senders} send: {rates} Mbit/s after {delay:.1f} s")
            assert sum(rates) <= 1.1 * 1000
    for name in SHARES:
        node.delete_pod(name)
    node.plane.wait_for(lambda: not driver.claim_files(), "the claims' files to be removed", 30)
    assert host_state(rail) == before and "macvlan" not in ip("-details link")
    driver.stop()
