# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of a rollout, on recorded machines, the errors that stop a rollout, and drift."""

from __future__ import annotations

import json
import re
import tarfile
import types
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.executor.playbook_executor import PlaybookExecutor
from ansible_collections.lanewise.dra.plugins.plugin_utils.rollout import (
    DONE,
    FAILED,
    LOST,
    WAITING,
    Node,
    batches,
    plan_lines,
    state_lines,
    too_many,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook
from hypothesis import given
from hypothesis import strategies as st

RAILS = [{"name": "rails", "select": {"near_gpu": "PIX"}, "num_vfs": 4}]
UNREACHABLE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}

steps = st.one_of(st.integers(0, 30), st.integers(0, 120).map("{}%".format))


@given(st.lists(st.integers().map(str), max_size=60, unique=True), st.lists(steps, max_size=4))
def test_batches_equal_those_of_ansible(hosts, serial):
    play = types.SimpleNamespace(hosts="all", serial=serial, order=None)
    inventory = types.SimpleNamespace(get_hosts=lambda *_unused, **_also: list(hosts))
    executor = types.SimpleNamespace(_inventory=inventory)
    assert batches(hosts, serial) == PlaybookExecutor._get_serialized_batches(executor, play)


def test_an_invalid_batch_size_is_an_error():
    with pytest.raises(ValueError, match="half"):
        batches(["a", "b"], ["half"])


def test_nodes_with_the_same_plan_are_listed_together():
    vfs = {"resource": "sriov", "device": "0000:01:00.0", "setting": "num_vfs"}
    nodes = [Node(f"gpu-{n}", [vfs], ["install 1"]) for n in range(5)]
    nodes += [Node("old", reboot=["iommu"]), Node("new"), Node("tree", [vfs], recorded=True)]
    assert plan_lines(nodes, [1, "80%"]) == [
        "batch 1: 1 node, the canary",
        "    gpu-0",
        "        1 change (sriov 1)",
        "        driver: install 1",
        "batch 2: 4 nodes",
        "    gpu-1, gpu-2, gpu-3, gpu-4",
        "        1 change (sriov 1)",
        "        driver: install 1",
        "planned only (recorded machines): 1 node",
        "    tree",
        "        1 change (sriov 1)",
        "no changes needed, but a reboot: 1 node",
        "    old",
        "        waits for a reboot (fabric_reboot_ok allows it): iommu",
        "no changes needed: 1 node",
    ]


def test_the_state_of_a_rollout_lists_failures_first():
    states = {
        "a": (DONE, ""),
        "b": (FAILED, "set num_vfs: EBUSY\ndrain it"),
        "c": (LOST, "unreachable"),
        "d": (WAITING, ""),
    }
    assert state_lines(states) == [
        *("failed: 1 node", "    b: set num_vfs: EBUSY", "    b: drain it", "lost: 1 node", "    c: unreachable"),
        *("done: 1 node", "    a", "waiting: 1 node", "    d"),
    ]
    assert too_many(states, 49.9) and not too_many(states, 50) and not too_many({}, 0)


@pytest.fixture(name="machines", scope="module")
def _machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machines")
    for name in ("hgx-h100", "cpu-rdma"):
        build(name, folder / name)
    return folder


def play(
    folder: Path, hosts: dict[str, dict[str, t.Any]], *options: str, rc: int = 0, playbook: str = "rollout"
) -> str:
    return run_playbook(folder, hosts, playbook, *options, rc=rc)


