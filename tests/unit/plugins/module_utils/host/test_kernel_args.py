# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.boot_loader import (
    Entries,
    Grub,
    find_boot_loader,
)
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot, guard
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.kernel_args import KernelArgs

ENTRY = """\
title Fedora Linux (6.11.4)
version 6.11.4
linux /vmlinuz-6.11.4
initrd /initramfs-6.11.4.img
options root=UUID=1 ro rhgb quiet iommu=soft
grub_users $grub_users
"""


class Machine:
    """The files of a node: the running command line, the processor, and the files of a boot loader."""

    def __init__(
        self, root: Path, cmdline: str = "root=UUID=1 ro quiet", cpu: str = "vendor_id\t: AuthenticAMD"
    ) -> None:
        self.root = root
        self.write("proc/cmdline", cmdline + "\n")
        self.write("proc/cpuinfo", f"processor\t: 0\n{cpu}\n")
        self.boot("first")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def boot(self, name: str, cmdline: str | None = None) -> None:
        self.write("proc/sys/kernel/random/boot_id", name + "\n")
        if cmdline is not None:
            self.write("proc/cmdline", cmdline + "\n")

    def options(self, entry: str = "a") -> str:
        lines = self.read(f"boot/loader/entries/{entry}.conf").splitlines()
        return next(line for line in lines if line.startswith("options ")).partition(" ")[2]

    def converge(self, check_mode: bool = False, **general: t.Any) -> t.Any:
        system = System(str(self.root), run=self.run_program)
        return converge(Node(system, general=general), [KernelArgs(system)], check_mode)

    def run_program(self, argv: list[str]) -> tuple[int, str, str]:
        """Run update-grub, which writes one menu entry, or grub2-editenv, which sets one variable."""
        if argv[0] == "grub2-editenv":
            self.write("boot/grub2/grubenv", f"# GRUB Environment Block\n{argv[-1]}\n")
            return 0, "", ""
        script = (
            f'for file in {self.root}/etc/default/grub.d/*.cfg; do . "$file"; done; echo $GRUB_CMDLINE_LINUX_DEFAULT'
        )
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        if not done.returncode:
            self.write("boot/grub/grub.cfg", f"linux /vmlinuz root=UUID=1 ro {done.stdout}")
        return done.returncode, "", done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.write("boot/loader/entries/a.conf", ENTRY)
    machine.write("boot/loader/entries/0-rescue.conf", ENTRY)
    return machine


def test_without_settings_nothing_is_planned(machine: Machine) -> None:
    assert not machine.converge().changes


def test_an_argument_that_only_contains_a_wanted_one_does_not_count(machine: Machine) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("iommu=soft", "amd_iommu=pt iommu=pt_not"))
    assert machine.converge(kernel_args=["iommu=pt"], check_mode=True).changes


