# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each change of a run fails once, with a kernel error or an unexpected exception, and the node is restored."""

from __future__ import annotations

import errno
import os
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


def node_state() -> dict[str, str]:
    """What iproute2, /proc and ethtool show of the interfaces."""
    found = {f"{name} {key}": text for name in SETTINGS for key, text in shown(name).items()}
    with ethtool.Ethtool() as by_ioctl:
        return {**found, **{f"{name} ethtool": str(by_ioctl.read(name)) for name in SETTINGS}}


def attempt(system: FailingSystem) -> Failed | None:
    """The error with which a run ends; None if it succeeds."""
    try:
        converge(node(system, SETTINGS), [resource(system) for resource in RESOURCES])
    except Failed as failed:
        return failed
    finally:
        system.close()
    return None


#: The names of the errors that do not come from the kernel.
UNEXPECTED = [name for name in ERRORS if not name.startswith("E") and name != "interrupted"]
#: Whether each step meets both kinds of errors in each case.
SLOW = bool(os.environ.get("LANEWISE_SLOW"))


def check_message(failed: Failed, unexpected: bool, number: int, step: str) -> None:
    """Check the message of a failed run that has restored everything."""
    text = str(failed)
    assert "the node is in its previous state" in text.lower() and not failed.remaining, f"{text} after {step}"
    assert failed.unexpected == unexpected
    if not unexpected:
        assert failed.error.step == step and step in text
        assert re.search(r"for rail[01]|of rail[01]", step), "the step does not name the interface"
        assert errno.errorcode[CODES[number % len(CODES)]] in text and failed.error.fix


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before the change", "after the change"])
@on_a_node
def test_the_node_is_restored_if_any_step_on_the_real_kernel_fails(takes_effect: bool):
    """Each step fails before or after its change. Kernel errors and unexpected exceptions alternate, so that each step
    meets both over the two cases. With LANEWISE_SLOW each step meets both in each case."""
    without_dad()
    for number in (0, 1):
        queues = "numtxqueues 4 numrxqueues 4"
        run(f"ip link add rail{number} {queues} type veth peer name far{number} {queues}")
        run(f"ip link set rail{number} up; ip link set far{number} up")
        run(f"ip addr add 10.{number}.0.1/24 dev rail{number}")
    run("ip route add 10.9.0.0/24 dev rail1 src 10.1.0.1 table 101 proto static")
    wait_for_ipv6()
    before = node_state()
    number, system = -1, FailingSystem()
    while number < 0 or system.failed:
        number += 1
        for unexpected in (True, False) if SLOW else ((number + takes_effect) % 2 == 0,):
            code, kind = CODES[number % len(CODES)], UNEXPECTED[number % len(UNEXPECTED)]
            system = FailingSystem(number, code, takes_effect, error=ERRORS[kind] if unexpected else None)
            failed = attempt(system)
            if not system.failed:
                break
            assert failed and node_state() == before, f"{failed} after {system.steps[number]}"
            check_message(failed, unexpected, number, system.steps[number])
    assert number == len(system.steps) >= 21
    assert node_state() != before


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
@on_a_node
def test_a_change_that_cannot_be_undone_is_reported(code: int):
    """The second change fails, and so does the undo of the first. The message names the first change, which remains."""
    pair("rail0")
    pair("rail1")

    class FailingTwice(FailingSystem):
        """Also fails the first step of the undo."""

        def _change(self, step, change):
            if len(self.steps) == 2:
                self._fail_at = 2
            return super()._change(step, change)

    system = FailingTwice(1, code)
    rules = {name: {"mtu": 9000} for name in ("rail0", "rail1")}
    remaining = "rail0: mtu is 9000 and was 1500: cannot set mtu of rail0 to 1500"
    with pytest.raises(Failed, match=f"The node differs from its previous state: {remaining}"):
        converge(node(system, rules), [Mtu(system)])
    assert "mtu 9000" in run("ip link show rail0") and "mtu 1500" in run("ip link show rail1")
    system.close()
