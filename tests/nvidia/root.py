# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The root of an NVIDIA driver installation for an example machine: the library nvml.c with its table, programs that
only record their calls, and device nodes.

Addresses, models, UUIDs and minor numbers of the GPUs come from the machine's tree. All other facts that NVML reports
about a model come from plugins/module_utils/dra/vendors/nvidia_gpus.py. So another machine needs only one file in
tests/machines/descriptions.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import subprocess
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.nvidia_gpus import MODELS, Model
from ansible_collections.lanewise.dra.tools.cluster import MODULES
from environment import Missing  # tools/cluster.py has put its folder on the path

HERE = Path(__file__).parent
#: NVML's numbers of architectures (nvml.h, NVML_DEVICE_ARCH_*).
_ARCHITECTURES = {"Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
#: The CUDA version of a driver branch, as NVML reports it.
_CUDA = {"535": 12020, "550": 12040, "570": 12080, "580": 13000}
#: The facts for a model that the table lacks, enough to test the description of a machine.
_UNKNOWN_MODEL = Model("Hopper", "9.0", 81559)
_ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS
#: The addressing mode of a GPU without ATS, by driver branch: not supported (-1), or NVML_DEVICE_ADDRESSING_MODE_NONE.
_WITHOUT_ATS = {"535": -1, "550": -1, "570": -1, "580": 0}
_PASSTHROUGH = 1  # NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
#: Major numbers: the one of /dev/nvidiaN is registered (Documentation/admin-guide/devices.txt), the other is dynamic.
MAJOR, CAPABILITIES_MAJOR = 195, 511


#: Existing MIG instances: (profile ID, start) by the minor number of the GPU.
Instances = t.Mapping[int, t.Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Gpu:
    """A GPU of a machine's tree. `uuid` is the UUID that NVML reports."""

    address: str
    minor: int
    uuid: str
    name: str
    device_id: str
    subsystem: str

    @property
    def model(self) -> Model:
        return MODELS.get(self.device_id, _UNKNOWN_MODEL)


def gpus(tree: Path) -> list[Gpu]:
    """The GPUs of NVIDIA's kernel module in a machine's tree, sorted by minor number."""
    result = []
    for folder in (tree / "proc/driver/nvidia/gpus").iterdir():
        lines = (folder / "information").read_text().splitlines()
        reported = {key.strip(): value.strip() for key, _colon, value in (line.partition(":") for line in lines)}
        device = tree / "sys/bus/pci/devices" / folder.name
        ids = {name: (device / name).read_text().strip()[2:] for name in _IDS}
        result.append(
            Gpu(
                folder.name,
                int(reported["Device Minor"]),
                reported["GPU UUID"],
                reported["Model"],
                ids["device"],
                ids["subsystem_device"] + ids["subsystem_vendor"],
            )
        )
    return sorted(result, key=lambda gpu: gpu.minor)


_IDS = ("device", "subsystem_device", "subsystem_vendor")

#: Programs of the root. The MPS daemon creates the files that clients look for, and records its commands in its log.
_PROGRAMS = {
    "nvidia-cdi-hook": "exit 0",
    "nvidia-smi": '[ -z "$LANEWISE_NVML" ] || echo "$*" >> "$LANEWISE_NVML/nvidia-smi"',
    "nvidia-cuda-mps-control": """
exec >> "$CUDA_MPS_LOG_DIRECTORY/control.log"
if [ "$1" = -d ]; then
  echo "start $* on $CUDA_VISIBLE_DEVICES"
  : > "$CUDA_MPS_PIPE_DIRECTORY/control"
  : > /dev/shm/daemon
else
  while read -r command; do echo "$command"; done
fi""",
}


def version(tree: Path) -> str:
    """The version of the machine's NVIDIA driver, according to the kernel module."""
    return (tree / "sys/module/nvidia/version").read_text().strip()


def table(tree: Path, instances: Instances | None = None) -> str:
    """The table of nvml.c for a machine. GPUs with `instances` are in MIG mode."""
    instances = instances or {}
    driver_version = version(tree)
    branch = driver_version.split(".")[0]
    virtualization = _PASSTHROUGH if "hypervisor" in (tree / "proc/cpuinfo").read_text().split() else 0
    lines = [f"driver {driver_version} {_CUDA[branch]} {virtualization}"]
    for gpu in gpus(tree):
        model = gpu.model
        values = [gpu.minor, gpu.uuid, gpu.address, f"{gpu.device_id}10de", gpu.subsystem, model.memory_mib << 20]
        values += [model.compute_capability, _ARCHITECTURES[model.architecture], gpu.minor + 1]
        values += [
            _ATS if model.coherent else _WITHOUT_ATS[branch],
            int(bool(model.mig)),
            int(gpu.minor in instances),
            gpu.name,
        ]
        lines.append("gpu " + " ".join(map(str, values)))
        for entry in model.mig:
            numbers = [entry.index, entry.id, entry.slices, entry.instances, entry.multiprocessors, entry.copy_engines]
            numbers += [
                entry.decoders,
                entry.encoders,
                entry.jpeg_engines,
                entry.ofa_engines,
                entry.memory_mib,
                entry.size,
            ]
            lines.append(f"profile {' '.join(map(str, numbers))} {','.join(map(str, entry.starts))}")
        lines += [f"instance {profile} {start}" for profile, start in instances.get(gpu.minor, ())]
    return "".join(f"{line}\n" for line in lines)


@functools.lru_cache(None)
def _source(name: str, file: str, minor: str = "0.5") -> Path:
    """The folder of a file in a Go module that the driver of a release is built with. Raises Missing if the file is
    missing."""
    answer = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", name],
        cwd=MODULES / "nvidia" / minor,
        env={**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        check=False,
    )
    path = Path(answer.stdout.strip() or "/none", file)
    if not path.exists():
        raise Missing(
            f"needs {path.name} of the Go module {name}: 'python3 tools/cluster.py nvidia-gpu-{minor}' builds the "
            "driver and fetches it"
        )
    return path.parent


def library(target: Path, minor: str = "0.5") -> None:
    """Compile nvml.c and nvml_events.c with the header of a driver release, such as 0.5.

    Raises Missing if the compiler or the header is missing.
    """
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler or not shutil.which("go"):
        raise Missing("needs Go, and gcc or clang")
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations")
    header = _source("github.com/NVIDIA/go-nvml", "pkg/nvml/nvml.h", minor)
    command = [compiler, "-shared", "-fPIC", "-O1", *warnings, f"-I{header}", "-o", str(target)]
    subprocess.run([*command, *map(str, sorted(HERE.glob("*.c")))], check=True)


class Root:
    """A driver root below `folder`. With `devices`, it has device nodes, which needs root permissions."""

    def __init__(self, tree: Path, folder: Path, devices: bool = False) -> None:
        self.tree, self.folder = tree, folder
        self.nvml = folder / "nvml"
        self.nvml.mkdir(parents=True)
        self.variables = {"LANEWISE_NVML": str(self.nvml)}  #: environment variables for the driver's process
        self.shared = ""  #: a folder of the node in which the driver's mounts are visible to the node
        libraries, programs = folder / "root/usr/lib64", folder / "root/usr/bin"
        for entry in (libraries, programs):
            entry.mkdir(parents=True)
        driver_version = version(tree)
        library(libraries / f"libnvidia-ml.so.{driver_version}")
        (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{driver_version}")
        # the DRA driver reads the version from this file's name, and mounts the file in pods
        (libraries / f"libcuda.so.{driver_version}").write_bytes(b"")
        for name, script in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        self.set()
        if devices:
            self._device_nodes()

    def set(self, instances: Instances | None = None) -> None:
        """Write the table, with these MIG instances. Removes the state and the calls of earlier drivers."""
        (self.nvml / "table").write_text(table(self.tree, instances))
        for name in ("state", "calls", "nvidia-smi"):
            (self.nvml / name).unlink(missing_ok=True)

    def _device_nodes(self) -> None:
        folder = self.folder / "root/dev"
        folder.mkdir()
        control = {"nvidiactl": 255, "nvidia-modeset": 254, "nvidia-uvm": 0, "nvidia-uvm-tools": 1}
        minors = {f"nvidia{gpu.minor}": gpu.minor for gpu in gpus(self.tree)}
        for name, minor in {**control, **minors}.items():
            major = CAPABILITIES_MAJOR - 1 if name.startswith("nvidia-uvm") else MAJOR
            os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            (folder / name).chmod(0o666)

    def calls(self, source: str = "calls") -> list[str]:
        """The calls of the library that changed something, in order. With `nvidia-smi`, the calls of that program."""
        path = self.nvml / source
        return path.read_text().splitlines() if path.exists() else []

    def on_machine(self) -> list[str]:
        """The prefix of a command that runs with the machine's tree as /sys, and with a modprobe that always succeeds.

        Not every release of the driver has a variable for the path of /sys, and no release uses it for all files there.
        Mounts below `self.shared` also appear on the node.
        """
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        added = self.folder / "usr"
        (added / "lib" / "modules" / os.uname().release).mkdir(parents=True, exist_ok=True)
        (added / "lib" / "modules" / os.uname().release / "modules.alias").write_text("alias vfio_pci:v*d* vfio_pci\n")
        (added / "sbin").mkdir(exist_ok=True)
        (added / "sbin" / "modprobe").write_text("#!/bin/sh\nexit 0\n")
        (added / "sbin" / "modprobe").chmod(0o755)
        (self.folder / "new").mkdir(exist_ok=True)
        templates = _source("sigs.k8s.io/dra-driver-nvidia-gpu", "templates/mps-control-daemon.tmpl.yaml")
        values = [str(self.folder / "new"), str(added), str(self.tree / "sys"), str(templates), self.shared]
        begin = ["unshare", "--mount", "--propagation", "unchanged" if self.shared else "private", *user]
        return [*begin, "sh", "-ec", _ON_MACHINE, "sh", *values]


#: Runs in a mount namespace. Creates a root folder with the contents of /, except for four folders: /sys is the
#: machine's, /usr has more files, /host-root is the node as in a DaemonSet, and /templates is the one of the driver's
#: image. Arguments: the new root, the files added to /usr, the machine's /sys, the templates, a mount that stays shared
#: with the node, and the command.
_ON_MACHINE = """
new=$1 added=$2 sys=$3 templates=$4 shared=$5; shift 5
[ -z "$shared" ] || while read -r _ _ _ _ point _; do
  [ "$point" = "$shared" ] || mount --make-private "$point"
done < /proc/self/mountinfo
mount -t tmpfs -o mode=755 tmpfs "$new"
for one in /*; do
  if [ -h "$one" ]; then cp -P "$one" "$new$one"
  elif [ -d "$one" ]; then mkdir "$new$one"; mount --rbind "$one" "$new$one"; fi
done
mount --bind "$sys" "$new/sys"
mount -t overlay overlay -o "lowerdir=$added:/usr" "$new/usr"
ln -s / "$new/host-root"
ln -s "$templates" "$new/templates"
exec chroot "$new" "$@"
"""