def test_arguments_are_added_to_boot_entries_and_removed_again(machine: Machine) -> None:
    machine.write("etc/kernel/cmdline", "root=UUID=1 ro quiet\n")
    machine.write("etc/default/grub", 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="rhgb quiet"\n')
    settings_of_node = {
        "kernel_args": ["hugepagesz=1G", "hugepages=4", "pci=disable_acs_redir=a;b"],
        "kernel_args_absent": ["quiet"],
    }
    planned = machine.converge(check_mode=True, iommu="passthrough", **settings_of_node)
    assert "quiet" in machine.options()
    done = machine.converge(iommu="passthrough", **settings_of_node)
    assert done.after == planned.after and done.reboot == planned.reboot
    added = 'hugepagesz=1G hugepages=4 "pci=disable_acs_redir=a;b" iommu=pt'
    assert machine.options() == f"root=UUID=1 ro rhgb {added}"
    assert machine.options("0-rescue") == "root=UUID=1 ro rhgb quiet iommu=soft"
    assert machine.read("etc/kernel/cmdline") == f"root=UUID=1 ro {added}\n"
    in_shell = added.replace('"', '\\"')
    assert machine.read("etc/default/grub") == f'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="rhgb {in_shell}"\n'
    assert not machine.converge(iommu="passthrough", **settings_of_node).changes
    assert machine.converge(iommu="passthrough").changes
    assert machine.options() == "root=UUID=1 ro rhgb quiet iommu=pt"
    machine.converge(kernel_args=[])
    assert machine.options() == "root=UUID=1 ro rhgb quiet iommu=soft"
    assert machine.read("etc/default/grub") == 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="rhgb quiet iommu=soft"\n'
    assert not (machine.root / "etc/lanewise/kernel-args").exists()


def test_later_changes_of_a_boot_entry_are_reverted(machine: Machine) -> None:
    machine.converge(kernel_args=["iommu=pt", "nosmt"])
    for options in ("iommu=soft iommu=pt nosmt", "nosmt", ""):
        machine.write("boot/loader/entries/a.conf", ENTRY.replace("iommu=soft", options))
        assert machine.converge(kernel_args=["iommu=pt", "nosmt"]).changes
        assert machine.options() == "root=UUID=1 ro rhgb quiet iommu=pt nosmt"


def test_kernelopts_in_a_boot_entry_are_replaced_by_their_value(machine: Machine) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("root=UUID=1 ro rhgb quiet iommu=soft", "$kernelopts"))
    machine.write("boot/grub2/grubenv", "# GRUB Environment Block\nkernelopts=root=UUID=1 ro iommu=pt \n")
    loader = find_boot_loader(System(str(machine.root)))
    assert isinstance(loader, Entries) and loader.lines() == [["root=UUID=1", "ro", "iommu=pt"]]


@pytest.mark.parametrize("check_mode", [True, False])
def test_an_argument_that_conflicts_with_tuned_is_refused(machine: Machine, check_mode: bool) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("iommu=soft", "$tuned_params"))
    machine.write("boot/grub2/grubenv", "# GRUB Environment Block\ntuned_params=iommu=soft isolcpus=2\n")
    with pytest.raises(Refused) as caught:
        machine.converge(check_mode, kernel_args=["iommu=pt"])
    assert str(caught.value).endswith(
        "kernel_args: $tuned_params of /boot/grub2/grubenv contains iommu=soft (change the tuned profile)"
    )
    with pytest.raises(Refused, match="contains isolcpus=2 "):
        machine.converge(check_mode, kernel_args_absent=["isolcpus"])
    assert machine.options() == "root=UUID=1 ro rhgb quiet $tuned_params"
    assert machine.converge(check_mode, kernel_args=["nosmt"]).changes


def test_a_conflict_with_tuned_that_appears_after_the_plan_changes_nothing(machine: Machine) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("iommu=soft", "$tuned_params"))
    machine.write("boot/grub2/grubenv", "tuned_params=isolcpus=2\n")
    system = System(str(machine.root))

    def change_profile(changes: object) -> None:
        machine.write("boot/grub2/grubenv", "tuned_params=iommu=soft\n")

    node = Node(system, general={"kernel_args": ["iommu=pt"]})
    with pytest.raises(Failed, match="tuned_params.*The node is in its previous state"):
        converge(node, [KernelArgs(system)], before_changes=change_profile)
    assert machine.options() == "root=UUID=1 ro rhgb quiet $tuned_params"


def _grub_machine(folder: Path, later_file: str) -> Machine:
    """A node with GRUB, and a file that is sourced after the collection's file."""
    machine = Machine(folder)
    machine.write("usr/sbin/update-grub", "")
    machine.write("etc/default/grub.d/00-site.cfg", "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n")
    machine.write("etc/default/grub.d/zzz-site.cfg", later_file)
    machine.write("boot/grub/grub.cfg", "linux /vmlinuz root=UUID=1 ro quiet iommu=soft\n")
    return machine


