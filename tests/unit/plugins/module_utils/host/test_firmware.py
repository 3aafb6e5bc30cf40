# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Firmware settings, planned on what mstconfig prints at each stage from the change to the boot that applies it."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.firmware import (
    BOOT_ID_FILE,
    Firmware,
    number_or_name,
    parse,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from hypothesis import given
from hypothesis import strategies as st

VERBOSE = """\

Device #1:
----------

Device type:        ConnectX7
Name:               MCX75310AAS-NEA_Ax
Description:        NVIDIA ConnectX-7 HHHL Adapter card; 400GbE / NDR IB
Device:             0000:18:00.0

Configurations:                                          Default             Current             Next Boot
        MEMIC_BAR_SIZE                              0                    0                    0
        MEMIC_SIZE_LIMIT                            _256KB(1)            _256KB(1)            _256KB(1)
        HOST_CHAINING_DESCRIPTORS                   Array[0..7]          Array[0..7]          Array[0..7]
*       NUM_OF_VFS                                  0                    0                    16
*       SRIOV_EN                                    False(0)             False(0)             True(1)
        LINK_TYPE_P1                                IB(1)                ETH(2)               ETH(2)
The '*' shows parameters with next value different from default/current value.
"""
PLAIN = """\
Configurations:                              Next Boot
         SRIOV_EN                            True(1)
         NUM_OF_VFS                          8
"""


def test_default_current_and_next_values_are_read() -> None:
    table = parse(VERBOSE)
    assert table["NUM_OF_VFS"] == {"default": "0", "current": "0", "next": "16"}
    assert table["LINK_TYPE_P1"] == {"default": "IB(1)", "current": "ETH(2)", "next": "ETH(2)"}
    assert parse(PLAIN) == {"SRIOV_EN": {"next": "True(1)"}, "NUM_OF_VFS": {"next": "8"}}


@given(st.text())
def test_random_text_gives_no_invalid_setting(text: str) -> None:
    assert all(name.isupper() for name in parse(text))


def test_a_value_may_be_written_in_several_ways() -> None:
    assert {number_or_name(value) for value in (True, "True", "1", 1, "True(1)", "0x1")} == {"1"}
    assert Firmware(System()).same("LINK_TYPE_P1", "ETH(2)", "eth") and Firmware(System()).same("X", "ETH(2)", 2)
    assert not Firmware(System()).same("LINK_TYPE_P1", "ETH(2)", "IB")


def _query_output(current: str, following: str) -> str:
    return VERBOSE.replace(
        "NUM_OF_VFS                                  0                    0                    16",
        f"NUM_OF_VFS                                  0                    {current}                    {following}",
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = build("hgx-h100", tmp_path / "machine")
    _boot(root, "first")
    return root


def _boot(root: Path, name: str) -> None:
    file = root / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name + "\n")


def _plan(root: Path, output: str, **settings: t.Any) -> Outcome:
    """Check mode on an example machine. Only the query program may run."""

    def query(argv: list[str]) -> tuple[int, str, str]:
        assert argv[:2] == ["mstconfig", "-d"] and argv[3:] == ["-e", "query"]
        return 0, output, ""

    system = System(str(root), query)
    nic = next(device for device in Node(system).devices.values() if device.vendor_id == "15b3")
    node = Node(system, [Rule("rail", selector({"address": nic.key}), {"firmware": settings})], allow_management=True)
    return converge(node, [Firmware(system)], check_mode=True)


def test_a_setting_is_compared_with_its_next_value_and_a_different_current_value_needs_a_reboot(root: Path) -> None:
    first = _plan(root, _query_output("0", "0"), NUM_OF_VFS=16, LINK_TYPE_P1="ETH")
    assert [(change.setting, change.before, change.after) for change in first.changes] == [("NUM_OF_VFS", "0", 16)]
    assert len(first.reboot) == 1
    written = _plan(root, _query_output("0", "16"), NUM_OF_VFS=16, SRIOV_EN=True)
    assert not written.changes
    assert sorted(reason.partition(" runs with ")[2] for reason in written.reboot) == [
        "NUM_OF_VFS=0, not 16",
        "SRIOV_EN=False(0), not True",
    ]
    booted = _plan(root, _query_output("16", "16"), NUM_OF_VFS=16)
    assert not booted.changes and not booted.reboot


def test_a_change_back_to_the_current_value_needs_no_reboot(root: Path) -> None:
    planned = _plan(root, _query_output("0", "16"), NUM_OF_VFS=0)
    assert len(planned.changes) == 1 and not planned.reboot


def test_a_reboot_that_did_not_help_is_not_requested_again(root: Path) -> None:
    boot_id_file = root / BOOT_ID_FILE[1:]
    boot_id_file.parent.mkdir(parents=True)
    boot_id_file.write_text("first\n")
    assert _plan(root, _query_output("0", "16"), NUM_OF_VFS=16).reboot
    _boot(root, "second")
    with pytest.raises(Refused, match="rebooted since a firmware setting was last written here, but .*power cycle"):
        _plan(root, _query_output("0", "16"), NUM_OF_VFS=16)
    assert not _plan(root, _query_output("16", "16"), NUM_OF_VFS=16).reboot


def test_an_unknown_setting_is_refused(root: Path) -> None:
    with pytest.raises(Refused, match="no such setting"):
        _plan(root, VERBOSE, MAX_ACC_OUT_READ=44)


def test_ports_of_one_card_must_agree_on_shared_settings(tmp_path: Path) -> None:
    root = build("dgx-a100", tmp_path / "machine")
    system = System(str(root), lambda argv: (0, VERBOSE, ""))
    keys = [device.key for device in Node(system).devices.values() if device.vendor_id == "15b3" and not device.physfn]
    pair = next((first, second) for first in keys for second in keys if first < second and first[:-1] == second[:-1])
    rules = [
        Rule(str(number), selector({"address": key}), {"firmware": {"NUM_OF_VFS": number}})
        for number, key in enumerate(pair, 4)
    ]
    with pytest.raises(Refused, match="the ports of a card share this setting"):
        converge(Node(system, rules, allow_management=True), [Firmware(system)])
