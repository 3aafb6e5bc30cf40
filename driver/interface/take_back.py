# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Taking an interface back from a pod, which may have changed everything that a pod's privileges allow.

The interface is found in whichever namespace it is. Upper interfaces are removed, and the host state is restored. Then
everything that the kernel reports about the interface is compared with the host state. A difference that the next
tenant could notice is a reason to withhold the interface from all claims. A difference that only concerns the node is a
note.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ..base.errors import KernelError
from ..base.objects import ObjectView
from ..kernel import links, netlink, node_namespaces, stacked
from ..kernel import netns as namespaces
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import children, host_state, identity, reset
from .host_state import HostState, Mark
from .identity import PCI, Identity
from .restore import restore

#: Maximum number of attempts to restore an interface that is renamed in the meantime.
_MAX_RESTORES = 5
#: How long to wait for the interface of a function after its reset, and the pause between two checks.
_RESET_TIMEOUT_SECONDS, _RESET_CHECK_SECONDS = 30.0, 0.02
#: The keys of a host state that only concern the node: no pod sees a difference in them. Qdiscs are among
#: them because the kernel removes them all when an interface leaves its namespace.
_NODE_SETTINGS = frozenset(
    ("name", "altnames", "alias", "addresses", "routes", "rules", "neighbors", "master", "up", "permanentMac", "qdiscs")
)
_VF_STATE = ("vf", "vfs")


class Reason(t.NamedTuple):
    """Why an interface is withheld from other pods: a word for the taint, and a sentence."""

    word: str
    text: str


#: Words of reasons.
STACKED, CHANGED, VF = "stacked", "changed", "vf-settings"


