# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which SSH session a run came by. What a node is reached by is in tests/driver/test_uplinks.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_session_is_known_below_sudo(tmp_path: Path) -> None:
    """As with become: the process has a clean environment, one above it has the session's."""
    program = (
        "from ansible_collections.lanewise.dra.plugins.module_utils.host.management import ssh_connection\n"
        "print(ssh_connection())"
    )
    inner = ["env", "-u", "SSH_CONNECTION", sys.executable, "-c", program]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *inner]  # a shell that stays
    environment = {**os.environ, "SSH_CONNECTION": "192.0.2.9 1 192.0.2.1 22"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "192.0.2.9 1 192.0.2.1 22"
