# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files from which the driver's wheel is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.modules import dra_driver_wheel

tomllib = pytest.importorskip("tomllib", reason="new in Python 3.11")

COLLECTION = Path(__file__).absolute().parents[4]


def test_the_wheel_has_every_module_and_data_file_of_the_driver():
    """The driver does not start without its data files. pyproject.toml lists its packages and data."""
    settings = tomllib.loads((COLLECTION / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    sources = dra_driver_wheel.read_sources(COLLECTION)
    folders = settings["package-dir"]

    def folder(package):
        parent, _dot, name = package.rpartition(".")
        return folders.get(package) or f"{folder(parent)}/{name}"

    for package, patterns in settings["package-data"].items():
        for pattern in patterns:
            files = (COLLECTION / folder(package)).glob(pattern)
            data = {str(path.relative_to(COLLECTION)) for path in files}
            assert data and data <= set(sources), pattern
    modules = {
        str(path.relative_to(COLLECTION))
        for package in settings["packages"]
        for path in (COLLECTION / folder(package)).glob("*.py")
    }
    assert modules == {name for name in sources if name.endswith(".py")}
