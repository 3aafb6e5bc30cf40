# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.interface_sysctls import InterfaceSysctls
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run
from ansible_collections.lanewise.dra.tests.host.node import apply, node, refusals

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
        *(("proxy_arp_pvlan", 1, 0), ("ignore_routes_with_linkdown", 1, 0), ("drop_gratuitous_arp", 1, 0)),
        *(("disable_policy", 1, 0), ("disable_xfrm", 1, 0)),
        *(("drop_unicast_in_l2_multicast", 1, 0), ("accept_source_route", 0, 1), ("bc_forwarding", 0, 1)),
        *(
            (("arp_evict_nocarrier", 0, 1),)
            if os.path.exists("/proc/sys/net/ipv4/conf/all/arp_evict_nocarrier")
            else ()
        ),
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
def test_a_stable_secret_is_set_and_is_only_unset_by_a_reboot():
    """Before it is set, its file exists but cannot be read. The kernel shows the address with all its zeros."""
    pair("rail0")
    apply(InterfaceSysctls, {"rail0": {"sysctls": {"ipv6": {"stable_secret": "2001:DB8::7"}}}})
    assert sysctl_value("stable_secret", family="ipv6") == "2001:0db8:0000:0000:0000:0000:0000:0007"
    system = System()
    resource, target = InterfaceSysctls(system), node(system, {})
    stored = resource.from_stored("ipv6.stable_secret", "2001:0db8:0000:0000:0000:0000:0000:0007")
    assert not resource.plan(target, {"rail0": {"ipv6.stable_secret": stored}}).changes
    plan = resource.plan(target, {"rail0": {"ipv6.stable_secret": None}})
    assert not plan.changes and plan.reboot == ["ipv6.stable_secret of rail0 was not set, and only a reboot unsets it"]
    change = Change("interface_sysctls", "rail0", "ipv6.stable_secret", stored, None)
    with pytest.raises(HostError, match="cannot unset it"):
        resource.apply(target, change)
    with pytest.raises(AssertionError, match="nothing was refused"):
        refusals(InterfaceSysctls, {"rail0": {"sysctls": {"ipv6": {"stable_secret": "2001:db8::7"}}}})


@on_a_node
def test_unknown_names_and_paths_are_refused():
    pair("rail0")
    for name in ("arp_ignores", "../all/rp_filter"):
        refused = refusals(InterfaceSysctls, {"rail0": {"sysctls": {"ipv4": {"arp_ignore": 1, name: 1}}}})
        assert len(refused) == 1 and f"rail0.{name}" in refused[0]
    assert sysctl_value("arp_ignore") == "0"
