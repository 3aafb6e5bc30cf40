#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_driver_preflight
short_description: Check whether a node can run the DRA driver
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Checks what the driver C(lanewise.dev) needs on a node - root, systemd, a Python with C(venv), the C++ library that
    gRPC is linked with, a kubelet with DRA, and a container runtime with CDI enabled.
  - Returns all problems together, each with what to do. Does not fail because of them.
notes:
  - CDI is checked in the effective configuration of the running containerd.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  python:
    description:
      - The interpreter to check, a path or a name.
      - By default the newest of C(python3.10) to C(python3.14), including C(python3), that has C(venv).
    type: str
  newer:
    description:
      - Whether to accept a Python newer than 3.14, too. The collection's lock of the driver's dependencies has no
        wheels for it.
    type: bool
    default: false
  kubelet_version:
    description: The version of kubelet from the Node. By default that of C(kubelet --version).
    type: str
  runtime_version:
    description: The container runtime with its version from the Node. By default that of the running process.
    type: str
  pools:
    description:
      - The pools of addresses that the driver hands out to pods, as networks.
      - It is a problem if the node has an address in a pool, or a route to a pool through an interface that is not a
        NIC, such as a bridge of the pod network.
    type: list
    elements: str
    default: []
seealso:
  - module: lanewise.dra.dra_driver_info
"""

EXAMPLES = r"""
- name: Check whether the node can run the driver
  lanewise.dra.dra_driver_preflight:
  become: true
  register: preflight
"""

RETURN = r"""
problems:
  description: The problems, each with what to do.
  returned: success
  type: list
  elements: str
python:
  description: The interpreter to use. Empty if there is none.
  returned: success
  type: str
  sample: /usr/bin/python3.11
kubelet:
  description: The version of kubelet.
  returned: success
  type: str
  sample: 1.34.1
runtime:
  description: The container runtime and its version.
  returned: success
  type: str
  sample: containerd 2.1.4
"""

import json
import os
import re
import shutil
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.host.access.processes import is_of_node
from ..module_utils.uplinks import netlink, used

MIN_PYTHON = (3, 10)
MAX_PYTHON = (3, 14)  # the newest with wheels for all of requirements/driver.txt; nothing is compiled on a node
MIN_KUBELET = (1, 34)
MIN_CONTAINERD = (1, 7)
MIN_CRIO = (1, 28)
CONTAINERD_WITH_CDI = (2, 0)  # from this version on, CDI is enabled by default
PLUGIN_REGISTRY = "/var/lib/kubelet/plugins_registry"
CDI_FOLDER = "/var/run/cdi"
#: Time limit of a program in seconds. On a busy node, starting Python can take many seconds.
COMMAND_TIMEOUT_SECONDS = 120
TIMED_OUT = 124  # the exit status of timeout

_PROBE = "import json, sys, venv, ensurepip; print(json.dumps(sys.version_info[:3]))"
#: The C++ library that grpcio's wheels are linked with, and that a minimal system may lack.
CPP_LIBRARY = "libstdc++.so.6"
_LOAD = f"import ctypes; ctypes.CDLL({CPP_LIBRARY!r})"


def run(module: AnsibleModule, *command: str) -> tuple[int, str]:
    """Exit status and output; 127 if there is no such program, TIMED_OUT with the reason if it takes too long."""
    status, output, errors = module.run_command(["timeout", str(COMMAND_TIMEOUT_SECONDS), *command])
    if status == TIMED_OUT:
        return status, f"did not end within {COMMAND_TIMEOUT_SECONDS} seconds; try again when the node is less busy"
    return status, output if status == 0 else errors


def version_of(text: str) -> tuple[int, int] | None:
    """The first major and minor version in a text; None if it has none."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def find_python(module: AnsibleModule, requested: str | None, newer: bool, problems: list[str]) -> str:
    """The interpreter for the driver's environment; empty, with a problem added, if there is none."""
    minors = range(19 if newer else MAX_PYTHON[1], MIN_PYTHON[1] - 1, -1)
    names = [requested] if requested else [*(f"python3.{minor}" for minor in minors), "python3"]
    rejected = []
    for name in names:
        path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/bin:/usr/bin")
        if not path:
            if requested:
                rejected.append(f"{name} does not exist")
            continue
        status, output = run(module, path, "-I", "-c", _PROBE)
        if status:
            rejected.append(f"{path} {python_problem(status, output, os.path.basename(name))}")
            continue
        version = tuple(json.loads(output))
        if version[:2] > MAX_PYTHON and not newer:
            rejected.append(f"{path} is {version_text(version)}, for which the driver's lock has no wheels")
        elif version[:2] >= MIN_PYTHON:
            status, output = run(module, path, "-I", "-c", _LOAD)
            if status == TIMED_OUT:
                problems.append(f"{path} {output}.")
            elif status:
                problems.append(
                    f"{path} cannot load {CPP_LIBRARY}, which gRPC is linked with. Install it (on Debian and Ubuntu: "
                    "apt install libstdc++6, on the RHEL family: dnf install libstdc++)."
                )
            return path
        else:
            rejected.append(f"{path} is {version_text(version)}")
    needed = f"{version_text(MIN_PYTHON)} {'or later' if newer else f'to {version_text(MAX_PYTHON)}'}"
    problems.append(
        f"The driver needs Python {needed} with venv: {'; '.join(rejected) or 'there is none'}. "
        "Install one. If it is not on PATH, set dra_driver_python to its path."
    )
    return ""


