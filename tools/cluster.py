# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Get the programs of a Kubernetes cluster: build them once from the pinned Go modules, or use existing ones.

    python3 tools/cluster.py [--kubernetes 1.34] [PROGRAM ...]

Prints the path of each program. The modules are in tests/cluster/kubernetes/MINOR and beside it; built programs are in
the user's cache directory under the hash of their module, so checkouts share them. `LANEWISE_KUBE_BIN` or
`KUBEBUILDER_ASSETS` name folders with existing programs, including etcd: a folder is used if its kube-apiserver has the
requested minor version. See docs/cluster.md. Uses the standard library only.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from environment import CACHE, REPOSITORY, Missing, locked, say

MODULES = REPOSITORY / "tests" / "cluster"
VARIABLES = ("LANEWISE_KUBE_BIN", "KUBEBUILDER_ASSETS")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
#: What a node runs: kubelet, containerd, the CNI plugins of a simple network, a sandbox's first process.
NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "ptp", "host-local", "loopback", "pause")
#: Another DRA driver for NICs, which tests and the bench run on the same node (tests/bench/dranet.py).
DRANET = "dranet"
#: NVIDIA's DRA driver for GPUs, by its release: the tests run it over a library that stands in for NVML (tests/nvidia).
NVIDIA = {"0.5.0": "nvidia-gpu-0.5", "0.4.1": "nvidia-gpu-0.4"}
#: Job queues, groups of jobs that start together, and simulated nodes (tests/cluster/queueing.py).
QUEUES = ("kueue", "jobset", "kwok")
#: Seconds of a build with empty caches on two cores; docs/cluster.md has the figures of each version.
BUILD_SECONDS = {
    "etcd": 45,
    "kube-apiserver": 330,
    "kube-scheduler": 55,
    "kube-controller-manager": 70,
    "kubectl": 30,
    "kubelet": 60,
    "containerd": 120,
    "containerd-shim-runc-v2": 15,
    "ctr": 15,
    "ptp": 10,
    "host-local": 3,
    "loopback": 3,
    "pause": 3,
    "dranet": 90,
    "nvidia-gpu-0.5": 100,
    "nvidia-gpu-0.4": 100,
    "kueue": 220,
    "jobset": 70,
    "kwok": 55,
}


@dataclass(frozen=True)
class Source:
    """A Go module other than Kubernetes: the folder of tests/cluster that pins it, and its programs.

    `packages` has the package of each program, relative to the module; empty for the module itself. `copied_folders`
    of the module are copied beside its programs, such as those with the manifests to install them with.
    """

    folder: str
    path: str
    packages: dict[str, str]
    tags: str = ""
    version_variable: str = ""  # set by the linker to the version; if empty, the program reports "unknown"
    cgo: bool = False  # partly written in C, which needs gcc or clang
    copied_folders: tuple[str, ...] = ()


