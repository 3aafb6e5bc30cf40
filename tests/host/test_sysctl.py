# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sysctls that belong to a network namespace, so that the machine that runs the tests keeps its values."""

from __future__ import annotations

import errno
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.sysctl import PATH, Sysctl
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, run
from ansible_collections.lanewise.dra.tests.host.faults import FailingSystem

SETTINGS = {
    "net.ipv4.tcp_rmem": "4096 131072 16777216",
    "net.core.somaxconn": 8192,
    "net.ipv4.conf.all.arp_ignore": True,
}


def _hide_sysctl_files() -> None:
    for folder in ("/etc/sysctl.d", "/usr/lib/sysctl.d"):
        run(f"mkdir -p {folder}; mount -t tmpfs none {folder}")


def _converge(wanted: t.Any, check_mode: bool = False, system: System | None = None) -> Outcome:
    system = system or System()
    return converge(Node(system, general={"sysctl": wanted}), [Sysctl(system)], check_mode)


@on_a_node
def test_a_value_is_set_and_persists() -> None:
    _hide_sysctl_files()
    predicted = _converge(SETTINGS, check_mode=True)
    done = _converge(SETTINGS)
    assert done.after == predicted.after and len(done.changes) == 6
    assert run("sysctl -n net.ipv4.tcp_rmem net.core.somaxconn").split() == "4096 131072 16777216 8192".split()
    assert not _converge(SETTINGS).changes
    run("sysctl -w net.core.somaxconn=128 net.ipv4.tcp_rmem='1 2 3'; sysctl --system")
    assert not _converge(SETTINGS).changes
    run("sysctl -w net.core.somaxconn=128")
    assert [str(change) for change in _converge(SETTINGS).changes] == ["node: net.core.somaxconn 128 -> 8192"]


@on_a_node
def test_a_removed_key_keeps_its_value_and_other_files_are_not_touched() -> None:
    _hide_sysctl_files()
    Path("/etc/sysctl.d/10-site.conf").write_text("net.core.somaxconn=77\n")
    _converge(SETTINGS)
    outcome = _converge({"net/core/somaxconn": 8192})
    assert {change.after for change in outcome.changes} == {None}
    assert Path(PATH).read_text().splitlines()[1:] == ["net.core.somaxconn = 8192"]
    assert run("sysctl -n net.ipv4.conf.all.arp_ignore") == "1\n"
    assert _converge({}).changes
    assert not Path(PATH).exists()
    assert Path("/etc/sysctl.d/10-site.conf").read_text() == "net.core.somaxconn=77\n"


@on_a_node
def test_unknown_per_interface_and_overridden_keys_are_refused() -> None:
    _hide_sysctl_files()
    run("ip link add rail0 type veth peer name far")
    Path("/etc/sysctl.d/99-site.conf").write_text("# the site's\n-net/core/somaxconn=77\n")
    for key, reason in {
        "net.ipv4.tcp_nonsense": "no such sysctl",
        "net.ipv4.conf.rail0.rp_filter": "belongs to one interface",
        "net.ipv4.route.flush": "cannot be read",
        "net.core.somaxconn": "99-site.conf sets it to 77",
        "../../etc/passwd": "not a valid sysctl name",
    }.items():
        with pytest.raises(Refused, match=reason):
            _converge({key: 1, "net.ipv4.tcp_fin_timeout": 7})
    assert run("sysctl -n net.ipv4.tcp_fin_timeout") == "60\n"
    assert not Path(PATH).exists()


@on_a_node
def test_a_failure_at_any_step_is_rolled_back() -> None:
    _hide_sysctl_files()
    before = run("sysctl -n net.ipv4.tcp_rmem net.core.somaxconn net.ipv4.conf.all.arp_ignore")
    for number in range(6):
        for takes_effect in (False, True):
            with pytest.raises(Failed) as caught:
                _converge(SETTINGS, system=FailingSystem(number, errno.EINVAL, takes_effect))
            assert not caught.value.remaining
            assert run("sysctl -n net.ipv4.tcp_rmem net.core.somaxconn net.ipv4.conf.all.arp_ignore") == before
            assert not Path(PATH).exists()
