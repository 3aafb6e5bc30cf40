#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_driver_info
short_description: Return the state of a node's DRA driver
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Returns which release of the driver C(lanewise.dev) is installed and runs on the node, whether it is ready, which
    claims it serves and which devices it publishes.
  - Uses the driver's own program. A node without the driver is not an error.
notes:
  - Needs root (C(become)), because only root can read the driver's state.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  devices:
    description: Whether to probe the node for the devices that the driver publishes.
    type: bool
    default: true
  contents:
    description: Whether to return the content of the driver's settings and unit file, too.
    type: bool
    default: false
seealso:
  - module: lanewise.dra.topology_info
"""

EXAMPLES = r"""
- name: Read the state of the node's driver
  lanewise.dra.dra_driver_info:
  become: true
  register: driver

- name: Show why the driver is not ready
  ansible.builtin.debug:
    var: driver.reasons
  when: not driver.ready
"""

RETURN = r"""
release:
  description: The release that C(/opt/lanewise/current) links to. Empty if there is none.
  returned: success
  type: str
  sample: 1.0.0-3f9c2d417a55
previous:
  description:
    - The release that C(/opt/lanewise/previous) links to, which ran before. After a rollback it is RV(release) itself.
      Empty if there is none.
  returned: success
  type: str
  sample: 1.0.0-1091d17335ba
releases:
  description: All complete releases on the node, newest first.
  returned: success
  type: list
  elements: str
partial:
  description: Releases whose installation was interrupted, or whose Python was removed from the system.
  returned: success
  type: list
  elements: str
service:
  description:
    - C(installed) and C(enabled), systemd's C(state), C(pid), the C(release) of the process, and whether systemd must
      reload the unit file (C(reload)).
  returned: success
  type: dict
  sample: {installed: true, enabled: true, state: active, pid: 4711, release: 1.0.0-3f9c2d417a55, reload: false}
files:
  description: SHA-256 of the driver's settings, unit file and kubeconfig, by path, if they exist.
  returned: success
  type: dict
contents:
  description: The driver's settings and unit file in Base64, by path, if they exist.
  returned: with O(contents)
  type: dict
ready:
  description:
    - Whether the driver reports that it serves kubelet and has published its devices.
    - If V(metrics_address) in the driver's settings is empty, this cannot be checked, and a driver that has no other
      problem counts as ready.
  returned: success
  type: bool
reasons:
  description: Why the driver is not ready.
  returned: success
  type: list
  elements: str
claims:
  description: The claims that the driver serves, with C(uid), C(namespace), C(name), C(phase), C(pod) and C(devices).
  returned: success
  type: list
  elements: dict
devices:
  description: The devices that the driver publishes, with their C(name) and C(attributes).
  returned: with O(devices), if the driver is installed
  type: list
  elements: dict
withheld:
  description: Devices that the driver does not publish, with the reason, by name.
  returned: with O(devices), if the driver is installed
  type: dict
token:
  description:
    - The claims of the driver's token, which are not secret - C(namespace), C(account), C(account_uid), C(node),
      C(node_uid) and when it C(expires), in seconds since the epoch. Empty without a token.
  returned: success
  type: dict
"""

import base64
import hashlib
import json
import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

FOLDER = "/opt/lanewise"
UNIT = "lanewise-driver.service"
PROGRAM = f"{FOLDER}/current/bin/lanewise-driver"
STATE = "/var/lib/kubelet/plugins/lanewise.dev/state"
TOKEN = "/etc/lanewise/token"
FILES = ("/etc/lanewise/driver.yml", f"/etc/systemd/system/{UNIT}")
KUBECONFIG = "/etc/lanewise/kubeconfig"
COMPLETE = ".complete"
COMMAND_TIMEOUT_SECONDS = 60


#: A claim in the output of `lanewise-driver status --json`.
Record = dict[str, t.Any]


def run(module: AnsibleModule, *command: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command; 127 if the program does not exist, 124 if it takes too long."""
    status, output, errors = module.run_command(["timeout", str(COMMAND_TIMEOUT_SECONDS), *command])
    return status, output, errors


def list_releases() -> dict[str, list[str]]:
    """The completely installed releases, newest first, and the incomplete ones."""
    complete, partial = [], []
    try:
        names = sorted(os.listdir(f"{FOLDER}/releases"))
    except OSError:
        names = []
    for name in names:
        try:
            complete.append((os.stat(f"{FOLDER}/releases/{name}/{COMPLETE}").st_mtime, name))
            if not has_python(f"{FOLDER}/releases/{name}"):
                raise OSError("its Python was removed")
        except OSError:
            partial.append(name)
    complete = [release for release in complete if release[1] not in partial]
    return {"releases": [name for _time, name in sorted(complete, reverse=True)], "partial": partial}


