# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run virtual nodes in the foreground until Ctrl-C: `make lab`.

    python -m tests.lab [--nodes 2] [--boot] [--iommu] [--nvme] [--memory 1024] [--cluster]

Builds their parts if needed. The Ansible inventory is .cache/lab/inventory.json. With --cluster, the nodes are members
of a Kubernetes cluster, and .cache/lab/kubectl runs kubectl for it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shlex
import shutil
import signal
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ADMIN, ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed as NoCluster
from ansible_collections.lanewise.dra.tests.lab.cluster import SHAPE, Member
from ansible_collections.lanewise.dra.tests.lab.node import Failed, Lab, Shape
from ansible_collections.lanewise.dra.tools import lab as artifacts
from environment import WORK, Missing, say


def script(path: Path, command: str) -> Path:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o700)
    return path


def serve(count: int, snapshot: bool, nvme: bool, shape: Shape, cluster: bool) -> None:
    folder = WORK / "lab"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another 'make lab' of this checkout is running, with its files in {folder}") from None
        if folder.exists():  # left behind by a crash
            shutil.rmtree(folder)
        with contextlib.ExitStack() as stack:
            plane = stack.enter_context(ControlPlane()) if cluster else None  # ends last, as the nodes use it
            lab = stack.enter_context(Lab())
            say(f"starting {count} nodes" if count > 1 else "starting a node")
            for node in lab.start(count, snapshot, shape):
                more = node.plug_nvme() if nvme else []
                say(f"{node.name}: ready in {node.seconds:.1f} s")
                for device in [*node.devices, *more]:
                    print(f"    {device.kind:4} {device.address} NUMA node {device.numa}, below {device.root}")
            folder.mkdir(mode=0o700)
            inventory = lab.write_inventory(folder / "inventory.json")
            try:
                for node in lab.nodes:
                    print(f"{script(folder / node.name, node.ssh_command)}  # ssh to {node.name}, port {node.port}")
                if plane:
                    kubeconfig = plane.write_kubeconfig(*ADMIN, path=folder / "kubeconfig")
                    kubectl = shlex.join([str(plane.programs["kubectl"]), f"--kubeconfig={kubeconfig}"])
                    print(f"{script(folder / 'kubectl', kubectl)}  # to Kubernetes {plane.version}", flush=True)
                    for node in lab.nodes:
                        member = Member(plane, node)
                        member.stay_connected()
                        say(f"{node.name}: joined the cluster in {member.seconds:.0f} s")
                print(f"ansible-playbook -i {inventory} lanewise.dra.probe")
                print(f"consoles: {lab.folder}/*/console; Ctrl-C stops the nodes and removes their files", flush=True)
                while True:
                    time.sleep(1)
                    lab.check()
            except KeyboardInterrupt:
                say("stopping")
            finally:
                shutil.rmtree(folder)


def main(arguments: t.Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", metavar="N", type=int, default=2, help="2 by default")
    parser.add_argument("--boot", action="store_true", help="boot instead of restoring a snapshot")
    parser.add_argument("--iommu", action="store_true", help="add an IOMMU, for VFIO")
    parser.add_argument("--nvme", action="store_true", help="add an NVMe disk below each PCIe switch")
    parser.add_argument(
        "--memory", metavar="MIB", type=int, help=f"{Shape.memory} by default, {SHAPE.memory} in a cluster"
    )
    parser.add_argument("--cluster", action="store_true", help="make the nodes members of a Kubernetes cluster")
    options = parser.parse_args(arguments)
    memory = options.memory or (SHAPE if options.cluster else Shape()).memory
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        shape = Shape(memory=memory, iommu=options.iommu)
        serve(options.nodes, not options.boot, options.nvme, shape, options.cluster)
    except (Failed, Missing, NoCluster, artifacts.StepFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
