# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that a run stores on a node: each release reads those of the other, after an upgrade and a rollback."""

from __future__ import annotations

import functools
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import desired
from ansible_collections.lanewise.dra.plugins.module_utils.host.access import usage
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot, guard, origin, program
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist.program import Boot
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import kubelet, memlock
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.catalogue import named, resources
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Conversion
from ansible_collections.lanewise.dra.tests.host.releases import fabric_1_0_0
from ansible_collections.lanewise.dra.tests.host.world import MLX5, RAIL, FailingNode, World

pytest.importorskip("pyroute2")

FOLDER = Path(__file__).parent / "releases"
FABRIC, ORIGIN, UNDO = ((FOLDER / f"1.0.0-{name}.json").read_text() for name in ("fabric", "origin", "undo"))
#: The settings with which 1.0.0 wrote these files.
NICS: dict[str, dict[str, t.Any]] = {
    MLX5: {
        "num_vfs": 2,
        "vf": {"trust": True},
        "vfs": [{"index": 0, "mac": "02:00:00:00:00:09", "driver": "vfio-pci"}],
        "eswitch_mode": "switchdev",
    },
    RAIL: {
        "max_read_request_bytes": 4096,
        "roce": {"tos": 106},
        "irq_affinity": "local",
        "dcb": {"trust": "dscp", "pfc": [3]},
    },
}
GENERAL: dict[str, t.Any] = {
    "sysctl": {"vm.zone_reclaim_mode": 0},
    "runtime_cdi": True,
    "kubelet": {"cpu_manager_policy": "static", "reserved_system_cpus": "0", "topology_manager_policy": "restricted"},
    "kernel_args": ["iommu=pt"],
    "hugepages": [{"size": "2M", "count": 16}],
}
FREE_PAGES = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages"
PATHS = {"fabric": program.DESIRED, "origin": origin.PATH}


