# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each change of a run fails once, in each of the ways that kernels fail, and the node is as it was before."""

from __future__ import annotations

import errno
import re
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.resource import Resource
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.ethtool import Ethtool
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.interface_sysctls import InterfaceSysctls
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.mtu import Mtu
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.rail_routes import RailRoutes
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run, shown, wait_for_ipv6, without_dad
from ansible_collections.lanewise.dra.tests.host.faults import ERRORS, FailingSystem
from ansible_collections.lanewise.dra.tests.host.node import node
from lanewise_driver.kernel import ethtool

CODES = (errno.EBUSY, errno.EIO, errno.ERANGE, errno.ENODEV, errno.EPERM)
RESOURCES: tuple[type[Resource], ...] = (Ethtool, Mtu, InterfaceSysctls, RailRoutes)
SETTINGS: dict[str, dict[str, t.Any]] = {
    f"rail{number}": {
        "mtu": 9000,
        "ethtool": {"channels": {"rx": 2, "tx": 2}, "features": {"tx-tcp-segmentation": False}},
        "sysctls": {"ipv4": {"arp_ignore": 2, "rp_filter": 2}, "ipv6": {"accept_ra": 0}},
        "rail_routes": {"table": 100 + number, "gateway": f"10.{number}.0.254"},
    }
    for number in (0, 1)
}


def seen() -> dict[str, str]:
    found = {f"{name} {key}": text for name in SETTINGS for key, text in shown(name).items()}
    with ethtool.Ethtool() as by_ioctl:
        return {**found, **{f"{name} ethtool": str(by_ioctl.read(name)) for name in SETTINGS}}


def attempt(system: FailingSystem) -> Failed | None:
    try:
        converge(node(system, SETTINGS), [resource(system) for resource in RESOURCES])
    except Failed as failed:
        return failed
    finally:
        system.close()
    return None


#: Of an error of the kernel, and of any other in turn.
SURPRISES = [name for name in ERRORS if not name.startswith("E") and name != "interrupted"]


@pytest.mark.parametrize("after", [False, True], ids=["not made", "made, and the answer lost"])
@on_a_node
def test_the_node_is_as_before_wherever_a_run_fails(after: bool):
    without_dad()
    for number in (0, 1):
        queues = "numtxqueues 4 numrxqueues 4"
        run(f"ip link add rail{number} {queues} type veth peer name far{number} {queues}")
        run(f"ip link set rail{number} up; ip link set far{number} up")
        run(f"ip addr add 10.{number}.0.1/24 dev rail{number}")
    run("ip route add 10.9.0.0/24 dev rail1 src 10.1.0.1 table 101 proto static")
    wait_for_ipv6()
    before = seen()
    number = 0
    while True:
        system = FailingSystem(number, error=ERRORS[SURPRISES[number % len(SURPRISES)]], after=after)
        failed = attempt(system)
        if failed is None:
            break
        assert seen() == before and failed.surprise and not failed.remaining, f"{failed} after {system.steps[number]}"
        system = FailingSystem(number, CODES[number % len(CODES)], after)
        failed = attempt(system)
        assert failed and seen() == before, f"after {system.steps[number]}"
        text = str(failed)
        assert failed.error.step == system.steps[number] and failed.error.step in text
        assert re.search(r"for rail[01]|of rail[01]", failed.error.step), "the device is named"
        assert errno.errorcode[CODES[number % len(CODES)]] in text and failed.error.fix
        assert "the node is as it was" in text.lower() and not failed.remaining
        number += 1
    assert not system.failed and number == len(system.steps) >= 21
    assert seen() != before


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
@on_a_node
def test_what_cannot_be_undone_is_told(code: int):
    """The second failure is of the undoing: what still stands is named."""
    pair("rail0")
    pair("rail1")

    class Twice(FailingSystem):
        def _change(self, step, change):
            if len(self.steps) == 2:
                self._fails = 2
            return super()._change(step, change)

    system = Twice(1, code)
    rules = {name: {"mtu": 9000} for name in ("rail0", "rail1")}
    left = "rail0: mtu is 9000 and was 1500: cannot set mtu of rail0 to 1500"
    with pytest.raises(Failed, match=f"The node is not as it was before this run: {left}"):
        converge(node(system, rules), [Mtu(system)])
    assert "mtu 9000" in run("ip link show rail0") and "mtu 1500" in run("ip link show rail1")
    system.close()
