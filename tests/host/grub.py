# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Debian's GRUB on a node without it: its unpacked packages are mounted over /usr and /etc in a mount namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PACKAGES = (
    "grub-common",
    "grub2-common",
    "grub-pc-bin",
    "gettext-base",
    "libdevmapper1.02.1",
    "libefiboot1",
    "libefivar1",
)
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanewise-dra" / "grub"


def packages() -> Path:
    """The folder of the unpacked packages, which are fetched once. Skips the test if apt cannot fetch them."""
    done = _CACHE / "done"
    if not done.exists():
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            pytest.skip("fetching GRUB needs apt-get and dpkg")
        _CACHE.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run(
            ["apt-get", "download", *_PACKAGES], cwd=_CACHE, capture_output=True, text=True, check=False
        )
        if fetched.returncode:
            pytest.skip(f"apt-get cannot download GRUB: {fetched.stderr.strip()}")
        for package in _CACHE.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, _CACHE / "root"], check=True)
        done.touch()
    return _CACHE / "root"


def mount_over_system(root: Path, place: Path) -> None:
    """Make this mount namespace a node with the packages in `root`, one kernel, and /etc and /boot in `place`."""
    for folder in ("boot/grub", "etc"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    shutil.copytree(root / "etc", place / "etc", dirs_exist_ok=True)
    for line in (
        f"mount -t overlay usr -o lowerdir={root}/usr:/usr /usr",
        f"mount --bind {place}/etc /etc",
        f"mount --bind {place}/boot /boot",
    ):
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{line}: {done.stderr.strip()}")
    for folder in ("/", "/boot"):
        probe = subprocess.run(["grub-probe", "--target=device", folder], capture_output=True, text=True, check=False)
        if probe.returncode:
            pytest.skip(f"GRUB does not know the file system of {folder}: {probe.stderr.strip()}")
    Path("/etc/default/grub.d").mkdir(parents=True, exist_ok=True)
    for name in ("vmlinuz-6.1.0-1-amd64", "initrd.img-6.1.0-1-amd64"):
        Path("/boot", name).write_text("a kernel\n")
