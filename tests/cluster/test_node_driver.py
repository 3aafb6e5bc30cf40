# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get their network devices from the driver: real kubelet, containerd and scheduler, seen from inside the pod."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.interface_config import parameters
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME, Driver, add_rail, host_state

Object = dict[str, t.Any]


@pytest.fixture(name="driver", scope="module")
def _driver(node: Node) -> t.Iterator[Driver]:
    for number in range(4):
        add_rail(number)
    driver = Driver(node)
    try:
        driver.wait_ready()
    except Failed as failure:
        raise Failed(f"{failure}: {driver.reasons()}\n{driver.log()}") from None
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    device_class = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector]}}
    node.plane.expect("POST", f"{API}/deviceclasses", device_class)
    yield driver
    driver.stop()
    print(driver.log())  # shown where the last test failed


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> t.Iterator[None]:
    """A test that fails leaves its pod behind; the next one shall not fail of that."""
    yield
    if "node" in request.fixturenames:
        node: Node = request.getfixturevalue("node")
        for pod in node.plane.expect("GET", "/api/v1/namespaces/default/pods")["items"]:
            node.delete_pod(pod["metadata"]["name"])


def template(driver: Driver, name: str, config: Object | None = None, interface: str = "", count: int = 1) -> Object:
    """Make a claim template; the entry of a pod that uses it."""
    request: Object = {"deviceClassName": "nic", "count": count}
    if interface:
        expression = f'device.attributes["{NAME}"].ifName == "{interface}"'
        request["selectors"] = [{"cel": {"expression": expression}}]
    devices: Object = {"requests": [{"name": "nic", "exactly": request}]}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": NAME, "parameters": parameters(config)}}]
    item = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
    driver.plane.expect("POST", f"{API}/namespaces/default/resourceclaimtemplates", item)
    return {"name": "net", "resourceClaimTemplateName": name}


def links(node: Node, pod: str) -> dict[str, Object]:
    return {link["ifname"]: link for link in json.loads(node.execute(pod, "ip", "-json", "address"))}


def claim_of(driver: Driver, pod: str) -> Object:
    status = driver.plane.expect("GET", f"/api/v1/namespaces/default/pods/{pod}")["status"]
    name = status["resourceClaimStatuses"][0]["resourceClaimName"]
    found: Object = driver.plane.expect("GET", f"{API}/namespaces/default/resourceclaims/{name}")
    return found


def test_devices_are_published_and_the_uplink_is_not(driver: Driver) -> None:
    names = {device["attributes"]["ifName"]["string"] for device in driver.devices().values()}
    assert names == {"rail0", "rail1", "rail2", "rail3"}


def test_pod_has_its_interface_while_it_lives(node: Node, driver: Driver) -> None:
    before = host_state("rail1")
    config = {"name": "net1", "addresses": ["203.0.113.18/28"], "mtu": 1400}
    config["routes"] = [{"destination": "192.0.2.128/25", "gateway": "203.0.113.17", "metric": 50}]
    pod = node.pod("one", resourceClaims=[template(driver, "one", config, "rail1")])
    node.run_pod(pod)
    link = links(node, "one")["net1"]
    assert link["mtu"] == 1400 and link["operstate"] == "UP"
    assert [entry["local"] for entry in link["addr_info"] if entry["family"] == "inet"] == ["203.0.113.18"]
    routes = json.loads(node.execute("one", "ip", "-json", "route"))
    assert {"dst": "192.0.2.128/25", "gateway": "203.0.113.17", "dev": "net1", "metric": 50} in [
        {key: route.get(key) for key in ("dst", "gateway", "dev", "metric")} for route in routes
    ]
    assert "rail1" not in ip("-brief link")
    assert "rail1" in {device["attributes"]["ifName"]["string"] for device in driver.devices().values()}
    node.plane.wait_for(lambda: claim_of(driver, "one")["status"].get("devices"), "the claim's status", 10)
    said = claim_of(driver, "one")["status"]["devices"][0]
    assert {entry["type"]: entry["status"] for entry in said["conditions"]}["Ready"] == "True"
    assert said["networkData"]["interfaceName"] == "net1" and said["networkData"]["ips"] == ["203.0.113.18/28"]
    end(node, driver, "one")
    assert host_state("rail1") == before


