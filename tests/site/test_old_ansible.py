# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every playbook refuses an ansible-core that is too old, with its version. Ansible itself only warns.

The collection's action plugins refuse it, so each playbook runs one of them before it changes anything.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils.core_version import MIN_VERSION
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION
from ansible_collections.lanewise.dra.tools.environment import OTHER_COLLECTIONS, ensure

PLAYBOOKS = sorted(path.stem for path in (COLLECTION / "playbooks").glob("*.yml"))
PYTHON = shutil.which("python3.11") or shutil.which("python3.12")


def test_the_oldest_version_is_that_of_the_metadata() -> None:
    text = (COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8")
    assert f'requires_ansible: ">={MIN_VERSION[0]}.{MIN_VERSION[1]}.0"' in text


@pytest.mark.long
@pytest.mark.skipif(PYTHON is None, reason="no Python 3.11 or 3.12, which old versions of ansible-core run on")
@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_an_old_version_is_refused_with_its_number(playbook: str, tmp_path: Path) -> None:
    old = ensure("old-core", str(PYTHON))
    host = {"topology_root": str(tmp_path), "ansible_connection": "local", "ansible_python_interpreter": PYTHON}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": {"node": host}}}), encoding="utf-8")
    (tmp_path / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    done = subprocess.run(
        [old / "bin/ansible-playbook", "-i", "inventory.json", COLLECTION / "playbooks" / f"{playbook}.yml"],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "ANSIBLE_COLLECTIONS_PATH": f"{COLLECTIONS}{os.pathsep}{OTHER_COLLECTIONS}",
            "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert "The collection lanewise.dra needs ansible-core 2.19 or later; this is 2.16." in done.stdout, done.stdout
