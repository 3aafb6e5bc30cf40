# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get network devices from the driver, with real kubelet, containerd and scheduler."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME, Driver, add_rail, host_state, responds
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS_CONFIG

RAILS = ("rail0", "rail1", "rail2", "rail3")


@pytest.fixture(name="driver", scope="module")
def _driver(node: Node) -> t.Iterator[Driver]:
    for number in range(len(RAILS)):
        add_rail(number)
    driver = Driver(node)
    try:
        driver.wait_ready()
    except Failed as failure:
        raise Failed(f"{failure}: {driver.reasons()}\n{driver.log()}") from None
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    device_class = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector], "config": [OPEN_CLASS_CONFIG]}}
    node.plane.expect("POST", f"{API}/deviceclasses", device_class)
    yield driver
    driver.stop()
    print(driver.log())  # shown if the last test failed


@pytest.fixture(autouse=True)
def _remove_pods(request: pytest.FixtureRequest) -> t.Iterator[None]:
    """Remove the pod of a failed test, so that it does not affect the next test."""
    yield
    if "node" in request.fixturenames:
        node: Node = request.getfixturevalue("node")
        for pod in node.plane.expect("GET", "/api/v1/namespaces/default/pods")["items"]:
            node.delete_pod(pod["metadata"]["name"])


def claim_spec(config: Object | None = None, interface: str = "", count: int = 1) -> Object:
    request: Object = {"deviceClassName": "nic", "count": count}
    if interface:
        expression = f'device.attributes["{NAME}"].ifName == "{interface}"'
        request["selectors"] = [{"cel": {"expression": expression}}]
    devices: Object = {"requests": [{"name": "nic", "exactly": request}]}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": NAME, "parameters": parameters(config)}}]
    return {"devices": devices}


def template(driver: Driver, name: str, config: Object | None = None, interface: str = "", count: int = 1) -> Object:
    """Create a claim template. Returns the entry for a pod that uses it."""
    item = {"metadata": {"name": name}, "spec": {"spec": claim_spec(config, interface, count)}}
    driver.plane.expect("POST", f"{API}/namespaces/default/resourceclaimtemplates", item)
    return {"name": "net", "resourceClaimTemplateName": name}


def links(node: Node, pod: str) -> dict[str, Object]:
    return {link["ifname"]: link for link in json.loads(node.execute(pod, "ip", "-json", "address"))}


def claim_of(driver: Driver, pod: str) -> Object:
    status = driver.plane.expect("GET", f"/api/v1/namespaces/default/pods/{pod}")["status"]
    name = status["resourceClaimStatuses"][0]["resourceClaimName"]
    claim: Object = driver.plane.expect("GET", f"{API}/namespaces/default/resourceclaims/{name}")
    return claim


def attached(driver: Driver, pod: str) -> Object:
    """The driver's status of the only device of a pod's claim, once the device is in the pod.

    If attaching takes longer, as with DHCP, the driver first reports the device as prepared.
    """

    def device() -> Object | None:
        devices: list[Object] = claim_of(driver, pod)["status"].get("devices") or [{}]
        return devices[0] if devices[0].get("networkData") else None

    reported: Object = driver.plane.wait_for(device, "the status of the attached device", 30)
    return reported


@pytest.mark.each_kubernetes
def test_devices_are_published_and_the_uplink_is_not(driver: Driver) -> None:
    names = {device["attributes"]["ifName"]["string"] for device in driver.devices().values()}
    assert names == set(RAILS)


@pytest.mark.each_kubernetes
def test_a_pod_has_its_interface_until_it_ends(node: Node, driver: Driver) -> None:
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
    message = attached(driver, "one")
    assert {entry["type"]: entry["status"] for entry in message["conditions"]}["Ready"] == "True"
    assert message["networkData"]["interfaceName"] == "net1" and message["networkData"]["ips"] == ["203.0.113.18/28"]
    end(node, driver, "one")
    assert host_state("rail1") == before


