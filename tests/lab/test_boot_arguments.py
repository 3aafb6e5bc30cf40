# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role fabric sets kernel arguments, with its reboots, on nodes with a boot loader: Debian's GRUB with BIOS, and
systemd-boot with UEFI. The tests read the kernel's command line and the effects of the arguments."""

from __future__ import annotations

import re
import time
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.lab.node import TIMEOUT, Ended, Lab, Node, Shape, artifacts
from ansible_collections.lanewise.dra.tests.lab.test_fabric_role import Object
from ansible_collections.lanewise.dra.tests.lab.test_fabric_role import Site as FabricSite
from environment import Missing  # tools/lab.py has put its folder on the path

#: The lab's command line already has pci=realloc.
WANTED = {"iommu": "passthrough", "kernel_args": ["hugepagesz=2M", "hugepages=16", "pci=realloc"]}
EXPECTED = ["hugepagesz=2M", "hugepages=16", "pci=realloc", "intel_iommu=on", "iommu=pt"]
SITE: Object = {"fabric_node": {**WANTED, "kernel_args_absent": ["quiet"]}}
FEWER: Object = {"fabric_node": {**WANTED, "kernel_args_absent": ["quiet", "audit"]}}
REBOOT: Object = {"fabric_reboot_ok": True}
#: Skips files that take time to unpack and that no test needs.
DPKG = """path-exclude=/usr/share/locale/*
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/man/*
force-unsafe-io
"""
GRUB = """GRUB_TIMEOUT=1
GRUB_TERMINAL=serial
GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"
GRUB_CMDLINE_LINUX="{}"
"""


def install(node: Node, name: str) -> str:
    """Install a boot loader's packages and the kernel on a node. Returns the kernel's release."""
    loaders, kernel = artifacts.loaders(), artifacts.kernel()
    release = (kernel / "release").read_text().strip()
    installed = set(node.ssh("dpkg-query --show --showformat='${Package}\\n'").split())
    for package in (loaders / name).iterdir():
        if package.name.split("_")[0] not in installed:
            node.copy(package, "/var/tmp/packages")
    node.ssh("cat > /etc/dpkg/dpkg.cfg.d/lab", stdin=DPKG)
    node.ssh(
        "export DEBIAN_FRONTEND=noninteractive; "
        "echo grub-pc grub-pc/install_devices_empty boolean true | debconf-set-selections && "
        "dpkg --install /var/tmp/packages/*.deb && rm -r /var/tmp/packages",
        timeout=2 * TIMEOUT,
    )
    node.copy(loaders / "vmlinuz", "/boot")
    node.copy(kernel / "initrd", "/boot")
    node.ssh(f"cd /boot && mv vmlinuz vmlinuz-{release} && mv initrd initrd.img-{release}")
    return release


def install_grub(node: Node, line: str) -> list[str]:
    install(node, "grub-pc")
    node.ssh("mkdir -p /etc/default/grub.d; cat > /etc/default/grub.d/10_lab.cfg", stdin=GRUB.format(line))
    # --force: GRUB uses blocklists, as the filesystem fills the whole disk; `quiet` is Debian's default
    node.ssh("grub-install --force /dev/vda && update-grub", timeout=2 * TIMEOUT)
    return []


def install_systemd_boot(node: Node, line: str) -> list[str]:
    release = install(node, "systemd-boot")
    node.copy(artifacts.loaders() / "fs", f"/usr/lib/modules/{release}/kernel/fs")
    disk = node.plug_nvme()[0]
    device = f"/dev/disk/by-path/pci-{disk.address}-nvme-1"
    node.ssh(
        f"depmod && udevadm wait --timeout={TIMEOUT} {device} && mkfs.vfat -F 32 -n ESP {device} && "
        f"udevadm wait --timeout={TIMEOUT} /dev/disk/by-label/ESP && mkdir -p /boot/efi /etc/kernel && "
        "echo 'LABEL=ESP /boot/efi vfat umask=0077 0 0' >> /etc/fstab && systemctl daemon-reload && mount /boot/efi && "
        f"echo 'root=/dev/vda rw {line} quiet' > /etc/kernel/cmdline && "
        # the filesystem fills the whole disk here, too
        "export SYSTEMD_RELAX_ESP_CHECKS=1 && bootctl --no-variables install && "
        f"kernel-install add {release} /boot/vmlinuz-{release} /boot/initrd.img-{release}",
        timeout=2 * TIMEOUT,
    )
    # not as an NVMe disk: with pci=realloc, the kernel would take away the addresses that UEFI assigned to it
    drive = f"file={node.folder}/nvme{disk.numa}.qcow2,if=none,id=esp,format=qcow2"
    plugged = ["-drive", drive, "-device", "virtio-blk-pci,drive=esp,bus=pcie.0,addr=5"]
    return [*plugged, "-bios", str(artifacts.loaders() / "OVMF.fd")]


