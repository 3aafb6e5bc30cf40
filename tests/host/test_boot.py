# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the program does where nobody looks on."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import desired
from ansible_collections.lanewise.dra.plugins.module_utils.host import boot
from ansible_collections.lanewise.dra.plugins.module_utils.host.program import NETWORK_UNIT, Boot
from ansible_collections.lanewise.dra.plugins.module_utils.host.resource import NODE
from ansible_collections.lanewise.dra.plugins.module_utils.host.system import System
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run
from ansible_collections.lanewise.dra.tests.host.node import node

RAILS = {"table": 100, "gateway": "10.0.0.254"}


@pytest.fixture(name="booted")
def _booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., str]:
    """Runs the program with settings by interface; what it says of failures."""
    monkeypatch.setattr(boot, "DESIRED", str(tmp_path / "fabric.json"))
    monkeypatch.setattr(boot, "LOCK", str(tmp_path / "fabric.lock"))

    def booted(settings: dict[str, dict[str, t.Any]], phase: str = "boot") -> str:
        system = System()
        one = node(system, settings)
        (tmp_path / "fabric.json").write_text(json.dumps(desired(one, one.rules, {})))
        system.close()
        monkeypatch.setattr(boot.sys, "argv", ["fabric.pyz", phase])
        try:
            boot.main()
        except SystemExit as ended:
            return str(ended.code)
        return ""

    return booted


@on_a_node
def test_a_nic_that_fails_does_not_keep_the_others(booted: t.Callable[..., str]) -> None:
    for name in ("rail0", "rail1", "rail2"):
        pair(name)
    told = booted({"rail0": {"mtu": 9000}, "rail1": {"mtu": 70000}, "rail2": {"mtu": 9000}})
    assert told.count("rail1: mtu: the driver of rail1 takes no 70000") == 1 and "rail0" not in told
    shown = [run(f"cat /sys/class/net/{name}/mtu").strip() for name in ("rail0", "rail1", "rail2")]
    assert shown == ["9000", "1500", "9000"]


@on_a_node
def test_what_needs_the_network_waits_for_it(booted: t.Callable[..., str]) -> None:
    pair("rail0")
    settings: dict[str, dict[str, t.Any]] = {"rail0": {"rail_routes": RAILS}}
    assert not booted(settings)  # no address yet, and nothing that fails
    assert "rail0 has no IP address" in booted(settings, "network")
    run("ip addr add 10.0.0.1/24 dev rail0")
    assert not booted(settings, "network")
    assert "default via 10.0.0.254" in run("ip route show table 100")
    # as do interfaces that come with it
    assert not booted({"rail0": {"mtu": 4000}}, "network")
    assert run("cat /sys/class/net/rail0/mtu").strip() == "4000"


@on_a_node
def test_the_second_unit_is_for_those_who_need_it() -> None:
    pair("rail0")
    system = System()
    one = node(system, {"rail0": {"mtu": 9000}})
    boots = [Boot(system, given) for given in (desired(one, one.rules, {}), {"nics": [], "node": {}}, {})]
    wanted = [resource.wanted(one)[NODE] for resource in boots]
    assert "After=lanewise-fabric.service network-online.target" in wanted[0]["network_unit"]
    assert wanted[0]["network_enabled"] is True and NETWORK_UNIT.startswith("lanewise-fabric-")
    assert wanted[1]["unit"] and not wanted[1]["network_unit"] and not wanted[1]["network_enabled"]
    assert set(wanted[2].values()) == {None} and wanted[2].keys() == wanted[0].keys()
