# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An Open MPI job on two nodes whose pods have a NIC on each of two rails. The interface counters show that traffic
stays on its rail. If the routes of a rail are broken, the check of `doctor` names the rail.

The nodes are network namespaces, each with its own driver that prepares and attaches the claim. Rail 0 is a single
segment; on rail 1 each node has its own subnet. A router connects both rails, so traffic could take the wrong rail.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import NodeInput, site_plan
from ansible_collections.lanewise.dra.tests.common import doctor
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver import ipv6, nodes

#: The index of each node in the address plan.
NODES = {"a": 3, "b": 9}
PLAN = {
    "per_node": 16,
    "rails": [
        {"rail": 0, "pool": "10.100.0.0/16"},
        {"rail": 1, "pool": "10.101.0.0/16", "prefix": 28, "gateway": "first"},
    ],
}
#: The job sums an array of 4 MiB over both ranks, this many times.
ELEMENTS, SUMS = 1 << 20, 2
#: A quarter of the bytes that each rank sends at least.
LEAST_BYTES = ELEMENTS * SUMS
ROUTER = "10.100.255.254"
PROGRAM = COLLECTION / "tests/driver/allreduce.py"
DRIVER_MODULE = "ansible_collections.lanewise.dra.tests.driver.rail_node"


class Node:
    """A node with a driver, and a pod that has the claim `job` with both NICs."""

    def __init__(self, name: str, folder: Path, number: int) -> None:
        self.name, self.pod, self.cluster_address = f"node-{name}", f"pod-{name}", f"10.244.0.{number}"
        nodes.run(f"ip netns add {self.name}; ip netns add {self.pod}; ip -n {self.pod} link set lo up")
        nodes.run(f"ip -n {self.name} link set lo up")
        for rail in (0, 1):
            create = f"ip link add {name}{rail} type veth peer name nic{rail} netns {self.name}"
            nodes.run(f"{create}; ip -n {self.name} link set nic{rail} up")
        nodes.run(f"ip link add {name}-eth type veth peer name eth0 netns {self.pod}")
        nodes.run(f"ip link set {name}-eth master cluster up")
        nodes.run(f"ip -n {self.pod} addr add {self.cluster_address}/24 dev eth0; ip -n {self.pod} link set eth0 up")
        nodes.run(f"ip -n {self.pod} route add default via 10.244.0.254")
        ipv6.wait(lambda command: nodes.run(f"ip -n {self.name} {command}"))
        (folder / name).mkdir()
        ranges = site_plan([NodeInput(node, PLAN, index) for node, index in NODES.items()]).ranges[name]
        self.ranges = ranges
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", DRIVER_MODULE]
        settings = json.dumps([rail_range.setting() for rail_range in ranges])
        self._driver = subprocess.Popen([*command, str(folder / name), settings], stdin=-1, stdout=-1, text=True)
        assert self._driver.stdout and self._driver.stdout.readline() == "ready\n"
        self.addresses = [
            address.partition("/")[0] for address in self.call_driver("attach", "job", f"/run/netns/{self.pod}")
        ]

    def call_driver(self, *command: str) -> t.Any:
        """Send a command of rail_node.py to the driver. Returns the answer."""
        assert self._driver.stdin and self._driver.stdout
        self._driver.stdin.write(json.dumps(command) + "\n")
        self._driver.stdin.flush()
        return json.loads(self._driver.stdout.readline())

    def run(self, command: str) -> str:
        """Run a command in the pod. Returns its output."""
        return nodes.run(f"ip netns exec {self.pod} {command}")

    def check_rails(self) -> tuple[str, list[str]]:
        """The result of the check of rails by `doctor`, and the lines below it."""
        return doctor.rail_check(self.call_driver("doctor"))

    def rail_bytes(self) -> dict[int, tuple[int, int]]:
        """The bytes that the pod has sent and received on each rail."""
        links = json.loads(self.run("ip -s -j link"))
        counters = {link["ifname"]: link["stats64"] for link in links}
        by_rail = {rail: counters[f"rail{rail}"] for rail in (0, 1)}
        return {rail: (counts["tx"]["bytes"], counts["rx"]["bytes"]) for rail, counts in by_rail.items()}

    def end(self) -> None:
        self.call_driver("end", "job")
        assert self._driver.stdin
        self._driver.stdin.close()
        self._driver.wait()


