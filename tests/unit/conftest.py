# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Trees of machines are thousands of small files: they are made in memory if there is room, and removed after each
test, because a run makes about a million of them.

ansible-test hides the variable by which hypothesis knows a busy machine, so it is set here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

_MEMORY = "/dev/shm"
_ROOM = 2 * 2**30


def pytest_configure(config):
    if os.environ.get("TMPDIR") or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM:
        return
    folder = tempfile.mkdtemp(prefix="lanewise-dra-", dir=_MEMORY)
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # the workers of a parallel run get the same
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture
def tmp_path(tmp_path: Path) -> t.Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
