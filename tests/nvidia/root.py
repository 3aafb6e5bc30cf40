# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The root of an NVIDIA driver installation for an example machine: the library nvml.c with its table, programs that
only record how they are called, device nodes.

A machine's own tree names its GPUs: addresses, models, UUIDs and minor numbers. What NVML reports of a model beyond
that comes from plugins/module_utils/dra/vendors/nvidia_gpus.py. So another machine is one file in
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
#: The CUDA version of a driver branch, as NVML has it.
_CUDA = {"535": 12020, "550": 12040, "570": 12080, "580": 13000}
#: What NVML says of a model that the table lacks: as much as a description needs to be tried.
_OTHER = Model("Hopper", "9.0", 81559)
_ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS
#: The addressing mode of a GPU that has none, by driver branch: not supported, or NVML_DEVICE_ADDRESSING_MODE_NONE.
_WITHOUT = {"535": -1, "550": -1, "570": -1, "580": 0}
_PASSTHROUGH = 1  # NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
#: Major numbers: that of /dev/nvidiaN is registered (Documentation/admin-guide/devices.txt), the other one is dynamic.
MAJOR, CAPABILITIES_MAJOR = 195, 511


#: MIG instances that exist: (profile ID, start) by the minor number of their GPU.
Instances = t.Mapping[int, t.Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Gpu:
    """A GPU of a machine's tree. `uuid` is NVML's."""

    address: str
    minor: int
    uuid: str
    name: str
    device_id: str
    subsystem: str

    @property
    def model(self) -> Model:
        return MODELS.get(self.device_id, _OTHER)


def gpus(tree: Path) -> list[Gpu]:
    """The GPUs that NVIDIA's driver has on a machine, by minor number."""
    found = []
    for folder in (tree / "proc/driver/nvidia/gpus").iterdir():
        lines = (folder / "information").read_text().splitlines()
        reported = {key.strip(): value.strip() for key, _colon, value in (line.partition(":") for line in lines)}
        own = tree / "sys/bus/pci/devices" / folder.name
        read = {name: (own / name).read_text().strip()[2:] for name in _IDS}
        found.append(
            Gpu(
                folder.name,
                int(reported["Device Minor"]),
                reported["GPU UUID"],
                reported["Model"],
                read["device"],
                read["subsystem_device"] + read["subsystem_vendor"],
            )
        )
    return sorted(found, key=lambda gpu: gpu.minor)


_IDS = ("device", "subsystem_device", "subsystem_vendor")

#: Programs of the root. The daemon of MPS leaves a mark where its clients look for it, and records its commands in its
#: log, which ends with it.
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
    """Of the driver, as the machine's kernel module has it."""
    return (tree / "sys/module/nvidia/version").read_text().strip()


def table(tree: Path, instances: Instances | None = None) -> str:
    """The table of nvml.c for a machine. GPUs with `instances` are in MIG mode."""
    given = instances or {}
    running = version(tree)
    branch = running.split(".")[0]
    passed = _PASSTHROUGH if "hypervisor" in (tree / "proc/cpuinfo").read_text().split() else 0
    lines = [f"driver {running} {_CUDA[branch]} {passed}"]
    for gpu in gpus(tree):
        model = gpu.model
        values = [gpu.minor, gpu.uuid, gpu.address, f"{gpu.device_id}10de", gpu.subsystem, model.memory_mib << 20]
        values += [model.compute_capability, _ARCHITECTURES[model.architecture], gpu.minor + 1]
        values += [
            _ATS if model.coherent else _WITHOUT[branch],
            int(bool(model.mig)),
            int(gpu.minor in given),
            gpu.name,
        ]
        lines.append("gpu " + " ".join(map(str, values)))
        for one in model.mig:
            numbers = [one.index, one.id, one.slices, one.instances, one.multiprocessors, one.copy_engines]
            numbers += [one.decoders, one.encoders, one.jpeg_engines, one.ofa_engines, one.memory_mib, one.size]
            lines.append(f"profile {' '.join(map(str, numbers))} {','.join(map(str, one.starts))}")
        lines += [f"instance {profile} {start}" for profile, start in given.get(gpu.minor, ())]
    return "".join(f"{line}\n" for line in lines)


@functools.lru_cache(None)
def _source(name: str, file: str, minor: str = "0.5") -> Path:
    """The folder of a file, in a Go module that the driver of a release is built with. Raises Missing."""
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

    Raises Missing without a compiler or header.
    """
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler or not shutil.which("go"):
        raise Missing("needs Go, and gcc or clang")
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations")
    header = _source("github.com/NVIDIA/go-nvml", "pkg/nvml/nvml.h", minor)
    command = [compiler, "-shared", "-fPIC", "-O1", *warnings, f"-I{header}", "-o", str(target)]
    subprocess.run([*command, *map(str, sorted(HERE.glob("*.c")))], check=True)


class Root:
    """A driver root below `folder`. `devices`: with device nodes, which needs root."""

    def __init__(self, tree: Path, folder: Path, devices: bool = False) -> None:
        self.tree, self.folder = tree, folder
        self.nvml = folder / "nvml"
        self.nvml.mkdir(parents=True)
        self.variables = {"LANEWISE_NVML": str(self.nvml)}  #: of the driver's process
        self.shared = ""
        libraries, programs = folder / "root/usr/lib64", folder / "root/usr/bin"
        for one in (libraries, programs):
            one.mkdir(parents=True)
        running = version(tree)
        library(libraries / f"libnvidia-ml.so.{running}")
        (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{running}")
        # the version is read from this file's name, and pods get it mounted
        (libraries / f"libcuda.so.{running}").write_bytes(b"")
        for name, script in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        self.set()
        if devices:
            self._device_nodes()

    def set(self, instances: Instances | None = None) -> None:
        """Write the table, with these MIG instances; what a driver has made before is gone."""
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

    def calls(self, of: str = "calls") -> list[str]:
        """The calls of the library that changed something, in their order; or those of the program nvidia-smi."""
        path = self.nvml / of
        return path.read_text().splitlines() if path.exists() else []

    def on_machine(self) -> list[str]:
        """The command that runs another one with the machine's tree as /sys, and with kernel modules to load, as every
        machine has them. Not every release of the driver has a variable for /sys, and none has it for all that it reads
        there. What it mounts below `self.shared` is mounted on the node, too."""
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        own = self.folder / "usr"
        (own / "lib" / "modules" / os.uname().release).mkdir(parents=True, exist_ok=True)
        (own / "lib" / "modules" / os.uname().release / "modules.alias").write_text("alias vfio_pci:v*d* vfio_pci\n")
        (own / "sbin").mkdir(exist_ok=True)
        (own / "sbin" / "modprobe").write_text("#!/bin/sh\nexit 0\n")
        (own / "sbin" / "modprobe").chmod(0o755)
        (self.folder / "new").mkdir(exist_ok=True)
        templates = _source("sigs.k8s.io/dra-driver-nvidia-gpu", "templates/mps-control-daemon.tmpl.yaml")
        given = [str(self.folder / "new"), str(own), str(self.tree / "sys"), str(templates), self.shared]
        begin = ["unshare", "--mount", "--propagation", "unchanged" if self.shared else "private", *user]
        return [*begin, "sh", "-ec", _ON_MACHINE, "sh", *given]


#: In a mount namespace: a root folder with all that / has, but for /sys, /usr, /host-root, in which a DaemonSet has the
#: node, and /templates, which the driver's image has. Arguments: the new root, what is added to /usr, the machine's
#: /sys, the templates, a mount that stays shared with the node, the command.
_ON_MACHINE = """
new=$1 own=$2 sys=$3 templates=$4 shared=$5; shift 5
[ -z "$shared" ] || while read -r _ _ _ _ place _; do
  [ "$place" = "$shared" ] || mount --make-private "$place"
done < /proc/self/mountinfo
mount -t tmpfs -o mode=755 tmpfs "$new"
for one in /*; do
  if [ -h "$one" ]; then cp -P "$one" "$new$one"
  elif [ -d "$one" ]; then mkdir "$new$one"; mount --rbind "$one" "$new$one"; fi
done
mount --bind "$sys" "$new/sys"
mount -t overlay overlay -o "lowerdir=$own:/usr" "$new/usr"
ln -s / "$new/host-root"
ln -s "$templates" "$new/templates"
exec chroot "$new" "$@"
"""