def test_all_errors_of_all_nodes_are_reported_together(machines, tmp_path):
    tree = {"topology_root": str(machines / "hgx-h100")}
    hosts = {
        "good": {**tree, "fabric_nics": RAILS},
        "two": {**tree, "fabric_nics": [{**RAILS[0], "count": 9, "num_vfs": 4000}, {**RAILS[0], "profile": "none"}]},
        "other": {"topology_root": str(machines / "cpu-rdma"), "fabric_nics": [{**RAILS[0], "count": 8}]},
        "unreachable": {**UNREACHABLE, "fabric_nics": RAILS},
        "unconfigured": tree,
    }
    output = play(tmp_path, hosts, rc=2)
    problems = output[output.index("because of these blockers:") :]
    assert "other: rails: chooses 0 NICs of this node, not 8" in problems
    assert "two: rails: the profile 'none' is not defined" in problems
    assert re.search("unreachable: .*reached over (ssh|SSH)", problems)
    assert "good: " not in problems and "unconfigured: " not in problems
    assert "Roll out" not in output
    # each error counts as a failure of its node, and the output shows how to continue without these nodes
    recap = dict(re.findall(r"^(\w+) +: .*failed=(\d)", output, re.MULTILINE))
    assert recap == {"good": "0", "two": "1", "other": "1", "unreachable": "1", "unconfigured": "0"}
    assert (
        "add --limit 'all,!two,!other,!unreachable'" in output and "The other 1 node (good) has no blockers" in output
    )
    # the plan is shown nevertheless
    assert "planned only (recorded machines): 1 node" in output


def test_a_site_without_settings_is_not_changed(machines, tmp_path):
    output = play(tmp_path, {"one": {"topology_root": str(machines / "cpu-rdma")}})
    assert "changed=0" in output and "Show the state of the rollout" not in output
    assert "skipping: no hosts matched" in output


def test_limit_checks_no_other_node(machines, tmp_path):
    tree = {"topology_root": str(machines / "hgx-h100"), "fabric_nics": RAILS}
    output = play(tmp_path, {"one": tree, "two": tree, "offline": UNREACHABLE}, "--limit", "two", "--check")
    assert "[one]" not in output and "offline" not in output and "    - '    two'" in output


BATCHES = """
- hosts: d,b,a,c
  gather_facts: false
  serial: [1, 2]
  max_fail_percentage: 100
  tasks:
    - block:
        - set_fact: {site_begun: true}
        - fail: {msg: no room}
          when: inventory_hostname == 'b'
        - set_fact: {site_state: {state: done}}
      rescue:
        - set_fact: {site_state: {state: failed, reason: "{{ ansible_failed_result.msg }}"}}
    - lanewise.dra.rollout: {tell: state, max_fail_percentage: "{{ allowed }}"}
      run_once: true
"""


def test_a_failed_batch_finishes_its_other_nodes_and_stops_later_batches(tmp_path):
    (tmp_path / "batches.yml").write_text(BATCHES, encoding="utf-8")
    hosts: dict[str, dict[str, t.Any]] = {name: {} for name in "abcd"}
    playbook = str(tmp_path / "batches")
    output = play(tmp_path, hosts, "-e", "allowed=0", playbook=playbook, rc=2)
    assert "ok: [a]" in output and "[c]" not in output
    summary = output[output.index("failed: 1 node") :]
    assert "b: no room" in summary and "waiting: 1 node" in summary and "done: 2 nodes" in summary
    assert "The rollout stops here, and 1 node was not touched" in summary
    output = play(tmp_path, hosts, "-e", "allowed=25", playbook=playbook)
    assert "ok: [c]" in output and "stops here" not in output


