# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role fabric over SSH in difficult cases: changes of the node's uplink, a VF in a container, a killed run. Normal
cases are in molecule/fabric."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.lab.node import Lab

SITE = {
    "fabric_nics": [
        {
            "name": "rails",
            "select": {"driver": ["igb"]},
            "count": 2,
            "num_vfs": 2,
            "mtu": 4200,
            "vf": {"trust": True, "spoof_check": False},
            "ethtool": {"rings": {"rx": 512}},
        }
    ],
    "fabric_node": {
        "sysctl": {"net.core.rmem_max": 8388608},
        "hugepages": [{"size": "2M", "count": 8}],
        "memlock_unlimited": True,
        "kernel_modules": ["ib_core"],
    },
}

#: systemd-networkd configures an address and a VLAN on a rail, and the boot waits for them.
NETWORK = """
cd /etc/systemd/network
printf '[Match]\\nPath=pci-0000:23:00.0\\n[Network]\\nAddress=192.0.2.1/24\\nVLAN=storage\\n' > 20-rail.network
printf '[NetDev]\\nName=storage\\nKind=vlan\\n[VLAN]\\nId=7\\n' > 20-storage.netdev
printf '[Match]\\nName=storage\\n[Network]\\nAddress=198.51.100.1/24\\n' > 20-storage.network
rm -f /etc/systemd/system/systemd-networkd-wait-online.service
systemctl daemon-reload
systemctl --quiet enable systemd-networkd-wait-online
networkctl reload
/usr/lib/systemd/systemd-networkd-wait-online --interface storage --timeout 120
"""
RAIL = {
    "fabric_nics": [
        {
            "name": "rail",
            "select": {"address": ["0000:23:00.0"]},
            "num_vfs": 2,
            "rail_routes": {"table": 100, "gateway": "192.0.2.254"},
        },
        {"name": "storage", "select": {"type": "virtual", "interface": ["storage"]}, "count": 1, "mtu": 1400},
    ]
}


