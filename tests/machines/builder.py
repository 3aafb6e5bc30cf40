# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write a machine as a directory with sys/ and proc/, as the Linux kernel would show it.

The attributes are those of Documentation/ABI (sysfs-bus-pci, sysfs-class-net, sysfs-class-infiniband,
sysfs-devices-system-cpu, sysfs-devices-node, sysfs-kernel-iommu_groups). If reading a file of the kernel would fail
(EINVAL for the speed of an interface that is down, EOPNOTSUPP for a port name that the driver does not have), the file
is left out, because reading a plain file cannot fail in this way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import typing as t
from pathlib import Path

from .description import HERE, DescriptionError, Function, load, plan
from .functions import Functions
from .interfaces import Interfaces
from .rdma import RdmaDevices

STAMP = ".machine.json"


def build(description: dict | str | Path, out: Path) -> Path:
    """Build one machine in the directory `out` and return `out`.

    `description` is a dictionary, a file or the name of a machine of this package. The tree is written beside
    `out` and moved there when it is complete; nothing is written if `out` already contains the same machine.
    Raises description.DescriptionError, and OSError if `out` exists and is not a machine.
    """
    machine, out = load(description), Path(out)
    stamp = {"name": machine.get("name"), "hash": _hash(machine)}
    if _stamp(out) == stamp:
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(out.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes may build the same machine
        return _build(machine, out, stamp)
    finally:
        os.close(lock)


def _build(machine: dict[str, t.Any], out: Path, stamp: dict[str, t.Any]) -> Path:
    existing = _stamp(out)
    if existing == stamp:
        return out
    if existing is None and out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} exists and is not a machine")
    files, links = compose(machine)
    files[STAMP] = json.dumps(stamp).encode()
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write(work, out, files, links)
        work.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        os.rename(work, out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return out


def move_to_container(root: Path, address: str) -> None:
    """Remove a NIC's interfaces and RDMA devices from a tree, as when the NIC is moved to a container.

    The folders `net` and `infiniband` of the function stay, and are empty. Lab tests check this on a real kernel.
    """
    function = (root / "sys/bus/pci/devices" / address).resolve()
    for name in ("net", "infiniband"):
        for device in (function / name).iterdir() if (function / name).is_dir() else ():
            shutil.rmtree(device)
            (root / "sys/class" / name / device.name).unlink()


def compose(machine: dict[str, t.Any]) -> tuple[dict[str, bytes], dict[str, str]]:
    """All files (path -> content) and all symbolic links (path -> target) of a machine, relative to its root."""
    tree = _Tree(plan(machine))
    tree.compose()
    return tree.files, tree.links


def synthetic(functions: int = 100, pairs: int = 8) -> dict[str, t.Any]:
    """A description of a two-socket server with exactly `functions` PCI functions, for benchmarks.

    Up to `pairs` GPUs and as many NICs are below switches, each at its own port. All other functions belong to the
    CPUs, like most functions of a real server. Raises DescriptionError for fewer than one function.
    """
    if functions < 1:
        raise DescriptionError("a synthetic machine needs at least one function")
    roots: dict[str, t.Any] = {}
    remaining, index = functions, 0
    while remaining:
        domain = index // 4
        bus, root = f"{domain:04x}:{index % 4 * 0x40:02x}", {"numa": index % 2}
        index += 1
        if remaining >= 6 and pairs:
            pairs_below_switch = min(2, pairs, (remaining - 2) // 4)
            switch = {}
            for slot in range(pairs_below_switch):
                switch[f"{2 * slot:02x}.0 pex-dsp"] = {"00.0 h100-sxm": {}}
                switch[f"{2 * slot + 1:02x}.0 pex-dsp"] = {"00.0 cx7-ib": {}}
            root["01.0 spr-root-port"] = {"00.0 pex-usp": switch}
            remaining -= 2 + 4 * pairs_below_switch
            pairs -= pairs_below_switch
        cpu_functions = min(30, remaining)
        if cpu_functions:
            root[f"02-{cpu_functions + 1:02x}.0 intel-host"] = {}
            remaining -= cpu_functions
        roots[bus] = root
    return {
        "name": f"synthetic-{functions}",
        "summary": f"{functions} PCI functions for benchmarks",
        "system": {"vendor": "Synthetic", "product": f"{functions} functions"},
        "cpu": {"model": "Intel(R) Xeon(R) Platinum 8480C", "sockets": 2, "cores": 8, "threads": 2, "memory_gib": 64},
        "roots": roots,
    }


def _stamp(out: Path) -> dict[str, t.Any] | None:
    """The name and hash of the machine in a directory, or None if there is none."""
    try:
        return json.loads((out / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _hash(machine: dict[str, t.Any]) -> str:
    """A hash of everything that determines a tree: the description, the sources of the builder and the parts."""
    state = hashlib.blake2b(json.dumps(machine, sort_keys=True, default=str).encode(), digest_size=16)
    sources = [path for path in HERE.glob("*.py") if not path.name.startswith(("test_", "__"))]
    for source in (*sorted(sources), HERE / "parts.yml"):
        state.update(source.read_bytes())
    return state.hexdigest()


def _write(top: Path, previous: Path, files: dict[str, bytes], links: dict[str, str]) -> None:
    """Write a tree below `top`.

    Files that are the same in the tree `previous` become hard links to these: deleting thousands of files and creating
    them again is slow (ext4 avoids inodes that were freed a moment ago).
    """
    created = {""}
    new, old = str(top), str(previous)

    def create_folder(path: str) -> None:
        if path not in created:
            create_folder(path.rpartition("/")[0])
            os.mkdir(f"{new}/{path}")
            created.add(path)

    for path, content in files.items():
        create_folder(path.rpartition("/")[0])
        if path.endswith("/"):
            continue
        try:
            handle = os.open(f"{old}/{path}", os.O_RDONLY | os.O_NOFOLLOW)
            same = os.read(handle, len(content) + 1) == content
            os.close(handle)
        except OSError:
            same = False
        if same:
            os.link(f"{old}/{path}", f"{new}/{path}")
            continue
        handle = os.open(f"{new}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(handle, content)
        os.close(handle)
    for path, target in links.items():
        create_folder(path.rpartition("/")[0])
        try:
            same = os.readlink(f"{old}/{path}") == target
        except OSError:
            same = False
        if same:
            os.link(f"{old}/{path}", f"{new}/{path}", follow_symlinks=False)
        else:
            os.symlink(target, f"{new}/{path}")


class _Tree(Functions, Interfaces, RdmaDevices):
    """All files and links of a machine."""

    def compose(self) -> None:
        self.add_processors()
        self.add_system()
        self.add_loopback()
        for path, numa in self.plan.roots.items():
            self.add_pci_bus(path, path.rsplit("/pci", 1)[1], numa, path)
        for folder in ("devices", "drivers", "slots"):
            self.files[f"sys/bus/pci/{folder}/"] = b""
        for name in ("net", "infiniband", "infiniband_verbs", "infiniband_mad", "nvme", "iommu"):
            self.files[f"sys/class/{name}/"] = b""
        for function in self.plan.functions:
            self.add_function(function)
        for function in sorted(self.plan.functions, key=lambda f: f.pf is not None):  # PFs are probed first
            self.add_driver_devices(function)
        for function in self.plan.functions:
            self.add_representors(function)
        self.add_iommu_groups()
        for name, spec in (self.machine.get("virtual_nets") or {}).items():
            self.add_virtual_interface(name, spec)
        self.add_routes()
        self.add_nvidia_files()
        for path, text in (self.machine.get("files") or {}).items():
            self.files[path] = f"{text}\n".encode()

    def add_driver_devices(self, function: Function) -> None:
        spec = function.spec
        if spec.get("driver") in (None, "vfio-pci", "pci-stub"):
            return
        if spec.get("net"):
            for index, net in enumerate(spec["net"] if isinstance(spec["net"], list) else [spec["net"]]):
                self.add_pci_interface(function, net, index)
        if spec.get("rdma"):
            self.add_rdma_device(function)
        if spec.get("nvme"):
            self.add_nvme_controller(function)
        if spec.get("drm"):
            self.add_drm_device(function)

    def add_nvme_controller(self, function: Function) -> None:
        spec = function.spec["nvme"]
        number = self.next_number("nvme")
        name = f"nvme{number}"
        path = f"{function.path}/nvme/{name}"
        serial = f"{spec['serial']}{self.made_up_number('nvme', function.address) % 10**10:010d}"
        self.put_attributes(
            path,
            {
                "model": f"{spec['model']:<40}",
                "serial": f"{serial:<20}",
                "firmware_rev": f"{spec['fw']:<8}",
                "address": function.address,
                "state": "live",
                "transport": "pcie",
                "cntlid": 1,
                "numa_node": function.numa,
                "dev": f"241:{number}",
            },
        )
        self.put_class_device("nvme", path, function.path)
        block = f"{path}/{name}n1"
        self.put_attributes(
            block,
            {
                "size": spec["gib"] << 21,
                "dev": f"259:{number}",
                "queue/rotational": 0,
                "queue/hw_sector_size": 512,
                "removable": 0,
                "nsid": 1,
            },
        )
        self.put_class_device("block", block, path)

    def add_drm_device(self, function: Function) -> None:
        number = self.next_number("card")
        self.put(f"{function.path}/drm/card{number}/dev", f"226:{number}")
        self.put_class_device("drm", f"{function.path}/drm/card{number}", function.path)
        if function.spec["drm"] != "card":
            render = 128 + self.next_number("render")
            self.put(f"{function.path}/drm/renderD{render}/dev", f"226:{render}")
            self.put_class_device("drm", f"{function.path}/drm/renderD{render}", function.path)

    def add_nvidia_files(self) -> None:
        cards = [f for f in self.plan.functions if f.spec.get("driver") == "nvidia" and f.spec.get("model")]
        for minor, function in enumerate(cards):
            uuid = f"{self.made_up_number('gpu', function.address):032x}"
            uuid = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
            self.put_proc(
                f"driver/nvidia/gpus/{function.address}/information",
                (
                    f"Model: \t\t {function.spec['model']}\nIRQ:   \t\t {100 + minor}\nGPU UUID: \t GPU-{uuid}\n"
                    f"Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
                    f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {function.address}\nDevice Minor: \t {minor}\n"
                    f"GPU Firmware: \t 570.133.20\nGPU Excluded:\t No\n"
                ),
            )
        if cards:
            self.put_proc("driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  570.133.20\n")