def has_python(folder: str) -> bool:
    """Whether the Python of a release still exists, in the version that its packages are for. A system update may have
    removed it."""
    python = os.path.realpath(f"{folder}/bin/python")
    version = os.path.basename(python)
    if not os.access(python, os.X_OK):
        return False
    return not version.startswith("python3.") or os.path.isdir(f"{folder}/lib/{version}")


def link_target(name: str) -> str:
    """The release that a link points to; empty if there is no link."""
    try:
        return os.path.basename(os.readlink(f"{FOLDER}/{name}"))
    except OSError:
        return ""


def service_state(module: AnsibleModule) -> dict[str, object]:
    """The state of the driver's unit and process."""
    names = ("LoadState", "ActiveState", "UnitFileState", "MainPID", "NeedDaemonReload")
    status, output, _errors = run(module, "systemctl", "show", UNIT, f"--property={','.join(names)}")
    shown = dict(line.split("=", 1) for line in output.splitlines() if "=" in line) if status == 0 else {}
    pid = int(shown.get("MainPID") or 0)
    return {
        "installed": shown.get("LoadState") == "loaded",
        "enabled": shown.get("UnitFileState") == "enabled",
        "state": shown.get("ActiveState", "unknown"),
        "pid": pid,
        "release": process_release(pid),
        "reload": shown.get("NeedDaemonReload") == "yes",
    }


def process_release(pid: int) -> str:
    """The release of a running process, from the path of its interpreter."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            interpreter = os.fsdecode(stream.read().split(b"\0")[0])
    except OSError:
        return ""
    top, _slash, rest = interpreter.partition(f"{FOLDER}/releases/")
    return rest.split("/")[0] if not top else ""


def read_files() -> dict[str, bytes]:
    """The contents of the settings, unit file and kubeconfig by path, if they can be read."""
    contents = {}
    for path in (*FILES, KUBECONFIG):
        try:
            with open(path, "rb") as stream:
                contents[path] = stream.read()
        except OSError:
            continue
    return contents


def token_claims() -> dict[str, object]:
    """The claims in the token, without its signature."""
    try:
        with open(TOKEN, encoding="ascii") as stream:
            body = stream.read().strip().split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        kubernetes = claims["kubernetes.io"]
        return {
            "namespace": kubernetes["namespace"],
            "account": kubernetes["serviceaccount"]["name"],
            "account_uid": kubernetes["serviceaccount"]["uid"],
            "node": kubernetes.get("node", {}).get("name", ""),
            "node_uid": kubernetes.get("node", {}).get("uid", ""),
            "expires": float(claims["exp"]),
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def driver_status(module: AnsibleModule) -> dict[str, object]:
    """Readiness and claims, as the driver reports them."""
    exit_status, output, errors = run(module, PROGRAM, "status", "--json")
    try:
        answer = json.loads(output)
        claims = [claim_result(record) for record in answer["claims"]]
        ready = answer["ready"] is not False and exit_status == 0  # None: readiness is not checked
        return {"ready": ready, "reasons": answer["reasons"], "claims": claims}
    except (ValueError, LookupError, TypeError):
        pass
    # without a valid answer of the program, the claims' records still show whether pods have devices
    try:
        uids = [name[: -len(".json")] for name in os.listdir(STATE) if name.endswith(".json")]
    except OSError:
        uids = []
    empty = {"namespace": "", "name": "", "phase": "", "pod": "", "devices": []}
    reasons = (errors or output).strip().splitlines()[-10:]
    return {"ready": False, "reasons": reasons, "claims": [{"uid": uid, **empty} for uid in sorted(uids)]}


def claim_result(record: Record) -> dict[str, object]:
    """A claim as the module returns it."""
    return {
        **{name: record[name] for name in ("uid", "namespace", "name", "phase")},
        "pod": record["pod"]["name"] if record["pod"] else "",
        "devices": [device["device"] for device in record["devices"]],
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "devices": {"type": "bool", "default": True},
            "contents": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if os.geteuid():
        module.fail_json(msg="only root can read the driver's state: use become")
    contents = read_files()
    result = {
        "release": link_target("current"),
        "previous": link_target("previous"),
        "service": service_state(module),
        "token": token_claims(),
    }
    result["files"] = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    if module.params["contents"]:
        result["contents"] = {path: base64.b64encode(contents[path]).decode() for path in FILES if path in contents}
    result.update(**list_releases(), **driver_status(module))
    if module.params["devices"] and os.path.exists(PROGRAM):
        _status, output, errors = run(module, PROGRAM, "inventory", "--json")
        try:
            answer = json.loads(output)
            result["devices"] = [
                {"name": device["name"], "attributes": device["attributes"]} for device in answer["devices"]
            ]
            result["withheld"] = answer["withheld"]
        except (ValueError, LookupError, TypeError):
            module.fail_json(msg=f"'lanewise-driver inventory' failed: {(errors or output).strip()}", **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