def test_a_pod_gets_every_setting_of_its_configuration(node: Node, driver: Driver) -> None:
    """All settings that this machine's kernel supports, in one pod."""
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
    # the link-local address may be tentative for another second
    addresses = [entry for entry in link["addr_info"] if entry["scope"] == "global"]
    assert not any(entry.get("tentative") and not entry.get("optimistic") for entry in addresses)
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
    assert responds("203.0.113.34")
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
    assert responds("203.0.113.50")
    end(node, driver, "child")
    assert host_state("rail3") == before


def test_interfaces_keep_their_names_if_no_name_is_configured(node: Node, driver: Driver) -> None:
    node.run_pod(node.pod("two", resourceClaims=[template(driver, "two", count=2)]))
    names = {name.partition("@")[0] for name in links(node, "two")}
    assert len(names & set(RAILS)) == 2
    end(node, driver, "two")


def test_without_configuration_a_pod_gets_the_addresses_of_the_node(node: Node, driver: Driver) -> None:
    ip("address add 203.0.113.2/28 dev rail0")
    ip("route add 198.18.0.0/15 via 203.0.113.1 dev rail0 metric 77")
    before = host_state("rail0")
    node.run_pod(node.pod("along", resourceClaims=[template(driver, "along", None, "rail0")]))
    assert "203.0.113.2" in {entry["local"] for entry in links(node, "along")["rail0"]["addr_info"]}
    assert "198.18.0.0/15 via 203.0.113.1" in node.execute("along", "ip", "route")
    end(node, driver, "along")
    assert host_state("rail0") == before
    ip("address flush dev rail0")


@pytest.mark.skipif(not shutil.which("dnsmasq"), reason="needs dnsmasq (Debian package dnsmasq-base)")
def test_a_pod_gets_leases_of_both_families(node: Node, driver: Driver) -> None:
    """A DHCP server is on the wire. Leases are acquired before the pod's program starts, and released at its end."""
    before = host_state("rail2")
    ip("-n switch address add 2001:db8:2::1/64 dev wire2 nodad")
    options = (
        "--no-daemon --port=0 --interface=wire2 --bind-dynamic --log-dhcp --conf-file=/dev/null --leasefile-ro "
        "--no-ping --user=root --dhcp-authoritative --dhcp-range=203.0.113.40,203.0.113.45,255.255.255.240,2m "
        "--dhcp-range=2001:db8:2::1000,2001:db8:2::1fff,64,2m --dhcp-option=26,1400 "
        "--dhcp-option=121,192.0.2.128/25,203.0.113.33,0.0.0.0/0,203.0.113.33"
    )
    log = node.plane.log("dnsmasq")
    node.plane.run("dnsmasq", ["ip", "netns", "exec", "switch", "dnsmasq", *options.split()])
    try:
        node.plane.wait_for(lambda: "DHCPv6, IP range" in log.read_text(), "dnsmasq", 30)
        claim = template(driver, "leased", {"name": "net1", "dhcp": ["ipv4", "ipv6"]}, "rail2")
        node.run_pod(node.pod("leased", resourceClaims=[claim]))
        link = links(node, "leased")["net1"]
        leased = {entry["family"]: entry for entry in link["addr_info"] if entry["scope"] == "global"}
        four, six = leased["inet"], leased["inet6"]
        assert 40 <= int(four["local"].split(".")[3]) <= 45 and four["prefixlen"] == 28
        assert six["local"].startswith("2001:db8:2::1") and six["prefixlen"] == 128
        assert 0 < four["valid_life_time"] <= 120 and 0 < six["valid_life_time"] <= 120
        assert link["mtu"] == 1400
        routes = json.loads(node.execute("leased", "ip", "-json", "route"))
        assert ("192.0.2.128/25", "203.0.113.33", "net1") in [
            (route["dst"], route.get("gateway"), route["dev"]) for route in routes
        ]
        assert "default" not in [route["dst"] for route in routes]  # the server's default route is ignored
        assert responds(four["local"])
        expected = {f"{four['local']}/28", f"{six['local']}/128"}
        assert set(attached(driver, "leased")["networkData"]["ips"]) == expected
        metadata = node.execute("leased", "sh", "-c", "cat /var/run/kubernetes.io/dra-device-attributes/*/*/*/*.json")
        assert four["local"] in metadata and six["local"] in metadata
        assert "DHCPRELEASE" not in log.read_text()
        end(node, driver, "leased")
        for message in (f"DHCPRELEASE(wire2) {four['local']} ", "DHCPRELEASE(wire2) 00:03:"):
            node.plane.wait_for(lambda message=message: message in log.read_text(), message, 30)
    finally:
        node.plane.stop("dnsmasq")
        ip("-n switch address del 2001:db8:2::1/64 dev wire2")
    assert host_state("rail2") == before


