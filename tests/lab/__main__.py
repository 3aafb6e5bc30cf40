# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run virtual nodes in the foreground until Ctrl-C: C(make lab).

    python -m tests.lab [--nodes 2] [--boot] [--iommu] [--nvme] [--memory 1024]

Makes what they are made of if need be. The inventory for Ansible is .cache/lab/inventory.json.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import time
import typing as t

from ansible_collections.lanewise.dra.tests.lab.node import Failed, Lab, Shape
from ansible_collections.lanewise.dra.tools import lab as made
from environment import WORK, Missing, say


def serve(count: int, snapshot: bool, nvme: bool, shape: Shape) -> None:
    folder = WORK / "lab"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"another 'make lab' of this checkout runs, with its files in {folder}") from None
        if folder.exists():  # left by a machine that went down
            shutil.rmtree(folder)
        with Lab() as lab:
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
                    script = folder / node.name
                    script.write_text(f'#!/bin/sh\nexec {node.ssh_command} "$@"\n', encoding="utf-8")
                    script.chmod(0o700)
                    print(f"{script}  # ssh to {node.name}, port {node.port}")
                print(f"ansible-playbook -i {inventory} lanewise.dra.probe")
                print(f"consoles: {lab.folder}/*/console; Ctrl-C stops it and removes all of it", flush=True)
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
    parser.add_argument("--boot", action="store_true", help="boot, rather than go on from where a boot was kept")
    parser.add_argument("--iommu", action="store_true", help="with an IOMMU, for vfio")
    parser.add_argument("--nvme", action="store_true", help="with an NVMe disk below each switch")
    parser.add_argument("--memory", metavar="MIB", type=int, default=Shape.memory, help=f"{Shape.memory} by default")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        serve(options.nodes, not options.boot, options.nvme, Shape(memory=options.memory, iommu=options.iommu))
    except (Failed, Missing, made.Broken) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
