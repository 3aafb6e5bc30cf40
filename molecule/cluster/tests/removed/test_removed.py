# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Everything of the collection is removed from the node and the cluster."""

from __future__ import annotations

import json

CARDS = ("0000:23:00.0", "0000:43:00.0")


def test_the_node_has_nothing_left(host):
    for path in ("/opt/lanewise", "/etc/lanewise", "/var/lib/kubelet/plugins/lanewise.dev"):
        assert not host.file(path).exists
    # the lock of concurrent runs stays until the next boot
    assert host.file("/run/lanewise").listdir() == ["fabric.lock"]
    for unit in ("lanewise-driver", "lanewise-fabric", "lanewise-fabric-network"):
        assert not host.file(f"/etc/systemd/system/{unit}.service").exists
        assert not host.service(unit).is_running
    assert host.check_output("find /var/run/cdi -name '*lanewise*'") == ""


def test_the_cards_have_their_original_settings(host):
    for card in CARDS:
        assert host.file(f"/sys/bus/pci/devices/{card}/sriov_numvfs").content_string.strip() == "0"
        interface = host.check_output("ls /sys/bus/pci/devices/%s/net", card)
        (link,) = json.loads(host.check_output("ip -json link show %s", interface))
        assert (link["mtu"], link["operstate"]) == (1500, "UP")
    (link,) = json.loads(host.check_output("rdma -j link"))
    assert link["netdev"] == host.check_output("ls /sys/bus/pci/devices/%s/net", CARDS[1])


def test_the_cluster_has_nothing_left(get):
    assert not [item for item in get("resourceslices") if item["spec"]["driver"] == "lanewise.dev"]
    assert get("resourceclaims,resourceclaimtemplates", "--all-namespaces") == get("deviceclasses") == []
    kinds = "namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies"
    assert not [item["metadata"]["name"] for item in get(kinds) if "lanewise" in item["metadata"]["name"]]
