# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.cpu import Cpu
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.gpudirect import LOAD, Gpudirect

STATES = {"state0": ("POLL", 0), "state1": ("C1", 2), "state2": ("C6", 190)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two CPUs with intel_pstate in active mode, as Linux 6.8 shows them on a Xeon 8480."""
    base = tmp_path / "sys/devices/system/cpu"
    for number in (0, 1):
        _write_files(
            base / f"cpufreq/policy{number}",
            scaling_governor=("powersave", "performance")[number],
            scaling_available_governors="performance powersave",
            energy_performance_preference="balance_performance",
            energy_performance_available_preferences="default performance balance_performance balance_power power",
        )
        for state, (name, latency) in STATES.items():
            _write_files(base / f"cpu{number}/cpuidle/{state}", name=name, latency=str(latency), disable="0")
    _write_files(base / "intel_pstate", status="active")
    return tmp_path


def _write_files(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")


def _converge(root: Path, resource: t.Any = Cpu, wanted: t.Any = None, **general: t.Any) -> t.Any:
    system = System(str(root))
    return converge(Node(system, general=general), [resource(system)], wanted=wanted)


def test_different_governors_are_unified_and_restored(root: Path) -> None:
    outcome = _converge(root, cpu_governor="performance", cpu_idle_max_latency_us=10)
    assert [(change.setting, change.before, change.after) for change in outcome.changes] == [
        ("cpu_governor", {"policy0": "powersave", "policy1": "performance"}, "performance"),
        ("idle state C6", "on", "off"),
    ]
    assert (root / "sys/devices/system/cpu/cpu1/cpuidle/state2/disable").read_text() == "1"
    assert not _converge(root, cpu_governor="performance", cpu_idle_max_latency_us=10).changes
    assert _converge(root, cpu_idle_max_latency_us=200).changes
    _converge(root, wanted={"cpu": outcome.before["cpu"]})
    assert (root / "sys/devices/system/cpu/cpufreq/policy0/scaling_governor").read_text() == "powersave"


def test_the_governor_and_the_preference_are_restored_together(root: Path) -> None:
    """The driver accepts another preference only after another governor. The recorded values are sorted by name."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    for number in (0, 1):
        _write_files(
            folder / f"policy{number}", scaling_governor="performance", energy_performance_preference="performance"
        )
    before = {"cpu_energy_preference": "balance_performance", "cpu_governor": "powersave"}
    outcome = _converge(root, wanted={"cpu": {"node": before}})
    assert [change.setting for change in outcome.changes] == ["cpu_governor", "cpu_energy_preference"]
    with pytest.raises(Refused, match="accepts only the preference performance"):
        _converge(root, wanted={"cpu": {"node": {"cpu_energy_preference": "power", "cpu_governor": "performance"}}})


@pytest.mark.parametrize(
    ("general", "reason"),
    [
        ({"cpu_governor": "schedutil"}, "of performance, powersave"),
        ({"cpu_governor": "performance", "cpu_energy_preference": "power"}, "accepts only the preference performance"),
        ({"cpu_energy_preference": "much"}, "much is not available here"),
    ],
)
def test_values_that_the_processor_does_not_offer_are_refused(root: Path, general: t.Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        _converge(root, **general)


def test_policies_whose_processors_are_offline_are_left_out(root: Path) -> None:
    """The kernel does not let their files be read."""
    policy = root / "sys/devices/system/cpu/cpufreq/policy1"
    for path in policy.iterdir():
        path.unlink()
        path.symlink_to(path)  # it exists, and cannot be read
    settings = {"cpu_governor": "powersave", "cpu_energy_preference": "100"}
    assert [change.setting for change in _converge(root, **settings).changes] == ["cpu_energy_preference"]
    assert not _converge(root, **settings).changes


def test_a_number_that_the_kernel_shows_as_a_name_is_that_preference(root: Path) -> None:
    assert not _converge(root, cpu_energy_preference="128").changes  # balance_performance
    assert _converge(root, cpu_energy_preference="129").changes


def test_a_driver_without_energy_preferences_is_named_as_the_reason(root: Path) -> None:
    for path in root.glob("sys/devices/system/cpu/cpufreq/policy*/energy*"):
        path.unlink()
    with pytest.raises(Refused, match="the frequency driver has no energy preferences"):
        _converge(root, cpu_energy_preference="power")


def test_a_governor_is_refused_on_a_machine_without_cpufreq(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not control"):
        _converge(tmp_path, cpu_governor="performance")


def test_dma_buf_is_checked_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not loaded"):
        _converge(tmp_path, Gpudirect, gpudirect="dma_buf")
    folder = tmp_path / "proc/driver/nvidia"
    _write_files(folder, version="NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15")
    with pytest.raises(Refused, match="proprietary kernel modules"):
        _converge(tmp_path, Gpudirect, gpudirect="dma_buf")
    _write_files(folder, version="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15")
    _write_files(tmp_path / "proc/sys/kernel", osrelease="5.4.0-216-generic")
    with pytest.raises(Refused, match="since Linux 5.12"):
        _converge(tmp_path, Gpudirect, gpudirect="dma_buf")
    _write_files(tmp_path / "proc/sys/kernel", osrelease="6.8.0-60-generic")
    assert not _converge(tmp_path, Gpudirect, gpudirect="dma_buf").changes


def test_loaded_peermem_is_also_loaded_at_the_next_boot(tmp_path: Path) -> None:
    _write_files(tmp_path / "sys/kernel/mm/memory_peers/nv_mem", version="1.3")
    outcome = _converge(tmp_path, Gpudirect, gpudirect="peermem")
    assert [change.setting for change in outcome.changes] == ["nvidia-peermem at boot"]
    assert (tmp_path / LOAD[1:]).read_text().endswith("\nnvidia-peermem\n")
    assert not _converge(tmp_path, Gpudirect, gpudirect="peermem").changes
    _converge(tmp_path, Gpudirect, wanted={"gpudirect": outcome.before["gpudirect"]})
    assert not (tmp_path / LOAD[1:]).exists()
    with pytest.raises(HostError, match="is not known"):
        _converge(tmp_path, Gpudirect, gpudirect="rdma")
