# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CEL engine, for tests that need it."""

from __future__ import annotations

import functools

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing


@functools.lru_cache(None)
def require_engine() -> Engine:
    """The engine, created once. Skips the test if its library is not installed for this Python."""
    try:
        return Engine()
    except EngineMissing as missing:
        pytest.skip(str(missing))
