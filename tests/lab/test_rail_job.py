# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job of Open MPI over RoCE between two virtual nodes, with two NICs a pod.

The counters of the RDMA devices show that each rail has traffic with the same rail only, and `doctor` names the rail
whose routes are broken. tests/driver/test_rail_job.py does the same over TCP.

The NICs are virtual functions of one card a node, with soft-RoCE on each. All of them are on one fabric, so traffic
could reach the wrong rail.
"""

from __future__ import annotations

import json
import re
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import NodeInput, site_plan
from ansible_collections.lanewise.dra.tests.common import doctor
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.lab.cluster import packages
from ansible_collections.lanewise.dra.tests.lab.node import Node
from ansible_collections.lanewise.dra.tests.lab.test_driver_kernel import SYS, put_driver, virtual
from ansible_collections.lanewise.dra.tools import lab as made
from environment import Missing  # tools/lab.py has put its folder on the path

PLAN = {
    "per_node": 16,
    "rails": [{"rail": rail, "pool": f"10.10{rail}.0.0/16"} for rail in (0, 1)],
}
INDEXES = (3, 9)
#: An array of 1 MiB, and how many times it is summed.
NUMBER, TIMES = 1 << 18, 2
#: Bytes of data in a RoCE packet at an MTU of 1500.
DATA = 1024
#: Packets that each rail has to carry at least: a quarter of the data of one rank.
LEAST = NUMBER * TIMES // DATA
LONG = 1200
#: UCX uses verbs, and divides large messages between both devices. It sets up connections by TCP over rail 0, because
#: its setup by RDMA datagrams fails on soft-RoCE. GID 1 is the address of the rail. A device reaches only its own IP
#: network.
UCX = {
    "UCX_TLS": "rc_verbs,tcp,self",
    "UCX_NET_DEVICES": "rxe0:1,rxe1:1,rail0",
    "UCX_MAX_RNDV_RAILS": "2",
    "UCX_RNDV_THRESH": "16k",
    "UCX_IB_GID_INDEX": "1",
    "UCX_IB_ROCE_LOCAL_SUBNET": "y",
}
KEY = "/opt/rails/key"


class Member:
    """A node with the driver and two virtual functions for its pod, the namespace pod0."""

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        put_driver(node)
        node.copy(packages(), "/opt")
        node.copy(made.tools() / made.LIBRARIES / "libstdc++.so.6", f"/{made.LIBRARIES}")
        for program in ("lab/rail_node.py", "lab/driver_node.py", "driver/answers.py", "driver/allreduce.py"):
            node.copy(COLLECTION / "tests" / program, "/opt/rails")
        node.copy(made.openmpi(), "/")
        node.ssh("ldconfig; modprobe -a igbvf rdma_rxe rdma_ucm; rdma system set netns exclusive")
        pf, _address, _name = virtual(node)
        functions = [node.ssh(f"basename $(readlink {SYS}/*/net/{pf}/device/virtfn{number})") for number in (0, 1)]
        for rail, address in enumerate(functions):
            name = node.ssh(f"ls {SYS}/{address}/net")
            node.ssh(f"ip link set {name} up; rdma link add rxe{rail} type rxe netdev {name}")
        node.ssh("ip netns add pod0; ip -n pod0 link set lo up")
        own = site_plan([NodeInput(str(one), PLAN, one) for one in INDEXES]).ranges[str(index)]
        self.asked = {
            "rails": {address: rail for rail, address in enumerate(functions)},
            "ranges": [one.setting() for one in own],
        }
        self.addresses = {name: ips[0].partition("/")[0] for name, ips in self.ask("attach").items()}

    def ask(self, does: str) -> t.Any:
        asked = json.dumps({**self.asked, "does": does})
        reported = self.node.ssh("PYTHONPATH=/opt python3 /opt/rails/rail_node.py", stdin=asked, timeout=LONG)
        return json.loads(reported.splitlines()[-1])

    def inside(self, command: str) -> str:
        return self.node.ssh(f"ip netns exec pod0 {command}", timeout=LONG)

    def checked(self) -> tuple[str, list[str]]:
        """The result of the doctor's check of rails, and the lines below it."""
        return doctor.rails(self.ask("doctor"))

    def packets(self) -> list[tuple[int, int]]:
        """The RoCE packets that the pod has sent and received by each rail."""
        places = [f"/sys/class/infiniband/rxe{rail}/ports/1/hw_counters" for rail in (0, 1)]
        files = " ".join(f"{place}/{name}" for place in places for name in ("sent_pkts", "rcvd_pkts"))
        found = [int(line) for line in self.inside(f"cat {files}").split()]
        return [(found[0], found[1]), (found[2], found[3])]