def switch_off(node: Node) -> None:
    node.ssh("systemd-run --quiet --on-active=1 --timer-property=AccuracySec=10ms systemctl poweroff")
    deadline = time.monotonic() + TIMEOUT
    with pytest.raises(Ended, match="status 0"):
        while time.monotonic() < deadline:
            node.check()
            time.sleep(0.2)


class Site(FabricSite):
    """One node, the playbook for it, and its kernel's state."""

    def __init__(self, lab: Lab, loader: list[str]) -> None:
        super().__init__(lab)
        self.loader = loader
        self.original = self.arguments()

    def arguments(self) -> list[str]:
        return self.node.ssh("cat /proc/cmdline").split()

    def boot(self) -> str:
        return self.node.ssh("cat /proc/sys/kernel/random/boot_id")

    def translation(self) -> set[str]:
        """The types of the node's IOMMU groups."""
        return set(self.node.ssh("cat /sys/kernel/iommu_groups/*/type").split())

    def pages(self) -> int:
        return int(self.node.ssh("cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"))

    def next_boot(self) -> str:
        """The boot loader's configuration."""
        return self.node.ssh("cat /boot/grub/grub.cfg /boot/efi/loader/entries/*.conf", check=False)


@pytest.fixture(name="site", scope="module", params=["grub", "systemd_boot"])
def _site(request: pytest.FixtureRequest) -> t.Iterator[Site]:
    try:
        artifacts.ensure()
        artifacts.loaders()
    except Missing as missing:
        pytest.skip(str(missing))
    with Lab() as lab:
        (node,) = lab.start(1, shape=Shape(iommu=True))
        line = re.sub(r"root=\S+ rw | intel_iommu=on iommu=pt", "", node.shape.command_line(0))
        loader = {"grub": install_grub, "systemd_boot": install_systemd_boot}[request.param](
            node, f"{line} systemd.show_status=1"
        )
        switch_off(node)
        node.power_on(loader)
        site = Site(lab, loader)
        # only this boot loader adds these arguments
        mark = {"grub": r"BOOT_IMAGE=/boot/vmlinuz-\S+ root=UUID=", "systemd_boot": r"initrd=\\\w+\\"}[request.param]
        assert re.match(mark, " ".join(site.original)), site.original
        yield site


def test_wanted_arguments_are_set_after_the_next_boot(site: Site) -> None:
    first = site.boot()
    assert "quiet" in site.original and not {"intel_iommu=on", "iommu=pt"} & set(site.original)
    assert "identity" not in site.translation() and site.pages() == 0

    lacks = [*(f"+{entry}" for entry in EXPECTED if entry not in site.original), "-quiet"]
    before = site.next_boot()
    text = site.play(SITE, "--check", "-v")
    assert "changed=1" in text and '"reboot_required": true' in text and all(lack in text for lack in lacks)
    assert site.next_boot() == before
    # without permission there is no reboot, and the run reports the pending arguments
    text = site.play(SITE)
    assert "set fabric_reboot_ok to allow it" in text and all(lack in text for lack in lacks)
    assert site.next_boot() != before
    assert site.boot() == first and site.arguments() == site.original

    site.play({**SITE, **REBOOT})
    second = site.boot()
    assert second != first
    assert site.arguments()[-len(EXPECTED) :] == EXPECTED
    assert sorted(site.arguments()) == sorted({*site.original, *EXPECTED} - {"quiet"})  # each once
    assert site.translation() == {"identity"} and site.pages() == 16

    assert "changed=0" in site.play({**SITE, **REBOOT})
    assert site.boot() == second


def test_an_unwanted_argument_is_removed(site: Site) -> None:
    before, first = site.arguments(), site.boot()
    site.play({**FEWER, **REBOOT})
    assert site.boot() != first
    assert "audit=0" in before and site.arguments() == [entry for entry in before if entry != "audit=0"]


def test_a_bypassed_boot_loader_does_not_cause_another_reboot(site: Site) -> None:
    """A kernel that starts without the boot loader never gets its arguments, so another reboot would not help."""
    switch_off(site.node)
    site.node.power_on([*site.loader[:-2], *site.node.direct_boot()])  # by BIOS
    first = site.boot()
    text = site.play({**FEWER, **REBOOT}, fails=True)
    assert "the node was rebooted since" in text and "+hugepages=16" in text and "-audit=0" in text
    assert site.boot() == first
    switch_off(site.node)
    site.node.power_on(site.loader)


def test_absent_restores_the_boot_loader(site: Site) -> None:
    first = site.boot()
    site.play({"fabric_state": "absent", **REBOOT})
    assert site.boot() != first
    assert sorted(site.arguments()) == sorted(site.original)
    assert "identity" not in site.translation() and site.pages() == 0
    assert site.node.status("ls /etc/default/grub.d/zz-lanewise.cfg || ls /etc/lanewise/kernel-args") != 0
