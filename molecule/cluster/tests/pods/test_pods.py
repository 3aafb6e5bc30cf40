# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node with a pod of the job: the devices that the pod got from the driver, and the traffic over them."""

from __future__ import annotations

import json
import time

SHARED, WHOLE = "0000:23:00.0", "0000:43:00.0"


def test_the_node_is_configured(host):
    assert host.file(f"/sys/bus/pci/devices/{SHARED}/sriov_numvfs").content_string.strip() == "2"
    assert host.file(f"/sys/bus/pci/devices/{WHOLE}/sriov_numvfs").content_string.strip() == "0"
    card = host.check_output("ls /sys/bus/pci/devices/%s/net", SHARED)
    (link,) = json.loads(host.check_output("ip -json -details link show %s", card))
    assert [vf["trust"] for vf in link["vfinfo_list"]] == [True, True]
    assert "netns exclusive" in host.check_output("rdma system show")


def test_the_driver_runs_as_a_service(host):
    service = host.service("lanewise-driver")
    assert service.is_running and service.is_enabled
    token = host.file("/etc/lanewise/token")
    assert (token.user, token.mode) == ("root", 0o600)
    assert host.file("/opt/lanewise/current").linked_to.startswith("/opt/lanewise/releases/1.0.0-")
    assert host.run("/opt/lanewise/current/bin/lanewise-driver status").rc == 0


def test_the_nodes_devices_are_published(name, get):
    slices = [item["spec"] for item in get("resourceslices") if item["spec"]["driver"] == "lanewise.dev"]
    devices = [device for spec in slices if spec.get("nodeName") == name for device in spec.get("devices", [])]
    kinds = [next(iter(device["attributes"]["type"].values())) for device in devices]
    assert sorted(kinds) == ["pf", "pf", "vf", "vf"]


def test_the_nodes_pod_runs_with_devices_of_the_claim(name, get):
    (pod,) = [item for item in get("pods", "--namespace=exchange") if item["spec"]["nodeName"] == name]
    assert pod["status"]["phase"] == "Running" and pod["status"]["containerStatuses"][0]["restartCount"] == 0
    (status,) = pod["status"]["resourceClaimStatuses"]
    (claim,) = [
        item for item in get("resourceclaims", "--namespace=exchange")
        if item["metadata"]["name"] == status["resourceClaimName"]
    ]  # fmt: skip
    allocated = {result["request"]: result for result in claim["status"]["allocation"]["devices"]["results"]}
    assert {result["pool"] for result in allocated.values()} == {name}
    assert allocated["whole"]["device"] == "pci-0000-43-00-0"
    assert allocated["shared"]["device"].startswith("pci-0000-23-1")
    devices = {device["device"]: device for device in claim["status"]["devices"]}
    for request, interface in (("shared", "net1"), ("whole", "net2")):
        device = devices[allocated[request]["device"]]
        conditions = {condition["type"]: condition["status"] for condition in device["conditions"]}
        assert conditions["Ready"] == "True"
        assert device["networkData"]["interfaceName"] == interface


def test_the_claimed_cards_are_in_the_pod(host, inside):
    links = {link["ifname"]: link for link in json.loads(inside("ip -json -details link"))}
    assert links["net1"]["operstate"] == links["net2"]["operstate"] == "UP"
    assert links["net1"]["parentdev"].startswith("0000:23:1") and links["net2"]["parentdev"] == WHOLE
    assert links["net2"]["mtu"] == 1400
    assert not host.file(f"/sys/bus/pci/devices/{WHOLE}/net").exists or not host.check_output(
        "ls /sys/bus/pci/devices/%s/net", WHOLE
    )


def test_the_rdma_device_is_in_the_pod_and_not_on_the_node(host, inside):
    (link,) = json.loads(inside("rdma -j link"))
    assert (link["ifname"], link["netdev"], link["state"]) == ("rxe0", "net2", "ACTIVE")
    devinfo = inside("ibv_devinfo --verbose")  # opens the device
    assert "rxe0" in devinfo and "PORT_ACTIVE" in devinfo
    assert json.loads(host.check_output("rdma -j link")) == []


def test_the_pods_exchange_data_over_both_interfaces(inside):
    """The number of exchanges grows on each interface, over the same connection."""
    before = {name: json.loads(inside(f"cat /tmp/{name}")) for name in ("net1", "net2")}
    deadline = time.monotonic() + 120
    for name, earlier in before.items():
        assert earlier["peer"].startswith("fe80::")
        while json.loads(inside(f"cat /tmp/{name}"))["exchanged"] < earlier["exchanged"] + 2:
            assert time.monotonic() < deadline, f"nothing is exchanged over {name} any more"
            time.sleep(1)
        assert json.loads(inside(f"cat /tmp/{name}"))["port"] == earlier["port"]


def test_the_pods_ping_each_other_by_rdma(inside):
    """Both pods ping, and rping compares each reply with what was sent."""

    def packets():
        (counters,) = json.loads(inside("rdma -j statistic show link rxe0/1"))
        return counters["sent_pkts"], counters["rcvd_pkts"]

    deadline = time.monotonic() + 300
    # the pods may have just started
    while inside("find /tmp -name net2.rdma") == "":
        assert time.monotonic() < deadline, "no ping came back"
        time.sleep(1)
    (sent, received), before = packets(), json.loads(inside("cat /tmp/net2.rdma"))
    assert before["peer"].startswith("fe80::")
    while json.loads(inside("cat /tmp/net2.rdma"))["pings"] < before["pings"] + 10:
        assert time.monotonic() < deadline, "no ping comes back any more"
        time.sleep(1)
    now = packets()
    assert now[0] > sent and now[1] > received