def ansible(program: str, *arguments: str, fails: bool = False) -> str:
    """Run an Ansible program, which must succeed, or with `fails` must fail. Returns its output."""
    paths = filter(None, [str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH")])
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=COLLECTION,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(paths),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    assert (done.returncode != 0) is fails, text
    return text


class Site:
    """One node, and the playbook for it."""

    def __init__(self, lab: Lab) -> None:
        self.node = lab.nodes[0]
        self._lab = lab

    @property
    def inventory(self) -> str:
        """The inventory. It is rewritten each time, as a restored node has another port."""
        return str(self._lab.write_inventory())

    def play(self, variables: Object, *options: str, fails: bool = False) -> str:
        """Run the playbook. Returns its output."""
        arguments = ("-i", self.inventory, "-e", json.dumps(variables), *options)
        return ansible("ansible-playbook", "lanewise.dra.fabric", *arguments, fails=fails)

    def vfs(self) -> list[str]:
        return self.node.ssh("cat /sys/bus/pci/devices/*/sriov_numvfs").split()


@pytest.fixture(name="site", scope="module")
def _site() -> t.Iterator[Site]:
    with Lab() as lab:
        lab.start(1)
        yield Site(lab)


def test_a_change_of_the_uplink_needs_permission_and_a_confirmation(site: Site) -> None:
    site.node.restore()
    uplink = {"fabric_nics": [{"name": "uplink", "select": {"interface": ["mgmt0"]}, "mtu": 1400}]}
    uplink["fabric_persist"] = False  # type: ignore[assignment]
    text = site.play(uplink, fails=True)
    assert "nothing was changed" in text and "mgmt0: it carries" in text and "allow_management" in text
    assert site.node.ssh("cat /sys/class/net/mgmt0/mtu") == "1500"

    allowed = {**uplink, "fabric_allow_management": True, "fabric_rollback_after": 60}
    site.play(allowed)  # the node is reachable afterwards, so the run confirms the change
    assert site.node.ssh("cat /sys/class/net/mgmt0/mtu") == "1400"
    assert "lanewise-fabric-undo" not in site.node.ssh("systemctl list-units --all --plain --no-legend")

    # without a confirmation, the node rolls back the change and its persistent configuration
    module = json.dumps({"nics": [{"select": {"interface": ["mgmt0"]}, "mtu": 1300}], "persist": True})
    more = {**json.loads(module), "allow_management": True, "rollback_after": 40}
    at_boot = "ls /etc/lanewise/fabric.json /etc/systemd/system/multi-user.target.wants/lanewise-fabric.service; true"
    on_it = ("ansible", "-i", site.inventory, "all", "-b", "-m", "lanewise.dra.fabric", "-a")
    (name,) = re.findall(r'"id": "(\d+)"', ansible(*on_it, json.dumps(more)))
    assert len(site.node.ssh(at_boot).split()) == 2
    for mode in ((), ("--check",)):  # the rollback would also undo another run's changes
        assert f"lanewise-fabric-undo-{name}.timer" in ansible(*on_it, json.dumps(more), *mode, fails=True)
    deadline = time.monotonic() + 150
    while site.node.ssh("cat /sys/class/net/mgmt0/mtu") != "1400":
        assert time.monotonic() < deadline
        time.sleep(2)
    assert not site.node.ssh(at_boot)
    assert "not confirmed in time" in ansible(*on_it, json.dumps({"confirm": name}), fails=True)

    # if a step fails, the run restores everything and leaves no timer behind
    text = ansible(*on_it, json.dumps({**more, "node": {"sysctl": {"kernel.pid_max": "1"}}}), fails=True)
    assert "kernel.pid_max" in text and "in its previous state" in text and '"rollback": null' in text
    assert "lanewise-fabric-undo" not in site.node.ssh("systemctl list-units --all --plain --no-legend")
    assert site.node.ssh("cat /sys/class/net/mgmt0/mtu") == "1400"


def test_settings_that_need_the_network_are_set_after_a_reboot(site: Site) -> None:
    site.node.restore()
    site.node.ssh(NETWORK)
    assert "changed=1" in site.play(RAIL)
    show = "ip route get 203.0.113.1 from 192.0.2.1; ip rule show table 100; cat /sys/class/net/storage/mtu"
    before = site.node.ssh(show)
    assert "via 192.0.2.254" in before and "table 100" in before and before.endswith("1400")
    site.node.reboot()
    units = "lanewise-fabric.service", "lanewise-fabric-network.service"
    assert site.node.ssh(f"systemctl is-active {' '.join(units)}").split() == ["active"] * 2
    assert site.node.ssh(show) == before
    assert site.vfs() == ["2", "0"]
    assert "changed=0" in site.play(RAIL)
    ended = "systemctl show --property ExecMainExitTimestampMonotonic --value"
    first, last = (int(site.node.ssh(f"{ended} {unit}")) for unit in units)
    assert first < int(site.node.ssh(f"{ended} systemd-networkd-wait-online")) < last


def test_a_vf_in_a_container_is_not_changed(site: Site) -> None:
    site.node.restore()
    site.play(SITE)
    site.node.ssh(
        "ip netns add pod; ip link set dev $(ls /sys/bus/pci/devices/0000:23:00.0/virtfn0/net) netns pod; "
        "ip netns exec pod sleep 600 >/dev/null 2>&1 &"
    )
    fewer = json.loads(json.dumps(SITE))
    fewer["fabric_nics"][0]["num_vfs"] = 1
    text = site.play(fewer, fails=True)
    assert "in another network namespace" in text and "drain the node first" in text
    assert site.vfs() == ["2", "2"]


def test_a_killed_run_is_finished_by_the_next(site: Site) -> None:
    site.node.restore()
    site.node.ssh(
        "nohup sh -c 'until [ $(cat /sys/bus/pci/devices/0000:23:00.0/sriov_numvfs) = 2 ]; do :; done; "
        "kill -9 $(cat /run/lanewise/fabric.lock)' >/dev/null 2>&1 &"
    )
    site.play(SITE, fails=True)
    assert site.vfs() != ["0", "0"]
    site.play(SITE)
    assert site.vfs() == ["2", "2"]
    assert "changed=0" in site.play(SITE)