def python_problem(status: int, output: str, package: str) -> str:
    """Why an interpreter cannot create the driver's environment, from its output."""
    if status == TIMED_OUT:
        return output
    if "No module named" in output:
        return f"has no venv (on Debian and Ubuntu: apt install {package}-venv)"
    return f"does not run (exit status {status}): {output.strip()[-500:] or 'it printed no reason'}"


def check_kubelet(module: AnsibleModule, reported: str, problems: list[str]) -> str:
    """The version of kubelet, empty if it is unknown. `reported` is that of the Node. Adds problems."""
    if not reported:
        status, reported = run(module, "kubelet", "--version")
        if status:
            reported = ""
    version = version_of(reported)
    if not os.path.isdir(PLUGIN_REGISTRY):
        problems.append(
            f"{PLUGIN_REGISTRY} does not exist, so no kubelet runs here, or it has another --root-dir. Join the node "
            "to its cluster first; the driver needs kubelet's default folder."
        )
    if version is None:
        problems.append(
            "The version of kubelet is unknown: 'kubelet' is not on PATH, and the Node was not read. Set "
            "dra_driver_kubeconfig, so that the version is read from the Node."
        )
        return ""
    if version < MIN_KUBELET:
        problems.append(
            f"kubelet is {version_text(version)}, and DRA is part of Kubernetes from {version_text(MIN_KUBELET)} on. "
            "Upgrade the node."
        )
    return reported.rpartition(" ")[2].strip().lstrip("v")


def find_process(name: str) -> tuple[str, list[str]] | None:
    """The program and the arguments of a running process of this name; None if there is none.

    The program is the process' `exe` in /proc, which can be run even after an upgrade has replaced the file (proc(5)).
    Processes of containers and of other users are ignored: anyone can give a process this name, and root would run the
    program of that process.
    """
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit():
                with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as stream:
                    if stream.read().strip() != name:
                        continue
                with open(f"/proc/{entry}/cmdline", "rb") as stream:
                    arguments = [os.fsdecode(part) for part in stream.read().split(b"\0")]
                os.readlink(f"/proc/{entry}/exe")  # fails for threads of the kernel and without permission
                if is_of_node(entry):
                    return f"/proc/{entry}/exe", arguments
        except OSError:  # the process has ended
            continue
    return None


def failure_reason(status: int, output: str) -> str:
    """Why a program failed, from its exit status and its output."""
    return output.strip()[-500:] or f"exit status {status}, and it printed no reason"


