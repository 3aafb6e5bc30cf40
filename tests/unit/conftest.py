# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings of all unit tests.

The trees of example machines are thousands of small files. They are written to memory if it has enough space, and
removed after each test, because all tests together write about a million of them.

hypothesis has no time limits if the environment variable CI is set, but ansible-test removes it. So they are switched
off here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("slow_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow_machine")

#: A file system in memory, and the free bytes that it needs.
_MEMORY = "/dev/shm"
_MIN_FREE_BYTES = 2 * 2**30


def pytest_configure(config):
    if os.environ.get("TMPDIR") or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MIN_FREE_BYTES:
        return
    folder = tempfile.mkdtemp(prefix="lanewise-dra-", dir=_MEMORY)
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # the workers of a parallel run inherit it
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture
def tmp_path(tmp_path: Path) -> t.Iterator[Path]:
    """pytest's tmp_path, removed after the test."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
