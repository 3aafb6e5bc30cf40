# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.interface_sysctls import InterfaceSysctls
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run
from ansible_collections.lanewise.dra.tests.host.node import apply, refusals

SYSCTLS = {"ipv4": {"arp_ignore": 2, "arp_announce": 2, "rp_filter": 2, "accept_local": True}, "ipv6": {"accept_ra": 0}}


def sysctl_value(name: str, interface: str = "rail0", family: str = "ipv4") -> str:
    with open(f"/proc/sys/net/{family}/conf/{interface}/{name}") as file:
        return file.read().strip()


@on_a_node
def test_a_rail_gets_its_sysctls_and_no_other_interface_does():
    pair("rail0")
    pair("rail1")
    outcome = apply(InterfaceSysctls, {"rail0": {"sysctls": SYSCTLS}})
    assert {change.setting for change in outcome.changes} >= {"ipv4.arp_ignore", "ipv4.accept_local", "ipv6.accept_ra"}
    assert [sysctl_value(name) for name in ("arp_ignore", "arp_announce", "rp_filter")] == ["2", "2", "2"]
    assert sysctl_value("accept_local") == "1"
    assert sysctl_value("accept_ra", family="ipv6") == "0"
    assert [sysctl_value(name, "rail1") for name in ("arp_ignore", "arp_announce", "accept_local")] == ["0", "0", "0"]


@on_a_node
def test_a_name_with_a_dot_is_one_interface():
    pair("lower")
    pair("lower.100", "far")
    apply(InterfaceSysctls, {"lower.100": {"sysctls": {"ipv4": {"arp_ignore": 1}}}})
    assert (sysctl_value("arp_ignore", "lower.100"), sysctl_value("arp_ignore", "lower")) == ("1", "0")


@on_a_node
def test_a_value_that_the_all_interfaces_sysctl_overrides_is_refused():
    """The kernel combines both values (the larger, either or both), so the value of the interface has no effect."""
    pair("rail0")
    for name, for_all, wanted in (
        *(("rp_filter", 1, 0), ("arp_announce", 2, 1), ("accept_local", 1, 0)),
        ("accept_source_route", 0, 1),
    ):
        run(
            f"echo {for_all} > /proc/sys/net/ipv4/conf/all/{name}; echo {wanted} > /proc/sys/net/ipv4/conf/rail0/{name}"
        )
        refused = refusals(InterfaceSysctls, {"rail0": {"sysctls": {"ipv4": {name: wanted}}}})
        assert f"since net.ipv4.conf.all.{name} is {for_all}" in refused[0]
        fixed = {"sysctl": {f"net.ipv4.conf.all.{name}": wanted}}
        # a run that also sets the sysctl of all interfaces is not refused
        with pytest.raises(AssertionError, match="nothing was refused"):
            refusals(InterfaceSysctls, {"rail0": {"sysctls": {"ipv4": {name: wanted}}}}, fixed)


@on_a_node
def test_unknown_names_and_paths_are_refused():
    pair("rail0")
    for name in ("arp_ignores", "../all/rp_filter"):
        refused = refusals(InterfaceSysctls, {"rail0": {"sysctls": {"ipv4": {"arp_ignore": 1, name: 1}}}})
        assert len(refused) == 1 and f"rail0.{name}" in refused[0]
    assert sysctl_value("arp_ignore") == "0"
