# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The netlink sockets of an EmulatedNode: requests and replies are messages of pyroute2, encoded and decoded."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.access import messages

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.tests.host.emulated_node import EmulatedNode


#: DCB_CMD_IEEE_DEL of linux/dcbnl.h.
_DCB_DELETE = 27


class EmulatedSocket:
    """Replaces a netlink socket of pyroute2: the emulated node replies instead of a kernel."""

    #: The ID of a generic netlink family; any number will do.
    prid = 30

    def __init__(self, node: EmulatedNode) -> None:
        self._node = node

    def register_policy(self, *_unused: t.Any) -> None:
        """Do nothing: replies are decoded before they are returned."""

    def close(self) -> None:
        """Do nothing: no socket is open."""

    def nlm_request(self, message: t.Any, msg_type: int, msg_flags: int) -> t.Iterator[t.Any]:
        node = self._node
        if isinstance(message, messages.Link) and msg_type == messages.GET_LINK:
            yield node.link(dict(message["attrs"])["IFLA_IFNAME"])
        elif isinstance(message, messages.Link):
            node.set_vf(message)
        elif isinstance(message, messages.Dcb) and msg_type == messages.GET_DCB:
            yield node.dcb_message()
        elif isinstance(message, messages.Dcb):
            node.set_dcb(message, delete=message["cmd"] == _DCB_DELETE)
        elif isinstance(message, messages.RdmaSystem):
            shared = dict(message["attrs"])["netns_mode"]
            node.write("sys/module/ib_core/parameters/netns_mode", "Y" if shared else "N")
        elif isinstance(message, messages.Pause):
            off = [("rx", 0), ("tx", 0), ("autoneg", 0)]
            yield round_trip(messages.Pause, [(name, {"value": value}) for name, value in off])
        else:
            yield from self._devlink(dict(message["attrs"]))

    def _devlink(self, attributes: dict[str, t.Any]) -> t.Iterator[t.Any]:
        address = attributes["DEVLINK_ATTR_DEV_NAME"]
        if "DEVLINK_ATTR_ESWITCH_MODE" in attributes:
            self._node.set_eswitch_mode(address, attributes["DEVLINK_ATTR_ESWITCH_MODE"])
        else:
            yield _Reply({"DEVLINK_ATTR_ESWITCH_MODE": self._node.eswitch_modes[address]})


class _Reply(dict[str, t.Any]):
    """A devlink message, as far as it is read."""

    def get_attr(self, name: str) -> t.Any:
        return self.get(name)


def round_trip(message_class: t.Any, attributes: list[t.Any], **fields: int) -> t.Any:
    """A message that was encoded and decoded, as a socket returns it."""
    sent = message_class()
    sent.update(fields)
    sent["attrs"] = attributes
    sent.encode()
    received = message_class(sent.data)
    received.decode()
    return received
