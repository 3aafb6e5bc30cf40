# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How RDMA devices are shared among network namespaces (rdma/rdma_netlink.h; `rdma system`)."""

from __future__ import annotations

import errno
import os

from ..access.system import HostError
from ..engine.change import NODE, Change, Plan, State
from ..engine.node import Node
from ..engine.resource import Resource
from .kernel_modules import rebuild_initramfs

#: The kernel's boolean parameter: Y means shared.
PARAMETER = "/sys/module/ib_core/parameters/netns_mode"
PATH = "/etc/modprobe.d/lanewise-rdma.conf"
_LINE = "options ib_core netns_mode={}\n"
_MODES = ("exclusive", "shared")


class RdmaSystem(Resource):
    """`rdma_netns_mode` of the node: `shared` or `exclusive`, now and after the next boot.

    The kernel changes the mode only while the node's network namespace is the only one. If there is another one, such
    as a pod's, the file for the next boot is written, and the run reports that a reboot is required.
    """

    name = "rdma_system"
    recorded_in = ("/etc/modprobe.d",)
    boot = False

    def wanted(self, node: Node) -> State:
        mode = node.general.get("rdma_netns_mode")
        return {NODE: {"rdma_netns_mode": mode, "rdma_netns_mode_at_boot": mode}} if mode else {}

    def read(self, node: Node, wanted: State) -> State:
        parameter = self.system.text(PARAMETER)
        content = self.system.content(PATH)
        at_boot = None
        if content is not None:
            at_boot = next((mode for value, mode in enumerate(_MODES) if content == _LINE.format(value)), content)
        current = None if parameter is None else "shared" if parameter == "Y" else "exclusive"
        return {NODE: {"rdma_netns_mode": current, "rdma_netns_mode_at_boot": at_boot}}

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        plan = super().plan(node, wanted)
        live_changes = [change for change in plan.changes if change.setting == "rdma_netns_mode"]
        if live_changes and live_changes[0].before is None:
            plan.changes.remove(live_changes[0])  # ib_core is not loaded; it reads the file when it is loaded
        elif live_changes:
            reason = self._other_namespace()
            if reason:
                plan.changes.remove(live_changes[0])
                plan.reboot.append(f"RDMA devices only become {live_changes[0].after} at a reboot, since {reason}")
        return plan

    def apply(self, node: Node, change: Change) -> None:
        step = f"set {change.setting} of the node to {change.after}"
        if change.setting == "rdma_netns_mode_at_boot":
            content = _LINE.format(_MODES.index(change.after)) if change.after in _MODES else change.after
            self.system.install(PATH, content, step)
            rebuild_initramfs(self.system, "ib_core")
            return
        socket = self.system.socket("RDMA")
        from ..access import messages

        mode = [("netns_mode", _MODES.index(change.after))]
        fix = "there may be a network namespace without a process: stop the containers, or reboot"
        message = (messages.SET_RDMA_SYSTEM, messages.RdmaSystem, mode)
        self.system.request_change(step, lambda: messages.exchange(socket, *message, change=True), fix)

    def _other_namespace(self) -> str:
        """A network namespace other than the node's, as a clause for a message; empty if none is visible."""
        if not self.system.reader.live:
            return ""
        try:
            node_namespace = os.readlink("/proc/self/ns/net")
        except OSError as error:
            raise HostError("look for network namespaces", str(error), "run as root ('become: true')") from None
        for process in self.system.names("/proc"):
            if not process.isdigit():
                continue
            try:
                if os.readlink(f"/proc/{process}/ns/net") != node_namespace:
                    name = self.system.text(f"/proc/{process}/comm")
                    return f"process {process} ({name}) is in another network namespace"
            except OSError as error:
                # the process has ended, or belongs to another user and this runs without root (check mode)
                if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EACCES):
                    raise HostError("look for network namespaces", str(error)) from None
        for line in (self.system.content("/proc/self/mountinfo") or "").splitlines():
            fields = line.split()
            if len(fields) > 4 and fields[3].startswith("net:[") and fields[3] != node_namespace:
                return f"the network namespace at {fields[4]} exists"
        return ""