def test_whole_configuration(node: Node, driver: Driver) -> None:
    """Everything that this machine's kernel has, in one pod."""
    before = host_state("rail2")
    config = {
        "name": "fast",
        "mac": "02:00:00:00:02:01",
        "addresses": ["203.0.113.34/28", "2001:db8:2::2/64"],
        "routes": [
            {"destination": "198.18.0.0/15", "multipath": [{"gateway": "203.0.113.33", "weight": 3}], "table": 200},
            {"destination": "2001:db8:ff::/48", "gateway": "2001:db8:2::1", "metric": 7},
            {"destination": "192.0.2.64/26", "scope": "link"},
        ],
        "rules": [
            {"source": "203.0.113.34/32", "table": 200, "priority": 1000},
            {"family": "ipv4", "fwmark": 16, "fwmask": 255, "iif": "fast", "table": 200, "priority": 1001},
            {"destination": "198.18.0.0/15", "ipproto": "tcp", "destinationPort": 4791, "table": 200, "priority": 1002},
        ],
        "neighbors": [{"destination": "203.0.113.40", "mac": "02:00:00:00:00:40"}],
        "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": "2", "net.ipv4.conf.IFNAME.arp_announce": 2},
        "ethtool": {"features": {"tx-checksumming": False}},
    }
    node.run_pod(node.pod("whole", resourceClaims=[template(driver, "whole", config, "rail2")]))
    link = links(node, "whole")["fast"]
    assert link["address"] == "02:00:00:00:02:01"
    assert {"203.0.113.34", "2001:db8:2::2"} <= {entry["local"] for entry in link["addr_info"]}
    # the link-local one, which nobody asked for, may take a second more
    assert not any(entry.get("tentative") for entry in link["addr_info"] if entry["scope"] == "global")
    (route,) = json.loads(node.execute("whole", "ip", "-json", "route", "show", "table", "200"))
    assert route["dst"] == "198.18.0.0/15" and route["gateway"] == "203.0.113.33"
    assert "via 2001:db8:2::1 dev fast" in node.execute("whole", "ip", "-6", "route")
    rules = json.loads(node.execute("whole", "ip", "-json", "rule"))
    by_priority = {rule["priority"]: rule for rule in rules}
    assert by_priority[1000]["src"] == "203.0.113.34" and by_priority[1000]["table"] == "200"
    assert by_priority[1001]["fwmark"] == "0x10" and by_priority[1001]["fwmask"] == "0xff"
    assert by_priority[1001]["iif"] == "fast"
    assert by_priority[1002]["ipproto"] in ("tcp", "ipproto-6") and by_priority[1002]["dport"] == 4791
    assert "203.0.113.40 lladdr 02:00:00:00:00:40 PERMANENT" in node.execute(
        "whole", "ip", "neigh", "show", "dev", "fast"
    )
    assert node.execute("whole", "cat", "/proc/sys/net/ipv4/conf/fast/rp_filter") == "2\n"
    assert node.execute("whole", "cat", "/proc/sys/net/ipv4/conf/fast/arp_announce") == "2\n"
    assert answers("203.0.113.34")
    metadata = node.execute("whole", "sh", "-c", "cat /var/run/kubernetes.io/dra-device-attributes/*/*/*/*.json")
    assert "net-rail2" in metadata and "203.0.113.34" in metadata
    end(node, driver, "whole")
    assert host_state("rail2") == before


def test_a_child_leaves_its_parent_on_the_node(node: Node, driver: Driver) -> None:
    before = host_state("rail3")
    config = {"name": "mac0", "child": {"type": "macvlan", "mode": "bridge"}, "addresses": ["203.0.113.50/28"]}
    node.run_pod(node.pod("child", resourceClaims=[template(driver, "child", config, "rail3")]))
    assert links(node, "child")["mac0"]["addr_info"][0]["local"] == "203.0.113.50"
    assert "rail3" in ip("-brief link")
    assert answers("203.0.113.50")
    end(node, driver, "child")
    assert host_state("rail3") == before


def test_two_devices_of_a_claim(node: Node, driver: Driver) -> None:
    """Without a name in the configuration each keeps its own."""
    node.run_pod(node.pod("two", resourceClaims=[template(driver, "two", count=2)]))
    names = {name.partition("@")[0] for name in links(node, "two")}
    assert len(names & {"rail0", "rail1", "rail2", "rail3"}) == 2
    end(node, driver, "two")


def test_addresses_of_the_node_go_along(node: Node, driver: Driver) -> None:
    ip("address add 203.0.113.2/28 dev rail0")
    ip("route add 198.18.0.0/15 via 203.0.113.1 dev rail0 metric 77")
    before = host_state("rail0")
    node.run_pod(node.pod("along", resourceClaims=[template(driver, "along", None, "rail0")]))
    assert "203.0.113.2" in {entry["local"] for entry in links(node, "along")["rail0"]["addr_info"]}
    assert "198.18.0.0/15 via 203.0.113.1" in node.execute("along", "ip", "route")
    end(node, driver, "along")
    assert host_state("rail0") == before
    ip("address flush dev rail0")


