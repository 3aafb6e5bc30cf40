# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An Open MPI job over RoCE between two virtual nodes, with two NICs per pod.

The counters of the RDMA devices show that each rail exchanges traffic only with the same rail. `doctor` names the rail
whose routes are broken. tests/driver/test_rail_job.py does the same over TCP.

The NICs are VFs of one card per node, with soft-RoCE on each. All of them are on one fabric, so traffic could reach the
wrong rail.
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
from ansible_collections.lanewise.dra.tests.lab.test_driver_kernel import SYS, make_vfs, put_driver
from ansible_collections.lanewise.dra.tools import lab as artifacts
from environment import Missing  # tools/lab.py has put its folder on the path

PLAN = {
    "per_node": 16,
    "rails": [{"rail": rail, "pool": f"10.10{rail}.0.0/16"} for rail in (0, 1)],
}
INDEXES = (3, 9)
#: The number of elements of an array of 1 MiB, and how many times it is summed.
ELEMENTS, TIMES = 1 << 18, 2
#: Bytes of payload in a RoCE packet at an MTU of 1500.
PAYLOAD = 1024
#: The minimum number of packets on each rail: a quarter of the data of one rank.
MIN_PACKETS = ELEMENTS * TIMES // PAYLOAD
LONG_TIMEOUT = 1200
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
    """A node with the driver, and two VFs for its pod, the namespace pod0."""

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        put_driver(node)
        node.copy(packages(), "/opt")
        node.copy(artifacts.tools() / artifacts.LIBRARIES / "libstdc++.so.6", f"/{artifacts.LIBRARIES}")
        for program in ("lab/rail_node.py", "lab/driver_node.py", "driver/fake_cluster.py", "driver/allreduce.py"):
            node.copy(COLLECTION / "tests" / program, "/opt/rails")
        node.copy(artifacts.openmpi(), "/")
        node.ssh("ldconfig; modprobe -a igbvf rdma_rxe rdma_ucm; rdma system set netns exclusive")
        pf, _address, _name = make_vfs(node)
        functions = [node.ssh(f"basename $(readlink {SYS}/*/net/{pf}/device/virtfn{number})") for number in (0, 1)]
        for rail, address in enumerate(functions):
            name = node.ssh(f"ls {SYS}/{address}/net")
            node.ssh(f"ip link set {name} up; rdma link add rxe{rail} type rxe netdev {name}")
        node.ssh("ip netns add pod0; ip -n pod0 link set lo up")
        ranges = site_plan([NodeInput(str(entry), PLAN, entry) for entry in INDEXES]).ranges[str(index)]
        self.request = {
            "rails": {address: rail for rail, address in enumerate(functions)},
            "ranges": [address_range.setting() for address_range in ranges],
        }
        self.addresses = {name: ips[0].partition("/")[0] for name, ips in self.run("attach").items()}

    def run(self, does: str) -> t.Any:
        """Run rail_node.py on the node. Returns its output."""
        request = json.dumps({**self.request, "does": does})
        program = "PYTHONPATH=/opt python3 /opt/rails/rail_node.py"
        reported = self.node.ssh(program, stdin=request, timeout=LONG_TIMEOUT)
        return json.loads(reported.splitlines()[-1])

    def run_in_pod(self, command: str) -> str:
        return self.node.ssh(f"ip netns exec pod0 {command}", timeout=LONG_TIMEOUT)

    def check_rails(self) -> tuple[str, list[str]]:
        """The result of the doctor's check of rails, and its detail lines."""
        return doctor.rail_check(self.run("doctor"))

    def packets(self) -> list[tuple[int, int]]:
        """The numbers of RoCE packets that the pod has sent and received on each rail."""
        places = [f"/sys/class/infiniband/rxe{rail}/ports/1/hw_counters" for rail in (0, 1)]
        files = " ".join(f"{place}/{name}" for place in places for name in ("sent_pkts", "rcvd_pkts"))
        found = [int(line) for line in self.run_in_pod(f"cat {files}").split()]
        return [(found[0], found[1]), (found[2], found[3])]


