# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs of Debian packages on a node that lacks them. The packages are downloaded and unpacked once."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanewise-dra"
_GRUB_PACKAGES = (
    "grub-common",
    "grub2-common",
    "grub-pc-bin",
    "gettext-base",
    "libdevmapper1.02.1",
    "libefiboot1",
    "libefivar1",
)


def unpacked_packages(folder: str, packages: t.Sequence[str], programs: str) -> Path:
    """The root of the unpacked packages in this folder of the cache. Skips the test if apt cannot download them.

    `programs` are the programs in the packages, for messages.
    """
    cache = _CACHE / folder
    complete = cache / "done"
    if not complete.exists():
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            pytest.skip(f"downloading {programs} needs apt-get and dpkg")
        cache.mkdir(parents=True, exist_ok=True)
        download = subprocess.run(
            ["apt-get", "download", *packages], cwd=cache, capture_output=True, text=True, check=False
        )
        if download.returncode:
            pytest.skip(f"apt-get cannot download {programs}: {download.stderr.strip()}")
        for package in cache.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, cache / "root"], check=True)
        complete.touch()
    return cache / "root"


def unpacked_grub() -> Path:
    """The root of the unpacked packages of GRUB."""
    return unpacked_packages("grub", _GRUB_PACKAGES, "GRUB")


def mount_grub(root: Path, folder: Path) -> None:
    """In this mount namespace, add the packages in `root` to /usr, and replace /etc and /boot by folders in `folder`.

    /etc then has only the files of the packages, and /boot has one kernel. Skips the test if grub-probe fails.
    """
    for name in ("boot/grub", "etc"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copytree(root / "etc", folder / "etc", dirs_exist_ok=True)
    for line in (
        f"mount -t overlay usr -o lowerdir={root}/usr:/usr /usr",
        f"mount --bind {folder}/etc /etc",
        f"mount --bind {folder}/boot /boot",
    ):
        done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{line}: {done.stderr.strip()}")
    for path in ("/", "/boot"):
        probe = subprocess.run(["grub-probe", "--target=device", path], capture_output=True, text=True, check=False)
        if probe.returncode:
            pytest.skip(f"grub-probe does not support the file system of {path}: {probe.stderr.strip()}")
    Path("/etc/default/grub.d").mkdir(parents=True, exist_ok=True)
    for name in ("vmlinuz-6.1.0-1-amd64", "initrd.img-6.1.0-1-amd64"):
        Path("/boot", name).write_text("a kernel\n")
