# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The interfaces that are needed to reach the node."""

from __future__ import annotations

import os

from .system import System


def ssh_connection() -> str:
    """SSH_CONNECTION of the session that this process belongs to; empty without a session.

    sudo removes it from the environment, so the environments of parent processes are read too.
    """
    prefix = b"SSH_CONNECTION="
    process = "self"
    for _unused in range(32):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                variables = [variable for variable in file.read().split(b"\0") if variable.startswith(prefix)]
            if variables:
                return variables[0][len(prefix) :].decode(errors="replace")
            with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
                process = next(line.split()[1] for line in file if line.startswith("PPid:"))
        except (OSError, StopIteration):
            break
        if process == "0":
            break
    return os.environ.get("SSH_CONNECTION", "")


def management_interfaces(system: System, connection: str = "") -> dict[str, str]:
    """Interfaces by name, and why the node needs them, as `uplinks.carried` determines it.

    The SSH `connection` of this run (the value of SSH_CONNECTION: remote address, port, local address, port) counts
    like any other session, even if its socket is in another network namespace. Raises HostError.
    """
    # imported here, as they are slow to load, and a run that changes nothing does not need them
    from ...uplinks.carried import Rule, ssh_session
    from ...uplinks.storage import address

    remote, local, port = "", "", ""
    if len(connection.split()) == 4:
        remote, _port, local, port = connection.split()
    path = ssh_session(address(local), address(remote))
    rule = Rule()
    try:
        return dict(
            system.read(
                "find the interfaces that are needed to reach this node",
                lambda: rule.now([path] if local else [], ssh_ports={int(port)} if port.isdigit() else ()).by_name,
            )
        )
    finally:
        rule.close()