class Job:
    """Two members, with SSH access from the first pod to the second one for Open MPI's daemon."""

    def __init__(self, nodes: t.Sequence[Node]) -> None:
        self.members = [Member(node, index) for node, index in zip(nodes, INDEXES)]
        first, second = self.members
        first.node.ssh(f"ssh-keygen -q -t ed25519 -N '' -f {KEY}")
        second.node.ssh("cat >> /etc/ssh/authorized_keys", stdin=first.node.ssh(f"cat {KEY}.pub") + "\n")
        address = second.addresses["rail0"]
        second.run_in_pod(f"/usr/sbin/sshd -o ListenAddress={address} -o PidFile=/run/job-sshd.pid")
        options = f"-i {KEY} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        agent = f'#!/bin/sh\nhost=$1; shift\nexec ssh {options} $host "$@"\n'
        for member in self.members:  # the daemon on the second node checks for it, too
            member.node.ssh("cat > /opt/rails/agent; chmod 755 /opt/rails/agent", stdin=agent)

    def run(self) -> list[list[tuple[int, int]]]:
        """Run the job. Returns the numbers of packets that each pod has sent and received on each rail."""
        first, second = self.members
        before = [member.packets() for member in self.members]
        settings = {"pml": "ucx", "osc": "^ucx", "plm_ssh_agent": "/opt/rails/agent", "prte_if_include": "rail0"}
        words = [*(f"--mca {name} {value}" for name, value in settings.items()), *(f"-x {entry}" for entry in UCX)]
        hosts = f"{first.node.name}:1,{second.addresses['rail0']}:1"
        mpirun = f"mpirun.openmpi --allow-run-as-root -np 2 --map-by node --host {hosts} {' '.join(words)}"
        variables = " ".join(f"{name}={value}" for name, value in UCX.items())
        program = f"python3 -I /opt/rails/allreduce.py {ELEMENTS} {TIMES}"
        reported = first.run_in_pod(f"env {variables} {mpirun} {program} 2>&1")
        assert sorted(re.findall(rf"rank (\d) of 2: {TIMES} sums are right", reported)) == ["0", "1"], reported
        after = [member.packets() for member in self.members]
        return [[(now[0] - was[0], now[1] - was[1]) for was, now in zip(old, new)] for old, new in zip(before, after)]


@pytest.fixture(scope="module")
def job(nodes: list[Node]) -> Job:
    try:
        artifacts.openmpi()
    except Missing as missing:
        pytest.skip(str(missing))
    return Job(nodes)


def test_a_job_sends_by_rail_and_the_check_names_a_broken_rail(job: Job) -> None:
    first, other = job.members
    assert [member.check_rails() for member in job.members] == [("ok", [])] * 2
    sent = job.run()
    print(sent)
    for rail in (0, 1):
        for sender, receiver in ((0, 1), (1, 0)):
            assert sent[sender][rail][0] > MIN_PACKETS, sent
            # the packets that one pod has sent on a rail are received by the other on the same rail
            assert abs(sent[sender][rail][0] - sent[receiver][rail][1]) < MIN_PACKETS // 20, sent

    # change a pod's routes so that the traffic of rail 1 uses rail 0
    first.run_in_pod(f"ip rule del from {first.addresses['rail1']}")
    first.run_in_pod("ip route replace 10.101.0.0/16 dev rail0")
    state, below = first.check_rails()
    misrouted = "of rail 1 leaves through rail0, not through rail1"
    assert state == "wrong" and any(misrouted in line for line in below), below
    assert all("claim team-a/job: " in line and "rail 1" in line for line in below), below
    assert other.check_rails() == ("ok", [])
    assert [member.run("end") for member in job.members] == [[], []]
    for member in job.members:
        assert "rxe0" in member.node.ssh("rdma link") and "rxe1" in member.node.ssh("rdma link")
