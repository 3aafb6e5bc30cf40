# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.kernel_modules import (
    LOAD,
    OPTIONS,
    KernelModules,
)

SETTINGS = {"module_options": {"ib_core": "netns_mode=0"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node whose loaded ib_core has another netns_mode than SETTINGS."""
    _write(tmp_path, "sys/module/ib_core/parameters/netns_mode", "Y\n")
    _write(tmp_path, "sys/module/tcp_cubic/parameters/beta", "717\n")
    _write(tmp_path, "proc/modules", "ib_core 524288 8 rdma_cm,mlx5_ib, Live 0x0000000000000000\n")
    _write(tmp_path, "proc/sys/kernel/random/boot_id", "first\n")
    return tmp_path


def _write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _converge(root: Path, check_mode: bool = False, **general: t.Any) -> t.Any:
    system = System(str(root))
    return converge(Node(system, general=general), [KernelModules(system)], check_mode)


def test_options_need_a_reboot_and_are_refused_if_it_did_not_apply_them(root: Path) -> None:
    assert _converge(root, check_mode=True, **SETTINGS).not_recorded == ["kernel_modules (no /etc/modprobe.d)"]
    (root / "etc/modprobe.d").mkdir(parents=True, exist_ok=True)
    planned = _converge(root, check_mode=True, **SETTINGS)
    assert planned.reboot == ["module ib_core was loaded with netns_mode=Y, not 0"]
    assert _converge(root, **SETTINGS).after == planned.after
    assert (root / OPTIONS[1:]).read_text().splitlines()[-1] == "options ib_core netns_mode=0"
    again = _converge(root, **SETTINGS)
    assert not again.changes and again.reboot
    _write(root, "proc/sys/kernel/random/boot_id", "second\n")
    with pytest.raises(Refused, match="booted since.*initial RAM disk"):
        _converge(root, **SETTINGS)
    _write(root, "sys/module/ib_core/parameters/netns_mode", "N\n")
    done = _converge(root, **SETTINGS)
    assert not done.changes and not done.reboot


def test_options_that_are_no_longer_wanted_are_removed(root: Path) -> None:
    _converge(root, module_options={"ib_core": "netns_mode=0", "mlx5_core": "prof_sel=2 debug_mask=0"})
    _converge(root, module_options={"mlx5-core": "prof_sel=2"})
    assert [line for line in (root / OPTIONS[1:]).read_text().splitlines() if line[0] != "#"] == [
        "options mlx5_core prof_sel=2"
    ]
    _converge(root, module_options={})
    assert not (root / OPTIONS[1:]).exists()


def test_modules_to_load_at_boot_are_added_and_removed(root: Path) -> None:
    _write(root, LOAD[1:], "# comment\nnvidia_peermem\n")
    outcome = _converge(root, kernel_modules=["ib-core"])
    assert [str(change) for change in outcome.changes] == [
        "node: module ib_core at boot unset -> true",
        "node: module nvidia_peermem at boot true -> unset",
    ]
    assert not _converge(root, kernel_modules=["ib_core"]).changes


def test_a_module_that_the_kernel_contains_is_loaded(root: Path) -> None:
    """Without parameters, it is not in /sys/module."""
    (root / "etc/modprobe.d").mkdir(parents=True)
    _write(root, "proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
    _write(root, "lib/modules/6.8.0-60-generic/modules.builtin", "kernel/net/8021q/8021q.ko\nkernel/fs/fuse-x.ko\n")
    outcome = _converge(root, check_mode=True, kernel_modules=["8021q", "fuse_x", "tcp_cubic"])
    assert {change.setting for change in outcome.changes} == {
        f"module {name} at boot" for name in ("8021q", "fuse_x", "tcp_cubic")
    }


def test_options_that_are_not_a_text_are_an_error(root: Path) -> None:
    (root / "etc/modprobe.d").mkdir(parents=True)
    with pytest.raises(HostError, match=r"set options of module ib_core: .* is not a text \(write 'NAME=VALUE"):
        _converge(root, module_options={"ib_core": {"netns_mode": 0}})


@pytest.mark.parametrize(
    ("general", "reason"),
    [
        ({"module_options": {"tcp_cubic": "beta=1"}}, r"kernel_args: \[tcp_cubic.beta=1\]"),
        ({"module_options": {"ib_core": "netns_mode"}}, "not an option of the form"),
        ({"module_options": {"ib_core": 'a="; rm'}}, "not an option of the form"),
        ({"module_options": {"a b": "c=d"}}, "not a valid name of a kernel module|not an option"),
        ({"module_options": {"mlx5_core": "prof_sel=1"}}, "mlnx.conf has options for it as well"),
    ],
)
def test_invalid_and_conflicting_options_are_refused(root: Path, general: t.Any, reason: str) -> None:
    _write(root, "etc/modprobe.d/mlnx.conf", "options mlx5-core prof_sel=3\n")
    with pytest.raises(Refused, match=reason):
        _converge(root, **general)


def test_the_folders_of_rdma_devices_do_not_keep_rdma_cm_loaded(root: Path) -> None:
    """configfs holds a module as long as one of its folders exists."""
    folder = root / "sys/kernel/config/rdma_cm"
    (folder / "mlx5_0").mkdir(parents=True)
    left: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        left.append([*argv, *os.listdir(folder)])
        return 0, "", ""

    system = System(str(root), run)
    change = Change("kernel_modules", NODE, "module rdma_cm", True, False)
    KernelModules(system).apply(Node(system), change)
    assert left == [["modprobe", "--remove", "rdma_cm"]]