@dataclass
class Outcome:
    """The result of taking an interface back. `reasons` say why the interface must be withheld. `notes` say which parts
    of the node's own configuration could not be restored, one sentence each."""

    reasons: list[Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def take_back(
    identity_: Identity,
    host: HostState,
    netns: Path | None,
    config: ObjectView,
    policy: str = reset.NEVER,
    timeout: float = node_namespaces.DESTRUCTION_SECONDS,
    siblings: children.Siblings | None = None,
) -> Outcome:
    """Bring the interface back to the node, from wherever it is now, and restore its host state. May be called again,
    also after attach or detach were killed at any step.

    `netns` may be None, or a namespace that no longer exists. In that case the kernel has moved hardware back to the
    node, under the name it had in the pod or as `devN`, and has destroyed virtual interfaces, which is a note. If the
    pod moved the interface elsewhere, all namespaces of the node are searched. `policy` says when a PCI function is
    reset (`reset` in the settings). `timeout` is the number of seconds to wait for something in a namespace that cannot
    be listed, because the kernel may be about to destroy that namespace. `siblings` are for children only: without
    them, a child that left the pod is not searched for.

    Raises KernelError if the interface is not back on the node, if a reset fails, or if the name, MTU, MAC address or
    up/down state cannot be restored.
    """
    if netns is not None and (not namespaces.alive(netns) or namespaces.is_host(netns)):
        netns = None
    if "child" in config:
        reason = children.remove(identity_, host, netns, config, siblings, timeout)
        return Outcome(reasons=[Reason(STACKED, reason)] if reason else [])
    known = host.get(host_state.MARK)
    if netns is not None:
        with step(f"take {identity_.name} back from the pod"), Netlink(netns) as connection:
            in_pod = identity.find(connection, identity_, netns, known)
            if in_pod is not None:
                _move_to_node(connection, in_pod, identity_, host)
    with Netlink() as connection:
        with step(f"look for {identity_.name} on the node"):
            link = _find_on_node(connection, identity_, host, timeout)
        wants_reset = policy == reset.ALWAYS or (link is None and policy != reset.NEVER)
        was_reset = wants_reset and not reset.problem(identity_.address)
        if was_reset:
            link = _after_reset(connection, identity_)
        if link is None:
            return Outcome(notes=_notes_if_missing(connection, identity_, known))
        outcome = _restore_and_compare(connection, link, identity_, host, timeout)
        if not was_reset:
            outcome = _reset_if_needed(connection, outcome, identity_, host, policy, timeout)
        if identity_.address is None:
            with step(f"remove the driver's altname from {host['name']}"):
                links.altnames(connection, link.index, [identity.tag(identity_)], add=False)
        return outcome


def _reset_if_needed(
    connection: Netlink, outcome: Outcome, identity_: Identity, host: HostState, policy: str, timeout: float
) -> Outcome:
    """The outcome after a reset, if the policy requires a reset. If the function cannot be reset, the outcome says
    why."""
    if policy == reset.ALWAYS and identity_.address is not None:
        outcome.notes.append(f"{host['name']} is not reset: {reset.problem(identity_.address)}")
    if not outcome.reasons or policy != reset.WHEN_CHANGED:
        return outcome
    problem = reset.problem(identity_.address)
    if problem:
        last = outcome.reasons[-1]
        outcome.reasons[-1] = last._replace(text=f"{last.text}; it is not reset, because {problem}")
        return outcome
    return _restore_and_compare(connection, _after_reset(connection, identity_), identity_, host, timeout)


def _find_on_node(connection: Netlink, identity_: Identity, host: HostState, timeout: float) -> links.Link | None:
    """The interface on the node, fetched from another namespace if needed. None if no namespace lists it."""
    known = host.get(host_state.MARK)
    for _attempt in node_namespaces.attempts(timeout):
        link = identity.find(connection, identity_, None, tagged=True)
        if link is None and _fetch_from_namespace(connection, identity_, host):
            link = identity.find(connection, identity_, None, tagged=True)
        if link is None and known is not None and identity_.address is None:
            if identity.is_on_node(connection, identity_, known):
                link = identity.find(connection, identity_, None)  # an earlier call has restored it
        if link is not None or not _exists(connection, identity_, known):
            return link
    return None


def _exists(connection: Netlink, identity_: Identity, known: Mark | None) -> bool:
    """Whether the interface exists although no namespace lists it: its PCI function or its other end exists."""
    if identity_.address is not None:
        return os.path.exists(f"{PCI}/{identity_.address}")
    return known is not None and identity.other_end(connection, known) is not None


def _restore_and_compare(
    connection: Netlink, link: links.Link, identity_: Identity, host: HostState, timeout: float
) -> Outcome:
    """Remove the upper interfaces of an interface on the node, restore its host state, and compare."""
    outcome = Outcome(reasons=_remove_uppers(connection, link, host, timeout))
    with step(f"restore {host['name']} on the node"):
        notes, differences = _restore(connection, link, host, identity_.address)
    outcome.notes = notes
    for key, text in differences:
        if key in _NODE_SETTINGS:
            outcome.notes.append(text)
        else:
            word = VF if key in _VF_STATE else CHANGED
            outcome.reasons.append(Reason(word, f"{host['name']}: {text}"))
    return outcome


def _after_reset(connection: Netlink, identity_: Identity) -> links.Link:
    """Reset a PCI function and return its new interface. Raises KernelError."""
    assert identity_.address is not None
    reset.rebind(identity_.address)
    action = f"wait for the interface of {identity_.address} after its reset"
    end = time.monotonic() + _RESET_TIMEOUT_SECONDS
    while True:
        with step(action):
            link = identity.find(connection, identity_, None)
        if link is not None:
            return link
        if time.monotonic() > end:
            raise KernelError(action, errno.ETIMEDOUT)
        time.sleep(_RESET_CHECK_SECONDS)


def _move_to_node(connection: Netlink, link: links.Link, identity_: Identity, host: HostState) -> None:
    """Move an interface from the connection's namespace to the node's, after removing its upper interfaces there."""
    if identity_.address is None:
        identity.move_tag(connection, identity_, link)
    stacked.remove_inside(connection, link)
    _move_back(connection, link, host)


def _fetch_from_namespace(connection: Netlink, identity_: Identity, host: HostState) -> bool:
    """Bring the interface back from whichever namespace it is in. Returns whether it was found."""
    for namespace in node_namespaces.other_namespaces():
        with contextlib.suppress(KernelError), Netlink(namespace.descriptor) as elsewhere:
            known = host.get(host_state.MARK)
            link = identity.find_elsewhere(connection, elsewhere, namespace.descriptor, identity_, known)
            if link is not None:
                _move_to_node(elsewhere, link, identity_, host)
                return True
    return False


def _notes_if_missing(connection: Netlink, identity_: Identity, known: Mark | None) -> list[str]:
    """The notes about an interface that no namespace lists. Raises KernelError if it exists nevertheless."""
    action = f"take {identity_.name} back from the pod"
    with step(f"look for {identity_.name} on the node"):
        exists = _exists(connection, identity_, known)
    if identity_.address is not None:
        if not exists:
            return [f"{identity_.name} is gone: the node has no PCI function {identity_.address} any more"]
        function = Path(PCI, identity_.address)
        # sysfs has this folder whatever the interface's namespace is
        if not any(any(function.glob(pattern)) for pattern in ("net", "virtio*/net")):
            link = function / "driver"
            driver = f"the driver {os.path.basename(os.readlink(link))}" if link.is_symlink() else "no driver"
            without = f"the PCI function {identity_.address} has {driver}, so it has no interface"
            raise KernelError(action, errno.ENODEV, f"{without}: bind the function to its network driver on the node")
        raise KernelError(action, errno.ENODEV, "it is in no network namespace that a process or a mount refers to")
    if exists:
        hidden = "its other end still exists, so it is in a network namespace that no process or mount refers to"
        raise KernelError(action, errno.ENODEV, hidden)
    with step(f"look for {identity_.name} on the node"):
        if links.get(connection, name=identity_.name) is None:
            return [f"{identity_.name} is gone: the kernel deletes virtual interfaces with their network namespace"]
    return []


def _remove_uppers(connection: Netlink, link: links.Link, host: HostState, timeout: float) -> list[Reason]:
    """Remove the upper interfaces of an interface on the node, except those that existed before the pod got it. Returns
    why the interface must be withheld."""
    name = host["name"]
    with step(f"look for upper interfaces of {name}"):
        if not stacked.evidence(connection, link) and not stacked.vlans(connection, link):
            return []
        stacked.remove_all(connection, link, host.get(host_state.UPPERS, ()))
        users = stacked.foreign_uppers(connection, link, timeout) or stacked.hidden_vlans(connection, link, timeout)
    if not users:
        return []
    return [Reason(STACKED, f"{name}: {users}, so others could read and send the traffic of the next pod")]


def _move_back(connection: Netlink, link: links.Link, host: HostState) -> None:
    """Move an interface to the node, under its original name, or under another one if that name is taken."""
    altnames = [altname for altname in link.altnames if not altname.startswith(host_state.TAG)]
    links.altnames(connection, link.index, altnames, add=False)
    descriptor = os.open(namespaces.HOST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = netlink.u32(links.IFLA_NET_NS_FD, descriptor)
        try:
            links.change(connection, link.index, target, netlink.text(links.IFLA_IFNAME, host["name"]))
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            # the kernel first moves the interface under its current name, if that is free on the node, and then renames
            # it: so it may be on the node already
            if links.get(connection, index=link.index) is None:
                return
            # the kernel replaces %d with a number
            links.change(connection, link.index, target, netlink.text(links.IFLA_IFNAME, "dev%d"))
    finally:
        os.close(descriptor)


def _restore(
    connection: Netlink, link: links.Link, host: HostState, address: str | None
) -> tuple[list[str], list[tuple[str, str]]]:
    """Restore the host state. This is repeated if the interface was renamed in the meantime, because sysctls and
    ethtool use names, and udev may rename a new interface. Returns what could not be restored on the node, and what
    differs (host_state.differences). Raises KernelError and OSError."""
    for left in reversed(range(_MAX_RESTORES)):
        try:
            notes = restore(connection, link, host, address)
            now = links.get(connection, index=link.index) or link
            noted = {note.split(":")[0] for note in notes}
            differences = host_state.differences(host, host_state.read(connection, now, address), now.carrier)
        except (OSError, KernelError) as error:
            renamed = links.get(connection, index=link.index)
            if not left or renamed is None or error.errno not in (errno.ENODEV, errno.ENOENT):
                raise
            link = renamed
            continue
        taken = now.name == link.name and links.get(connection, name=host["name"]) is not None
        if not left or now.name == host["name"] or taken:
            return notes, [
                (key, text) for key, text in differences if key not in _NODE_SETTINGS or text.split(":")[0] not in noted
            ]
        link = now
    raise AssertionError("the last attempt returns or raises")