class Job:
    """The two members, with ways from the first pod to the second one for Open MPI's own daemon."""

    def __init__(self, nodes: t.Sequence[Node]) -> None:
        self.members = [Member(node, index) for node, index in zip(nodes, INDEXES)]
        first, second = self.members
        first.node.ssh(f"ssh-keygen -q -t ed25519 -N '' -f {KEY}")
        second.node.ssh("cat >> /etc/ssh/authorized_keys", stdin=first.node.ssh(f"cat {KEY}.pub") + "\n")
        there = second.addresses["rail0"]
        second.inside(f"/usr/sbin/sshd -o ListenAddress={there} -o PidFile=/run/job-sshd.pid")
        options = f"-i {KEY} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        agent = f'#!/bin/sh\nhost=$1; shift\nexec ssh {options} $host "$@"\n'
        for member in self.members:  # the daemon on the second node checks that it has it, too
            member.node.ssh("cat > /opt/rails/agent; chmod 755 /opt/rails/agent", stdin=agent)

    def run(self) -> list[list[tuple[int, int]]]:
        """Run the job. Returns the packets that each pod has sent and received by each rail."""
        first, second = self.members
        before = [member.packets() for member in self.members]
        settings = {"pml": "ucx", "osc": "^ucx", "plm_ssh_agent": "/opt/rails/agent", "prte_if_include": "rail0"}
        words = [*(f"--mca {name} {value}" for name, value in settings.items()), *(f"-x {one}" for one in UCX)]
        hosts = f"{first.node.name}:1,{second.addresses['rail0']}:1"
        mpirun = f"mpirun.openmpi --allow-run-as-root -np 2 --map-by node --host {hosts} {' '.join(words)}"
        variables = " ".join(f"{name}={value}" for name, value in UCX.items())
        reported = first.inside(f"env {variables} {mpirun} python3 -I /opt/rails/allreduce.py {NUMBER} {TIMES} 2>&1")
        assert sorted(re.findall(rf"rank (\d) of 2: {TIMES} sums are right", reported)) == ["0", "1"], reported
        after = [member.packets() for member in self.members]
        return [[(now[0] - was[0], now[1] - was[1]) for was, now in zip(old, new)] for old, new in zip(before, after)]


@pytest.fixture(scope="module")
def job(nodes: list[Node]) -> Job:
    try:
        made.openmpi()
    except Missing as missing:
        pytest.skip(str(missing))
    return Job(nodes)


def test_a_job_sends_by_rail_and_the_check_names_a_broken_rail(job: Job) -> None:
    one, other = job.members
    assert [member.checked() for member in job.members] == [("ok", [])] * 2
    sent = job.run()
    print(sent)
    for rail in (0, 1):
        for here, there in ((0, 1), (1, 0)):
            assert sent[here][rail][0] > LEAST, sent
            # what one pod has sent by a rail, the other has received by it
            assert abs(sent[here][rail][0] - sent[there][rail][1]) < LEAST // 20, sent

    # a pod's own routes lead rail 1 over rail 0
    one.inside(f"ip rule del from {one.addresses['rail1']}")
    one.inside("ip route replace 10.101.0.0/16 dev rail0")
    state, below = one.checked()
    assert state == "wrong" and any("of rail 1 leaves by rail0, not by rail1" in line for line in below), below
    assert all("claim team-a/job: " in line and "rail 1" in line for line in below), below
    assert other.checked() == ("ok", [])
    assert [member.ask("end") for member in job.members] == [[], []]
    for member in job.members:
        assert "rxe0" in member.node.ssh("rdma link") and "rxe1" in member.node.ssh("rdma link")
