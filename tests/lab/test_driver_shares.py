# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rates of shares by virtual functions: by the interface of netdevsim and of igb, and by devlink of netdevsim in
switchdev mode. They are set and read back; whether hardware enforces them is not tried here."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.lab import test_driver_kernel as kernel
from ansible_collections.lanewise.dra.tests.lab.node import Node
from ansible_collections.lanewise.dra.tests.lab.test_driver_kernel import _one, _pod, virtual

__all__ = ["_one", "_pod"]

SIMULATED = "netdevsim/netdevsim7"
BEGIN = """
from lanewise_driver.dra.config.share_rates import InForce
from lanewise_driver.kernel.devlink import Devlink
from lanewise_driver.kernel.vf import Function
from lanewise_driver.shares import by_vf
M = 10**6
zero, one = (Function("netdevsim7", number, "netdevsim") for number in range(2))
"""


def python(node: Node, program: str) -> t.Any:
    return kernel.python(node, BEGIN + program)


@pytest.fixture
def simulated(one: Node) -> t.Iterator[Node]:
    one.ssh("modprobe netdevsim; echo '7 1' > /sys/bus/netdevsim/new_device; udevadm settle")
    one.ssh("echo 2 > /sys/bus/netdevsim/devices/netdevsim7/sriov_numvfs")
    yield one
    one.ssh("echo 7 > /sys/bus/netdevsim/del_device")


def of_interface(node: Node, name: str) -> list[tuple[int, int]]:
    (link,) = json.loads(node.ssh(f"ip -json -details link show {name}"))
    return [(one["rate"]["min_tx"], one["rate"]["max_tx"]) for one in link["vfinfo_list"]]


def of_ports(node: Node) -> list[tuple[int, int]]:
    """What devlink shows, in Mbit/s."""
    shown = json.loads(node.ssh("devlink -j port function rate show"))["rate"]
    leaves = [shown[name] for name in sorted(shown) if name.startswith(f"{SIMULATED}/") and "type" in shown[name]]
    return [tuple(one.get(name, 0) * 8 // 10**6 for name in ("tx_share", "tx_max")) for one in leaves]  # type: ignore[misc]


def test_minimum_and_maximum_by_the_interface(simulated: Node) -> None:
    name = simulated.ssh("ls /sys/bus/netdevsim/devices/netdevsim7/net").split()[0]
    python(simulated, "by_vf.set_rates_of({zero: InForce(700 * M, 1000 * M), one: InForce(200 * M, 500 * M)})")
    assert of_interface(simulated, name) == [(700, 1000), (200, 500)]
    python(simulated, "by_vf.set_rates_of({zero: InForce(100 * M, 100 * M), one: InForce(800 * M, 900 * M)})")
    assert of_interface(simulated, name) == [(100, 100), (800, 900)]


def test_share_and_maximum_by_devlink(simulated: Node) -> None:
    """In switchdev mode the interface takes no rates."""
    simulated.ssh(f"devlink dev eswitch set {SIMULATED} mode switchdev; udevadm settle")
    python(simulated, "by_vf.set_rates_of({zero: InForce(700 * M, 1000 * M), one: InForce(200 * M, 500 * M)})")
    assert of_ports(simulated) == [(700, 1000), (200, 500)]
    shown = python(
        simulated,
        """
by_vf.set_rates_of({zero: InForce(100 * M, 100 * M), one: InForce(800 * M + 5, 900 * M)})
with Devlink() as devlink: tell([devlink.is_switchdev(zero), devlink.read(zero), devlink.read(one)])
""",
    )
    assert shown == [True, [100 * 10**6, 100 * 10**6], [800 * 10**6, 900 * 10**6]]
    python(simulated, "by_vf.clear_of(one)")
    assert of_ports(simulated) == [(100, 100), (0, 0)]


@pytest.mark.usefixtures("pod")
def test_igb_takes_a_maximum_only(one: Node) -> None:
    """It gets the guarantee as the maximum, so that no share can take another's."""
    name, address, _interface = virtual(one)
    python(one, f"by_vf.set_rates({{ {address!r}: InForce(700 * M, 1000 * M) }})")
    assert of_interface(one, name)[1] == (0, 700)
    python(one, f"by_vf.set_rates({{ {address!r}: InForce(200 * M, 1000 * M) }})")
    assert of_interface(one, name)[1] == (0, 200)
