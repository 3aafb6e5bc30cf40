# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rates of shares by VFs: set by the interface of netdevsim and igb, and by devlink of netdevsim in switchdev mode.
They are set and read back. Whether hardware enforces them is not tested here.

Also whole shares (share_node.py), from publishing to detach, and with a driver that is killed at any step. They use igb
alone, and the interfaces of igb's VFs with the settings of netdevsim's VFs.
"""

from __future__ import annotations

import json
import os
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.lab import test_driver_kernel as kernel
from ansible_collections.lanewise.dra.tests.lab.cluster import packages
from ansible_collections.lanewise.dra.tests.lab.node import Node
from ansible_collections.lanewise.dra.tests.lab.test_driver_kernel import SYS, _pod, _vm, make_vfs, nics
from ansible_collections.lanewise.dra.tools import lab as artifacts

__all__ = ["_pod", "_vm"]

SIMULATED = "netdevsim/netdevsim7"
BEGIN = """
from lanewise_driver.dra.config.share_rates import EffectiveRate
from lanewise_driver.kernel.devlink import Devlink
from lanewise_driver.kernel.vf import Function
from lanewise_driver.shares import by_vf
M = 10**6
zero, one = (Function("netdevsim7", number, "netdevsim") for number in range(2))
"""


def python(node: Node, program: str) -> t.Any:
    return kernel.python(node, BEGIN + program)


@pytest.fixture
def simulated(vm: Node) -> t.Iterator[Node]:
    vm.ssh("modprobe netdevsim; echo '7 1' > /sys/bus/netdevsim/new_device; udevadm settle")
    vm.ssh("echo 2 > /sys/bus/netdevsim/devices/netdevsim7/sriov_numvfs")
    yield vm
    vm.ssh("echo 7 > /sys/bus/netdevsim/del_device")


def of_interface(node: Node, name: str) -> list[tuple[int, int]]:
    (link,) = json.loads(node.ssh(f"ip -json -details link show {name}"))
    return [(vf["rate"]["min_tx"], vf["rate"]["max_tx"]) for vf in link["vfinfo_list"]]


def of_ports(node: Node) -> list[tuple[int, int]]:
    """The rates that devlink shows, in Mbit/s."""
    shown = json.loads(node.ssh("devlink -j port function rate show"))["rate"]
    leaves = [shown[name] for name in sorted(shown) if name.startswith(f"{SIMULATED}/") and "type" in shown[name]]
    return [tuple(leaf.get(name, 0) * 8 // 10**6 for name in ("tx_share", "tx_max")) for leaf in leaves]  # type: ignore[misc]


def test_minimum_and_maximum_rates_are_set_by_the_interface(simulated: Node) -> None:
    name = simulated.ssh("ls /sys/bus/netdevsim/devices/netdevsim7/net").split()[0]
    rates = "{zero: EffectiveRate(700 * M, 1000 * M), one: EffectiveRate(200 * M, 500 * M)}"
    python(simulated, f"by_vf.set_rates_of({rates})")
    assert of_interface(simulated, name) == [(700, 1000), (200, 500)]
    rates = "{zero: EffectiveRate(100 * M, 100 * M), one: EffectiveRate(800 * M, 900 * M)}"
    python(simulated, f"by_vf.set_rates_of({rates})")
    assert of_interface(simulated, name) == [(100, 100), (800, 900)]


def test_shares_and_maximum_rates_are_set_by_devlink(simulated: Node) -> None:
    """In switchdev mode, rates cannot be set by the interface."""
    simulated.ssh(f"devlink dev eswitch set {SIMULATED} mode switchdev; udevadm settle")
    rates = "{zero: EffectiveRate(700 * M, 1000 * M), one: EffectiveRate(200 * M, 500 * M)}"
    python(simulated, f"by_vf.set_rates_of({rates})")
    assert of_ports(simulated) == [(700, 1000), (200, 500)]
    shown = python(
        simulated,
        """
by_vf.set_rates_of({zero: EffectiveRate(100 * M, 100 * M), one: EffectiveRate(800 * M + 5, 900 * M)})
with Devlink() as devlink: report([devlink.is_switchdev(zero), devlink.read(zero), devlink.read(one)])
""",
    )
    assert shown == [True, [100 * 10**6, 100 * 10**6], [800 * 10**6, 900 * 10**6]]
    python(simulated, "by_vf.clear_of(one)")
    assert of_ports(simulated) == [(100, 100), (0, 0)]


@pytest.mark.usefixtures("pod")
def test_igb_has_only_a_maximum_rate(vm: Node) -> None:
    """The guarantee is set as the maximum, so that no share can use another's bandwidth."""
    name, address, _interface = make_vfs(vm)
    python(vm, f"by_vf.set_rates({{ {address!r}: EffectiveRate(700 * M, 1000 * M) }})")
    assert of_interface(vm, name)[1] == (0, 700)
    python(vm, f"by_vf.set_rates({{ {address!r}: EffectiveRate(200 * M, 1000 * M) }})")
    assert of_interface(vm, name)[1] == (0, 200)


