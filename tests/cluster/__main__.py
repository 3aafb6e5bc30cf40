# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a control plane in the foreground until Ctrl-C: `make cluster`.

    python -m tests.cluster [--kubernetes 1.34] [--gate NAME=true ...]

Builds Kubernetes if need be. The administrator's kubeconfig is .cache/cluster/kubeconfig.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import subprocess
import sys
import time
import typing as t

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ADMIN, ControlPlane, Failed
from ansible_collections.lanewise.dra.tools.cluster import minors, programs
from environment import WORK, Missing, say


def _gate(text: str) -> tuple[str, bool]:
    name, found, value = text.partition("=")
    if not found or value not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=true or NAME=false")
    return name, value == "true"


def serve(minor: str, gates: dict[str, bool], nodes: int) -> None:
    folder = WORK / "cluster"
    programs(minor)  # builds them if needed
    with open(f"{folder}.lock", "w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another 'make cluster' of this checkout is running, with files in {folder}") from None
        if folder.exists():  # left behind by a crash
            shutil.rmtree(folder)
        say(f"starting Kubernetes {minor}")
        with ControlPlane(minor, gates=gates, folder=folder) as plane:
            kubeconfig = plane.write_kubeconfig(*ADMIN, path=folder / "kubeconfig")
            for number in range(1, nodes + 1):
                plane.add_node(f"node-{number}")
            etcd = subprocess.run([plane.programs["etcd"], "--version"], capture_output=True, text=True, check=True)
            say(f"Kubernetes {plane.version} with {etcd.stdout.splitlines()[0]}, ready in {plane.seconds:.1f} s")
            print(f"export KUBECONFIG={kubeconfig}")
            print(f"export PATH={plane.programs['kubectl'].parent}:$PATH  # kubectl")
            print(f"logs: {folder}/*.log; Ctrl-C stops the cluster and removes the folder", flush=True)
            try:
                while True:
                    time.sleep(1)
                    plane.check()
            except KeyboardInterrupt:
                say("stopping")


def main(arguments: t.Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kubernetes", metavar="MINOR", default=minors()[0], help=f"one of {', '.join(minors())}")
    parser.add_argument("--gate", metavar="NAME=BOOL", type=_gate, action="append", default=[], help="a feature gate")
    parser.add_argument("--nodes", metavar="N", type=int, default=0, help="add N Node objects, without kubelets")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        serve(options.kubernetes, dict(options.gate), options.nodes)
    except (Failed, Missing) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
