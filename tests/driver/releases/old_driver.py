# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An earlier release of the driver, in a process of its own, for what a test does with one.

`driver-1.0.0.zip` has the modules of 1.0.0 that serve claims, as they were. The process imports them from there, and
reads from standard input what to do (Job, as JSON).
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
    """`steps` are names of methods of the driver's Service, each with its argument. The process is killed before
    change number `killed_at` of the last step, unless that is negative. `state` has the fields of Paths.
    """

    state: dict[str, str]
    settings: Object
    kubeconfig: str
    node: str
    steps: list[tuple[str, Object]]
    killed_at: int = -1


def run(job: Job) -> bool:
    """Let 1.0.0 do the job. Returns whether it was killed. Raises AssertionError with its log if it fails."""
    more = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(dataclasses.asdict(job)),
        env={**os.environ, "PYTHONPATH": f"{ARCHIVE}{os.pathsep}{more}"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.endswith("killed\n")


#: Reads the records in folders as a driver that starts does, with their devices.
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


def _ask(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{ARCHIVE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(folders: t.Sequence[Path]) -> list[tuple[list[Object], list[str]]]:
    """What 1.0.0 finds in each folder: the records, and its errors about those that it cannot read."""
    return [tuple(one) for one in json.loads(_ask(_READ, *folders))]


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
    """The problems that the `check` of 1.0.0 reports for a file of settings; empty if there are none."""
    return _ask(_CHECK, settings)


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

    assert str(ARCHIVE) in str(lanewise_driver.__file__), "this is another release"
    given = {**job.settings, "virtual_interfaces": tuple(job.settings["virtual_interfaces"])}
    held: list[t.Callable[[], t.Any]] = []

    def service() -> claims.Service:
        inventory = Inventory(lambda: Settings(**given), lambda: held[0]() if held else [])
        cluster = Cluster(lambda: from_kubeconfig(Path(job.kubeconfig)), "lanewise.dev", job.node)
        paths = Paths(**{name: Path(path) for name, path in job.state.items()})
        made = claims.Service(paths, cluster, inventory, Writer(cluster))
        held[:] = [made.held]
        return made

    def act(one: claims.Service, name: str, argument: Object) -> None:
        if name == "attach":
            one.attach(AttachRequest(**{**argument, "netns": Path(argument["netns"])}))
        elif argument:
            getattr(one, name)(ClaimRef(**argument))
        else:
            assert getattr(one, name)()

    one = service()
    for number, (name, argument) in enumerate(job.steps, 1):
        if number == len(job.steps) and job.killed_at >= 0:
            if killed_at(job.killed_at, lambda name=name, argument=argument: act(service(), name, argument)):
                print("killed")
        else:
            act(one, name, argument)


if __name__ == "__main__":
    _serve(Job(**json.load(sys.stdin)))