def check_runtime(module: AnsibleModule, reported: str, problems: list[str]) -> str:
    """The name and version of the container runtime. `reported` is that of the Node. Adds problems."""
    name, _slashes, version = reported.partition("://")
    process = find_process("containerd") if name in ("", "containerd") else None
    if not name:
        running = process or find_process("crio")
        if running:
            name = "containerd" if process else "cri-o"
            status, version = run(module, running[0], "--version")
            if status:
                problems.append(f"The version of {name} is unknown: {failure_reason(status, version)}")
                return name
    minimum = {"containerd": MIN_CONTAINERD, "cri-o": MIN_CRIO}.get(name)
    parsed = version_of(version)
    if minimum is None:
        problems.append(
            f"The container runtime is {name or 'unknown'}. For CDI, the driver needs containerd "
            f"{version_text(MIN_CONTAINERD)} or CRI-O {version_text(MIN_CRIO)}, or later."
        )
    elif parsed is None or parsed < minimum:
        problems.append(
            f"{name} is {version.strip() or 'of unknown version'}, and CDI needs {version_text(minimum)}. Upgrade it."
        )
    elif name == "containerd":
        check_containerd(module, process, parsed, problems)
    words = version.strip().split()
    return f"{name} {next((word.lstrip('v') for word in words if version_of(word)), '')}".strip()


def check_containerd(
    module: AnsibleModule, process: tuple[str, list[str]] | None, version: tuple[int, int], problems: list[str]
) -> None:
    """Add a problem if the effective configuration disables CDI, or does not use the driver's folder of specs."""
    if process is None:
        problems.append("No running containerd was found. Start it; if this is a container, connect to its host.")
        return
    program, arguments = process
    config = ""
    for index, argument in enumerate(arguments):
        if argument in ("-c", "--config", "-config"):
            config = arguments[index + 1]
        elif argument.startswith(("--config=", "-config=", "-c=")):
            config = argument.partition("=")[2]
    status, output = run(module, program, *(["--config", config] if config else []), "config", "dump")
    config_path = config or "/etc/containerd/config.toml"
    if status:
        problems.append(f"'containerd config dump' fails for {config_path}: {failure_reason(status, output)}")
        return
    enabled = re.search(r"^\s*enable_cdi\s*=\s*(true|false)", output, re.MULTILINE)
    # newer releases no longer have the option, because CDI is always enabled
    if (enabled[1] == "true") if enabled else (version >= CONTAINERD_WITH_CDI):
        folders = re.search(r"^\s*cdi_spec_dirs\s*=\s*\[([^\]]*)\]", output, re.MULTILINE)
        listed = re.findall(r"""["']([^"']+)["']""", folders[1]) if folders else [CDI_FOLDER]
        if not any(os.path.realpath(folder) == os.path.realpath(CDI_FOLDER) for folder in listed):
            problems.append(
                f"containerd looks for CDI specs in {', '.join(listed) or 'no folder'}, and the driver writes them to "
                f"{CDI_FOLDER}. Add it to cdi_spec_dirs in {config_path} and restart containerd."
            )
        return
    section = "io.containerd.cri.v1.runtime" if version >= (2, 0) else "io.containerd.grpc.v1.cri"
    problems.append(
        f'CDI is disabled in containerd. Set enable_cdi = true under [plugins."{section}"] in {config_path} and '
        "restart containerd."
    )


def check_addresses(pools: list[str], problems: list[str]) -> None:
    """Add a problem for each address or route of the node that overlaps the pools of pods' addresses."""
    if not pools:
        return
    try:
        with netlink.Connection() as kernel:
            overlaps = used.overlaps(kernel, pools)
    except (OSError, ValueError) as error:
        problems.append(f"The node's addresses could not be compared with dra_driver_rail_addresses: {error}.")
        return
    problems += [
        f"dra_driver_rail_addresses: {overlap}. Use a pool that nothing else on the node uses." for overlap in overlaps
    ]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "str"},
            "newer": {"type": "bool", "default": False},
            "kubelet_version": {"type": "str"},
            "runtime_version": {"type": "str"},
            "pools": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params, problems = module.params, t.cast("list[str]", [])
    if os.geteuid():
        problems.append("Only root can install the driver. Use become.")
    if not os.path.isdir("/run/systemd/system"):
        problems.append("systemd does not run here, and the driver is a systemd unit. Use its DaemonSet instead.")
    result = {
        "python": find_python(module, params["python"], params["newer"], problems),
        "kubelet": check_kubelet(module, params["kubelet_version"] or "", problems),
        "runtime": check_runtime(module, params["runtime_version"] or "", problems),
    }
    check_addresses(params["pools"], problems)
    module.exit_json(changed=False, problems=problems, **result)


if __name__ == "__main__":
    main()