class Stored:
    """A node, and the files that runs store on it."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        (self.world.root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
        self.world.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
        self.system = FailingNode(self.world)

    def node(self) -> Node:
        rules = [Rule(key, selector({"address": key}), one, count=1) for key, one in NICS.items()]
        fast = selector({"type": "ethernet", "min_speed_mbps": 100000})
        rules.append(Rule("rails", fast, {"max_read_request_bytes": 4096}))
        return Node(self.system, rules, GENERAL, allow_management=True)

    def configure(self) -> list[Change]:
        """A run of the role fabric that persists its settings."""
        node = self.node()
        wanted = resources(self.system, [rule.settings for rule in node.rules], GENERAL)
        wanted.append(Boot(self.system, desired(node, node.rules, GENERAL)))
        return converge(node, wanted, before_changes=functools.partial(origin.remember, self.system)).changes

    def restore(self) -> None:
        """A run that restores everything."""
        node = self.node()
        before = origin.wanted(self.system, node)
        chosen = [*named(self.system, before)[::-1], Boot(self.system, {})]
        converge(node, chosen, wanted={**before, "boot": Boot(self.system, {}).wanted(node)})
        origin.forget(self.system)

    def text(self, name: str) -> str:
        return (self.world.root / PATHS[name].lstrip("/")).read_text()

    def put(self, name: str, text: str) -> None:
        path = self.world.root / PATHS[name].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    made = Stored(tmp_path / "node")
    monkeypatch.setattr(memlock.resource, "prlimit", made.world.prlimit)
    monkeypatch.setattr(kubelet, "_START_TIMEOUT_SECONDS", 0.0)
    return made


def test_a_run_stores_what_1_0_0_stored_and_can_read(stored: Stored) -> None:
    changes = stored.configure()
    node = stored.node()
    assert fabric_1_0_0.boot_load(stored.text("fabric")) == fabric_1_0_0.boot_load(FABRIC)
    assert json.loads(stored.text("fabric")) == {**json.loads(FABRIC), "format": 1}
    assert json.loads(stored.text("origin")) == json.loads(ORIGIN)
    assert fabric_1_0_0.origin_wanted(stored.text("origin"), node) == fabric_1_0_0.origin_wanted(ORIGIN, node)
    assert fabric_1_0_0.origin_remember(stored.text("origin"), changes) == stored.text("origin")


def test_this_release_restores_a_node_that_1_0_0_configured(stored: Stored) -> None:
    before = stored.world.snapshot()
    stored.configure()
    stored.put("origin", ORIGIN)
    stored.world.write(FREE_PAGES, "16")
    stored.restore()
    stored.world.write(FREE_PAGES, "0")
    now = stored.world.snapshot()
    differing = {key for key in {*before, *now} if before.get(key) != now.get(key) and not key.endswith("/")}
    # settings of VFs are lost with the VFs, and a value in configfs cannot be unset
    assert differing == {"vfs", "sys/kernel/config/rdma_cm/mlx5_1/ports/1/default_roce_tos"}
    assert json.loads(now["vfs"]).keys() == json.loads(before["vfs"]).keys()


def test_this_release_applies_at_boot_what_1_0_0_stored(stored: Stored) -> None:
    """The first run after an upgrade only changes what runs at boot."""
    changes = stored.configure()
    assert {change.resource for change in changes} > {"boot", "sriov"}
    stored.put("fabric", FABRIC)
    nics, general = program.load(stored.system)
    assert boot.rules(nics) == fabric_1_0_0.boot_load(FABRIC)[0] and general == fabric_1_0_0.boot_load(FABRIC)[1]
    again = stored.configure()
    assert [(change.resource, change.setting) for change in again] == [("boot", "desired")]
    assert stored.configure() == []


def test_both_releases_read_an_unconfirmed_change(tmp_path: Path) -> None:
    path = tmp_path / "undo-7.json"
    path.write_text(UNDO)
    changes = guard.claimed_changes(str(path))
    assert changes == fabric_1_0_0.undo_load(UNDO)[1] and len(changes) == 21
    guard._write(System(), str(path), changes, 60, "write")
    assert fabric_1_0_0.undo_load(path.read_text())[1] == changes
    assert 59 < guard.seconds_left(str(path)) <= 60


def test_the_next_format_of_the_origin_file_is_written_one_release_later(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first format has no format number: 1.0.0 would read the number as a resource."""
    stored.put("origin", ORIGIN)
    known = origin.load(stored.system)
    change = Change("sysctl", NODE, "vm.swappiness", "60", "10")
    monkeypatch.setattr(origin._FORMS, "written", 2)
    origin.remember(stored.system, [change])
    assert json.loads(stored.text("origin"))["format"] == 2
    known["sysctl"][NODE]["vm.swappiness"] = "60"
    assert origin.load(stored.system) == known
    monkeypatch.undo()
    origin.remember(stored.system, [Change("sysctl", NODE, "vm.overcommit_memory", "0", "1")])
    known["sysctl"][NODE]["vm.overcommit_memory"] = "0"
    assert fabric_1_0_0.origin_load(stored.text("origin")) == known


NEWER = '{"format": 9, "resources": {}}\n'


def test_an_origin_file_of_a_newer_release_is_refused_and_kept(stored: Stored) -> None:
    stored.put("origin", NEWER)
    for act in (lambda: origin.wanted(stored.system, stored.node()), stored.configure, stored.restore):
        with pytest.raises(HostError, match=r"its format is 9.*run the role fabric of the release that wrote it"):
            act()
    assert stored.text("origin") == NEWER and not (stored.world.root / program.DESIRED.lstrip("/")).exists()


