# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role fabric over SSH: what is predicted is done, once, and again after a boot; what is in the way is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.lab.node import Lab

COLLECTION = Path(__file__).absolute().parents[2]
PLAY = """
- hosts: all
  gather_facts: false
  become: true
  roles: [lanewise.dra.fabric]
  post_tasks:
    - name: Hand the results over
      ansible.builtin.copy:
        content: "{{ {'plan': fabric_plan, 'done': __fabric_done | default({})} | to_json }}"
        dest: "{{ result_file }}"
        mode: "0600"
      delegate_to: localhost
      become: false
      check_mode: false
      diff: false
      changed_when: false
"""
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

Object = dict[str, t.Any]


class Site:
    """One node, and ansible-playbook for it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.node = lab.nodes[0]
        self._lab = lab
        self._folder = folder

    @property
    def inventory(self) -> str:
        """A node that was restored answers on another port."""
        return str(self._lab.write_inventory(self._folder / "inventory.json"))

    def play(self, variables: Object, *options: str, fails: bool = False) -> tuple[Object, str]:
        """Run the role. What it planned and did, and all that was printed."""
        (self._folder / "play.yml").write_text(PLAY)
        result = self._folder / "result.json"
        result.unlink(missing_ok=True)
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        given = json.dumps({**variables, "result_file": str(result)})
        done = subprocess.run(
            [program, "-i", self.inventory, str(self._folder / "play.yml"), "-e", given, *options],
            cwd=COLLECTION,
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTION.parents[2]), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        text = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, text
        return (json.loads(result.read_text()) if result.exists() else {}), text

    def vfs(self) -> list[str]:
        return self.node.ssh("cat /sys/bus/pci/devices/*/sriov_numvfs").split()


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Lab() as lab:
        lab.start(1)
        yield Site(lab, folder)


def changes(plan: Object) -> list[tuple[str, str, str, t.Any]]:
    return [(one["resource"], one["device"], one["setting"], one["after"]) for one in plan["changes"]]


def test_what_is_predicted_is_done_once_and_undone(site: Site) -> None:
    site.node.restore()
    told, shown = site.play(SITE, "--check", "--diff")
    predicted = changes(told["plan"])
    assert site.vfs() == ["0", "0"] and "num_vfs: 2" in shown
    assert ("sriov", "0000:23:00.0", "num_vfs", 2) in predicted

    done, _text = site.play(SITE)
    assert changes(done["done"]) == predicted
    assert site.vfs() == ["2", "2"]
    assert "trust on" in site.node.ssh("ip link show dev $(ls /sys/bus/pci/devices/0000:23:00.0/net)")

    again, text = site.play(SITE)
    assert not changes(again["plan"]) and again["done"] == {}
    assert "changed=0" in text

    # by hand, as people do
    site.node.ssh("echo 0 > /sys/bus/pci/devices/0000:43:00.0/sriov_numvfs; sysctl -q -w net.core.rmem_max=4194304")
    drift, _text = site.play(SITE, "--check")
    assert {one[:3] for one in changes(drift["plan"])} >= {
        ("sriov", "0000:43:00.0", "num_vfs"),
        ("vf", "0000:43:00.0 vf 0", "trust"),
        ("sysctl", "node", "net.core.rmem_max"),
    }
    assert not any(device.startswith("0000:23") for _resource, device, _setting, _after in changes(drift["plan"]))
    site.play(SITE)
    assert site.vfs() == ["2", "2"]

    site.play({"fabric_state": "absent"})
    assert site.vfs() == ["0", "0"]
    left = "ls -d /etc/lanewise/fabric.json /opt/lanewise/fabric/fabric.pyz /etc/systemd/system/lanewise-fabric.service"
    assert site.node.ssh(f"{left} /etc/sysctl.d/90-lanewise.conf 2>/dev/null", check=False) == ""
    assert not changes(site.play({"fabric_state": "absent"}, "--check")[0]["plan"])


def test_a_reboot_keeps_everything(site: Site) -> None:
    site.node.restore()
    site.play(SITE)
    site.node.reboot()
    assert site.node.ssh("systemctl is-active lanewise-fabric", check=False) == "active"
    after, _text = site.play(SITE)
    assert not changes(after["plan"])


def test_what_the_node_is_reached_by(site: Site) -> None:
    site.node.restore()
    uplink = {"fabric_nics": [{"name": "uplink", "select": {"interface": ["mgmt0"]}, "mtu": 1400}]}
    uplink["fabric_persist"] = False  # type: ignore[assignment]
    _none, text = site.play(uplink, fails=True)
    assert "nothing was changed" in text and "mgmt0: it carries" in text and "allow_management" in text
    assert site.node.ssh("cat /sys/class/net/mgmt0/mtu") == "1500"

    allowed = {**uplink, "fabric_allow_management": True, "fabric_rollback_after": 60}
    site.play(allowed)  # reached anew, and confirmed
    assert site.node.ssh("cat /sys/class/net/mgmt0/mtu") == "1400"
    assert "lanewise-fabric-undo" not in site.node.ssh("systemctl list-units --all --plain --no-legend")

    # nobody confirms: the node takes it back by itself
    module = json.dumps({"nics": [{"select": {"interface": ["mgmt0"]}, "mtu": 1300}], "persist": False})
    more = json.dumps({**json.loads(module), "allow_management": True, "rollback_after": 10})
    program = str(Path(sys.executable).with_name("ansible"))
    subprocess.run(
        [program, "-i", site.inventory, "all", "-b", "-m", "lanewise.dra.fabric", "-a", more],
        cwd=COLLECTION,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTION.parents[2])},
        check=True,
        capture_output=True,
    )
    deadline = time.monotonic() + 90
    while site.node.ssh("cat /sys/class/net/mgmt0/mtu") != "1400":
        assert time.monotonic() < deadline
        time.sleep(2)


def test_a_vf_in_a_container_is_left_alone(site: Site) -> None:
    site.node.restore()
    site.play(SITE)
    site.node.ssh(
        "ip netns add pod; ip link set dev $(ls /sys/bus/pci/devices/0000:23:00.0/virtfn0/net) netns pod; "
        "ip netns exec pod sleep 600 >/dev/null 2>&1 &"
    )
    fewer = json.loads(json.dumps(SITE))
    fewer["fabric_nics"][0]["num_vfs"] = 1
    _none, text = site.play(fewer, fails=True)
    assert "in another network namespace" in text and "drain the node first" in text
    assert site.vfs() == ["2", "2"]


def test_a_killed_run_is_finished_by_the_next(site: Site) -> None:
    site.node.restore()
    site.node.ssh(
        "nohup sh -c 'until [ $(cat /sys/bus/pci/devices/0000:23:00.0/sriov_numvfs) = 2 ]; do :; done; "
        "pkill -9 -f AnsiballZ_fabric' >/dev/null 2>&1 &"
    )
    site.play(SITE, fails=True)
    assert site.vfs() != ["0", "0"]
    site.play(SITE)
    assert site.vfs() == ["2", "2"]
    assert not changes(site.play(SITE)[0]["plan"])