class Site:
    """Two nodes, the segment of rail 0, and the router of rail 1, which also has an address on rail 0."""

    def __init__(self, folder: Path) -> None:
        nodes.without_dad()
        nodes.run("ip link add cluster type bridge; ip addr add 10.244.0.254/24 dev cluster; ip link set cluster up")
        nodes.run("ip link add segment0 type bridge; ip link set segment0 up; ip netns add router")
        self.folder = folder
        self.nodes = [Node(name, folder, number) for number, name in enumerate(NODES, 1)]
        for name, node in zip(NODES, self.nodes):
            (gateway,) = (
                f"{rail_range.gateway}/{rail_range.prefix}" for rail_range in node.ranges if rail_range.rail == 1
            )
            nodes.run(f"ip link set {name}0 master segment0 up; ip link set {name}1 netns router")
            nodes.run(f"ip -n router addr add {gateway} dev {name}1; ip -n router link set {name}1 up")
        nodes.run("ip link add spine type veth peer name rail0 netns router; ip link set spine master segment0 up")
        nodes.run(f"ip -n router addr add {ROUTER}/16 dev rail0; ip -n router link set rail0 up")
        nodes.run("ip netns exec router sysctl -qw net.ipv4.ip_forward=1")

    def bytes_between_rails(self) -> int:
        """The bytes that went from one rail to the other: those that the router has sent and received on rail 0."""
        (link,) = json.loads(nodes.run("ip -n router -s -j link show rail0"))
        return int(link["stats64"]["tx"]["bytes"] + link["stats64"]["rx"]["bytes"])

    def run_job(self) -> tuple[list[dict[int, tuple[int, int]]], int]:
        """Run the job. Returns the bytes that each pod has sent and received on each rail, and those that went from
        one rail to the other."""
        agent = self.folder / "agent"
        pods = {node.cluster_address: node.pod for node in self.nodes}
        cases = "".join(f"{address}) pod={pod};; " for address, pod in pods.items())
        enter_pod = 'exec nsenter --net=/run/netns/$pod unshare --uts sh -c "hostname $pod; $*"'
        agent.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in {cases}esac\n{enter_pod}\n")
        agent.chmod(0o755)
        settings = {
            "plm_rsh_agent": agent, "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "rail0,rail1",
            "oob_tcp_if_include": "eth0", "btl_tcp_progress_thread": 0,
        }  # fmt: skip
        mca_options = [f"--mca {name} {value}" for name, value in settings.items()]
        mpirun = f"mpirun --allow-run-as-root -np 2 --map-by node --host {','.join(pods)} {' '.join(mca_options)}"
        command = f"{mpirun} {sys.executable} -I {PROGRAM} {ELEMENTS} {SUMS}"
        before, between_before = [node.rail_bytes() for node in self.nodes], self.bytes_between_rails()
        first = self.nodes[0]
        inside_pod = ["nsenter", f"--net=/run/netns/{first.pod}"]
        done = subprocess.run(
            [*inside_pod, "unshare", "--uts", "sh", "-c", f"hostname {first.pod}; {command}"],
            capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        assert sorted(re.findall(r"rank (\d) of 2: 2 sums are right", output)) == ["0", "1"], output
        after = [node.rail_bytes() for node in self.nodes]
        transferred = [
            {rail: (now[rail][0] - was[rail][0], now[rail][1] - was[rail][1]) for rail in now}
            for was, now in zip(before, after)
        ]
        return transferred, self.bytes_between_rails() - between_before

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def test_a_job_uses_both_rails_and_the_check_names_a_broken_rail(tmp_path: Path) -> None:
    if not shutil.which("mpirun"):
        pytest.skip("needs Open MPI")

    @nodes.on_a_node
    def test() -> None:
        site = Site(tmp_path)
        first, second = site.nodes
        assert [node.check_rails() for node in site.nodes] == [("ok", [])] * 2
        transferred, between_rails = site.run_job()
        print(transferred, between_rails)
        for rail in (0, 1):
            for sender, receiver in ((0, 1), (1, 0)):
                assert transferred[sender][rail][0] > LEAST_BYTES, transferred
                # the other pod has received on this rail what the pod has sent on it
                assert abs(transferred[sender][rail][0] - transferred[receiver][rail][1]) < LEAST_BYTES / 20, (
                    transferred
                )
        assert between_rails < LEAST_BYTES / 20

        # with broken routes, a pod sends the traffic of rail 1 through rail 0; the job still succeeds
        (rail_range,) = (rail_range for rail_range in first.ranges if rail_range.rail == 1)
        first.run(f"ip rule del from {first.addresses[1]}")
        first.run(f"ip route replace {rail_range.pool} via {ROUTER} dev rail0")
        transferred, between_rails = site.run_job()
        print(transferred, between_rails)
        assert (
            transferred[0][1][0] < LEAST_BYTES / 20
            and transferred[1][1][1] > LEAST_BYTES
            and between_rails > LEAST_BYTES
        ), (transferred, between_rails)
        state, details = first.check_rails()
        misrouted = "of rail 1 leaves through rail0, not through rail1"
        assert state == "wrong" and any(misrouted in line for line in details), details
        assert all("claim team-a/job: " in line and "rail 1" in line for line in details), details
        assert second.check_rails() == ("ok", [])
        site.end()

    test()
