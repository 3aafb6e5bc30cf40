# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Record a machine with NVIDIA GPUs: its sysfs and procfs, results of NVML, and the slices of NVIDIA's DRA driver.

    python -m tests.nvidia.record MACHINE.json [--nccl] [--slices]

tests/nvidia/recorded contains such files. tests/cluster/test_nvidia_recorded.py compares them with nvml.c, and
tests/cluster/test_nvidia_slices.py with our predictions. Nothing on the machine is changed. `--slices` needs root and
the programs that tools/cluster.py builds.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import stat
import sys
import tempfile
import typing as t
from pathlib import Path

import pynvml as nvml
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.nvidia import nccl
from ansible_collections.lanewise.dra.tests.nvidia.answers import answers
from ansible_collections.lanewise.dra.tests.nvidia.driver import MODES, READING_RUNS, NvidiaDriver
from ansible_collections.lanewise.dra.tests.nvidia.installed import Installed

# the files of /sys and /proc

#: Folders with links to devices. Each device is recorded once.
_DEVICES = ("bus/pci/devices", "class/infiniband", "class/net")
#: Folders that are recorded with all subfolders.
_FOLDERS = ("devices/system/cpu", "devices/system/node", "kernel/iommu_groups", "module/nvidia", "bus/pci/slots")
_PROC = ("cpuinfo", "devices", "meminfo", "modules", "net/if_inet6", "net/ipv6_route", "net/route")
_DMI = ("board_name", "board_vendor", "bios_vendor", "product_family", "product_name", "sys_vendor")
#: Files that do not describe a device: large files, files whose reading has effects, and numbers that change.
_SKIPPED = frozenset("autosuspend_delay_ms crash_notes crash_notes_size numastat reset rom vmstat vpd".split())
_SKIPPED_STARTS = ("resource", "trace")
_SKIPPED_FOLDERS = frozenset("cpufreq cpuidle crash_hotplug hotplug holders msi_irqs power sections statistics".split())
_MAX_FILE_BYTES = 4096


class Tree:
    """A part of /sys and /proc: `files` are contents by path (binary contents are base64 in a list), `links` are
    targets by path, `folders` are the empty folders."""

    def __init__(self) -> None:
        self.files: dict[str, str | list[str]] = {}
        self.links: dict[str, str] = {}
        self.folders: list[str] = []
        for name in _DEVICES:
            self.devices(Path("/sys", name))
        for name in _FOLDERS:
            self.folder(Path("/sys", name))
        for name in _DMI:
            self.file(Path("/sys/class/dmi/id", name))
        self.folder(Path("/proc/driver/nvidia"))
        for name in _PROC:
            self.file(Path("/proc", name))

    def devices(self, top: Path) -> None:
        """Record the links of a class or bus, and the folder of each device. The folder of a bridge contains the
        devices below it."""
        for link in sorted(top.iterdir()) if top.is_dir() else ():
            if link.is_symlink():
                self.link(link)
                self.folder(link.resolve())

    def folder(self, top: Path) -> None:
        for path, folders, files in os.walk(top):
            here = Path(path)
            links = [name for name in folders if (here / name).is_symlink()]
            folders[:] = sorted(name for name in folders if name not in links and name not in _SKIPPED_FOLDERS)
            for name in sorted(links + files):
                entry = here / name
                self.link(entry) if entry.is_symlink() else self.file(entry)
            if not folders and not files and not links:
                self.folders.append(path[1:])

    def link(self, path: Path) -> None:
        self.links[str(path)[1:]] = os.readlink(path)

    def file(self, path: Path) -> None:
        """Record a file, unless it cannot be read: the kernel returns an error if a device lacks a property."""
        if path.name in _SKIPPED or path.name.startswith(_SKIPPED_STARTS) or str(path)[1:] in self.files:
            return
        if path.name == "uevent" and path.is_relative_to("/sys/devices/system"):
            return  # repeats the flags of the processor for each CPU
        try:
            if not path.stat().st_mode & (stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH):
                return
            with path.open("rb", buffering=0) as file:
                data = file.read(_MAX_FILE_BYTES) if path.is_relative_to("/sys") else file.readall()
        except OSError:
            return
        try:
            self.files[str(path)[1:]] = data.decode("ascii")
        except UnicodeDecodeError:
            self.files[str(path)[1:]] = [base64.b64encode(data).decode()]


# the slices of NVIDIA's driver


def slices() -> dict[str, list[t.Any]]:
    """The specs of the slices that each release of the driver publishes here in each mode that changes nothing, by
    `MODE VERSION`."""
    specs = {}
    with tempfile.TemporaryDirectory(prefix="nv-", dir="/tmp") as folder:
        root = Installed(Path(folder, "driver"))
        with ControlPlane(scheduler=False, controller_manager=False) as plane:
            for number, (mode, version) in enumerate(READING_RUNS):
                node = f"node-{number}"
                plane.add_node(node)
                folders = {"kubelet": Path(folder, node), "cdi": Path(folder, node, "cdi")}
                driver = NvidiaDriver(plane, node, root, version, **folders, **MODES[mode][1])
                try:
                    specs[f"{mode} {version}"] = [entry["spec"] for entry in driver.wait()]
                except Failed as failure:
                    print(f"{mode} {version}: {failure}", file=sys.stderr)
                finally:
                    driver.stop()
    return specs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, metavar="MACHINE.json")
    parser.add_argument("--nccl", action="store_true", help="also record the topology that PyTorch's NCCL finds")
    parser.add_argument("--slices", action="store_true", help="also run NVIDIA's DRA driver, and record its slices")
    arguments = parser.parse_args()
    try:
        recording: dict[str, t.Any] = {"nvml": answers(), "tree": vars(Tree())}
    except nvml.NVMLError as error:
        print(f"NVML does not work ({error}): run this on a machine with an NVIDIA driver and a GPU", file=sys.stderr)
        return 1
    if arguments.nccl:
        recording["nccl"] = nccl.topology()
    if arguments.slices:
        recording["slices"] = slices()
    arguments.file.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
