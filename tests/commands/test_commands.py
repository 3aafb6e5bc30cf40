# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every block of commands in README and docs works for a person without root or sudo. Of commands that cannot run here,
only the names are checked."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.commands.blocks import ELSEWHERE, Block, blocks, missing
from ansible_collections.lanewise.dra.tests.commands.person import Person, interpreter
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION

PAGES = [
    COLLECTION / "README.md",
    *sorted((COLLECTION / "docs").glob("*.md")),
    *sorted((COLLECTION / "roles").glob("*/README.md")),
]
BLOCKS = [block for page in PAGES for block in blocks(page)]
#: The tutorial comes first, because all other pages need its 'make try' and 'make setup'.
BLOCKS.sort(key=lambda block: ("tutorial.md" != block.page.name, PAGES.index(block.page)))
#: These commands run all checks, including this test.
SKIPPED_COMMANDS = re.compile(r"make test|make test-all")
CLAIMS = """
dra_claims_drivers: {gpu.nvidia.com: {version: 0.5.0}, lanewise.dev: {version: 1.0.0}}
dra_claims_templates:
  - name: pair
    namespace: training
    align: pcie_root
    devices: [{name: gpu, kind: gpu}, {name: nic, kind: rdma}]
"""
WORKLOADS = "plan_workloads: [{name: pair, namespace: training, templates: [pair]}]\n"


@pytest.fixture(name="person", scope="module")
def _person() -> t.Iterator[Person]:
    python = interpreter()
    if python is None:
        pytest.skip("no Python 3.11 or later with venv that a person who is not root may run (Debian: python3-venv)")
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed (Debian package util-linux)")
    folder = Path(tempfile.mkdtemp(prefix="lanewise-person-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        person = Person(COLLECTION, folder, python)
        nodes = person.checkout / "my-inventory"
        machine = {"topology_root": str(person.checkout / ".cache/machines/hgx-h100")}
        here = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        hosts = {name: machine for name in ("gpu-01", "gpu-02", "gpu-07")}
        # no task becomes root, because the person cannot
        group = {"gpu_nodes": {"hosts": hosts, "vars": {**here, "ansible_become": False}}}
        person.write(nodes / "hosts.yml", json.dumps({"all": {"children": group}}))
        person.write(nodes / "group_vars/all.yml", CLAIMS)
        for name in ("job", "move", "swap-gold", "replay"):  # files that pages of docs show in full
            person.write(person.checkout / f"{name}.yml", "plan_workloads: []\n")
        person.write(person.checkout / "workloads.yml", WORKLOADS)
        yield person
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_person_cannot_become_root(person: Person) -> None:
    assert person.run("id -u")[1].strip() != "0"
    assert person.run("sudo -n true")[0] != 0
    assert person.run("touch /etc/lanewise-person")[0] != 0


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_have_the_output_shown_on_the_page(block: Block, person: Person) -> None:
    if block.where in ELSEWHERE:
        for command in block.commands:
            check_names(command.text, person)
        pytest.skip(ELSEWHERE[block.where] + "; only its names and options were checked")
    for number, command in enumerate(block.commands, 1):
        if SKIPPED_COMMANDS.match(command.text):
            continue
        status, output = person.run(re.sub(r"\bINVENTORY\b", "my-inventory", command.text))
        assert status == (block.status if number == len(block.commands) else 0), f"{command.text}\n{output[-6000:]}"
        assert missing(command.output, output) == [], f"{command.text}\n{output[-6000:]}"


def test_setup_installs_what_claims_and_the_cluster_need(person: Person) -> None:
    status, output = person.run("make setup")
    assert status == 0, output
    python = '"$(dirname "$(command -v ansible-playbook)")/python"'
    status, output = person.run(
        f"{python} -c 'import cel_expr_python, kubernetes'; ansible-doc kubernetes.core.k8s_info"
    )
    assert status == 0 and "KUBERNETES.CORE.K8S_INFO" in output.upper() and "Error" not in output, output


def check_names(text: str, person: Person) -> None:
    """Check that the playbooks and targets in a command exist, and that Ansible accepts the playbook with the command's
    options."""
    for target in re.findall(r"\bmake (\w+)", text):
        assert person.run(f"make -n {target}")[0] == 0, text
    playbook = re.match(r"ansible-playbook .*", text, re.DOTALL)
    if playbook:
        command = re.sub(r"\b(?:INVENTORY|my-site)\b", "my-inventory", playbook[0]).split("#")[0].split(";")[0]
        status, output = person.run(f"{command} --syntax-check")
        assert status == 0, f"{text}\n{output[-3000:]}"


def test_every_path_in_contributing_exists() -> None:
    text = (COLLECTION / "CONTRIBUTING.md").read_text()
    paths = set(
        re.findall(r"`((?:changelogs|docs|driver|playbooks|plugins|requirements|tests|tools)/[a-z0-9_./-]+)`", text)
    )
    assert len(paths) > 10
    assert not {path for path in paths if not (COLLECTION / path).exists()}


def test_every_folder_of_tests_is_documented() -> None:
    folders = {path.name for path in (COLLECTION / "tests").iterdir() if any(path.glob("*.py"))}
    assert set(re.findall(r"(?m)^\| `([a-z]+)` \|", (COLLECTION / "docs/tests.md").read_text())) == folders