@pytest.mark.parametrize("check_mode", [True, False])
def test_an_argument_that_conflicts_with_tuned_in_a_grub_menu_is_refused(tmp_path: Path, check_mode: bool) -> None:
    machine = _grub_machine(tmp_path, "")
    menu = 'set tuned_params="iommu=soft isolcpus=2"\nlinux /vmlinuz root=UUID=1 ro quiet $tuned_params\n'
    machine.write("boot/grub/grub.cfg", menu)
    with pytest.raises(Refused, match=r"\$tuned_params of /boot/grub/grub.cfg contains iommu=soft \(change the tuned"):
        machine.converge(check_mode, kernel_args=["iommu=pt"])
    with pytest.raises(Refused, match="contains isolcpus=2 "):
        machine.converge(check_mode, kernel_args_absent=["isolcpus"])
    assert machine.read("boot/grub/grub.cfg") == menu
    assert machine.converge(check_mode, kernel_args=["nosmt"]).changes


def test_arguments_after_those_for_init_have_no_effect(tmp_path: Path) -> None:
    machine = _grub_machine(tmp_path, "")
    machine.write("etc/default/grub.d/00-site.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet -- single"\n')
    with pytest.raises(Failed, match="set the kernel arguments for the next boot"):
        machine.converge(kernel_args=["iommu=pt"])


_ADD_IOMMU_SOFT = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=soft"\n'


def test_the_grub_menu_is_restored_if_another_file_overrides_the_arguments(tmp_path: Path) -> None:
    machine = _grub_machine(tmp_path, _ADD_IOMMU_SOFT)
    menu = machine.read("boot/grub/grub.cfg")
    with pytest.raises(Failed, match=r"zzz-site\.cfg is sourced later.*The node is in its previous state"):
        machine.converge(kernel_args=["iommu=pt", "default_hugepagesz=1G"])
    assert machine.read("boot/grub/grub.cfg") == menu
    assert not (tmp_path / "etc/default/grub.d/zz-lanewise.cfg").exists()


def test_the_command_line_of_a_menu_that_cannot_be_restored_is_reported(tmp_path: Path) -> None:
    fails_second_time = "[ ! -e $(dirname $file)/called ] || exit 3; touch $(dirname $file)/called\n"
    machine = _grub_machine(tmp_path, fails_second_time + _ADD_IOMMU_SOFT)
    with pytest.raises(Failed) as caught:
        machine.converge(kernel_args=["iommu=pt", "default_hugepagesz=1G"])
    now = "root=UUID=1 ro quiet iommu=pt default_hugepagesz=1G iommu=soft"
    assert now in machine.read("boot/grub/grub.cfg")
    assert "previous state: node: command lines of the next boot is" in str(caught.value)
    remaining = {remaining.setting: remaining for remaining in caught.value.remaining}
    assert remaining["command lines of the next boot"].now == [now]
    assert remaining["command lines of the next boot"].before == ["root=UUID=1 ro quiet iommu=soft"]
    assert "rebuild GRUB's menu" in remaining["command lines of the next boot"].reason


@pytest.mark.parametrize("undo_fails_once", [False, True])
def test_kernelopts_are_restored_if_a_later_file_cannot_be_written(machine: Machine, undo_fails_once: bool) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("root=UUID=1 ro rhgb quiet iommu=soft", "$kernelopts"))
    machine.write("etc/kernel/cmdline", "root=UUID=1 ro quiet\n")
    grubenv = "# GRUB Environment Block\nkernelopts=root=UUID=1 ro quiet\n"
    machine.write("boot/grub2/grubenv", grubenv)

    failing = ["/etc/kernel/cmdline", *(["/etc/lanewise/kernel-args"] if undo_fails_once else [])]

    class FullDisk(System):
        """The first change of /etc/kernel/cmdline, and the first removal of a file in `failing`, fail."""

        def install(self, path: str, content: str | bytes | None, step: str, mode: int = 0o644) -> None:
            if path in failing and (content is None or path == "/etc/kernel/cmdline"):
                failing.remove(path)
                raise HostError(step, "no space left on device")
            super().install(path, content, step, mode)

    system = FullDisk(str(machine.root), run=machine.run_program)
    with pytest.raises(Failed, match="write the kernel arguments to /etc/kernel/cmdline: no space left") as caught:
        converge(Node(system, general={"kernel_args": ["nosmt"]}), [KernelArgs(system)])
    assert not failing and [value.reason for value in caught.value.remaining] == (
        ["cannot restore /etc/lanewise/kernel-args: no space left on device"] if undo_fails_once else []
    )
    assert machine.read("boot/grub2/grubenv") == grubenv
    assert not (machine.root / "etc/lanewise/kernel-args").exists()


