# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A switch of the driver waits while the API server does not answer. tests/cluster tests it with a real one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")

VARIABLES = {"switch_driver_to": "lanewise.dev", "switch_driver_timeout": 5}
KUBECONFIG = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {}}],
}


def test_an_api_server_that_does_not_answer_is_tried_again_and_reported(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(json.dumps(KUBECONFIG))
    playbooks = COLLECTION / "playbooks"
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(playbooks / "vars/switch_driver.yml")],
        "tasks": [{"ansible.builtin.include_tasks": str(playbooks / "tasks/switch_driver_verify.yml")}],
    }
    book = tmp_path / "book.yml"
    book.write_text(json.dumps([play]))
    variables = {**VARIABLES, "dra_driver_kubeconfig": str(tmp_path / "kubeconfig")}
    paths = os.pathsep.join(filter(None, [str(COLLECTIONS), os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")]))
    output = run_playbook(
        tmp_path, {"gpu-01": variables}, str(book.with_suffix("")), rc=2, ANSIBLE_COLLECTIONS_PATH=paths
    )
    assert "FAILED - RETRYING: [gpu-01 -> localhost]: Wait until the driver publishes" in output
    assert "The ResourceSlices of gpu-01 could not be read: the version of the API server cannot be read" in output
