# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role builds the driver from."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.modules import dra_driver_wheel

tomllib = pytest.importorskip("tomllib", reason="new in Python 3.11")

COLLECTION = Path(__file__).absolute().parents[4]


def test_what_the_package_holds_is_what_the_role_takes():
    """Every file of data that the package names: a driver without its hook does not start."""
    settings = tomllib.loads((COLLECTION / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    taken = dra_driver_wheel.sources(COLLECTION)
    for pattern in settings["package-data"]["lanewise_driver"]:
        named = {f"driver/{path.relative_to(COLLECTION / 'driver')}" for path in (COLLECTION / "driver").glob(pattern)}
        assert named and named <= set(taken), pattern
    assert {path.name for path in (COLLECTION / "driver").glob("*.py")} == {
        name.removeprefix("driver/") for name in taken if name.startswith("driver/") and name.endswith(".py")
    }