WAYS = ("igb", "legacy", "switchdev")
#: The driver is killed before every STRIDEth change of an operation.
STRIDE = int(os.environ.get("LANEWISE_STRIDE", "4"))
#: Seconds for a program that kills the driver many times, on emulated CPUs.
LONG = 3600


@pytest.fixture(name="pods", params=WAYS)
def _pods(vm: Node, request: pytest.FixtureRequest) -> t.Iterator[str]:
    """Two namespaces as pods, and a card with two VFs whose rates are set in the way of the parameter."""
    vm.copy(packages(), "/opt")
    vm.copy(artifacts.tools() / artifacts.LIBRARIES / "libstdc++.so.6", f"/{artifacts.LIBRARIES}")
    for program in ("lab/share_node.py", "driver/fake_cluster.py", "driver/driver_changes.py", "driver/killed.py"):
        vm.copy(COLLECTION / "tests" / program, "/opt/shares")
    make_vfs(vm)
    if request.param != "igb":
        request.getfixturevalue("simulated")
        if request.param == "switchdev":
            vm.ssh(f"devlink dev eswitch set {SIMULATED} mode switchdev; udevadm settle")
    vm.ssh("for pod in pod0 pod1; do ip netns add $pod; ip -n $pod link set lo up; done; rm -rf /run/shares")
    yield request.param
    vm.ssh("ip netns delete pod0; ip netns delete pod1", check=False)
    for device in nics(vm):
        vm.ssh(f"echo 0 > {SYS}/{device.address}/sriov_numvfs")


def program(node: Node, way: str, does: str, **more: t.Any) -> t.Any:
    ports = "igb" if way == "igb" else "netdevsim"
    request = {"pf": nics(node)[0].address, "ports": ports, "does": does, **more}
    reported = node.ssh("PYTHONPATH=/opt python3 /opt/shares/share_node.py", stdin=json.dumps(request), timeout=LONG)
    return json.loads(reported.splitlines()[-1])


def test_shares_are_attached_changed_and_detached(vm: Node, pods: str) -> None:
    """On igb, the guarantee is set as the maximum."""
    reported = program(vm, pods, "life")
    assert reported["published"]["bandwidth"]["value"] == "1G" and reported["published"]["vfs"]["value"] == "2"

    def wanted(*rates: int, most: int) -> list[list[int]]:
        if pods == "igb":
            return [[0, rate] for rate in rates]
        return [[rate, most if rate else 0] for rate in rates]

    nothing = wanted(0, 0, most=0)
    assert (reported["before"], reported["after"]) == (nothing, nothing)
    assert reported["one"] == wanted(500, 0, most=1000) and reported["both"] == wanted(500, 300, most=1000)
    assert reported["changed"] == wanted(375, 225, most=600) and reported["small alone"] == wanted(0, 300, most=600)
    assert reported["reported"] == [[rate * 10**6, (rate if pods == "igb" else 1000) * 10**6] for rate in (500, 300)]
    assert reported["pair"] == wanted(200, 100, most=600) and reported["pair's pod"] == ["lo", "net1", "net2"]
    plain = [False, pods == "igb"]  # netdevsim's default is not to check
    checks = {"checked before": plain, "checked": [True, True], "checked after": plain}
    assert {name: reported[name] for name in checks} == (dict.fromkeys(checks, []) if pods == "switchdev" else checks)
    assert reported["pods"] == [["lo", "net1"]] * 2 and reported["pods after"] == [["lo"]] * 2
    assert len(set(reported["held"])) == 2 and reported["files"] == []


@pytest.mark.parametrize("operation", ["attach", "detach", "change"])
def test_a_driver_killed_before_any_change_restores_the_rates(vm: Node, pods: str, operation: str) -> None:
    """After each restart, the rates are those of the attached claims. At the end, both VFs are on the node again."""
    reported = program(vm, pods, operation, first=0, stride=STRIDE)
    print(f"{operation} by {pods}: killed {reported['kills']} times in {reported['seconds']} s")
    assert reported["kills"] > 5 // STRIDE
