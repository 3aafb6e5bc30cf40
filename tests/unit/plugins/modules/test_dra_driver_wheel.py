# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files from which the driver's wheel is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
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


def test_a_wheel_that_was_removed_from_the_cache_is_built_again(tmp_path, monkeypatch, capsys):
    """Programs that clean caches remove old files, and may leave their folders."""

    def build(_module, _files, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lanewise_driver-1.0.0-py3-none-any.whl").write_bytes(b"wheel")

    def run():
        lock = COLLECTION / "requirements/driver.txt"
        options = {"source": str(COLLECTION), "lock": str(lock), "dest": str(tmp_path)}
        with patch_module_args(options), pytest.raises(SystemExit):
            dra_driver_wheel.main()
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(dra_driver_wheel, "build", build)
    first = run()
    Path(first["wheel"]).unlink()
    again = run()
    assert first["changed"] and again["changed"] and Path(again["wheel"]).is_file()
    assert not run()["changed"]
