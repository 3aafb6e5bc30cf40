# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import resource
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.memlock import limits


def test_limits_are_read_as_the_kernel_writes_them() -> None:
    found = limits(Path("/proc/self/limits").read_text())
    expected = [
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    ]
    assert found == expected
    assert limits("Limit Soft Limit\n") is None