def test_kernelopts_are_restored_if_the_rest_of_the_options_overrides_the_arguments(machine: Machine) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("root=UUID=1 ro rhgb quiet", "$kernelopts"))
    grubenv = "# GRUB Environment Block\nkernelopts=root=UUID=1 ro quiet\n"
    machine.write("boot/grub2/grubenv", grubenv)
    with pytest.raises(Failed, match="The node is in its previous state"):
        machine.converge(kernel_args=["iommu=pt", "nosmt"])
    assert machine.read("boot/grub2/grubenv") == grubenv


def test_an_argument_that_a_boot_did_not_apply_is_refused(machine: Machine) -> None:
    first = machine.converge(kernel_args=["iommu=pt"])
    assert first.reboot == ["kernel arguments change at the next boot: +iommu=pt"]
    assert machine.converge(kernel_args=["iommu=pt"]).reboot
    machine.boot("second", "root=UUID=1 ro rhgb quiet iommu=pt")
    assert not machine.converge(kernel_args=["iommu=pt"]).reboot
    machine.boot("third", "root=UUID=1 ro rhgb quiet")
    with pytest.raises(Refused, match="booted since"):
        machine.converge(kernel_args=["iommu=pt"])
    removed = machine.converge(kernel_args=[])
    assert removed.changes and not removed.reboot


def test_a_removed_argument_needs_a_reboot(machine: Machine) -> None:
    machine.converge(kernel_args=["iommu=pt"])
    machine.boot("second", "root=UUID=1 ro rhgb quiet iommu=pt")
    assert machine.converge(kernel_args=[]).reboot == ["kernel arguments are removed at the next boot: iommu=pt"]


INTEL, AMD, ARM64 = "vendor_id\t: GenuineIntel", "vendor_id\t: AuthenticAMD", "CPU implementer\t: 0x41"


@pytest.mark.parametrize(
    ("cpu", "iommu", "present", "absent"),
    [
        (INTEL, "passthrough", ["intel_iommu=on", "iommu=pt"], []),
        (INTEL, "off", ["intel_iommu=off"], []),
        (AMD, "passthrough", ["iommu=pt"], ["amd_iommu=off"]),
        (AMD, "translate", ["iommu=nopt"], ["amd_iommu=off"]),
        (AMD, "off", ["amd_iommu=off"], []),
        (ARM64, "passthrough", ["iommu.passthrough=1"], []),
    ],
)
def test_the_iommu_setting_becomes_the_arguments_of_the_processor(
    tmp_path: Path, cpu: str, iommu: str, present: list[str], absent: list[str]
) -> None:
    machine = Machine(tmp_path, cpu=cpu)
    machine.write("boot/loader/entries/a.conf", ENTRY)
    assert machine.converge(iommu=iommu, check_mode=True).changes[0].after == {"present": present, "absent": absent}


def test_an_amd_iommu_that_is_switched_off_is_switched_on(machine: Machine) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("iommu=soft", "amd_iommu=off"))
    machine.boot("first", "root=UUID=1 ro rhgb quiet amd_iommu=off")
    done = machine.converge(iommu="passthrough")
    assert machine.options() == "root=UUID=1 ro rhgb quiet iommu=pt"
    assert done.reboot == ["kernel arguments change at the next boot: +iommu=pt, -amd_iommu=off"]
    assert not machine.converge(iommu="passthrough").changes
    machine.converge(iommu="off")
    assert machine.options() == "root=UUID=1 ro rhgb quiet amd_iommu=off"
    machine.converge(iommu="translate", kernel_args=["amd_iommu=pgtbl_v2"])
    assert machine.options() == "root=UUID=1 ro rhgb quiet amd_iommu=pgtbl_v2 iommu=nopt"