@pytest.mark.parametrize(
    ("name", "config", "spec", "reason"),
    [
        pytest.param(
            *("field", {"mtu": 9000, "adresses": ["10.0.0.1/24"]}, {}, "adresses"), marks=pytest.mark.each_kubernetes
        ),
        ("mtu", {"mtu": 65535, "addresses": ["203.0.113.20/28"]}, {}, "mtu"),
        ("feature", {"ethtool": {"features": {"no-such-thing": True}}}, {}, "no-such-thing"),
        pytest.param("clash", {"name": "eth0"}, {}, "eth0", marks=pytest.mark.each_kubernetes),
        ("host", {}, {"hostNetwork": True}, "hostNetwork"),
    ],
)
def test_a_failure_is_reported_in_the_pods_events(
    node: Node, driver: Driver, name: str, config: Object, spec: Object, reason: str
) -> None:
    name = f"refused-{name}"
    before = host_state("rail1")
    pod = node.pod(name, resourceClaims=[template(driver, name, config, "rail1")], **spec)
    node.plane.expect("POST", "/api/v1/namespaces/default/pods", pod)
    node.plane.wait_for(lambda: any(reason in line for line in node.events(name)), f"an event about {reason}", 30)
    node.delete_pod(name)
    node.plane.wait_for(lambda: not driver.claim_files(), "the claim's files to be removed", 30)
    assert host_state("rail1") == before


def test_start_waits_for_a_driver_that_restarts(node: Node, driver: Driver) -> None:
    claim = template(driver, "waits", {"name": "net1"}, "rail1")
    driver.stop()
    node.plane.expect("POST", "/api/v1/namespaces/default/pods", node.pod("waits", resourceClaims=[claim]))
    time.sleep(2)
    driver.start()
    node.plane.wait_for(lambda: "net1" in _links_if_ready(node, "waits"), "the pod", 60)
    driver.stop()
    driver.start()  # a running pod keeps its device
    driver.wait_ready()
    assert "net1" in links(node, "waits")
    end(node, driver, "waits")


def test_devices_of_pods_that_ended_while_the_driver_was_down_are_restored(node: Node, driver: Driver) -> None:
    before = host_state("rail1")
    node.run_pod(node.pod("away", resourceClaims=[template(driver, "away", {"name": "net1", "mtu": 1300}, "rail1")]))
    driver.stop()
    node.delete_pod("away", wait=False)
    time.sleep(3)
    driver.start()
    driver.wait_ready()
    node.plane.wait_for(lambda: not driver.claim_files(), "the claim's files to be removed", 60)
    assert host_state("rail1") == before


def test_a_container_starts_again_while_the_driver_is_down(node: Node, driver: Driver) -> None:
    """The devices are still in the pod, so the driver is not needed."""

    def restarted() -> bool:
        status = node.plane.expect("GET", "/api/v1/namespaces/default/pods/again")["status"]["containerStatuses"][0]
        return status["restartCount"] == 1 and bool(status["ready"])

    pod = node.pod("again", resourceClaims=[template(driver, "again", {"name": "net1"}, "rail1")])
    pod["spec"]["restartPolicy"] = "Always"
    pod["spec"]["containers"][0]["command"] = ["/usr/bin/sh", "-c", 'trap "exit 1" USR1; sleep infinity & wait']
    node.run_pod(pod)
    driver.stop()
    try:
        with contextlib.suppress(Failed):  # the kill command ends with the container
            node.execute("again", "kill", "-USR1", "1")
        node.plane.wait_for(restarted, "the container to start again", 60)
        assert "net1" in links(node, "again")
    finally:
        driver.start()
        driver.wait_ready()
    end(node, driver, "again")