def test_settings_that_only_a_newer_release_knows_are_kept(stored: Stored) -> None:
    later = json.dumps({**json.loads(ORIGIN), "shaping": {NODE: {"rate": 1}}})
    stored.put("origin", later)
    with pytest.raises(HostError, match="it has settings of shaping, which this release does not know"):
        stored.restore()
    assert stored.text("origin") == later
    # a run that configures the node keeps them
    stored.configure()
    assert json.loads(stored.text("origin"))["shaping"] == {NODE: {"rate": 1}}


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"sysctl": 7}', '{"sysctl": {"node": []}}', '{"format": 2}', "[" * 9999]
)
def test_a_damaged_origin_file_is_an_error(stored: Stored, text: str) -> None:
    stored.put("origin", text)
    for act in (stored.configure, stored.restore):
        with pytest.raises(HostError, match="remove it; the original settings are then not restored"):
            act()
    assert stored.text("origin") == text


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"format": 2, "nics": []}', "a newer release wrote it: its format is 2, and this release knows up to 1"),
        ("{", "it is damaged: Expecting"),
        ("[]", "it is damaged: it is not a mapping with a format"),
        ('{"nics": {}}', "it is damaged: it must contain rules"),
        ('{"nics": [{"name": "a"}]}', "it is damaged: it must contain rules"),
        ('{"node": []}', "it is damaged: it must contain rules"),
    ],
)
def test_the_boot_program_reports_settings_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    path = tmp_path / "fabric.json"
    path.write_text(text)
    monkeypatch.setattr(program, "DESIRED", str(path))
    monkeypatch.setattr(boot, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(boot.sys, "argv", ["fabric.pyz", "boot"])
    with pytest.raises(SystemExit) as ended:
        boot.main()
    assert message in str(ended.value.code) and "run lanewise.dra.fabric on this node" in str(ended.value.code)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 2, "until": 0, "changes": []}', '{"until": 0}', '{"until": 0, "changes": [{}]}']
)
def test_an_undo_file_that_cannot_be_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "undo-7.json"
    path.write_text(text)
    monkeypatch.setattr(boot, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(boot.sys, "argv", ["fabric.pyz", "undo", str(path)])
    with pytest.raises(SystemExit) as ended:
        boot.main()
    assert f"{path} cannot be used" in str(ended.value.code) and "nothing was undone" in str(ended.value.code)
    assert path.read_text() == text and [one.name for one in tmp_path.glob("undo*")] == ["undo-7.json"]


def test_a_change_with_a_field_of_a_later_release_can_be_undone(tmp_path: Path) -> None:
    value = json.loads(UNDO)
    value["changes"] = [{**one, "later": 1} for one in value["changes"]]
    (tmp_path / "undo-7.json").write_text(json.dumps(value))
    assert guard.claimed_changes(str(tmp_path / "undo-7.json")) == fabric_1_0_0.undo_load(UNDO)[1]


def test_each_format_has_a_conversion_from_the_previous_one() -> None:
    for forms in (origin._FORMS, program._FORMS, guard._FORMS):
        assert sorted(forms.conversions) == list(range(2, forms.newest + 1))
        assert forms.newest - 1 <= forms.written <= forms.newest
        assert all(isinstance(one, Conversion) for one in forms.conversions.values())


@pytest.mark.parametrize("indent", [1, None], ids=["1.0.0", "now"])
def test_records_of_the_driver_show_which_devices_pods_have(tmp_path: Path, indent: int | None) -> None:
    folder = tmp_path / usage._CLAIMS.lstrip("/")
    folder.mkdir(parents=True)
    record = json.loads((Path(__file__).parents[1] / "driver/releases/1.0.0-attached.json").read_text())
    (folder / f"{record['uid']}.json").write_text(json.dumps(record, indent=indent, sort_keys=True))
    system = System(str(tmp_path))
    assert usage.users(system, "0000:8a:00.0") == f"a pod has it through the resource claim with UID {record['uid']}"
    published = {"interface": ["eth1"], "speed_mbps": 400000}
    assert usage.as_published(system, "0000:8a:00.0") == published
    # a record of a later format shows at least that a pod has the device
    (folder / f"{record['uid']}.json").write_text('{"schema": 9, "functions": ["0000:8a:00.0"]}')
    assert "a pod has it" in usage.users(system, "0000:8a:00.0")
    assert usage.as_published(system, "0000:8a:00.0") == {}
