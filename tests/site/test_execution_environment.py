# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The execution environment, as ansible-builder reads it. No image is built here, only its build context."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION

DEFINITION = "execution-environment.yml"
BUILDER = Path(sys.executable).with_name("ansible-builder")

pytestmark = pytest.mark.skipif(not BUILDER.exists(), reason="ansible-builder is not installed beside this Python")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(str(command[0]))), *map(str, command[1:])],
        cwd=cwd,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(name="context", scope="module")
def _context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context of the image, created as docs/execution-environment.md describes."""
    folder = tmp_path_factory.mktemp("image")
    shutil.copytree(COLLECTION / "execution-environment", folder / "definition", ignore=shutil.ignore_patterns("dist"))
    run("ansible-galaxy", "collection", "build", COLLECTION, "--output-path", folder / "definition/dist", cwd=folder)
    reported = run(
        "ansible-builder", "create", "-f", folder / "definition" / DEFINITION, "-c", folder / "context", cwd=folder
    )
    assert "No matches" not in reported, reported  # ansible-builder only warns about a listed file that does not exist
    return folder / "context"


@pytest.fixture(name="installed", scope="module")
def _installed(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection as the image's galaxy stage installs it, without collections that come from a server."""
    folder = tmp_path_factory.mktemp("installed")
    # the stage runs in the copy of _build
    install = ("ansible-galaxy", "collection", "install", "-r", "requirements.yml", "--no-deps", "--offline", "--force")
    run(*install, "--collections-path", folder, cwd=context / "_build")
    return folder


def containerfile(context: Path) -> str:
    """The text of the Containerfile or Dockerfile."""
    return next(path for name in ("Containerfile", "Dockerfile") if (path := context / name).exists()).read_text()


def test_the_base_image_is_a_public_one_that_can_be_replaced(context):
    text = containerfile(context)
    assert 'ARG EE_BASE_IMAGE="docker.io/redhat/ubi9:latest"' in text and "FROM $EE_BASE_IMAGE AS base" in text
    assert len(re.findall(r"(?m)^FROM (?!\$EE_BASE_IMAGE|base\b)", text)) == 0


def test_ansible_core_and_python_are_new_enough(context):
    text = containerfile(context)
    oldest = yaml.safe_load((COLLECTION / "meta/runtime.yml").read_text(encoding="utf-8"))["requires_ansible"]
    assert f"ansible-core{oldest}" in text
    python = re.search(r'ARG PYCMD="/usr/bin/python3\.(\d+)"', text)
    assert python and 11 <= int(python[1]) <= 14  # ansible-core 2.19 needs 3.11; cel-expr-python has wheels up to 3.14


def test_the_image_gets_this_collection_and_an_ssh_client(context):
    galaxy = yaml.safe_load((COLLECTION / "galaxy.yml").read_text(encoding="utf-8"))
    (required,) = yaml.safe_load((context / "_build/requirements.yml").read_text(encoding="utf-8"))["collections"]
    assert required["name"] == f"dist/lanewise-dra-{galaxy['version']}.tar.gz"
    built = context.parent / "definition" / required["name"]
    copied = (context / "_build" / required["name"]).read_bytes()
    assert hashlib.sha256(copied).digest() == hashlib.sha256(built.read_bytes()).digest()
    assert "openssh-clients" in (context / "_build/bindep.txt").read_text(encoding="utf-8")


def test_the_metadata_lists_the_packages_that_the_collection_needs(installed, context):
    introspected = run("ansible-builder", "introspect", installed, cwd=context)
    listed = yaml.safe_load(introspected[introspected.index("---") :])
    needed = ["cel-expr-python>=0.1.3", "prometheus-client>=0.26.0"]
    assert [line.split("#")[0].strip() for line in listed["python"]] == needed
    assert {line.split()[0] for line in listed["system"]} == {"gzip", "tar"}
    assert all("from collection lanewise.dra" in line for line in listed["python"] + listed["system"])
    # the Python client of Kubernetes comes with the collection kubernetes.core
    assert "kubernetes.core" in yaml.safe_load((COLLECTION / "galaxy.yml").read_text(encoding="utf-8"))["dependencies"]


def test_every_package_that_plugins_import_comes_with_the_image(installed):
    """The check covers all code that runs on the controller. A missing package would show only in the first run."""
    plugins = installed / "ansible_collections/lanewise/dra/plugins"
    on_nodes = ("module_utils/host", "module_utils/topology", "module_utils/uplinks")
    imported: set[str] = set()
    for path in plugins.rglob("*.py"):
        if not str(path.relative_to(plugins)).startswith(on_nodes):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add((node.module or "").partition(".")[0])
    with_core = {"ansible", "ansible_collections", "jinja2", "markupsafe", "yaml"}
    with_kubernetes = {"kubernetes", "urllib3"}
    listed = {"cel_expr_python", "prometheus_client"}
    assert imported - sys.stdlib_module_names - with_core - with_kubernetes == listed
