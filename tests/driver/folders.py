# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's paths in a test's folder."""

from __future__ import annotations

import dataclasses
import sys
import typing as t
from pathlib import Path

from lanewise_driver.base.paths import Paths


def under(root: Path, **changes: t.Any) -> Paths:
    """The default layout below `root`, except for the interpreter of hooks. `changes` replaces single fields."""
    default = dataclasses.asdict(Paths())
    moved = {name: root / value.relative_to("/") for name, value in default.items() if name != "hook_python"}
    return Paths(**{**moved, **changes})


def flat(folder: Path, **changes: Path) -> Paths:
    """Create all folders of the driver directly in `folder`, because paths of sockets must be short. Hooks use this
    interpreter."""
    paths = Paths(
        **{
            "plugin_dir": folder / "plugin",
            "registry_dir": folder / "registry",
            "run_dir": folder / "run",
            "cdi_dir": folder / "cdi",
            "settings": folder / "driver.yml",
            "hook_python": Path(sys.executable),
            **changes,
        }
    )
    paths.make()
    return paths