@pytest.mark.parametrize(
    ("name", "config", "spec", "reason"),
    [
        ("field", {"mtu": 9000, "adresses": ["10.0.0.1/24"]}, {}, "adresses"),
        ("mtu", {"mtu": 65535, "addresses": ["203.0.113.20/28"]}, {}, "mtu"),
        ("feature", {"ethtool": {"features": {"no-such-thing": True}}}, {}, "no-such-thing"),
        ("clash", {"name": "eth0"}, {}, "eth0"),
        ("host", {}, {"hostNetwork": True}, "hostNetwork"),
    ],
)
def test_what_cannot_be_done_is_told_in_the_pods_events(
    node: Node, driver: Driver, name: str, config: Object, spec: Object, reason: str
) -> None:
    name = f"refused-{name}"
    before = host_state("rail1")
    pod = node.pod(name, resourceClaims=[template(driver, name, config, "rail1")], **spec)
    node.plane.expect("POST", "/api/v1/namespaces/default/pods", pod)
    node.plane.wait_for(lambda: any(reason in line for line in node.events(name)), f"an event about {reason}", 30)
    node.delete_pod(name)
    node.plane.wait_for(lambda: not driver.traces(), "the claim's traces to go", 30)
    assert host_state("rail1") == before


def test_start_waits_for_a_driver_that_restarts(node: Node, driver: Driver) -> None:
    claim = template(driver, "waits", {"name": "net1"}, "rail1")
    driver.stop()
    node.plane.expect("POST", "/api/v1/namespaces/default/pods", node.pod("waits", resourceClaims=[claim]))
    time.sleep(2)
    driver.start()
    node.plane.wait_for(lambda: "net1" in _links_if_ready(node, "waits"), "the pod", 60)
    driver.stop()
    driver.start()  # a pod that runs does not notice
    driver.wait_ready()
    assert "net1" in links(node, "waits")
    end(node, driver, "waits")


def test_devices_come_back_from_pods_that_ended_while_the_driver_was_away(node: Node, driver: Driver) -> None:
    before = host_state("rail1")
    node.run_pod(node.pod("away", resourceClaims=[template(driver, "away", {"name": "net1", "mtu": 1300}, "rail1")]))
    driver.stop()
    node.delete_pod("away", wait=False)
    time.sleep(3)
    driver.start()
    driver.wait_ready()
    node.plane.wait_for(lambda: not driver.traces(), "the claim's traces to go", 60)
    assert host_state("rail1") == before


def test_outage_of_the_api_server(node: Node, driver: Driver) -> None:
    node.run_pod(node.pod("outage", resourceClaims=[template(driver, "outage", {"name": "net1"}, "rail1")]))
    node.plane.stop("kube-apiserver")
    driver.stop()
    driver.start()
    time.sleep(5)
    node.plane.start("kube-apiserver")
    node.plane.wait_ready("kube-apiserver")
    driver.wait_ready(60)
    assert "net1" in links(node, "outage")
    end(node, driver, "outage")


def test_link_events_are_published_within_a_second(node: Node, driver: Driver) -> None:
    def up() -> bool:
        attributes = driver.devices()["net-rail3"]["attributes"]
        return bool(attributes["up"]["bool"])

    assert up()
    ip("-n switch link set wire3 down")
    node.plane.wait_for(lambda: not up(), "the link to be published as down", 1.5)
    taints = driver.devices()["net-rail3"]["taints"]
    assert [taint["key"] for taint in taints] == [f"{NAME}/link-down"]
    ip("-n switch link set wire3 up")
    node.plane.wait_for(up, "the link to be published as up", 1.5)


def answers(address: str) -> bool:
    """Whether an address answers on the wire: nobody listens there, and the pod's kernel says so."""
    program = f"import socket; socket.socket().connect_ex(('{address}', 9)) == 111 or exit('no answer')"
    command = ["ip", "netns", "exec", "switch", "timeout", "5", sys.executable, "-c", program]
    return subprocess.run(command, check=False).returncode == 0


def end(node: Node, driver: Driver, pod: str) -> None:
    """Delete a pod; its claim leaves nothing."""
    node.delete_pod(pod)
    node.plane.wait_for(lambda: not driver.traces(), "the claim's traces to go", 30)


def _links_if_ready(node: Node, pod: str) -> dict[str, Object]:
    try:
        return links(node, pod)
    except Failed:
        return {}
