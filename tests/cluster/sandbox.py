# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a command in new network, mount and process namespaces, so that it can run a node and leaves nothing behind.

    python3 sandbox.py COMMAND ...

Inside, kubelet and containerd use their usual paths: /run is empty, /var, /etc and /opt are overlays of the host's, and
/sys shows the devices of the new network namespace. All processes end with the command, including containers. Needs
root on Linux, and only Python's standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: The variable that is set inside, to a folder that is removed with the sandbox.
SANDBOX_VARIABLE = "LANEWISE_SANDBOX"
CGROUPS = Path("/sys/fs/cgroup")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def enter(folder: Path, command: list[str]) -> int:
    """As the first process of the namespaces: mount what a node needs, run the command, reap orphaned processes."""
    host_cgroups = folder / "cgroup"
    host_cgroups.mkdir()
    run("mount", "--rbind", str(CGROUPS), str(host_cgroups))
    run("mount", "-t", "sysfs", "sysfs", "/sys")  # of this network namespace
    run("mount", "--rbind", str(host_cgroups), str(CGROUPS))
    for top in ("var", "etc", "opt"):
        upper, work = folder / top, folder / f"{top}.work"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir=/{top},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, f"/{top}")
    # kubelet and containerd read the size of the filesystems of these folders
    for path in ("/run", "/var/lib/kubelet", "/var/lib/containerd"):
        Path(path).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
    run("mount", "--make-rshared", "/")  # kubelet and pods see each other's mounts
    run("ip", "link", "set", "lo", "up")
    child = subprocess.Popen(command, env={**os.environ, SANDBOX_VARIABLE: str(folder)})
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def hierarchies() -> list[Path]:
    """The roots of the cgroups: one with version 2, one a controller with version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [top for top in CGROUPS.iterdir() if top.is_dir() and (top / "cgroup.procs").exists()]


def remove_cgroups(name: str) -> None:
    """Remove the cgroups below `name` in each hierarchy, innermost first."""
    for top in (hierarchy / name for hierarchy in hierarchies()):
        for path, _folders, _files in os.walk(top, topdown=False):
            os.rmdir(path)


def main() -> int:
    if sys.argv[1] == "--inside":
        return enter(Path(sys.argv[2]), sys.argv[3:])
    # in memory: an overlay's upper layer cannot be on another overlay, and many small files are written
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="lanewise-sandbox-", dir=memory if memory.is_dir() else None))
    namespaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--mount-proc", "--propagation", "private"]
    try:
        command = ["unshare", *namespaces, "--fork", "--kill-child", sys.executable, __file__, "--inside", str(folder)]
        return subprocess.run([*command, *sys.argv[1:]], check=False).returncode
    finally:
        remove_cgroups(folder.name)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
