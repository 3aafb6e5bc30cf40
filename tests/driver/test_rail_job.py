# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job of Open MPI over two nodes, with two NICs a pod: rail I speaks to rail I only, by the counters of the
interfaces, and the check of `doctor` names the rail when routes are broken.

The nodes are network namespaces, each with its own driver that prepares and attaches the claim. Rail 0 is one
segment, on rail 1 each node has a subnet. A router connects both rails, so that traffic could take the wrong rail.
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

NODES = {"a": 3, "b": 9}
PLAN = {
    "per_node": 16,
    "rails": [
        {"rail": 0, "pool": "10.100.0.0/16"},
        {"rail": 1, "pool": "10.101.0.0/16", "prefix": 28, "gateway": "first"},
    ],
}
#: An array of 4 MiB, and how many times it is summed.
NUMBER, TIMES = 1 << 20, 2
ROUTER = "10.100.255.254"
PROGRAM = COLLECTION / "tests/driver/allreduce.py"
DRIVER = "ansible_collections.lanewise.dra.tests.driver.rail_node"


class Node:
    """A node with a driver, and a pod that has the claim `job` with both NICs."""

    def __init__(self, name: str, folder: Path, number: int) -> None:
        self.name, self.pod, self.cluster = f"node-{name}", f"pod-{name}", f"10.244.0.{number}"
        nodes.run(f"ip netns add {self.name}; ip netns add {self.pod}; ip -n {self.pod} link set lo up")
        nodes.run(f"ip -n {self.name} link set lo up")
        for rail in (0, 1):
            made = f"ip link add {name}{rail} type veth peer name nic{rail} netns {self.name}"
            nodes.run(f"{made}; ip -n {self.name} link set nic{rail} up")
        nodes.run(f"ip link add {name}-eth type veth peer name eth0 netns {self.pod}")
        nodes.run(f"ip link set {name}-eth master cluster up")
        nodes.run(f"ip -n {self.pod} addr add {self.cluster}/24 dev eth0; ip -n {self.pod} link set eth0 up")
        nodes.run(f"ip -n {self.pod} route add default via 10.244.0.254")
        ipv6.wait(lambda words: nodes.run(f"ip -n {self.name} {words}"))
        (folder / name).mkdir()
        own = site_plan([NodeInput(one, PLAN, index) for one, index in NODES.items()]).ranges[name]
        self.ranges = own
        words = ["ip", "netns", "exec", self.name, sys.executable, "-m", DRIVER]
        settings = json.dumps([one.setting() for one in own])
        self._driver = subprocess.Popen([*words, str(folder / name), settings], stdin=-1, stdout=-1, text=True)
        assert self._driver.stdout and self._driver.stdout.readline() == "ready\n"
        self.addresses = [one.partition("/")[0] for one in self.ask("attach", "job", f"/run/netns/{self.pod}")]

    def ask(self, *command: str) -> t.Any:
        assert self._driver.stdin and self._driver.stdout
        self._driver.stdin.write(json.dumps(command) + "\n")
        self._driver.stdin.flush()
        return json.loads(self._driver.stdout.readline())

    def run(self, command: str) -> str:
        return nodes.run(f"ip netns exec {self.pod} {command}")

    def checked(self) -> tuple[str, list[str]]:
        """The result of the doctor's check of rails, and the lines below it."""
        return doctor.rail_check(self.ask("doctor"))

    def bytes(self) -> dict[int, tuple[int, int]]:
        """The bytes that the pod has sent and received on each rail."""
        shown = json.loads(self.run("ip -s -j link"))
        counters = {one["ifname"]: one["stats64"] for one in shown}
        found = [counters[f"rail{rail}"] for rail in (0, 1)]
        return {rail: (one["tx"]["bytes"], one["rx"]["bytes"]) for rail, one in enumerate(found)}

    def end(self) -> None:
        self.ask("end", "job")
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
            (gateway,) = (f"{one.gateway}/{one.prefix}" for one in node.ranges if one.rail == 1)
            nodes.run(f"ip link set {name}0 master segment0 up; ip link set {name}1 netns router")
            nodes.run(f"ip -n router addr add {gateway} dev {name}1; ip -n router link set {name}1 up")
        nodes.run("ip link add spine type veth peer name rail0 netns router; ip link set spine master segment0 up")
        nodes.run(f"ip -n router addr add {ROUTER}/16 dev rail0; ip -n router link set rail0 up")
        nodes.run("ip netns exec router sysctl -qw net.ipv4.ip_forward=1")

    def across(self) -> int:
        """The bytes that the router has sent and received on rail 0: what went from one rail to the other."""
        (shown,) = json.loads(nodes.run("ip -n router -s -j link show rail0"))
        return int(shown["stats64"]["tx"]["bytes"] + shown["stats64"]["rx"]["bytes"])

    def job(self) -> tuple[list[dict[int, tuple[int, int]]], int]:
        """Run the job. Returns the bytes that each pod has sent and received by each rail, and those that went from
        one rail to the other."""
        agent = self.folder / "agent"
        pods = {node.cluster: node.pod for node in self.nodes}
        cases = "".join(f"{address}) pod={pod};; " for address, pod in pods.items())
        inside = 'exec nsenter --net=/run/netns/$pod unshare --uts sh -c "hostname $pod; $*"'
        agent.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in {cases}esac\n{inside}\n")
        agent.chmod(0o755)
        settings = {
            "plm_rsh_agent": agent, "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "rail0,rail1",
            "oob_tcp_if_include": "eth0", "btl_tcp_progress_thread": 0,
        }  # fmt: skip
        words = [f"--mca {name} {value}" for name, value in settings.items()]
        mpirun = f"mpirun --allow-run-as-root -np 2 --map-by node --host {','.join(pods)} {' '.join(words)}"
        command = f"{mpirun} {sys.executable} -I {PROGRAM} {NUMBER} {TIMES}"
        before, across = [node.bytes() for node in self.nodes], self.across()
        first = self.nodes[0]
        inside_pod = ["nsenter", f"--net=/run/netns/{first.pod}"]
        done = subprocess.run(
            [*inside_pod, "unshare", "--uts", "sh", "-c", f"hostname {first.pod}; {command}"],
            capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        reported = done.stdout + done.stderr
        assert done.returncode == 0, reported
        assert sorted(re.findall(r"rank (\d) of 2: 2 sums are right", reported)) == ["0", "1"], reported
        after = [node.bytes() for node in self.nodes]
        sent = [
            {rail: (now[rail][0] - was[rail][0], now[rail][1] - was[rail][1]) for rail in now}
            for was, now in zip(before, after)
        ]
        return sent, self.across() - across

    def end(self) -> None:
        for node in self.nodes:
            node.end()


LEAST = NUMBER * TIMES  # a quarter of what each rank has to send at least


def test_a_job_sends_by_rail_and_the_check_names_a_broken_rail(tmp_path: Path) -> None:
    if not shutil.which("mpirun"):
        pytest.skip("needs Open MPI")

    @nodes.on_a_node
    def test() -> None:
        site = Site(tmp_path)
        one, other = site.nodes
        assert [node.checked() for node in site.nodes] == [("ok", [])] * 2
        sent, across = site.job()
        print(sent, across)
        for rail in (0, 1):
            for here, there in ((0, 1), (1, 0)):
                assert sent[here][rail][0] > LEAST, sent
                # what one pod has sent by a rail, the other has received by it
                assert abs(sent[here][rail][0] - sent[there][rail][1]) < LEAST / 20, sent
        assert across < LEAST / 20

        # routes of a pod send traffic of rail 1 over rail 0: the result of the job is still right
        (own,) = (one for one in one.ranges if one.rail == 1)
        one.run(f"ip rule del from {one.addresses[1]}")
        one.run(f"ip route replace {own.pool} via {ROUTER} dev rail0")
        sent, across = site.job()
        print(sent, across)
        assert sent[0][1][0] < LEAST / 20 and sent[1][1][1] > LEAST and across > LEAST, (sent, across)
        state, below = one.checked()
        misrouted = "of rail 1 leaves through rail0, not through rail1"
        assert state == "wrong" and any(misrouted in line for line in below), below
        assert all("claim team-a/job: " in line and "rail 1" in line for line in below), below
        assert other.checked() == ("ok", [])
        site.end()

    test()
