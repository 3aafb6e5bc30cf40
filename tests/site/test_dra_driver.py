# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role dra_driver makes of the state that it finds on a node, where a run was cut off above all.

The role's own tasks are played, with a folder for the node and a file that names the release of the process instead of
systemd. tests/cluster/test_node_role.py has all of it on a real node.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.modules import dra_driver_info
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION

Object = dict[str, t.Any]

OLD, NEW, NEXT = "1.0.0-a", "1.0.1-b", "1.0.2-c"
ACCESS = {"server": "https://192.0.2.1:6443", "certificate_authority": "-----BEGIN CERTIFICATE-----\n", "node": {}}
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: dra_driver, tasks_from: "{{ part }}"}
    - ansible.builtin.debug: {msg: "plan {{ dra_driver_plan | join(', ') }} end"}
      when: part == 'plan'
"""
CURRENT = "{{ (__dra_driver_folder ~ '/current') | realpath | basename }}"
Steps = t.Generator["Step", "Result", None]


class Step(t.NamedTuple):
    """A part of the role that is played on a node, with these variables. C(well) says whether it has to end well."""

    part: str
    wheel: str = ""
    well: bool = True
    variables: t.Mapping[str, t.Any] = {}


class Result(t.NamedTuple):
    """How many tasks have changed something, and what was told."""

    changed: int
    told: str

    @property
    def plan(self) -> list[str]:
        (found,) = re.findall("plan (.*) end", self.told)
        return found.split(", ") if found else []


def stubbed(tasks: list[Object]) -> list[Object]:
    """Tasks without what asks the machine itself: its init system, its driver, its users."""
    found = []
    for task in tasks:
        if "block" in task:
            task = {**task, "block": stubbed(task["block"]), "rescue": stubbed(task.get("rescue", []))}
        if "lanewise.dra.dra_driver_info" in task or "journalctl" in str(task.get("ansible.builtin.command")):
            continue
        for module in ("ansible.builtin.template", "ansible.builtin.copy"):
            if module in task:
                task[module] = {key: value for key, value in task[module].items() if key not in ("owner", "group")}
        if "ansible.builtin.systemd_service" in task:
            asked = task.pop("ansible.builtin.systemd_service")
            line = "{{ reload | string | trim }} {{ release }}"
            task["vars"] = {"state": asked["state"], "reload": asked["daemon_reload"], "release": CURRENT}
            task["ansible.builtin.lineinfile"] = {"path": "{{ starts }}", "line": line, "create": True}
            task["when"] = "state == 'restarted'"
        found.append(task)
    return found


class Node:
    """A node in a folder. C(process) is the release that runs, C(reload) whether systemd has yet to read the unit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.process, self.reload, self.enabled = "", False, True
        self.starts: list[str] = []
        self.token: Object = {"node": "node"}
        self.address = ACCESS["server"]
        for name in ("etc", "opt/releases"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    @classmethod
    def like(cls, other: Node, name: str) -> Node:
        """Another node in the state of this one."""
        made = cls(shutil.copytree(other.folder, other.folder.with_name(name), symlinks=True))
        for path in (made.folder / "etc/driver.yml", made.folder / "unit"):
            path.write_text(path.read_text().replace(str(other.folder), str(made.folder)))
        made.process = other.process
        return made

    def install(self, name: str, well: bool = True) -> None:
        """Put a release there, as the role does before it switches."""
        program = self.folder / f"opt/releases/{name}/bin/lanewise-driver"
        program.parent.mkdir(parents=True)
        program.symlink_to("/bin/true" if well else "/bin/false")

    @property
    def releases(self) -> list[str]:
        return sorted(os.listdir(self.folder / "opt/releases"))

    def linked(self, name: str) -> str:
        path = self.folder / f"opt/{name}"
        return os.path.basename(os.readlink(path)) if path.is_symlink() else ""

    def link(self, name: str, release: str) -> None:
        path = self.folder / f"opt/{name}"
        path.unlink(missing_ok=True)
        path.symlink_to(f"releases/{release}")

    def before(self) -> Object:
        """What dra_driver_info tells."""
        paths = [self.folder / name for name in ("etc/driver.yml", "etc/kubeconfig", "unit")]
        service = {
            "installed": True,
            "enabled": self.enabled,
            "state": "active" if self.process else "inactive",
            "pid": 4711 if self.process else 0,
            "release": self.process,
            "reload": self.reload,
        }
        assert set(service) == set(yaml.safe_load(dra_driver_info.RETURN)["service"]["sample"])
        return {
            "release": self.linked("current"),
            "previous": self.linked("previous"),
            "releases": self.releases[::-1],
            "partial": [],
            "service": service,
            "files": {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in paths if one.exists()},
            "contents": {},
            "ready": bool(self.process),
            "token": self.token,
        }

    def variables(self, step: Step) -> Object:
        access = {**ACCESS, "server": self.address}
        found = {
            "part": step.part,
            "starts": str(self.folder / "starts"),
            "dra_driver_kubeconfig": "/nowhere",
            "dra_driver_node_name": "node",
            "dra_driver_health_seconds": 1,
            "__dra_driver_before": self.before(),
            "__dra_driver_node": access,
            "__dra_driver_access": access,
        }
        if step.wheel:
            found["__dra_driver_wheel"] = {"release": step.wheel}
        return {**found, **step.variables}

    def run(self, wheel: str, well: bool = True, **variables: t.Any) -> Step:
        """What a run of the role does after it has looked at the node."""
        if wheel not in self.releases:
            self.install(wheel)
        return Step("service", wheel, well, variables)


LIVES: dict[str, t.Callable[[Node], Steps]] = {}


def life(steps: t.Callable[[Node], Steps]) -> t.Callable[[Node], Steps]:
    LIVES[steps.__name__] = steps
    return steps


def back(**variables: t.Any) -> Step:
    return Step("previous", variables=variables)


@life
def the_plan_names_a_release_and_a_driver_that_does_not_run(node: Node) -> Steps:
    assert (yield Step("plan", OLD)).plan == []
    assert (yield Step("plan", NEW)).plan == [f"{OLD} to {NEW}"]
    node.process = ""
    assert (yield Step("plan", OLD)).plan == ["start it"]


@life
def the_plan_names_what_else_differs(node: Node) -> Steps:
    node.enabled, node.address, node.token = False, "https://192.0.2.9:6443", {}
    assert (yield Step("plan", OLD)).plan == ["a new kubeconfig", "a new token", "enable it"]


@life
def the_plan_names_files_that_are_gone(node: Node) -> Steps:
    for path in ("etc/driver.yml", "etc/kubeconfig", "unit"):
        (node.folder / path).unlink()
    assert (yield Step("plan", OLD)).plan == ["new settings", "a new unit", "a new kubeconfig"]
    shutil.rmtree(node.folder / "opt")
    (node.folder / "opt/releases").mkdir(parents=True)
    node.process, node.token = "", {}
    assert (yield Step("plan", OLD)).plan == [f"install {OLD}"]


@life
def a_run_that_was_cut_off_between_switch_and_start_is_ended_by_the_next_one(node: Node) -> Steps:
    yield node.run(NEW)
    node.process = OLD
    assert (yield Step("plan", NEW)).plan == ["start it anew"]
    assert (yield node.run(NEW)).changed == 1
    assert node.process == NEW and node.linked("previous") == OLD
    assert (yield Step("plan", NEW)).plan == []
    assert (yield node.run(NEW)).changed == 0


@life
def a_unit_that_was_not_loaded_is(node: Node) -> Steps:
    node.reload = True
    assert (yield Step("plan", OLD)).plan == ["start it anew"]
    assert (yield node.run(OLD)).changed == 1
    assert node.starts == [f"True {OLD}"]


@life
def after_a_run_that_was_cut_off_the_way_back_is_to_what_runs(node: Node) -> Steps:
    node.install(NEW, well=False)
    node.link("previous", OLD)
    node.link("current", NEW)
    told = (yield node.run(NEW, well=False)).told
    assert f"The node is back on release {OLD}" in told
    assert node.linked("current") == node.process == OLD


@life
def a_rollback_that_is_played_again_goes_no_further(node: Node) -> Steps:
    yield node.run(NEW)
    yield node.run(NEXT)
    yield back()
    assert node.process == NEW
    result = yield back()
    assert result.changed == 0 and node.process == NEW
    assert f"is back on release {NEW}" in result.told and "dra_driver_release" in result.told
    yield back(dra_driver_release=OLD)
    assert node.process == OLD
    assert (yield back()).changed == 0
    assert node.process == OLD


@life
def after_a_rollback_and_an_upgrade_the_next_rollback_goes_back_again(node: Node) -> Steps:
    yield node.run(NEW)
    yield back()
    yield node.run(NEW)
    yield back()
    assert node.process == OLD
    yield node.run(NEXT)
    yield back()
    assert node.process == OLD  # and not NEW, which is the one before by age


@life
def the_way_back_from_an_upgrade_to_an_older_release(node: Node) -> Steps:
    yield node.run(NEW)
    yield node.run(OLD)
    yield back()
    assert node.process == NEW


@life
def a_rollback_that_was_cut_off_is_ended_by_the_next_one(node: Node) -> Steps:
    yield node.run(NEW)
    yield back()
    node.process = NEW
    assert (yield back()).changed == 1
    assert node.process == OLD


@life
def a_node_on_which_the_upgrade_failed_is_back(node: Node) -> Steps:
    yield node.run(NEW)
    node.install(NEXT, well=False)
    yield node.run(NEXT, well=False)
    assert node.process == NEW
    assert (yield back()).changed == 0
    assert node.process == NEW


@life
def a_node_that_had_no_other_release_has_no_way_back(node: Node) -> Steps:
    assert "has none that is older" in (yield back()._replace(well=False)).told


@life
def the_release_to_go_back_to_is_kept(node: Node) -> Steps:
    yield node.run(NEW)
    yield node.run(OLD)
    yield node.run(NEXT, dra_driver_keep_releases=2)
    assert node.releases == [OLD, NEXT]
    yield node.run(NEXT, dra_driver_keep_releases=2)
    yield back()
    assert node.process == OLD


class Site:
    """Plays on many nodes at once, as each play takes seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        role = folder / "roles/dra_driver"
        shutil.copytree(COLLECTION / "roles/dra_driver", role)
        for name in ("previous", "service", "rollback"):
            path = role / f"tasks/{name}.yml"
            path.write_text(yaml.safe_dump(stubbed(yaml.safe_load(path.read_text())), sort_keys=False))
        written = {"src": "kubeconfig.j2", "dest": "{{ __dra_driver_config }}/kubeconfig"}
        (role / "tasks/kubeconfig.yml").write_text(yaml.safe_dump([{"ansible.builtin.template": written}]))
        (role / "tasks/preflight.yml").write_text("- ansible.builtin.meta: noop\n")
        (role / "meta/argument_specs.yml").unlink()
        places = {"folder": "opt", "config": "etc", "unit_file": "unit"}
        self.given = {
            f"__dra_driver_{name}": f"{folder}/{{{{ inventory_hostname }}}}/{place}" for name, place in places.items()
        }

    def play(self, steps: dict[Node, Step]) -> dict[Node, Result | AssertionError]:
        hosts = {node.name: node.variables(step) for node, step in steps.items()}
        shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (self.folder / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
        (self.folder / "given.json").write_text(json.dumps(self.given))
        (self.folder / "play.yml").write_text(PLAY)
        for node in steps:
            (node.folder / "starts").unlink(missing_ok=True)
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        output = subprocess.run(
            [program, "-i", "inventory.json", "-e", "@given.json", "play.yml"],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_ROLES_PATH": str(self.folder / "roles"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_PIPELINING": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        return {node: self.result(node, step, output) for node, step in steps.items()}

    def result(self, node: Node, step: Step, output: str) -> Result | AssertionError:
        own = re.findall(rf"^\w+: \[{node.name}\].*\n(?:[ }}].*\n)*", output, re.MULTILINE)
        recap = re.search(rf"^{node.name} .* changed=(\d+) .* failed=(\d+)", output, re.MULTILINE)
        if not recap or (recap[2] == "0") != step.well:
            return AssertionError(f"{step} did not end as it has to:\n{''.join(own) or output}")
        if (node.folder / "starts").exists():
            node.starts = (node.folder / "starts").read_text().splitlines()
            node.process = node.starts[-1].split()[-1]
        return Result(int(recap[1]), "".join(own))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AssertionError | None]:
    """All lives, side by side; what went wrong in each."""
    site = Site(tmp_path_factory.mktemp("site"))
    first = Node(site.folder / "first")
    for step in (Step("kubeconfig"), first.run(OLD)):
        assert isinstance(site.play({first: step})[first], Result)
    found: dict[str, AssertionError | None] = {}
    going = {node: LIVES[node.name](node) for node in (Node.like(first, name) for name in LIVES)}
    steps = {node: next(steps) for node, steps in going.items()}
    while steps:
        results, steps = site.play(steps), {}
        for node, result in results.items():
            try:
                steps[node] = going[node].throw(result) if isinstance(result, Exception) else going[node].send(result)
            except StopIteration:
                found[node.name] = None
            except AssertionError as error:
                found[node.name] = error
    return found


@pytest.mark.parametrize("name", LIVES)
def test_life_of_a_node(ends: dict[str, AssertionError | None], name: str) -> None:
    error = ends[name]
    if error:
        raise error
