# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The order of changes to VFs around a change of the eswitch mode. Other tests check that kernels accept the mode."""

from __future__ import annotations

import errno

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access import devlink
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System, refused
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.eswitch import Eswitch
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

MLX5, ICE = "0000:16:00.1", "0000:c9:00.1"


class Recorder(System):
    """Records writes instead of writing."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.steps: list[str] = []

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        self.steps.append(f"{path.rpartition('/')[2]} {value}")


@pytest.fixture
def machine():
    with Machine("sriov") as machine:
        yield machine


def change_mode(monkeypatch, machine: Machine, key: str, code: int = 0) -> list[str]:
    """The steps of a change to switchdev mode, and the error, if any. The kernel refuses the mode with `code`."""
    system = Recorder(str(machine.root))

    def set_mode(_system, address, mode, step, fix):
        system.steps.append(f"mode {mode}")
        if code:
            raise refused(step, code, "", fix)

    monkeypatch.setattr(devlink, "set_eswitch_mode", set_mode)
    try:
        node = Node(system, allow_management=True)
        Eswitch(system).apply(node, Change("eswitch", key, "eswitch_mode", "legacy", "switchdev"))
    except HostError as error:
        system.steps.append(str(error))
    return system.steps


def test_a_card_of_the_ice_driver_has_no_vfs_while_the_mode_changes(monkeypatch, machine):
    assert change_mode(monkeypatch, machine, ICE) == ["sriov_numvfs 0", "mode switchdev", "sriov_numvfs 128"]


def test_vfs_are_recreated_if_the_mode_is_refused(monkeypatch, machine):
    steps = change_mode(monkeypatch, machine, ICE, code=errno.EBUSY)
    assert steps[:3] == ["sriov_numvfs 0", "mode switchdev", "sriov_numvfs 128"]
    assert "cannot set eswitch_mode of 0000:c9:00.1" in steps[3] and "from its bond or bridge" in steps[3]


def test_vfs_of_the_mlx5_driver_are_unbound_while_the_mode_changes(monkeypatch, machine):
    steps = change_mode(monkeypatch, machine, MLX5)
    # without the writes, the drivers seem to stay bound, so they are not bound again
    assert [step.split()[0] for step in steps] == ["unbind"] * 4 + ["mode"]
    assert len(set(steps)) == 5


def test_the_plan_depends_on_the_current_mode_and_on_the_driver(monkeypatch, machine):
    def plan(key: str, current, wanted: str = "switchdev"):
        monkeypatch.setattr(devlink, "eswitch_mode", lambda _system, _address: current)
        return machine.plan(Eswitch, {key: {"eswitch_mode": wanted}})

    assert "offers no switchdev mode" in str(plan(MLX5, None).refusals[0])
    assert not plan(MLX5, "switchdev").changes
    (change,) = plan(MLX5, "legacy").changes
    assert "its 4 VFs are unbound from their drivers" in change.interrupts
    (change,) = plan(ICE, "legacy").changes
    assert "all its 128 VFs" in change.interrupts
    refusal = plan("0000:01:00.0", "legacy").refusals[0]
    assert "it is unknown in which order the driver ixgbe needs VFs and mode" in str(refusal)


def test_a_change_is_refused_while_a_vf_is_in_use(monkeypatch, machine):
    vf = (machine.root / f"sys/bus/pci/devices/{MLX5}/virtfn2").resolve().name
    machine.write("/var/lib/kubelet/plugins/lanewise.dev/state/0000-11.json", f'{{"devices": ["{vf}"]}}')
    monkeypatch.setattr(devlink, "eswitch_mode", lambda _system, _address: "legacy")
    node = Node(
        System(str(machine.root)),
        [Rule("x", selector({"address": MLX5}), {"eswitch_mode": "switchdev"})],
        allow_management=True,
    )
    (refusal,) = Eswitch(node.system).plan(node).refusals
    assert refusal.drain and f"its VF {vf} is in use" in refusal.message
