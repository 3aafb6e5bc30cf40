# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that a run stores on a node: this release reads those of 1.0.0, and 1.0.0 those of this release."""

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
from ansible_collections.lanewise.dra.tests.host.emulated_node import MLX5, RAIL, EmulatedNode, FailingEmulatedSystem
from ansible_collections.lanewise.dra.tests.host.releases import fabric_1_0_0

pytest.importorskip("pyroute2")

FOLDER = Path(__file__).parent / "releases"
FABRIC, ORIGIN, UNDO = ((FOLDER / f"1.0.0-{name}.json").read_text() for name in ("fabric", "origin", "undo"))
#: The settings with which 1.0.0 wrote these files: of NICs by PCI address, and of the node.
NIC_SETTINGS: dict[str, dict[str, t.Any]] = {
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
NODE_SETTINGS: dict[str, t.Any] = {
    "sysctl": {"vm.zone_reclaim_mode": 0},
    "runtime_cdi": True,
    "kubelet": {"cpu_manager_policy": "static", "reserved_system_cpus": "0", "topology_manager_policy": "restricted"},
    "kernel_args": ["iommu=pt"],
    "hugepages": [{"size": "2M", "count": 16}],
}
FREE_PAGES = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages"
PATHS = {"fabric": program.DESIRED, "origin": origin.PATH}


class FabricNode:
    """An emulated node that the role fabric configures, and the files that its runs store there."""

    def __init__(self, folder: Path) -> None:
        self.emulated = EmulatedNode(folder)
        (self.emulated.root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
        self.emulated.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
        self.system = FailingEmulatedSystem(self.emulated)

    def node(self) -> Node:
        """The node with the settings for it."""
        rules = [
            Rule(address, selector({"address": address}), settings, count=1)
            for address, settings in NIC_SETTINGS.items()
        ]
        fast_nics = selector({"type": "ethernet", "min_speed_mbps": 100000})
        rules.append(Rule("rails", fast_nics, {"max_read_request_bytes": 4096}))
        return Node(self.system, rules, NODE_SETTINGS, allow_management=True)

    def configure(self) -> list[Change]:
        """Run the role fabric so that it stores the settings for the next boot. Returns the changes."""
        node = self.node()
        wanted = resources(self.system, [rule.settings for rule in node.rules], NODE_SETTINGS)
        wanted.append(Boot(self.system, desired(node, node.rules, NODE_SETTINGS)))
        return converge(node, wanted, before_changes=functools.partial(origin.remember, self.system)).changes

    def restore(self) -> None:
        """Run the role fabric so that it restores the original settings."""
        node = self.node()
        before = origin.wanted(self.system, node)
        chosen = [*named(self.system, before)[::-1], Boot(self.system, {})]
        converge(node, chosen, wanted={**before, "boot": Boot(self.system, {}).wanted(node)})
        origin.forget(self.system)

    def text(self, name: str) -> str:
        """The text of a file by its name in PATHS."""
        return (self.emulated.root / PATHS[name].lstrip("/")).read_text()

    def write(self, name: str, text: str) -> None:
        path = self.emulated.root / PATHS[name].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def fabric_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FabricNode:
    node = FabricNode(tmp_path / "node")
    monkeypatch.setattr(memlock.resource, "prlimit", node.emulated.prlimit)
    monkeypatch.setattr(kubelet, "_START_TIMEOUT_SECONDS", 0.0)
    return node


def test_a_run_stores_what_1_0_0_stored_and_can_read(fabric_node: FabricNode) -> None:
    changes = fabric_node.configure()
    node = fabric_node.node()
    *stored, network = fabric_1_0_0.boot_load(fabric_node.text("fabric"))
    assert stored == list(fabric_1_0_0.boot_load(FABRIC)[:2])
    assert network  # 1.0.0 applied irq_affinity before the network was up
    assert json.loads(fabric_node.text("fabric")) == {**json.loads(FABRIC), "format": 1, "network": True}
    expected = json.loads(ORIGIN)
    expected["boot"]["node"].update(network_enabled=None, network_unit=None)
    origin_text = fabric_node.text("origin")
    assert json.loads(origin_text) == expected
    assert fabric_1_0_0.origin_wanted(origin_text, node) == fabric_1_0_0.origin_wanted(json.dumps(expected), node)
    assert fabric_1_0_0.origin_remember(origin_text, changes) == origin_text


def test_this_release_restores_a_node_that_1_0_0_configured(fabric_node: FabricNode) -> None:
    before = fabric_node.emulated.snapshot()
    fabric_node.configure()
    fabric_node.write("origin", ORIGIN)
    fabric_node.emulated.write(FREE_PAGES, "16")
    fabric_node.restore()
    fabric_node.emulated.write(FREE_PAGES, "0")
    now = fabric_node.emulated.snapshot()
    differing = {path for path in {*before, *now} if before.get(path) != now.get(path) and not path.endswith("/")}
    # removed VFs lose their settings
    assert differing == {"vfs"}
    assert json.loads(now["vfs"]).keys() == json.loads(before["vfs"]).keys()


def test_this_release_applies_at_boot_what_1_0_0_stored(fabric_node: FabricNode) -> None:
    """The first run after an upgrade only changes the file of the settings for boot."""
    changes = fabric_node.configure()
    assert {change.resource for change in changes} > {"boot", "sriov"}
    fabric_node.write("fabric", FABRIC)
    rules, general = program.load(fabric_node.system)
    assert boot.rules(rules) == fabric_1_0_0.boot_load(FABRIC)[0] and general == fabric_1_0_0.boot_load(FABRIC)[1]
    second_run = fabric_node.configure()
    assert [(change.resource, change.setting) for change in second_run] == [("boot", "desired")]
    assert fabric_node.configure() == []


def test_both_releases_read_the_file_of_an_unconfirmed_change(tmp_path: Path) -> None:
    path = tmp_path / "undo-7.json"
    path.write_text(UNDO)
    changes = guard.claimed_changes(str(path))
    assert changes == fabric_1_0_0.undo_load(UNDO)[1] and len(changes) == 21
    guard._write(System(), str(path), changes, 60, "write")
    assert fabric_1_0_0.undo_load(path.read_text())[1] == changes
    assert 59 < guard.seconds_left(str(path)) <= 60


def test_the_next_format_of_the_origin_file_is_written_one_release_later(
    fabric_node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first format has no format number: 1.0.0 would read the number as a resource."""
    fabric_node.write("origin", ORIGIN)
    expected = origin.load(fabric_node.system)
    change = Change("sysctl", NODE, "vm.swappiness", "60", "10")
    monkeypatch.setattr(origin._FORMATS, "written", 2)
    origin.remember(fabric_node.system, [change])
    assert json.loads(fabric_node.text("origin"))["format"] == 2
    expected["sysctl"][NODE]["vm.swappiness"] = "60"
    assert origin.load(fabric_node.system) == expected
    monkeypatch.undo()
    origin.remember(fabric_node.system, [Change("sysctl", NODE, "vm.overcommit_memory", "0", "1")])
    expected["sysctl"][NODE]["vm.overcommit_memory"] = "0"
    assert fabric_1_0_0.origin_load(fabric_node.text("origin")) == expected


#: An origin file of a newer release.
NEWER = '{"format": 9, "resources": {}}\n'


def test_an_origin_file_of_a_newer_release_is_refused_and_kept(fabric_node: FabricNode) -> None:
    fabric_node.write("origin", NEWER)
    for action in (
        lambda: origin.wanted(fabric_node.system, fabric_node.node()),
        fabric_node.configure,
        fabric_node.restore,
    ):
        with pytest.raises(HostError, match=r"its format is 9.*run the role fabric of the release that wrote it"):
            action()
    assert fabric_node.text("origin") == NEWER
    assert not (fabric_node.emulated.root / program.DESIRED.lstrip("/")).exists()


def test_original_settings_of_a_resource_that_only_a_newer_release_has_are_kept(fabric_node: FabricNode) -> None:
    newer = json.dumps({**json.loads(ORIGIN), "shaping": {NODE: {"rate": 1}}})
    fabric_node.write("origin", newer)
    with pytest.raises(HostError, match="it has settings of shaping, which this release does not know"):
        fabric_node.restore()
    assert fabric_node.text("origin") == newer
    # a run that configures the node also keeps them
    fabric_node.configure()
    assert json.loads(fabric_node.text("origin"))["shaping"] == {NODE: {"rate": 1}}


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"sysctl": 7}', '{"sysctl": {"node": []}}', '{"format": 2}', "[" * 9999]
)
def test_a_damaged_origin_file_is_an_error(fabric_node: FabricNode, text: str) -> None:
    fabric_node.write("origin", text)
    for action in (fabric_node.configure, fabric_node.restore):
        with pytest.raises(HostError, match="remove it; the original settings are then not restored"):
            action()
    assert fabric_node.text("origin") == text


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
    assert path.read_text() == text and [path.name for path in tmp_path.glob("undo*")] == ["undo-7.json"]


def test_unknown_fields_in_an_undo_file_are_ignored(tmp_path: Path) -> None:
    undo = json.loads(UNDO)
    undo["changes"] = [{**change, "later": 1} for change in undo["changes"]]
    (tmp_path / "undo-7.json").write_text(json.dumps(undo))
    assert guard.claimed_changes(str(tmp_path / "undo-7.json")) == fabric_1_0_0.undo_load(UNDO)[1]


def test_each_format_has_a_conversion_from_the_previous_one() -> None:
    for formats in (origin._FORMATS, program._FORMATS, guard._FORMATS):
        assert sorted(formats.conversions) == list(range(2, formats.newest + 1))
        assert formats.newest - 1 <= formats.written <= formats.newest
        assert all(isinstance(conversion, Conversion) for conversion in formats.conversions.values())


@pytest.mark.parametrize("indent", [1, None], ids=["1.0.0", "current"])
def test_records_of_the_driver_show_which_devices_are_in_pods(tmp_path: Path, indent: int | None) -> None:
    folder = tmp_path / usage._CLAIMS.lstrip("/")
    folder.mkdir(parents=True)
    record = json.loads((Path(__file__).parents[1] / "driver/releases/1.0.0-attached.json").read_text())
    (folder / f"{record['uid']}.json").write_text(json.dumps(record, indent=indent, sort_keys=True))
    system = System(str(tmp_path))
    assert usage.users(system, "0000:8a:00.0") == f"a pod has it through the resource claim with UID {record['uid']}"
    published = {"interface": ["eth1"], "speed_mbps": 400000}
    assert usage.as_published(system, "0000:8a:00.0") == published
    # a record of a later format shows that a pod has the device, but not its published attributes
    (folder / f"{record['uid']}.json").write_text('{"schema": 9, "functions": ["0000:8a:00.0"]}')
    assert "a pod has it" in usage.users(system, "0000:8a:00.0")
    assert usage.as_published(system, "0000:8a:00.0") == {}