#: A driver with the services of kubelets before 1.34.
OLD_DRIVER = """
from lanewise_driver.kubelet import protocol
from lanewise_driver.cli import main
protocol.SUPPORTED = ("v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
protocol.DRA = {"v1beta1": protocol.DRA["v1beta1"]}
protocol.HEALTH = {"v1alpha1": protocol.HEALTH["v1alpha1"]}
raise SystemExit(main())
"""


@pytest.mark.each_kubernetes
def test_a_kubelet_that_speaks_v1beta1_is_served(node: Node, driver: Driver) -> None:
    """Pods are prepared and unprepared with v1beta1, also if the other of the two requests used v1."""
    before = [host_state(name) for name in RAILS]
    current = driver.program

    def restart(program: list[str], service: str) -> None:
        kubelet = node.plane.log("kubelet")
        offset = len(kubelet.read_text())
        driver.stop()
        driver.program = program
        driver.start()
        driver.wait_ready()
        registered = [line for line in kubelet.read_text()[offset:].splitlines() if "Registered DRA plugin" in line]
        assert f'chosenService="{service}"' in registered[-1]

    def pod(name: str, interface: str) -> None:
        node.run_pod(node.pod(name, resourceClaims=[template(driver, name, {"name": "net1"}, interface)]))
        assert "net1" in links(node, name)

    try:
        pod("later", "rail2")
        restart(["-c", OLD_DRIVER], "v1beta1.DRAPlugin")
        pod("both", "rail1")
        pod("before", "rail3")
        node.delete_pod("later", wait=False)
        node.delete_pod("both")
        node.plane.wait_for(lambda: all(f"rail{number}" in ip("-brief link") for number in (1, 2)), "two devices", 30)
    finally:
        restart(current, "v1.DRAPlugin")
    end(node, driver, "before")
    assert [host_state(name) for name in RAILS] == before


def test_a_pod_keeps_its_device_through_an_outage_of_the_api_server(node: Node, driver: Driver) -> None:
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


@pytest.mark.each_kubernetes
def test_link_events_are_published_within_a_second(node: Node, driver: Driver) -> None:
    def up() -> bool:
        attributes = driver.devices()["net-rail3"]["attributes"]
        return bool(attributes["up"]["bool"])

    assert up()
    ip("-n switch link set wire3 down")
    node.plane.wait_for(lambda: not up(), "the link to be published as down", 1.5)
    taints = driver.devices()["net-rail3"].get("taints", [])
    # in 1.34, taints need a feature gate
    assert [taint["key"] for taint in taints] == ([] if node.plane.minor == "1.34" else [f"{NAME}/link-down"])
    if taints:  # the event gives the reason, because the scheduler does not report why a pod gets no device
        message = "new pods do not get these devices of the node while their links are down: net-rail3"
        node.plane.wait_for(lambda: any(message in line for line in node.events(node.name)), "the Node's event", 30)
    ip("-n switch link set wire3 up")
    node.plane.wait_for(up, "the link to be published as up", 1.5)


@pytest.mark.each_kubernetes
def test_health_is_shown_in_the_pods_status(node: Node, driver: Driver) -> None:
    """Kubelet uses the newest health service that both support: v1alpha1 in Kubernetes 1.34. That kubelet finds a claim
    only if the claim's name equals the name of the claim's entry in the pod."""

    def health() -> str:
        pod = node.plane.expect("GET", "/api/v1/namespaces/default/pods/health")
        for status in pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus", ()):
            if status["name"] == "claim:net":
                return str(status["resources"][0].get("health"))
        return "not reported"

    claim = {"metadata": {"name": "net"}, "spec": claim_spec({"name": "net1"}, "rail3")}
    node.plane.expect("POST", f"{API}/namespaces/default/resourceclaims", claim)
    node.run_pod(node.pod("health", resourceClaims=[{"name": "net", "resourceClaimName": "net"}]))
    node.plane.wait_for(lambda: health() == "Healthy", "the device to be healthy", 30)
    ip("-n switch link set wire3 down")
    node.plane.wait_for(lambda: health() == "Unhealthy", "the device to be unhealthy", 30)
    ip("-n switch link set wire3 up")
    node.plane.wait_for(lambda: health() == "Healthy", "the device to be healthy again", 30)
    end(node, driver, "health")