_PLUGINS = {"ptp": "/plugins/main/ptp", "loopback": "/plugins/main/loopback", "host-local": "/plugins/ipam/host-local"}
SOURCES = (
    Source("etcd", "go.etcd.io/etcd/server/v3", {"etcd": ""}),
    Source(
        "containerd",
        "github.com/containerd/containerd/v2",
        {name: f"/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        tags="no_btrfs no_zfs no_devmapper",
        version_variable="github.com/containerd/containerd/v2/version.Version",
    ),
    Source("cni", "github.com/containernetworking/plugins", _PLUGINS),
    Source("pause", "lanewise.dev/tests/cluster/pause", {"pause": ""}),
    Source("dranet", "sigs.k8s.io/dranet", {"dranet": "/cmd/dranet"}),
    Source(
        "kueue",
        "sigs.k8s.io/kueue",
        {"kueue": "/cmd/kueue"},
        version_variable="sigs.k8s.io/kueue/pkg/version.GitVersion",
        copied_folders=("config/components",),
    ),
    Source("jobset", "sigs.k8s.io/jobset", {"jobset": ""}, copied_folders=("config/components",)),
    Source("kwok", "sigs.k8s.io/kwok", {"kwok": "/cmd/kwok"}),
    *(
        Source(
            f"nvidia/{minor}",
            "sigs.k8s.io/dra-driver-nvidia-gpu",
            {f"nvidia-gpu-{minor}": "/cmd/gpu-kubelet-plugin"},
            version_variable="sigs.k8s.io/dra-driver-nvidia-gpu/internal/info.version",
            cgo=True,
        )
        for minor in ("0.5", "0.4")
    ),
)
KUBERNETES = "k8s.io/kubernetes"
KUBERNETES_TAGS = "selinux,notest,grpcnotrace"  # those of the release's own build


@dataclass(frozen=True)
class Module:
    """A pinned Go module: the folder of its go.mod, and the version that it builds."""

    folder: Path
    path: str  # the path of the module with that version
    version: str  # without the v
    source: Source | None  # None: Kubernetes

    @property
    def cache(self) -> Path:
        digest = hashlib.sha256(" ".join(self.build_command("")).encode())
        for path in sorted(self.folder.rglob("*.*")):
            digest.update(path.read_bytes())
        return (
            CACHE / (self.source.folder if self.source else "kubernetes") / f"{self.version}-{digest.hexdigest()[:12]}"
        )

    def build_command(self, program: str) -> list[str]:
        """The go command that builds a program, without its -o. Kubernetes' programs report v0.0.0 without the
        linker's values."""
        flags = ["-s", "-w"]
        if self.source is None:
            tags = KUBERNETES_TAGS
            package = f"{self.path}/cmd/{program}"
            major, minor = self.version.split(".")[:2]
            values = {"gitVersion": f"v{self.version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            for target in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
                flags += [f"-X {target}.{name}={value}" for name, value in values.items()]
        else:
            tags = self.source.tags
            package = self.path + self.source.packages.get(program, "")
            flags += [f"-X {self.source.version_variable}={self.version}"] if self.source.version_variable else []
        return ["go", "build", "-trimpath", *(["-tags", tags] if tags else []), "-ldflags", " ".join(flags), package]


def minors() -> list[str]:
    """The Kubernetes versions that are pinned, such as 1.37, newest first."""
    names = [path.parent.name for path in MODULES.glob("kubernetes/*/go.mod")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def module(program: str, minor: str) -> Module:
    """The module that builds a program. Raises Missing for a version that is not pinned."""
    source = next((source for source in SOURCES if program in source.packages), None)
    if source is None and minor not in minors():
        raise Missing(f"Kubernetes {minor} is not pinned in tests/cluster/kubernetes, only {', '.join(minors())}")
    folder = MODULES / source.folder if source else MODULES / "kubernetes" / minor
    path = source.path if source else KUBERNETES
    text = (folder / "go.mod").read_text()
    pin = re.search(rf"^\s*(?:require )?{re.escape(path)} v(\S+)", text, re.MULTILINE)
    if pin is None and f"module {path}\n" not in text:
        raise ValueError(f"{folder / 'go.mod'} does not require {path}")
    return Module(folder, path, pin[1] if pin else "own", source)


@functools.lru_cache(None)
def apiserver_version(apiserver: Path) -> str:
    """The version of a kube-apiserver, such as 1.37.1; empty if it does not run."""
    try:
        answer = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    match = re.match(r"Kubernetes v(\S+)", answer)
    return match[1] if match else ""


def ready_folders() -> dict[str, Path]:
    """The folders that the variables name, by the minor version of the kube-apiserver in them."""
    folders: dict[str, Path] = {}
    for variable in VARIABLES:
        for name in filter(None, os.environ.get(variable, "").split(os.pathsep)):
            version = apiserver_version(Path(name) / "kube-apiserver")
            if not version:
                raise Missing(f"{variable} names {name}, which has no kube-apiserver that runs here: unset it")
            folders.setdefault(".".join(version.split(".")[:2]), Path(name))
    return folders


def programs(minor: str, *names: str, build: bool = True) -> dict[str, Path]:
    """The paths of a version's programs. With `build`, missing ones are built.

    Raises Missing, whose text says what to do, and subprocess.CalledProcessError for a build that fails.
    """
    names = names or CONTROL_PLANE
    folder = ready_folders().get(minor)
    if folder:
        ready = {name: folder / name for name in names if os.access(folder / name, os.X_OK)}
        missing = [name for name in names if name not in ready and (name in CONTROL_PLANE or name == "kubelet")]
        if missing:
            raise Missing(f"{folder} lacks {', '.join(missing)}; unset {' and '.join(VARIABLES)} to build Kubernetes")
    else:
        ready = {}
    paths = {name: ready.get(name) or module(name, minor).cache / name for name in names}
    missing = [name for name in names if not paths[name].exists()]
    if missing and not build:
        minutes = sum(BUILD_SECONDS.get(name, 60) for name in missing) / 60
        raise Missing(
            f"{', '.join(missing)} for Kubernetes {minor} not built: 'python3 tools/cluster.py --kubernetes {minor} "
            f"{' '.join(missing)}' builds this in {minutes:.0f} minutes or less on two cores"
        )
    for number, name in enumerate(missing, 1):
        _build(module(name, minor), name, f"{number} of {len(missing)}")
    return paths


def _build_environment(pinned: Module) -> dict[str, str]:
    """The environment variables for building a module. Raises Missing if Go is missing or too old for it."""
    cgo = bool(pinned.source and pinned.source.cgo)
    variables = dict(os.environ, CGO_ENABLED=str(int(cgo)), GOWORK="off")
    variables.setdefault("GOGC", "400")  # with Go's default, a build takes a quarter more of a processor's time
    if cgo:
        if not (shutil.which("gcc") or shutil.which("clang")):
            raise Missing(f"needs a C compiler to build {pinned.path} {pinned.version} (Debian package gcc)")
        # libraries are opened at run time, so the linker cannot resolve their functions
        variables["CGO_LDFLAGS_ALLOW"] = "-Wl,--unresolved-symbols=ignore-in-object-files"
    if not shutil.which("go"):
        raise Missing(
            f"needs Go to build {pinned.path} {pinned.version} (https://go.dev/dl), or the programs in a folder that "
            "LANEWISE_KUBE_BIN names"
        )
    answer = subprocess.run(
        ["go", "list", "-m"], cwd=pinned.folder, env=variables, capture_output=True, text=True, check=False
    )
    if answer.returncode:  # it fails if Go is older than the go line of go.mod
        raise Missing(f"Go cannot build {pinned.path} {pinned.version}: {answer.stderr.strip()}")
    return variables


def _build(pinned: Module, program: str, position: str) -> None:
    """Build a program into the module's cache, unless another process has done it."""
    pinned.cache.mkdir(parents=True, exist_ok=True)
    with locked(pinned.cache):
        if (pinned.cache / program).exists():
            return
        for abandoned in pinned.cache.glob(".building-*"):  # by a build that was killed
            shutil.rmtree(abandoned)
        variables = _build_environment(pinned)
        start = time.monotonic()
        minutes = BUILD_SECONDS.get(program, 60) / 60
        say(
            f"{position}: building {program} of {pinned.path} {pinned.version}; the first time this takes "
            f"{minutes:.1f} minutes on two cores"
        )
        with tempfile.TemporaryDirectory(dir=pinned.cache, prefix=".building-") as folder:
            command = pinned.build_command(program)
            built = Path(folder) / program
            subprocess.run([*command[:2], "-o", str(built), *command[2:]], cwd=pinned.folder, env=variables, check=True)
            if pinned.source and pinned.source.copied_folders:
                _copy_files(pinned, pinned.source.copied_folders, variables)
            built.rename(pinned.cache / program)
        say(f"{program}: {time.monotonic() - start:.0f} s")


def _copy_files(pinned: Module, folders: t.Iterable[str], variables: t.Mapping[str, str]) -> None:
    """Copy folders of the module beside its programs, because Go's own copy is read-only and `go clean` removes it."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", pinned.path]
    answer = subprocess.run(command, cwd=pinned.folder, env=variables, capture_output=True, text=True, check=True)
    top = Path(answer.stdout.strip())
    for folder in folders:
        for path in (path for path in (top / folder).rglob("*") if path.is_file()):
            copy = pinned.cache / path.relative_to(top)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kubernetes", metavar="MINOR", action="append", help=f"one of {', '.join(minors())}")
    parser.add_argument(
        "programs",
        metavar="PROGRAM",
        nargs="*",
        help=f"by default: {', '.join(CONTROL_PLANE)}; of a node: {', '.join(NODE)}",
    )
    arguments = parser.parse_args()
    try:
        for minor in arguments.kubernetes or minors():
            for path in programs(minor, *arguments.programs).values():
                print(path)
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
