# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node whose Python returns arbitrary results affects neither other nodes nor the controller."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible import constants
from ansible.plugins.loader import connection_loader, lookup_loader
from ansible.vars.clean import clean_facts
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import NumaNode, Topology, as_dict
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import set_by_facts
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook
from ansible_collections.lanewise.dra.tests.site.test_become import FILES, tasks_on_the_controller

#: The collection's action plugins that check the facts themselves.
CHECKING_ACTIONS = {
    "known_variables",
    "site_report",
    "dra_render",
    "dra_apply",
    "rollout",
    "alignment_report",
    "plan_report",
    "nic_replacement",
}
#: Files whose plays run on nodes. The playbook for a wheelhouse needs no nodes.
NODE_FILES = [path for path in FILES if path.name not in ("driver_wheelhouse.yml", "wheelhouse.yml")]
#: Actions that only print something.
OUTPUT_ACTIONS = {"ansible.builtin.debug", "ansible.builtin.fail", "ansible.builtin.assert"}

# Runs its arguments with the real Python, and merges more values into the result.
PYTHON = """#!{python}
import json, pathlib, subprocess, sys
done = subprocess.run([sys.executable, *sys.argv[1:]], stdin=sys.stdin, capture_output=True, text=True)
result = done.stdout
def merged(into, values):
    for key, value in values.items():
        into[key] = merged(into[key], value) if isinstance(value, dict) and isinstance(into.get(key), dict) else value
    return into
try:
    result = json.dumps(merged(json.loads(result), json.loads(pathlib.Path(__file__ + ".json").read_text())))
except ValueError:
    pass
sys.stdout.write(result)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""


def hostile(folder: Path, **answer: t.Any) -> dict[str, t.Any]:
    """The variables of a host whose Python merges `answer` into the result of each module."""
    python = folder / "python"
    python.write_text(PYTHON.format(python=sys.executable), encoding="utf-8")
    python.chmod(0o755)
    Path(f"{python}.json").write_text(json.dumps(answer), encoding="utf-8")
    return {"ansible_python_interpreter": str(python)}


@pytest.fixture(name="defaults")
def _defaults(tmp_path: Path) -> dict[str, str]:
    """Environment variables for Ansible's default settings instead of those of a checkout: facts become variables."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    return {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_DEPRECATION_WARNINGS": "false"}


def play(folder: Path, text: str, hosts: dict[str, dict[str, t.Any]], rc: int, **environment: str) -> str:
    (folder / "play.yml").write_text(text, encoding="utf-8")
    # by path, because the play is not part of the collection
    return " ".join(run_playbook(folder, hosts, str(folder / "play"), rc=rc, **environment).split())


UNCORDON = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.stat: {path: /}
    - ansible.builtin.include_role: {name: lanewise.dra.fabric, tasks_from: uncordon}
"""


def test_a_fact_chooses_neither_the_cluster_nor_the_node(tmp_path, defaults):
    facts = {"fabric_node_name": "good", "site_cluster": "/taken/from/a/fact"}
    inventory = {"fabric_kubeconfig": "{{ site_cluster }}", "site_cluster": str(tmp_path / "nowhere")}
    hosts = {"bad": {**inventory, **hostile(tmp_path, ansible_facts=facts)}, "good": inventory}
    output = play(tmp_path, UNCORDON, hosts, 2, **defaults)
    assert "bad returned facts that Ansible uses as variables of the site: 'fabric_node_name', 's" in output
    assert "/taken/from/a/fact" not in output
    # the run continued with the other node, and failed because the kubeconfig does not exist
    assert f"Could not find or access '{tmp_path}/nowhere'" in output and "good answered" not in output


def test_facts_that_do_not_become_variables_are_ignored(tmp_path, defaults):
    inventory = {"fabric_kubeconfig": str(tmp_path / "nowhere")}
    hosts = {"bad": {**inventory, **hostile(tmp_path, ansible_facts={"fabric_node_name": "good"})}}
    output = play(tmp_path, UNCORDON, hosts, 2, **defaults, ANSIBLE_INJECT_FACT_VARS="false")
    assert f"Could not find or access '{tmp_path}/nowhere'" in output and "returned facts" not in output


COLLECTED = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.stat: {path: /}
    - ansible.builtin.debug:
        msg: "serial {{ query('lanewise.dra.site_values', 'site_serial', hosts=ansible_play_hosts) }}"
      run_once: true
    - ansible.builtin.debug: {msg: passed}
      when: lookup('lanewise.dra.facts_checked')
    - ansible.builtin.debug: {msg: all passed}
      when: lookup('lanewise.dra.facts_checked', hosts=ansible_play_hosts_all)
"""