def preflight(folder: Path) -> list[str]:
    """The problems with the container runtime that the role's preflight module reports."""
    options = {"kubelet_version": "v1.37.1", "python": sys.executable}
    arguments = folder / "arguments.json"
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": options}))
    program = "ansible_collections.lanewise.dra.plugins.modules.dra_driver_preflight"
    command = [sys.executable, "-m", program, str(arguments)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert result["runtime"].startswith("containerd 2.")
    return [problem for problem in result["problems"] if "containerd" in problem]


@contextlib.contextmanager
def containerd_with(node: Node, line: str) -> t.Iterator[None]:
    node.reconfigure_containerd(line)
    try:
        yield
    finally:
        node.reconfigure_containerd()


def test_containerd_ignores_the_former_option_for_cdi(node: Node, driver: Driver, tmp_path: Path) -> None:
    """containerd logs that it ignores the key."""
    assert preflight(tmp_path) == []
    with containerd_with(node, "enable_cdi = false"):
        assert preflight(tmp_path) == []
        log = node.plane.log("containerd").read_text()
        assert any("Ignoring unknown key" in line and "key=enable_cdi" in line for line in log.splitlines())
        node.run_pod(node.pod("cdi", resourceClaims=[template(driver, "cdi", {"name": "net1"}, "rail1")]))
        assert "net1" in links(node, "cdi")
        end(node, driver, "cdi")


def test_a_containerd_that_ignores_the_drivers_specs_is_reported(node: Node, driver: Driver, tmp_path: Path) -> None:
    """The role reports it before the installation, and no container starts without its device. The device may already
    be in the pod's network namespace. It returns to the node when the pod ends, although the pod never ran."""

    def expect_no_start(name: str) -> None:
        claim = template(driver, name, {"name": "net1"}, "rail1")
        node.plane.expect("POST", "/api/v1/namespaces/default/pods", node.pod(name, resourceClaims=[claim]))
        reason = "unresolvable CDI devices"
        node.plane.wait_for(lambda: any(reason in line for line in node.events(name)), reason, 30)

    before = host_state("rail1")
    with containerd_with(node, 'cdi_spec_dirs = ["/etc/cdi"]'):
        (problem,) = preflight(tmp_path)
        assert "Add it to cdi_spec_dirs in" in problem and str(node.folder / "containerd.toml") in problem
        expect_no_start("never")
        end(node, driver, "never")
        assert host_state("rail1") == before
        expect_no_start("unread")
        without_delay = "from lanewise_driver import cli; cli.START_TIMEOUT_SECONDS = 0; raise SystemExit(cli.main())"
        command = [sys.executable, "-c", without_delay, "doctor"]
        doctor = subprocess.run(command, capture_output=True, text=True, check=False)
        assert doctor.returncode == 1 and "the container runtime does not read /var/run/cdi" in doctor.stdout
    node.plane.wait_for(lambda: "net1" in _links_if_ready(node, "unread"), "the pod, now that it can start", 60)
    assert subprocess.run([sys.executable, "-m", "lanewise_driver.cli", "doctor"], check=False).returncode == 0
    end(node, driver, "unread")
    assert host_state("rail1") == before


def end(node: Node, driver: Driver, pod: str) -> None:
    """Delete a pod, and wait until nothing of its claim remains."""
    node.delete_pod(pod)
    node.plane.wait_for(lambda: not driver.claim_files(), "the claim's files to be removed", 30)


def _links_if_ready(node: Node, pod: str) -> dict[str, Object]:
    try:
        return links(node, pod)
    except Failed:
        return {}