def test_an_amd_iommu_that_is_switched_off_in_a_list_of_values_is_refused(machine: Machine) -> None:
    machine.write("boot/loader/entries/a.conf", ENTRY.replace("iommu=soft", "amd_iommu=fullflush,off iommu=pt"))
    with pytest.raises(Refused, match="amd_iommu=fullflush,off in the boot loader's entries contradicts iommu: pass"):
        machine.converge(iommu="passthrough")
    machine.converge(iommu="passthrough", kernel_args=["amd_iommu=fullflush"])
    assert machine.options() == "root=UUID=1 ro rhgb quiet amd_iommu=fullflush iommu=pt"
    machine.write("boot/loader/entries/a.conf", ENTRY)
    machine.boot("second", "root=UUID=1 ro rhgb quiet iommu=pt amd_iommu=fullflush,off")
    done = machine.converge(iommu="passthrough")
    assert done.reboot[0] == "kernel arguments change at the next boot: -amd_iommu=fullflush,off"


@pytest.mark.parametrize(
    "general",
    [
        {"kernel_args_absent": ["quiet"]},
        {"kernel_args": ["iommu=pt"]},
        {"kernel_args": ["a=b"], "kernel_args_absent": ["rhgb"]},
    ],
    ids=["removed", "replaced", "added and removed"],
)
def test_the_timer_undoes_a_change_of_the_arguments(tmp_path: Path, general: dict[str, t.Any]) -> None:
    """The timer runs in a process of its own. Removed arguments may come back in another place of the line."""
    machine = Machine(tmp_path)
    machine.write("boot/loader/entries/a.conf", ENTRY)
    before, path = machine.options(), str(tmp_path / "undo-7.json")
    system = System(str(machine.root))
    node, chosen = Node(system, general=general), [KernelArgs(system)]

    def record(changes: list[Change]) -> None:
        guard._write(System(), path, changes, 60, "write", guard.side_effects(node, chosen, changes))

    converge(node, chosen, before_changes=record)
    assert machine.options() != before
    changes, effects = guard.claimed_changes(path), guard.claimed_side_effects(path)
    assert boot.undo(System(str(machine.root)), changes, effects) == []
    assert sorted(machine.options().split()) == sorted(before.split())


@pytest.mark.parametrize(
    ("cpu", "iommu", "kernel_args", "reason"),
    [
        (AMD, "passthrough", ["iommu=nopt"], "iommu=nopt in kernel_args replaces iommu=pt, which iommu: passthrough"),
        (AMD, "passthrough", ["iommu=pt", "iommu=off"], "iommu=pt iommu=off in kernel_args replaces iommu=pt"),
        (AMD, "translate", ["iommu=merge"], "iommu=merge in kernel_args replaces .* write iommu=nopt,VALUE"),
        (AMD, "translate", ["amd_iommu=fullflush,off"], "but iommu: translate removes amd_iommu=off"),
        (AMD, "off", ["amd-iommu=force_enable"], "amd-iommu=force_enable in kernel_args replaces amd_iommu=off"),
        (INTEL, "passthrough", ["intel_iommu=sm_on"], "intel_iommu=sm_on in kernel_args replaces intel_iommu=on"),
        (INTEL, "off", ["intel_iommu=on"], "intel_iommu=on in kernel_args replaces intel_iommu=off"),
        (ARM64, "passthrough", ["iommu.passthrough=0"], "iommu.passthrough=0 in kernel_args replaces"),
    ],
)
def test_arguments_that_contradict_the_iommu_mode_are_refused(
    tmp_path: Path, cpu: str, iommu: str, kernel_args: list[str], reason: str
) -> None:
    machine = Machine(tmp_path, cpu=cpu)
    machine.write("boot/loader/entries/a.conf", ENTRY)
    with pytest.raises(Refused, match=reason):
        machine.converge(iommu=iommu, kernel_args=kernel_args)
    machine.converge(kernel_args=kernel_args)
    with pytest.raises(Refused, match=reason):  # although the node has the arguments
        machine.converge(iommu=iommu, kernel_args=kernel_args)