def test_facts_that_ansible_itself_returns_are_accepted(tmp_path, defaults):
    facts = {"ansible_distribution": "Debian", "packages": {}, "facter_os": "Debian", "pkg_mgr": "dnf5"}
    facts.update(mount_points={}, aggregate_mounts=[])
    # without the prefix ansible_, the fact has the name of a variable of the site
    hosts = {"one": {"distribution": "the site's", **hostile(tmp_path, ansible_facts=facts)}}
    assert '"msg": "all passed"' in play(tmp_path, COLLECTED, hosts, 0, **defaults)


GATHERED = """
- hosts: all
  tasks:
    - ansible.builtin.getent: {database: passwd, key: root}
    - ansible.builtin.debug: {msg: passed}
      when: lookup('lanewise.dra.facts_checked')
"""


def test_facts_that_ansible_gathers_by_default_are_accepted(tmp_path, defaults):
    assert '"msg": "passed"' in play(tmp_path, GATHERED, {"one": {}}, 0, **defaults)


@pytest.mark.parametrize("name", ["anything", "ansible_limit", "ansible_sftp_executable"])
def test_any_other_fact_is_refused(tmp_path, defaults, name):
    hosts = {"good": {"site_serial": 2}, "bad": hostile(tmp_path, ansible_facts={name: float("nan"), "site_serial": 9})}
    output = play(tmp_path, COLLECTED, hosts, 2, **defaults)
    assert "serial [2]" in output and f"'{name}'" in output
    assert '"msg": "passed"' in output and '"msg": "all passed"' not in output


@pytest.fixture(name="inject")
def _inject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts become variables."""
    monkeypatch.setenv("ANSIBLE_INJECT_FACT_VARS", "true")


def refused(**facts: str) -> list[str]:
    manager = SimpleNamespace(_fact_cache={"one": facts})
    return set_by_facts({"hostvars": SimpleNamespace(_variable_manager=manager)}, "one")


@pytest.mark.usefixtures("inject")
@pytest.mark.parametrize(("kind", "loader"), [("connection", connection_loader), ("lookup", lookup_loader)])
def test_options_of_plugins_that_run_on_the_controller_are_refused(kind, loader):
    """Facts that Ansible removes itself are not refused."""
    options: set[str] = set()
    for path in loader.all(path_only=True):
        loader.get(Path(path).stem, class_only=True)  # Ansible then knows the plugin's options
        for option in constants.config.get_configuration_definitions(kind, Path(path).stem).values():
            options.update(variable["name"] for variable in option.get("vars", ()))
    left = {name for name in clean_facts(dict.fromkeys(options, "")) if name.startswith("ansible_")}
    assert {"connection": "ansible_control_path_dir", "lookup": "ansible_lookup_url_ca_path"}[kind] in left
    assert [name for name in sorted(left) if refused(**{name: ""}) != [name]] == []


@pytest.mark.usefixtures("inject")
def test_other_facts_of_ansible_are_not_refused():
    facts = (
        "ansible_eth0",
        "ansible_ssh_host_key_rsa_public",
        "ansible_ssh_host_key_checking_keytype",
        "ansible_lookup",
    )
    assert refused(**dict.fromkeys(facts, "")) == []


@pytest.mark.usefixtures("inject")
def test_with_an_unknown_fact_cache_names_of_the_facts_without_prefix_are_used():
    """They may also be names of the site's variables."""
    facts = {"limit": "", "control_path": "", "domain": "", "distribution": "", "absent": ""}
    variables = {
        "ansible_facts": facts,
        "ansible_limit": "",
        "ansible_control_path": "",
        "ansible_domain": "",
        "domain": "",
    }
    hostvars = SimpleNamespace(raw_get=lambda host: {"one": variables}[host])
    assert set_by_facts({"hostvars": hostvars}, "one") == ["ansible_control_path", "ansible_limit", "domain"]


@pytest.mark.parametrize("path", NODE_FILES, ids=lambda path: str(path.relative_to(COLLECTION)))
def test_every_task_on_the_controller_checks_the_facts_first(path):
    for task in tasks_on_the_controller(path):
        keywords = {name.removeprefix("lanewise.dra.") for name in task["task"]}
        checked = any("facts_checked" in item for item in task["when"])
        assert checked or keywords & (CHECKING_ACTIONS | OUTPUT_ACTIONS), task["name"]


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("machines") / "cpu-rdma"
    build("cpu-rdma", folder)
    return str(folder)


