# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real systemd as the first process of a container inside the sandbox, for tests of units.

    with Machine() as machine:
        machine.run("systemctl", "is-system-running")

The machine has its own process, mount and cgroup namespaces and its own /dev, and shares the sandbox's network. Its
systemd has only a few units, because a distribution's boot units would change the host. Works only inside sandbox.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import typing as t
from pathlib import Path
from types import TracebackType

from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.sandbox import CGROUPS, SANDBOX_VARIABLE

SYSTEMD = "/usr/lib/systemd"
BOOT_TIMEOUT_SECONDS = 30
#: The units that are copied from the distribution. Here, sysinit.target and basic.target pull in no others.
UNITS = (
    "basic.target",
    "multi-user.target",
    "shutdown.target",
    "sysinit.target",
    "systemd-journald-dev-log.socket",
    "systemd-journald.socket",
    "systemd-journald.service",
)
_WANTED = UNITS[-1]  # usually pulled in by sockets.target, which is not copied

# Joins a new cgroup in each hierarchy, which becomes the root of the cgroup namespace.
_JOIN = """
set -e
for top in "$1"/ "$1"/*/; do
  [ -e "$top/cgroup.procs" ] || continue
  mkdir -p "$top/$2/machine"
  for name in cpuset.cpus cpuset.mems; do
    if [ -e "$top/$name" ] && [ ! -e "$top/cgroup.controllers" ]; then
      cat "$top/$name" >"$top/$2/$name"
      cat "$top/$name" >"$top/$2/machine/$name"
    fi
  done
  echo $$ >"$top/$2/machine/cgroup.procs"
done
exec unshare --mount --pid --cgroup --propagation slave --fork --kill-child=KILL sh -c "$3" init "$@"
"""
# Creates the cgroups that kubelet is configured to use. systemd removes existing cgroups when it starts.
_KUBELET = """
for top in "$1"/ "$1"/*/; do
  [ -e "$top/cgroup.procs" ] || continue
  mkdir "$top/$2"
  for name in cpuset.cpus cpuset.mems; do
    if [ -e "$top/$name" ] && [ ! -e "$top/cgroup.controllers" ]; then cat "$top/$name" >"$top/$2/$name"; fi
  done
done
"""
# Mounts what systemd needs, and starts it. The mounts are not visible outside, and all processes inside share them.
_INIT = """
set -e
folder=$4
mount --make-rshared /
mount -t proc proc /proc
mount --bind /proc/sys/fs /proc/sys/fs
mount -o remount,bind,ro /proc/sys/fs  # systemd sets limits of the whole kernel there
mkdir -p "$folder/dev"
mount -t tmpfs -o mode=755 tmpfs "$folder/dev"
for name in null zero full random urandom tty kmsg; do cp -a "/dev/$name" "$folder/dev/"; done
mkdir "$folder/dev/shm" "$folder/dev/pts" "$folder/dev/net"
[ -e /dev/net/tun ] && cp -a /dev/net/tun "$folder/dev/net/"
mount --rbind /dev/shm "$folder/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$folder/dev/pts"
ln -s pts/ptmx "$folder/dev/ptmx"
for name in fd stdin stdout stderr; do cp -a "/dev/$name" "$folder/dev/"; done
mount --rbind "$folder/dev" /dev
if [ -e "$1/cgroup.controllers" ]; then
  mount -t cgroup2 cgroup2 "$1"
else
  tops=$(cd "$1" && for top in */; do [ -e "$top/cgroup.procs" ] && echo "${top%/}"; done)
  mount -t tmpfs -o mode=755 tmpfs "$1"
  for top in $tops; do
    mkdir "$1/$top"
    case $top in
      unified) mount -t cgroup2 cgroup2 "$1/$top" ;;
      systemd) mount -t cgroup -o none,name=systemd cgroup "$1/$top" ;;
      *) mount -t cgroup -o "$top" cgroup "$1/$top" ;;
    esac
  done
fi
mount -t tmpfs -o mode=755 tmpfs /etc/systemd/system
exec env -i container=sandbox PATH="$PATH" SYSTEMD_UNIT_PATH="/etc/systemd/system:/run/systemd/system:$folder/units" \
  "$5" --system --unit=multi-user.target --log-target=journal
"""


class Machine:
    """systemd with journald. systemd has booted when the constructor returns. Raises Failed."""

    def __init__(self) -> None:
        folder = Path(os.environ[SANDBOX_VARIABLE])
        self.folder = folder / "machine"
        units = self.folder / "units"
        units.mkdir(parents=True)
        for name in UNITS:
            shutil.copy(f"{SYSTEMD}/system/{name}", units)
        wants = units / "multi-user.target.wants"
        wants.mkdir()
        (wants / _WANTED).symlink_to(units / _WANTED)
        self.log = self.folder / "boot.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _JOIN, "join", str(CGROUPS), folder.name, _INIT, str(self.folder), f"{SYSTEMD}/systemd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = 0
        deadline = time.monotonic() + BOOT_TIMEOUT_SECONDS
        state = ""
        while state not in ("running", "degraded"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise Failed(f"systemd did not start ({state}): {self.log.read_text()}")
            time.sleep(0.1)
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
                self.pid = int(children[0])
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        self.run("sh", "-c", _KUBELET, "kubelet", str(CGROUPS), folder.name)

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything inside. Its mounts disappear with the namespace."""
        self._process.kill()
        self._process.wait()

    @property
    def nsenter(self) -> list[str]:
        """The prefix of a command that runs inside the machine."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--cgroup", "--"]

    def run(self, *command: str, check: bool = True, **options: t.Any) -> subprocess.CompletedProcess[str]:
        """Run a command inside. Raises Failed."""
        done = subprocess.run([*self.nsenter, *command], capture_output=True, text=True, check=False, **options)
        if check and done.returncode:
            raise Failed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done
