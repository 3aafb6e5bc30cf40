# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the collection on example machines that this checkout builds: `make try`.

Builds the example machines below .cache/machines and runs playbooks/site.yml on the example inventory. Needs no SSH, no
root and no hardware, and changes nothing outside the checkout and the user's cache directory.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

from environment import REPOSITORY, WORK, Missing, ensure, environment, link_collection, say


def main() -> int:
    begin = time.monotonic()

    def step(text: str, *command: str) -> None:
        say(f"{text}\n    $ {shlex.join(command)}")
        start = time.monotonic()
        subprocess.run(command, cwd=REPOSITORY, env=variables, check=True)
        say(f"done in {time.monotonic() - start:.1f} s")

    try:
        say("step 1 of 3: creating a Python environment with ansible-core, kept for later runs")
        variables = environment(ensure("core"), link_collection())
        machines = str((WORK / "machines").relative_to(REPOSITORY))
        # not the folder of a real site's report, which stores the facts of its nodes
        destinations = json.dumps(
            {"site_report_dest": str(WORK / "report"), "site_claims_dest": str(WORK / "kubernetes")}
        )
        step(
            "step 2 of 3: building the example machines, as folders with the files of a node's /sys and /proc",
            *("python", "-m", "tests.machines", "build", "--all", "--out", machines),
        )
        step(
            "step 3 of 3: probing them, and this machine, writing the site report, and rendering the site's claims",
            *("ansible-playbook", "-i", "inventories/example", "playbooks/site.yml", "-e", destinations, *sys.argv[1:]),
        )
    except Missing as missing:
        say(f"cannot continue: {missing}")
        return 1
    except subprocess.CalledProcessError as error:
        say(f"failed with exit status {error.returncode}: {' '.join(map(str, error.cmd))}")
        return 1
    say(f"all done in {time.monotonic() - begin:.0f} s")
    say(f"    the report:         {WORK / 'report' / 'index.html'}")
    say(f"    Kubernetes objects: {WORK / 'kubernetes' / 'manifests'}")
    say(f"    workloads:          {WORK / 'kubernetes' / 'workloads'}")
    say("    see 'Show which nodes can satisfy the claims' above")
    return 0


if __name__ == "__main__":
    sys.exit(main())