def test_an_out_of_range_result_affects_only_its_own_node(tmp_path, defaults, tree):
    answer = {"topology": {"unreadable_count": 1, "packages": [{"id": 10**320, "cpus": "0"}]}}
    facts = {"topology_report_title": "taken", "site_report_dest": str(tmp_path / "elsewhere")}
    bad = hostile(tmp_path, ansible_facts=facts, **answer)
    hosts = {"bad": {"topology_root": tree, **bad}, "good": {"topology_root": tree}}
    output = " ".join(run_playbook(tmp_path, hosts, "probe", rc=2, **defaults).split())
    assert "bad returned an invalid result, which was discarded: topology" in output
    site = json.loads((tmp_path / "report" / "site.json").read_text(encoding="utf-8"))
    assert {node["name"]: node["status"] for node in site["nodes"]} == {"bad": "failed", "good": "probed"}
    assert "<title>taken" not in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert not (tmp_path / "elsewhere").exists()


def test_a_stored_number_that_is_out_of_range_counts_as_unknown(tmp_path, tree):
    """A node's page shows the memory of its NUMA nodes only if it is known."""
    run_playbook(tmp_path, {"one": {"topology_root": tree}, "two": {"topology_root": tree}}, "probe")
    store = tmp_path / "report" / "nodes" / "one.json"
    text = store.read_text(encoding="utf-8")
    damaged = text.replace('"memory_bytes": ', '"memory_bytes": 1' + "0" * 320)
    assert damaged != text
    store.write_text(damaged, encoding="utf-8")
    run_playbook(tmp_path, {"one": {"topology_root": tree}, "two": {"topology_root": tree}}, "probe", "--limit", "two")
    first, second = ((tmp_path / f"report/nodes/{name}.html").read_text(encoding="utf-8") for name in ("one", "two"))
    assert "252 GiB" in second and "252 GiB" not in first and "0" * 320 not in first
    site = json.loads((tmp_path / "report" / "site.json").read_text(encoding="utf-8"))
    assert {node["name"]: node["status"] for node in site["nodes"]} == {"one": "probed", "two": "probed"}


def test_claims_are_not_checked_against_stored_facts_that_exceed_the_bounds(tmp_path, tree):
    hosts = {"one": {"topology_root": tree}, "two": {"topology_root": tree}}
    run_playbook(tmp_path, hosts, "probe")
    store = tmp_path / "report" / "nodes" / "one.json"
    store.write_text(store.read_text("utf-8").replace('"memory_bytes": ', '"memory_bytes": 1' + "0" * 320), "utf-8")
    claims = {
        "dra_claims_drivers": {"lanewise.dev": {"version": "1.0.0"}},
        "dra_claims_templates": [{"name": "a", "namespace": "a", "devices": [{"name": "nic", "kind": "nic"}]}],
        "site_claims_dest": str(tmp_path / "kubernetes"),
    }
    output = run_playbook(tmp_path, hosts, "claims", "-e", json.dumps(claims), rc=0)
    reported = " ".join(output.split())
    assert "one: its facts in" in reported and "is not a 64-bit integer" in reported and "of 1 node(s)" in reported


REPORTED = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.stat: {path: /}
    - ansible.builtin.include_role: {name: lanewise.dra.topology, tasks_from: report}
      run_once: true
"""


@pytest.mark.parametrize("inject", ["true", "false"])
def test_a_topology_in_a_fact_is_checked_too(tmp_path, defaults, inject):
    """A site may keep the topology in a fact cache. Then any module's result can set the topology."""
    hosts: dict[str, dict[str, t.Any]] = {"a-good": {"ansible_connection": "local"}}
    topology = as_dict(Topology(numa_nodes=[NumaNode(id=0, memory_bytes=10**320)]))
    hosts["bad"] = hostile(tmp_path, ansible_facts={"topology_facts": topology})
    variables = {"topology_report_dest": str(tmp_path / "report")}
    for host in hosts.values():
        host.update(variables)
    play(tmp_path, REPORTED, hosts, 0, **defaults, ANSIBLE_INJECT_FACT_VARS=inject)
    site = json.loads((tmp_path / "report" / "site.json").read_text(encoding="utf-8"))
    assert {node["name"]: node["status"] for node in site["nodes"]} == {"a-good": "no facts", "bad": "no facts"}


def test_the_hostile_python_runs_as_an_interpreter(tmp_path):
    python = hostile(tmp_path, added=True)["ansible_python_interpreter"]
    done = subprocess.run([python, "-c", "print('{}')"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"added": True}