def test_a_batch_without_remaining_nodes_ends_the_rollout_with_a_message(tmp_path):
    plays = yaml.safe_load(BATCHES)
    ending = {"import_tasks": f"{COLLECTION}/playbooks/tasks/batch_end.yml", "vars": {"batch_max_fail_percentage": 90}}
    plays[0].update(serial=1, tasks=[plays[0]["tasks"][0], ending])
    (tmp_path / "batches.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    output = play(tmp_path, {name: {} for name in "abcd"}, playbook=str(tmp_path / "batches"), rc=2)
    assert "[a]" not in output and output.count("The rollout stops here, and 2 nodes were not touched") == 1
    assert output.index("The rollout stops here") > output.index("failed: 1 node")


def batch_messages(tmp_path: Path, name: str, hosts: dict[str, dict[str, t.Any]], message: str) -> list[str]:
    """The message of each batch of a playbook. Only the playbook's tasks that choose hosts are run."""
    plays = yaml.safe_load((COLLECTION / f"playbooks/{name}.yml").read_text(encoding="utf-8"))
    for entry in plays:
        message_task = {"debug": {"msg": f"has {message}"}, "run_once": True}
        choosing = [task for task in entry["tasks"] if "ansible.builtin.group_by" in task]
        entry["tasks"] = [message_task] if "serial" in entry else choosing
        entry.pop("vars", None)
        entry["vars_files"] = [f"{COLLECTION}/playbooks/{path}" for path in entry.get("vars_files", ())]
    (tmp_path / "chosen.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    return re.findall("msg: has (.*)", play(tmp_path, hosts, playbook=str(tmp_path / "chosen")))


def test_a_rollback_selects_only_nodes_that_may_have_the_driver(tmp_path):
    with_driver = {"dra_driver_kubeconfig": "/nowhere"}
    hosts = {
        "switch": {},
        "d": with_driver,
        "recorded": {**with_driver, "topology_root": "/elsewhere"},
        "b": {"dra_driver_settings": {"kubeconfig": "/etc/kubernetes/own"}},
        "fabric-only": {"fabric_nics": RAILS, "dra_driver_settings": {"log_level": "debug"}},
        "a": with_driver,
    }
    shown = "{{ ansible_play_batch | join(' ') }}"
    assert batch_messages(tmp_path, "rollback", hosts, shown) == ["d", "b", "a"]
    assert batch_messages(tmp_path, "rollback", {"switch": {}}, shown) == []


@pytest.mark.long
def test_batches_may_be_set_in_the_inventory(tmp_path):
    """The play must look up the hosts' variable: Ansible templates a play's keywords without host variables."""
    for name, owner in {"remove": "site", "rollback": "site", "driver": "driver", "fabric": "fabric"}.items():
        hosts = {host: {f"{owner}_serial": [2], "dra_driver_kubeconfig": "/nowhere"} for host in "abc"}
        assert batch_messages(tmp_path, name, hosts, "{{ ansible_play_batch | length }}") == ["2", "1"]
        # the batch size need not be set for the first host
        batched = batch_messages(tmp_path, name, {"switch": {}, **hosts}, "{{ ansible_play_batch | length }}")
        assert batched == (["2", "1"] if name == "rollback" else ["2", "2"])


@pytest.mark.long
def test_a_batch_size_set_for_some_hosts_only_is_used(machines, tmp_path):
    tree = {"topology_root": str(machines / "hgx-h100"), "fabric_nics": RAILS}
    hosts = {"switch": {}, **{name: {**tree, "site_serial": 3} for name in "abc"}}
    assert play(tmp_path, hosts, "--check").count("PLAY [Roll out]") == 1


@pytest.mark.parametrize(("tag", "verb"), [("fabric", "Configure the node"), ("driver", "Install the driver")])
def test_a_tag_selects_only_its_own_tasks(tmp_path, tag, verb):
    output = play(tmp_path, {"a": {}}, "--tags", tag, "--list-tasks")
    assert re.findall("Configure the node|Install the driver", output) == [verb]
    assert len(re.findall("Record that the (?:change|node was)", output)) == 3


def test_a_lost_node_ends_the_run_with_its_batch(machines, tmp_path):
    tree = {"topology_root": str(machines / "hgx-h100"), "fabric_nics": RAILS, "fabric_serial": [1, 2]}
    hosts = {"a": tree, "b": {**UNREACHABLE, "fabric_nics": RAILS}, "c": tree, "d": tree}
    output = play(tmp_path, hosts, "-e", "fabric_become=false", playbook="fabric", rc=4)
    summary = output[output.rindex("lost: 1 node") :]
    assert "[d]" not in output and "done: 2 nodes" in summary and "1 node was not touched" in summary
    tolerant = ("-e", "fabric_max_fail_percentage=25")
    output = play(tmp_path, hosts, "-e", "fabric_become=false", *tolerant, playbook="fabric", rc=4)
    assert "changed: [d]" in output and "done: 3 nodes" in output


DRIVER = [{"dra_driver_kubeconfig": "/nowhere"}, {"dra_driver_settings": {"kubeconfig": "/nowhere"}}]


@pytest.mark.long
@pytest.mark.parametrize("driver", DRIVER, ids=["role", "own"])
def test_a_partial_removal_does_not_change_the_cluster(machines, tmp_path, driver):
    tree = {"topology_root": str(machines / "hgx-h100"), "dra_claims_kubeconfig": str(tmp_path / "nowhere"), **driver}
    confirmed = ("-e", "remove_confirm=default")
    for part in (("-e", "site_hosts=one"), ("--limit", "one")):
        output = play(tmp_path, {"one": tree, "two": tree}, *confirmed, *part, playbook="remove")
        assert "skipping: [one]" in output and "done: 1 node" in output
    output = play(tmp_path, {"one": tree, "two": tree}, *confirmed, playbook="remove", rc=2)
    assert "[one -> localhost]: FAILED" in output and "done" not in output


@pytest.mark.long
@pytest.mark.parametrize("driver", DRIVER, ids=["role", "own"])
def test_a_driver_is_checked_with_any_access_to_the_cluster(tmp_path, driver):
    confirmed = ("-e", "remove_confirm=default", "--check")
    output = play(tmp_path, {"one": driver, "two": {}}, *confirmed, "--limit", "one", playbook="remove")
    (before,) = re.findall(r"TASK \[lanewise.dra.dra_driver : Fail if pods have devices[^]]*\] \*+\n(.*)", output)[:1]
    assert "ok: [one]" in before
    wheel = {**driver, "dra_driver_wheel": str(tmp_path / "no.whl")}
    assert re.search(r"one: .*no\.whl", play(tmp_path, {"one": wheel, "two": {}}, rc=2))


CLAIMS = """
- hosts: all
  gather_facts: false
  tasks:
    - debug:
      when: false
      register: dra_claims_applied
    - lanewise.dra.rollout: {tell: drift}
      run_once: true
      register: report
    - debug: {msg: "{{ report.drift.verdict }}; {{ report.drift.claims.state }}; {{ report.summary | join(' / ') }}"}
      run_once: true
"""


def test_claims_that_are_not_applied_are_not_compared(tmp_path):
    (tmp_path / "claims.yml").write_text(CLAIMS, encoding="utf-8")
    output = play(tmp_path, {"a": {}}, playbook=str(tmp_path / "claims"))
    assert "no drift; not compared; claims: not compared /     dra_claims_apply is false" in output


def test_an_overdue_hold_is_drift(tmp_path):
    """The line is one that lanewise.dra.dra_holds_info returns."""
    late = "swap gold has no hold, but 1 rule still evicts pods: return it with lanewise.dra.swap"
    (tmp_path / "claims.yml").write_text(CLAIMS, encoding="utf-8")
    for overdue, verdict in (([late], "drifted; drifted"), ([], "no drift; not compared")):
        reported = play(tmp_path, {"a": {"site_holds": {"overdue": overdue}}}, playbook=str(tmp_path / "claims"))
        reported = " ".join(reported.split())
        assert verdict in reported and bool(overdue) == (late in reported), reported
        assert "lanewise.dra.reserve" not in reported


def test_only_what_could_not_be_checked_is_reported_as_such(tmp_path):
    """Known drift beside it, such as an overdue hold, is in the summary alone."""
    claims = CLAIMS.replace("report.drift.verdict", "report.problems | join('|') }} <- {{ report.drift.verdict")
    (tmp_path / "claims.yml").write_text(claims, encoding="utf-8")
    hosts = {"a": {"site_holds": {"overdue": ["late"]}, "site_claims_problem": "no route to the cluster"}}
    output = " ".join(play(tmp_path, hosts, playbook=str(tmp_path / "claims")).split())
    assert "claims: no route to the cluster <- unknown; unknown; " in output and "late" in output


def test_drift_lists_templates_that_no_longer_fit_their_boards(tmp_path):
    names = ["ResourceClaimTemplate ml/pair", "DeviceClass gpu"]
    applied = {"changed": True, "differing": names, "replaced": names[:1], "pruned": []}
    hosts = {"a": {"dra_claims_applied": applied}}
    skipped = """    - debug:
      when: false
      register: dra_claims_applied
"""
    assert skipped in CLAIMS
    (tmp_path / "claims.yml").write_text(CLAIMS.replace(skipped, ""), encoding="utf-8")
    output = play(tmp_path, hosts, playbook=str(tmp_path / "claims"))
    reported = " ".join(output.split())  # Ansible breaks long lines
    assert "ResourceClaimTemplate ml/pair no longer fits the boards of the site" in reported
    assert "DeviceClass gpu differs or is missing" in reported and "ml/pair differs" not in reported


def test_a_node_whose_last_probe_failed_is_not_shown_as_probed(machines, tmp_path):
    """As after a change that broke the node: the probe before the change succeeded."""
    tree = {"topology_root": str(machines / "cpu-rdma")}
    hosts = {
        "well": {**tree, "then": tree["topology_root"], "by": "local"},
        "broken": {**tree, "then": "/nonexistent", "by": "local"},
        "unreachable": {
            **tree,
            "then": tree["topology_root"],
            "by": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": 1,
        },
    }
    again = {"topology_root": "{{ then }}", "ansible_connection": "{{ by }}"}
    probe = {"ansible.builtin.import_playbook": "lanewise.dra.probe"}
    (tmp_path / "twice.yml").write_text(yaml.safe_dump([probe, {**probe, "vars": again}]), encoding="utf-8")
    play(tmp_path, hosts, rc=2, playbook=str(tmp_path / "twice"))
    site = json.loads((tmp_path / "report" / "site.json").read_text(encoding="utf-8"))
    status = {node["name"]: node["status"] for node in site["nodes"]}
    assert status == {"well": "probed", "broken": "failed", "unreachable": "unreachable"}


@pytest.mark.long
def test_drift_sets_the_exit_status(machines, tmp_path):
    tree = {"topology_root": str(machines / "hgx-h100")}
    configured = {**tree, "fabric_nics": [{**RAILS[0], "num_vfs": 0}], "fabric_persist": False}
    drifted = {**tree, "fabric_nics": RAILS}
    unknown = {**tree, "fabric_nics": [{**RAILS[0], "count": 9}]}

    def drift_report() -> dict[str, t.Any]:
        return json.loads((tmp_path / "report" / "drift.json").read_text(encoding="utf-8"))

    output = play(tmp_path, {"same": configured, "unconfigured": tree}, playbook="drift")
    assert (
        "changed=0" in output and drift_report()["verdict"] == "no drift" and list(drift_report()["nodes"]) == ["same"]
    )

    output = play(tmp_path, {"same": configured, "other": drifted}, playbook="drift", rc=1)
    assert "num_vfs: 0 -> 4" in output and "1 node without drift" in output
    assert {name: node["state"] for name, node in drift_report()["nodes"].items()} == {
        "same": "no drift",
        "other": "drifted",
    }
    page = (tmp_path / "report" / "drift.html").read_text(encoding="utf-8")
    assert "num_vfs: 0 -&gt; 4" in page and "same" not in page.split("<h2>Nodes</h2>")[1]

    hosts = {"other": drifted, "<b>unknown": unknown, "unreachable": {**UNREACHABLE, "fabric_nics": RAILS}}
    output = play(tmp_path, hosts, playbook="drift", rc=2)
    assert "Could not check" in output and "THE_SITE_HAS_DRIFTED" not in output
    states = {name: node["state"] for name, node in drift_report()["nodes"].items()}
    assert states == {"other": "drifted", "<b>unknown": "unknown", "unreachable": "unknown"}
    page = (tmp_path / "report" / "drift.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;unknown" in page and "<b>" not in page


@pytest.mark.long
def test_a_failure_for_all_nodes_keeps_the_state_of_each(machines, tmp_path):
    tree = {"topology_root": str(machines / "hgx-h100"), "dra_claims_kubeconfig": str(tmp_path / "nowhere")}
    configured = {**tree, "fabric_nics": [{**RAILS[0], "num_vfs": 0}], "fabric_persist": False}
    play(
        tmp_path,
        {"same": configured, "other": {**tree, "fabric_nics": RAILS}, "third": configured},
        playbook="drift",
        rc=2,
    )
    report = json.loads((tmp_path / "report" / "drift.json").read_text(encoding="utf-8"))
    states = {name: node["state"] for name, node in report["nodes"].items()}
    assert states == {"same": "no drift", "other": "drifted", "third": "no drift"}
    assert report["claims"]["state"] == "unknown"

    driver = {"dra_driver_kubeconfig": str(tmp_path / "nowhere"), "dra_driver_wheel": str(tmp_path / "no.whl")}
    output = play(tmp_path, {name: driver for name in "abc"}, rc=2)
    problems = output[output.index("because of these blockers:") :]
    assert set(re.findall(r"(\w): a task for all nodes failed on another node", problems)) == {"b", "c"}
    assert re.search(r"\ba: .*no\.whl", problems)
    assert "lost" not in problems and "no reason was given" not in problems


@pytest.mark.parametrize("options", [(), ("--limit", "one")])
@pytest.mark.parametrize(("hosts", "site_hosts"), [({}, "all"), ({"one": {}}, "typo")])
def test_drift_is_unknown_if_no_node_was_checked(tmp_path, hosts, site_hosts, options):
    # with an empty inventory, --limit excludes even the controller, on which the run would fail
    rc = 1 if options and not hosts else 2
    output = play(tmp_path, hosts, "-e", f"site_hosts={site_hosts}", *options, playbook="drift", rc=rc)
    assert ("No node was checked" if rc == 2 else "THE_INVENTORY_HAS_NO_NODE") in output
    assert not (tmp_path / "report").exists()


@pytest.mark.long
def test_a_support_bundle_contains_no_address(machines, tmp_path):
    tree = machines / "hgx-h100"
    hosts = {
        "node": {"topology_root": str(tree), "fabric_nics": RAILS},
        "unreachable": {**UNREACHABLE, "fabric_nics": RAILS},
    }
    output = play(tmp_path, hosts, "-e", f"support_dest={tmp_path}", playbook="support_bundle")
    (bundle,) = tmp_path.glob("support-*.tar.gz")
    assert str(bundle) in output and bundle.stat().st_mode & 0o077 == 0
    with tarfile.open(bundle) as archive:
        files = {
            Path(entry.name).name: archive.extractfile(entry).read().decode() for entry in archive if entry.isfile()
        }
    assert set(files) == {f"{host}.{kind}" for host in hosts for kind in ("topology.json", "plan.json", "log.txt")}
    assert "over ssh" in files["unreachable.topology.json"].lower()
    addresses = [path.read_text().strip() for path in tree.glob("sys/class/net/*/address")]
    assert len(addresses) >= 8 and not [address for address in addresses if address in files["node.topology.json"]]
    assert len(set(re.findall("<mac-[0-9a-f]+>", files["node.topology.json"]))) == len(set(addresses))
    assert len(json.loads(files["node.plan.json"])["fabric"]["changes"]) == 12
