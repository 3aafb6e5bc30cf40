# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Taking an interface back from a pod that may have done anything with it that rights on its own network allow.

The interface is found wherever it is, what was made of it is ended, it gets back what it was, and then all that the
kernel tells of it is compared with what that was. What is not as it was for the next tenant is a reason to keep it from
everybody; what is not as it was for the node alone is a note.
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
from ..kernel import links, netlink, node_namespaces, stacked
from ..kernel import netns as namespaces
from ..kernel.links import step
from ..kernel.netlink import Netlink
from . import children, host_state, identity, reset
from .identity import PCI, Identity

Object = dict[str, t.Any]
Config = t.Mapping[str, t.Any]

#: How often an interface is restored that others rename meanwhile.
_RESTORES = 5
#: How long the interface of a function that was reset is waited for, and how often it is looked for, in seconds.
_RESET_TIME, _RESET_STEP = 30.0, 0.02
#: What of a host state is the node's own configuration: where that is not as it was, no pod sees it. Queueing is, as
#: the kernel takes all of it off when an interface leaves its namespace.
_NODES_OWN = frozenset(
    ("name", "altnames", "alias", "addresses", "routes", "rules", "neighbors", "master", "up", "permanentMac", "qdiscs")
)
_VF_STATE = ("vf", "vfs")


class Reason(t.NamedTuple):
    """Why nobody else may have an interface now: a word for the taint, and a sentence."""

    word: str
    text: str


#: Words of reasons.
STACKED, CHANGED, VF = "stacked", "changed", "vf-settings"


