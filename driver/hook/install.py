# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installs the hook at the path that CDI specs contain."""

from __future__ import annotations

from pathlib import Path

from ..base import files
from ..base.paths import Paths


def install_hook(paths: Paths) -> None:
    """Write the hook's two files. To be called at each start of the driver. Raises OSError."""
    folder = Path(__file__).parent
    for source, path in ((folder / "program.py", paths.hook_program), (folder / "hook.sh", paths.hook_script)):
        files.sweep(path.parent, path.name)
        files.replace(path, source.read_bytes(), 0o644)
