# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kernel's command line, and how it is found and changed in a GRUB menu."""

from __future__ import annotations

import subprocess

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.boot_loader import grub_lines, grub_shell
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.command_line import (
    Arguments,
    quoted_arguments,
    split,
)
from hypothesis import given, settings
from hypothesis import strategies as st

GRUB_CFG = """\
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {
\tlinux\t/boot/vmlinuz-6.1 root=UUID=1 ro quiet "pci=disable_acs_redir=0000:01:00.0;0000:02:00.0" $vt_handoff
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1' {
\tmenuentry 'with Linux 6.1' $menuentry_id_option 'gnulinux-6.1-advanced-1' {
\t\tlinux\t/boot/vmlinuz-6.1 root=UUID=1 ro quiet
\t}
\tmenuentry 'Wiederherstellung' $menuentry_id_option 'gnulinux-6.1-recovery-1' {
\t\tlinux\t/boot/vmlinuz-6.1 root=UUID=1 ro single
\t}
}
menuentry 'other' $menuentry_id_option 'osprober-gnulinux-simple-2' {
\tlinux /boot/vmlinuz root=/dev/sdb1
}
"""


def test_a_quoted_argument_is_not_split() -> None:
    assert split('ro dyndbg="file a.c +p" "pci=a;b" quiet -- init=1') == [
        "ro",
        "dyndbg=file a.c +p",
        "pci=a;b",
        "quiet",
    ]


_NAMES = st.sampled_from(["iommu", "intel_iommu", "intel-iommu", "console", "hugepages", "hugepagesz", "quiet", "pci"])
_VALUES = st.sampled_from(["", "=pt", "=on", "=a;b", "=1G", "=4", "=x&y"])
_ARGUMENT = st.builds(lambda name, value: name + value, _NAMES, _VALUES)


def _consistent(present: list[str], absent: list[str]) -> Arguments:
    """Wanted and unwanted arguments without contradictions, which the resource would refuse."""
    unwanted = tuple(item for item in absent if not any(argument.startswith(item) for argument in present))
    return Arguments(tuple(dict.fromkeys(present)), unwanted)


@given(st.lists(_ARGUMENT, max_size=6), st.lists(_ARGUMENT, max_size=4), st.lists(_ARGUMENT, max_size=8))
def test_applied_arguments_are_recognized_and_removed(present: list[str], absent: list[str], line: list[str]) -> None:
    wanted = _consistent(present, absent)
    before = " ".join(f'"{argument}"' if ";" in argument else argument for argument in line)
    after = wanted.applied(before, Arguments())
    assert wanted.relevant(split(after)) == wanted.ordered()
    assert wanted.applied(after, wanted) == after
    assert not any(argument in wanted.present for argument in split(Arguments().applied(after, wanted)))


@settings(max_examples=40)
@given(
    st.lists(_ARGUMENT, max_size=5),
    st.lists(_ARGUMENT, max_size=3),
    st.lists(_ARGUMENT.filter(str.isascii), max_size=6),
)
def test_the_shell_script_for_grub_gives_the_same_line(present: list[str], absent: list[str], line: list[str]) -> None:
    wanted = _consistent(present, absent)
    before = " ".join(f'"{argument}"' if set(";&") & set(argument) else argument for argument in line)
    script = (
        f'set -e\n{grub_shell(wanted)}\nprintf \'%s\\n%s\\n\' "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"\n'
    )
    environment = {"GRUB_CMDLINE_LINUX": before, "GRUB_CMDLINE_LINUX_DEFAULT": before, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh"], input=script, env=environment, capture_output=True, text=True, check=True)
    linux, linux_default = done.stdout.splitlines()
    without_wanted = [
        word
        for word in quoted_arguments(wanted.applied(before, Arguments()))
        if word.replace('"', "") not in wanted.present
    ]
    assert quoted_arguments(linux) == without_wanted
    assert quoted_arguments(linux_default) == quoted_arguments(wanted.applied(before, Arguments()))


def test_recovery_entries_and_other_systems_of_a_grub_menu_are_left_out() -> None:
    first, second = grub_lines(GRUB_CFG)
    assert first == ["root=UUID=1", "ro", "quiet", "pci=disable_acs_redir=0000:01:00.0;0000:02:00.0", "$vt_handoff"]
    assert second == ["root=UUID=1", "ro", "quiet"]


def test_the_variables_of_a_grub_menu_are_replaced_by_their_values() -> None:
    menu = GRUB_CFG.replace("$vt_handoff", "$vt_handoff ${tuned_params} -- single")
    menu = f'function gfxmode {{\n\tset vt_handoff=vt.handoff=7\n}}\nset tuned_params="isolcpus=2 nosmt"\n{menu}'
    assert grub_lines(menu)[0][-3:] == ["$vt_handoff", "isolcpus=2", "nosmt"]


def test_a_variable_of_a_grub_menu_that_is_no_whole_argument_stays_as_it_is() -> None:
    menu = GRUB_CFG.replace("$vt_handoff", "$vt_handoff $a $b $c")
    values = 'set a="dyndbg=\'file a +p\'"\nset b="it\'s"\nset c="x" # a comment\n'
    assert grub_lines(values + menu)[0][-4:] == ["$vt_handoff", "dyndbg=file a +p", "$b", "x"]


def test_a_wanted_argument_that_another_program_repeats_needs_no_change() -> None:
    wanted = Arguments(("isolcpus=2", "hugepagesz=1G", "hugepages=4"))
    assert wanted.relevant(["isolcpus=2", "hugepagesz=1G", "hugepages=4", "isolcpus=2"]) == wanted.ordered()
    assert wanted.relevant(["hugepages=4", "isolcpus=2", "hugepagesz=1G", "hugepages=4"]) != wanted.ordered()
    assert wanted.relevant(["isolcpus=2", "isolcpus=3", "hugepagesz=1G", "hugepages=4"]) != wanted.ordered()
    assert not wanted.conflicts_with("isolcpus=2") and wanted.conflicts_with("isolcpus=3")