@dataclass
class Outcome:
    """C(reasons) keep the interface from everybody. C(notes) say what of the node's own configuration could not be
    restored, one sentence each."""

    reasons: list[Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def take_back(
    identity_: Identity,
    host: Object,
    netns: Path | None,
    config: Config,
    policy: str = reset.NEVER,
    patience: float = node_namespaces.ENDING,
) -> Outcome:
    """Converges to the host state wherever the interface is; from any state that attach or detach left when killed.

    C(netns) may be None or no longer alive. The kernel has then put hardware back on the node, under the name it had in
    the pod or C(devN), and destroyed virtual interfaces, which is told. One that the pod moved on is looked for in all
    namespaces of the node. C(policy) says when a PCI function is reset (reset.POLICIES). C(patience) is for how many
    seconds something in a namespace that nothing shows is waited for, as the kernel may be about to end that namespace.
    KernelError only where the interface did not come back to the node.
    """
    if netns is not None and (not namespaces.alive(netns) or namespaces.is_host(netns)):
        netns = None
    if "child" in config:
        children.remove(identity_, host, netns, config)
        return Outcome()
    known = host.get(host_state.MARK)
    if netns is not None:
        with step(f"take {identity_.name} back from the pod"), Netlink(netns) as connection:
            found = identity.find(connection, identity_, netns, known)
            if found is not None:
                _leave(connection, found, identity_, host)
    with Netlink() as connection:
        with step(f"look for {identity_.name} on the node"):
            link = _look(connection, identity_, host, patience)
        fresh = False
        if (link is None or policy == reset.ALWAYS) and policy != reset.NEVER:
            if not reset.impossible(identity_.address):
                link, fresh = _anew(connection, identity_), True
        if link is None:
            return Outcome(notes=_gone(connection, identity_, known))
        outcome = _make_as_it_was(connection, link, identity_, host, patience)
        if policy == reset.ALWAYS and not fresh and identity_.address is not None:
            outcome.notes.append(f"{host['name']} is not reset: {reset.impossible(identity_.address)}")
        if outcome.reasons and policy == reset.WHEN_CHANGED and not fresh:
            why = reset.impossible(identity_.address)
            if why:
                outcome.reasons[-1] = outcome.reasons[-1]._replace(
                    text=f"{outcome.reasons[-1].text}; it is not reset, as {why}"
                )
            else:
                outcome = _make_as_it_was(connection, _anew(connection, identity_), identity_, host, patience)
        if identity_.address is None:
            with step(f"take the mark off {host['name']}"):
                links.altnames(connection, link.index, [identity.tag(identity_)], add=False)
        return outcome


def _look(connection: Netlink, identity_: Identity, host: Object, patience: float) -> links.Link | None:
    """The interface on the node, where it is brought from whichever namespace it is in. None where none shows it."""
    known = host.get(host_state.MARK)
    for _turn in node_namespaces.looks(patience):
        link = identity.find(connection, identity_, None, tagged=True)
        if link is None and _fetch(connection, identity_, host):
            link = identity.find(connection, identity_, None, tagged=True)
        if link is None and known is not None and identity_.address is None:
            if identity.at_home(connection, identity_, known):
                link = identity.find(connection, identity_, None)  # as a call before this one left it
        if link is not None or not _somewhere(connection, identity_, known):
            return link
    return None


def _somewhere(connection: Netlink, identity_: Identity, known: Object | None) -> bool:
    """Whether the node has an interface that no namespace shows: the function is there, or the other end is."""
    if identity_.address is not None:
        return os.path.exists(f"{PCI}/{identity_.address}")
    return known is not None and identity.other_end(connection, known) is not None


def _make_as_it_was(
    connection: Netlink, link: links.Link, identity_: Identity, host: Object, patience: float
) -> Outcome:
    """Ends what is made of an interface of the node, restores it, and compares."""
    outcome = Outcome(reasons=_end_stacked(connection, link, host, patience))
    with step(f"restore {host['name']} on the node"):
        notes, unlike = _restore(connection, link, host, identity_.address)
    outcome.notes = notes
    for key, text in unlike:
        if key in _NODES_OWN:
            outcome.notes.append(text)
        else:
            word = VF if key in _VF_STATE else CHANGED
            outcome.reasons.append(Reason(word, f"{host['name']}: {text}"))
    return outcome


def _anew(connection: Netlink, identity_: Identity) -> links.Link:
    """Resets a function; its new interface. Raises KernelError."""
    assert identity_.address is not None
    reset.function(identity_.address)
    says = f"wait for the interface of {identity_.address} after it was reset"
    end = time.monotonic() + _RESET_TIME
    while True:
        with step(says):
            link = identity.find(connection, identity_, None)
        if link is not None:
            return link
        if time.monotonic() > end:
            raise KernelError(says, errno.ETIMEDOUT)
        time.sleep(_RESET_STEP)


def _leave(connection: Netlink, link: links.Link, identity_: Identity, host: Object) -> None:
    """Has an interface leave a namespace for the node's, without what was made of it there."""
    if identity_.address is None:
        identity.hold(connection, identity_, link)
    stacked.end_inside(connection, link)
    _move_back(connection, link, host)


def _fetch(connection: Netlink, identity_: Identity, host: Object) -> bool:
    """Brings the interface back from whichever namespace it is in; whether there was one."""
    for space in node_namespaces.all_but_own():
        with contextlib.suppress(KernelError), Netlink(space.descriptor) as there:
            known = host.get(host_state.MARK)
            found = identity.find_elsewhere(connection, there, space.descriptor, identity_, known)
            if found is not None:
                _leave(there, found, identity_, host)
                return True
    return False


def _gone(connection: Netlink, identity_: Identity, known: Object | None) -> list[str]:
    """What to say of an interface that no namespace shows. KernelError where it is somewhere all the same."""
    says = f"take {identity_.name} back from the pod"
    with step(f"look for {identity_.name} on the node"):
        there = _somewhere(connection, identity_, known)
    if identity_.address is not None:
        if not there:
            return [f"{identity_.name} is gone: the node has no PCI function {identity_.address} any more"]
        raise KernelError(says, errno.ENODEV, "it is in no network namespace that a process or a mount shows")
    if there:
        hidden = "its other end is still there, so it is in a network namespace that no process and no mount shows"
        raise KernelError(says, errno.ENODEV, hidden)
    with step(f"look for {identity_.name} on the node"):
        if links.get(connection, name=identity_.name) is None:
            return [f"{identity_.name} is gone: virtual interfaces end with their network namespace"]
    return []


def _end_stacked(connection: Netlink, link: links.Link, host: Object, patience: float) -> list[Reason]:
    """Ends what is made of an interface of the node, but for what was before the pod had it; why others must not have
    the interface."""
    name = host["name"]
    with step(f"look for what is made of {name}"):
        if not stacked.evidence(connection, link) and not stacked.vlans(connection, link):
            return []
        stacked.end(connection, link, host.get(host_state.UPPERS, ()))
        says = stacked.strangers(connection, link, patience) or stacked.hidden_vlans(connection, link, patience)
    return (
        [Reason(STACKED, f"{name}: {says}: whoever has that can read and send what the next pod does")] if says else []
    )


def _move_back(connection: Netlink, link: links.Link, host: Object) -> None:
    """Out of another namespace, under the name it had on the node, or another where that is taken."""
    others = [other for other in link.altnames if not other.startswith(host_state.TAG)]
    links.altnames(connection, link.index, others, add=False)
    descriptor = os.open(namespaces.HOST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        where_to = netlink.u32(links.IFLA_NET_NS_FD, descriptor)
        try:
            links.change(connection, link.index, where_to, netlink.text(links.IFLA_IFNAME, host["name"]))
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            # The kernel moves first, under the old name where that is free, and renames then: it may be back by now.
            if links.get(connection, index=link.index) is None:
                return
            # it puts a number for %d
            links.change(connection, link.index, where_to, netlink.text(links.IFLA_IFNAME, "dev%d"))
    finally:
        os.close(descriptor)


def _restore(
    connection: Netlink, link: links.Link, host: Object, address: str | None
) -> tuple[list[str], list[tuple[str, str]]]:
    """Restores the host state, once more where somebody renamed the interface meanwhile: udev does so when it comes,
    and sysctls and ethtool go by names. Returns what could not be done for the node, and what is not as it was
    (host_state.unlike)."""
    for left in reversed(range(_RESTORES)):
        try:
            notes = host_state.restore(connection, link, host, address)
            now = links.get(connection, index=link.index) or link
            told = {note.split(":")[0] for note in notes}
            unlike = host_state.unlike(host, host_state.read(connection, now, address), now.carrier)
        except (OSError, KernelError) as error:
            renamed = links.get(connection, index=link.index)
            if not left or renamed is None or error.errno not in (errno.ENODEV, errno.ENOENT):
                raise
            link = renamed
            continue
        taken = now.name == link.name and links.get(connection, name=host["name"]) is not None
        if not left or now.name == host["name"] or taken:
            return notes, [one for one in unlike if one[0] not in _NODES_OWN or one[1].split(":")[0] not in told]
        link = now
    raise AssertionError("the last turn returns or raises")
