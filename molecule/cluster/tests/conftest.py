# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures that read the cluster through its API server, and pods through the container runtime of their node."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"], ".cache/lab")
CTR = "/opt/lab/bin/ctr --address /run/containerd/containerd.sock --namespace k8s.io"


@pytest.fixture(name="get", scope="session")
def _get():
    """A function that takes arguments of `kubectl get` and returns the listed objects."""

    def get(*arguments):
        command = [str(FOLDER / "kubectl"), "get", "--output=json", *arguments]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["items"]

    return get


@pytest.fixture(name="name")
def _name(host):
    return host.ansible.get_variables()["inventory_hostname"]


@pytest.fixture(name="inside")
def _inside(host):
    """A function that runs a command in the container of the node's only pod in a namespace, and returns its output."""

    def run(command, namespace="exchange"):
        selector = f'labels."io.kubernetes.pod.namespace"=={namespace},labels."io.cri-containerd.kind"==container'
        (container,) = host.check_output(f"{CTR} containers ls -q %s", selector).split()
        return host.check_output(f"{CTR} tasks exec --exec-id look-$$ {container} {command}")

    return run
