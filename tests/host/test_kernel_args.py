# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel arguments, applied by the real update-grub of Debian and kernel-install of systemd."""

from __future__ import annotations

import errno
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.boot_loader import grub_lines
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.kernel_args import KernelArgs
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node
from ansible_collections.lanewise.dra.tests.host.debian_packages import mount_grub, unpacked_grub
from ansible_collections.lanewise.dra.tests.host.faults import FailingSystem
from ansible_collections.lanewise.dra.tests.host.node import run_program

SETTINGS: dict[str, t.Any] = {
    "kernel_args": [
        *("hugepagesz=1G", "hugepages=4", "hugepagesz=2M", "hugepages=512"),
        "pci=disable_acs_redir=0000:01:00.0;0000:02:00.0",
        "ib_core.netns-mode=0",
    ],
    "kernel_args_absent": ["quiet"],
    "iommu": "passthrough",
}
DROP_IN = Path("/etc/default/grub.d/zz-lanewise.cfg")


def _converge(system: System | None = None, check_mode: bool = False, **general: t.Any) -> Outcome:
    system = system or System(run=run_program)
    return converge(Node(system, general=general), [KernelArgs(system)], check_mode)


def _update_grub() -> None:
    assert run_program(["update-grub"])[0] == 0


def _install_grub(grub: Path, folder: Path) -> None:
    """Mount GRUB with settings of a site and of a cloud image, and create its menu."""
    mount_grub(grub, folder)
    Path("/etc/default/grub").write_text(
        "GRUB_DISTRIBUTOR=Debian\n"
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash hugepagesz=2M hugepages=64 console=tty0"\n'
        'GRUB_CMDLINE_LINUX="iommu=soft"\n'
    )
    cloud_settings = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT nvme_core.io_timeout=4294967295"\n'
    Path("/etc/default/grub.d/50-cloudimg-settings.cfg").write_text(cloud_settings)
    _update_grub()


@pytest.fixture
def folder() -> t.Iterator[Path]:
    """A folder on the same disk as /, which grub-probe supports more often than a tmpfs."""
    path = tempfile.mkdtemp(prefix="lanewise-", dir="/var/tmp")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def grub() -> Path:
    """The packages of GRUB. A fixture downloads them, because the node of a test has no network."""
    return unpacked_grub()


def _menu_lines() -> list[list[str]]:
    return grub_lines(Path("/boot/grub/grub.cfg").read_text())


@on_a_node
def test_the_grub_menu_gets_the_arguments_and_loses_them_on_removal(grub: Path, folder: Path) -> None:
    _install_grub(grub, folder)
    before = Path("/boot/grub/grub.cfg").read_text()
    predicted = _converge(check_mode=True, **SETTINGS)
    assert not DROP_IN.exists()
    done = _converge(**SETTINGS)
    assert done.after == predicted.after and done.reboot == predicted.reboot
    for line in _menu_lines():
        assert line[2:] == [
            *("splash", "console=tty0", "nvme_core.io_timeout=4294967295"),
            *("hugepagesz=1G", "hugepages=4", "hugepagesz=2M", "hugepages=512"),
            *("pci=disable_acs_redir=0000:01:00.0;0000:02:00.0", "ib_core.netns-mode=0", "iommu=pt"),
        ]
    assert len(_menu_lines()) == 2
    assert not _converge(**SETTINGS).changes
    assert _converge(kernel_args=[]).changes
    assert not DROP_IN.exists()
    assert Path("/boot/grub/grub.cfg").read_text() == before


@on_a_node
def test_a_file_that_is_sourced_later_and_overrides_the_drop_in_is_named(grub: Path, folder: Path) -> None:
    _install_grub(grub, folder)
    site_file = Path("/etc/default/grub.d/zzz-site.cfg")
    for value in ("nosplash", "$GRUB_CMDLINE_LINUX_DEFAULT iommu=soft"):
        site_file.write_text(f'GRUB_CMDLINE_LINUX_DEFAULT="{value}"\n')
        _update_grub()
        before = Path("/boot/grub/grub.cfg").read_text()
        with pytest.raises(Failed, match="zzz-site.cfg is sourced later") as caught:
            _converge(**SETTINGS)
        assert not caught.value.remaining and not DROP_IN.exists()
        assert Path("/boot/grub/grub.cfg").read_text() == before


@on_a_node
def test_a_failed_change_leaves_the_grub_menu_unchanged(grub: Path, folder: Path) -> None:
    _install_grub(grub, folder)
    before = Path("/boot/grub/grub.cfg").read_text()
    for number in range(2):  # the drop-in, update-grub
        with pytest.raises(Failed) as caught:
            _converge(FailingSystem(number, errno.ENOSPC, run=run_program), **SETTINGS)
        assert not caught.value.remaining
        assert not DROP_IN.exists() and Path("/boot/grub/grub.cfg").read_text() == before


@on_a_node
def test_kernel_install_gives_later_kernels_the_arguments(folder: Path) -> None:
    """With systemd-boot, the entries of installed kernels are changed, and kernel-install reads /etc/kernel/cmdline for
    later kernels."""
    program = shutil.which("kernel-install")
    if not program:
        pytest.skip("kernel-install is not installed")
    for name in ("etc", "boot/loader/entries"):
        (folder / name).mkdir(parents=True)
    for name, mount in (("etc", "/etc"), ("boot", "/boot")):
        subprocess.run(["mount", "--bind", folder / name, mount], check=True)
    Path("/etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    Path("/etc/kernel").mkdir()
    Path("/etc/kernel/entry-token").write_text("site\n")
    Path("/etc/kernel/cmdline").write_text("root=UUID=1 ro quiet\n")
    Path("/etc/os-release").write_text("ID=site\nPRETTY_NAME=Site\n")
    Path("/boot/site").mkdir()

    machine_id = "systemd.machine_id=site"  # kernel-install adds this argument

    def install(version: str) -> list[str]:
        """Install a kernel. Returns the arguments in its boot entry."""
        kernel = folder / f"vmlinuz-{version}"
        kernel.write_text("a kernel\n")
        environment = {"BOOT_ROOT": "/boot", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MACHINE_ID": "site"}
        environment["KERNEL_INSTALL_CONF_ROOT"] = "/etc/kernel"
        done = subprocess.run(
            [program, "add", version, kernel], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        entry = Path(f"/boot/loader/entries/site-{version}.conf").read_text()
        return next(line for line in entry.splitlines() if line.startswith("options")).split()[1:]

    assert install("6.1.0") == ["root=UUID=1", "ro", "quiet", machine_id]
    _converge(**SETTINGS)
    entry = Path("/boot/loader/entries/site-6.1.0.conf").read_text()
    assert "hugepages=512" in entry and " quiet" not in entry
    assert install("6.2.0")[-2:] == ["iommu=pt", machine_id]
    assert not _converge(**SETTINGS).changes
    _converge(kernel_args=[])
    assert install("6.3.0") == ["root=UUID=1", "ro", "quiet", machine_id]
