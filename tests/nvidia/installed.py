# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NVIDIA driver that is installed on this machine, as a driver root for NVIDIA's DRA driver."""

from __future__ import annotations

import ctypes
import shutil
import typing as t
from pathlib import Path

from environment import Missing  # tools/cluster.py has put its folder on the path


class Installed:
    """The installed driver as a driver root below `folder`, with copies of its libraries and programs. Device nodes are
    the machine's. Raises Missing if libraries or programs are missing."""

    variables: t.ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        libraries, programs = folder / "root/usr/lib64", folder / "root/usr/bin"
        for entry in (libraries, programs):
            entry.mkdir(parents=True)
        for name in ("libnvidia-ml", "libcuda"):
            real = self.library(name)
            shutil.copyfile(real, libraries / real.name)
            (libraries / f"{name}.so.1").symlink_to(real.name)
        program = shutil.which("nvidia-smi")
        if not program:
            raise Missing("nvidia-smi is not on the PATH")
        shutil.copy(program, programs)
        (programs / "nvidia-cdi-hook").write_text("#!/bin/sh\nexit 0\n")
        (programs / "nvidia-cdi-hook").chmod(0o755)

    @staticmethod
    def library(name: str) -> Path:
        """The file of one of the driver's libraries that the loader finds. Its name ends with the driver's version."""
        try:
            ctypes.CDLL(f"{name}.so.1")
        except OSError as error:
            raise Missing(f"the loader does not find {name}.so.1: {error}") from None
        with open("/proc/self/maps") as maps:
            return next(Path(path) for path in (line.split()[-1] for line in maps) if f"/{name}.so" in path)

    def on_machine(self) -> list[str]:
        """The command prefix for the driver; empty, because it uses this machine's own /sys."""
        return []