@pytest.mark.parametrize(
    ("cpu", "iommu", "kernel_args", "added"),
    [
        (INTEL, "passthrough", ["intel_iommu=on,sm_on"], "intel_iommu=on,sm_on iommu=pt"),
        (INTEL, "passthrough", ["intel_iommu=on", "intel_iommu=sm_on"], "intel_iommu=on intel_iommu=sm_on iommu=pt"),
        (INTEL, "translate", ["iommu=nopt,merge"], "iommu=nopt,merge intel_iommu=on"),
        (AMD, "passthrough", ["amd_iommu=force_isolation"], "amd_iommu=force_isolation iommu=pt"),
    ],
)
def test_an_argument_of_the_iommu_mode_may_have_further_values(
    tmp_path: Path, cpu: str, iommu: str, kernel_args: list[str], added: str
) -> None:
    machine = Machine(tmp_path, cpu=cpu)
    machine.write("boot/loader/entries/a.conf", ENTRY)
    machine.converge(iommu=iommu, kernel_args=kernel_args)
    assert machine.options() == f"root=UUID=1 ro rhgb quiet {added}"


@pytest.mark.parametrize(
    ("general", "reason"),
    [
        ({"kernel_args": ["root=/dev/sda"]}, "not boot"),
        ({"kernel_args_absent": ["initrd"]}, "not boot"),
        ({"kernel_args": ["a=$(reboot)"]}, "not an argument that every"),
        ({"kernel_args": ["a b"]}, "not an argument that every"),
        ({"kernel_args": ["quiet"], "kernel_args_absent": ["quiet"]}, "removed by kernel_args_absent"),
    ],
)
def test_invalid_and_contradictory_arguments_are_refused(machine: Machine, general: t.Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        machine.converge(**general)


def test_switching_off_the_iommu_on_arm64_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cpu="CPU implementer\t: 0x41")
    machine.write("boot/loader/entries/a.conf", ENTRY)
    with pytest.raises(Refused, match="off on this processor"):
        machine.converge(iommu="off", kernel_args=["nosmt"])


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("run/ostree-booted", "rpm-ostree"),
        ("etc/zipl.conf", "zipl"),
        ("sys/firmware/efi/efivars/StubInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", "unified image"),
    ],
)
def test_other_boot_methods_are_refused_with_a_fix(machine: Machine, path: str, reason: str) -> None:
    machine.write(path, "\7\0\0\0s\0")
    with pytest.raises(Refused, match=reason):
        machine.converge(kernel_args=["iommu=pt"])


def test_a_netbooted_node_passes_only_if_it_runs_the_wanted_arguments(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "ip=dhcp iommu=pt quiet")
    assert not machine.converge(iommu="passthrough").changes
    with pytest.raises(Refused, match="netboot server"):
        machine.converge(iommu="passthrough", kernel_args=["pci=realloc"])


def test_the_boot_loader_that_started_the_node_is_chosen(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("boot/loader/entries/a.conf", ENTRY)
    machine.write("boot/grub/grub.cfg", "linux /vmlinuz root=UUID=1 ro quiet\n")
    machine.write("usr/sbin/update-grub", "")
    assert isinstance(find_boot_loader(System(str(tmp_path))), Grub)
    info = tmp_path / "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
    info.parent.mkdir(parents=True)
    info.write_bytes(b"\6\0\0\0" + "systemd-boot 255\0".encode("utf-16-le"))
    assert isinstance(find_boot_loader(System(str(tmp_path))), Entries)


def test_a_grub_menu_without_a_linux_kernel_is_an_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("boot/grub/grub.cfg", "set default=0\n")
    machine.write("usr/sbin/update-grub", "")
    with pytest.raises(HostError, match="no entry with a Linux kernel"):
        machine.converge(kernel_args=["iommu=pt"])
