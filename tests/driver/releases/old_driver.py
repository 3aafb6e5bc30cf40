# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Release 1.0.0 of the driver, run in a separate process.

`driver-1.0.0.zip` has the unchanged modules of 1.0.0 that serve claims. The process imports them from the archive, and
reads a Job as JSON from standard input.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

ARCHIVE = Path(__file__).parent / "driver-1.0.0.zip"
Object = dict[str, t.Any]


@dataclasses.dataclass
class Job:
    """What the driver does. `steps` are methods of its Service, by name, each with its argument. The process is killed
    before change number `killed_at` of the last step, unless the number is negative. `paths` has the fields of Paths.
    """

    paths: dict[str, str]
    settings: Object
    kubeconfig: str
    node: str
    steps: list[tuple[str, Object]]
    killed_at: int = -1


def _environment() -> dict[str, str]:
    """An environment in which Python imports the driver from the archive."""
    return {**os.environ, "PYTHONPATH": f"{ARCHIVE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def run(job: Job) -> bool:
    """Run a job with 1.0.0. Returns whether the process was killed. Raises AssertionError with its output if it
    fails."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(dataclasses.asdict(job)),
        env=_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.endswith("killed\n")


#: Reads the records in folders, with their devices, as the driver does when it starts.
_READ = """\
import dataclasses, json, sys
from pathlib import Path
from lanewise_driver.inventory import Device
from lanewise_driver.records import Store
answer = []
for folder in sys.argv[1:]:
    found, unreadable = Store(Path(folder)).all()
    for record in found:
        for device in record.devices:
            assert Device.from_json(device.known).identity
    answer.append([[dataclasses.asdict(record) for record in found], [error.message for error in unreadable]])
print(json.dumps(answer))
"""


def _run_program(program: str, *arguments: object) -> str:
    """Run a Python program with 1.0.0. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=_environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(folders: t.Sequence[Path]) -> list[tuple[list[Object], list[str]]]:
    """The records that 1.0.0 reads in each folder, and its errors about unreadable records."""
    return [tuple(records_and_errors) for records_and_errors in json.loads(_run_program(_READ, *folders))]


#: Prints the problems of a settings file.
_CHECK = """\
import sys
from pathlib import Path
from lanewise_driver.settings import Problems, load
try:
    load(Path(sys.argv[1]))
except Problems as problems:
    print(problems)
"""


def check(settings: Path) -> str:
    """The problems that 1.0.0 finds in a settings file; empty if there are none."""
    return _run_program(_CHECK, settings)


def _serve(job: Job) -> None:
    import lanewise_driver
    from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
    from lanewise_driver import claims
    from lanewise_driver.calls import AttachRequest, ClaimRef
    from lanewise_driver.claim_status import Writer
    from lanewise_driver.cluster import Cluster, from_kubeconfig
    from lanewise_driver.inventory import Inventory
    from lanewise_driver.paths import Paths
    from lanewise_driver.settings import Settings

    assert str(ARCHIVE) in str(lanewise_driver.__file__), "the driver is not that of the archive"
    settings = {**job.settings, "virtual_interfaces": tuple(job.settings["virtual_interfaces"])}
    held: list[t.Callable[[], t.Any]] = []

    def new_service() -> claims.Service:  # type: ignore[name-defined]  # as below, the class of the old driver
        inventory = Inventory(lambda: Settings(**settings), lambda: held[0]() if held else [])
        cluster = Cluster(lambda: from_kubeconfig(Path(job.kubeconfig)), "lanewise.dev", job.node)
        paths = Paths(**{name: Path(path) for name, path in job.paths.items()})
        service = claims.Service(paths, cluster, inventory, Writer(cluster))  # type: ignore[attr-defined]
        held[:] = [service.held]
        return service

    def run_step(service: claims.Service, name: str, argument: Object) -> None:  # type: ignore[name-defined]
        if name == "attach":
            service.attach(AttachRequest(**{**argument, "netns": Path(argument["netns"])}))
        elif argument:
            getattr(service, name)(ClaimRef(**argument))
        else:
            assert getattr(service, name)()

    service = new_service()
    for number, (name, argument) in enumerate(job.steps, 1):
        if number == len(job.steps) and job.killed_at >= 0:
            if killed_at(job.killed_at, lambda name=name, argument=argument: run_step(new_service(), name, argument)):
                print("killed")
        else:
            run_step(service, name, argument)


if __name__ == "__main__":
    _serve(Job(**json.load(sys.stdin)))
