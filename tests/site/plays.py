# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the collection's playbooks as a user does, on hosts that are folders of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS


def run_playbook(
    folder: Path, hosts: dict[str, dict[str, t.Any]], playbook: str, *options: str, rc: int = 0, **environment: str
) -> str:
    """Run a playbook, and return its whole output. `playbook` is its name, or its path without the suffix.

    Fails if the exit status is not `rc`. Inventory and report are written to `folder`.
    """
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_ssh_timeout": 5,
        "site_become": False,
        "site_report_dest": str(folder / "report"),
    }
    inventory = folder / "inventory.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}), encoding="utf-8")
    variables = {
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",  # prints every task and host
        **environment,
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", str(inventory), str(COLLECTION / "playbooks" / f"{playbook}.yml"), *options],
        cwd=COLLECTION,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr
