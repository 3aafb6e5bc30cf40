# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Download wheels of requirements/downloads.txt that are unpacked or run, but never installed.

    python3 tools/downloads.py

Unpacks the collections that lanewise.dra uses (kubernetes.core) and that its tests use (ansible.posix) from the pinned
wheel of the package 'ansible', so that no Galaxy server is needed. Uses the standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from environment import CACHE, OTHER_COLLECTIONS, lock_file, locked, say

COLLECTIONS = ("ansible/posix", "kubernetes/core")


def download(package: str) -> Path:
    """The wheel of a pinned package. Its hash is checked. Raises subprocess.CalledProcessError if pip fails."""
    lines = lock_file("downloads", sys.version_info[:2]).read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{package}=="))
    folder = CACHE / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{package}-{line.split()[0].split('==')[1]}-*.whl"
    with locked(folder):
        if not list(folder.glob(pattern)):
            requirement = folder / f"{package}.txt"
            requirement.write_text(line + "\n")
            options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--ignore-requires-python"]
            command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(requirement)]
            subprocess.run(command, check=True)
    return next(folder.glob(pattern))


def unpack_other_collections() -> None:
    """Unpack `COLLECTIONS` into the folder `OTHER_COLLECTIONS`, once for each version of the wheel."""
    stamp = OTHER_COLLECTIONS / ".from"
    version = lock_file("downloads", sys.version_info[:2]).read_text()
    if stamp.exists() and stamp.read_text() == version:
        return
    with locked(OTHER_COLLECTIONS):
        if stamp.exists() and stamp.read_text() == version:
            return
        say("unpacking the collections that this one uses, from the Python package 'ansible' (50 MB, once)")
        wheel = download("ansible")
        shutil.rmtree(OTHER_COLLECTIONS, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            prefixes = tuple(f"ansible_collections/{name}/" for name in COLLECTIONS)
            archive.extractall(OTHER_COLLECTIONS, [name for name in archive.namelist() if name.startswith(prefixes)])
        stamp.write_text(version)


if __name__ == "__main__":
    unpack_other_collections()
