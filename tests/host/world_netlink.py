# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The netlink sockets of a world (world.py): pyroute2's own messages, encoded and decoded."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.access import messages

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.tests.host.world import World


class Socket:
    """Replaces a netlink socket of pyroute2: the world answers instead of a kernel."""

    prid = 30

    def __init__(self, world: World) -> None:
        self._world = world

    def register_policy(self, *_unused: t.Any) -> None:
        """Nothing to do: answers are already decoded."""

    def close(self) -> None:
        """Nothing is open."""

    def nlm_request(self, one: t.Any, msg_type: int, msg_flags: int) -> t.Iterator[t.Any]:
        world = self._world
        if isinstance(one, messages.Link) and msg_type == messages.GET_LINK:
            yield world.link(dict(one["attrs"])["IFLA_IFNAME"])
        elif isinstance(one, messages.Link):
            world.set_vf(one)
        elif isinstance(one, messages.Dcb) and msg_type == messages.GET_DCB:
            yield world.dcb_message()
        elif isinstance(one, messages.Dcb):
            world.set_dcb(one, delete=one["cmd"] == 27)
        elif isinstance(one, messages.RdmaSystem):
            shared = dict(one["attrs"])["netns_mode"]
            world.write("sys/module/ib_core/parameters/netns_mode", "Y" if shared else "N")
        elif isinstance(one, messages.Pause):
            off = [("rx", 0), ("tx", 0), ("autoneg", 0)]
            yield round_trip(messages.Pause, [(name, {"value": value}) for name, value in off])
        else:
            yield from self._devlink(dict(one["attrs"]))

    def _devlink(self, attributes: dict[str, t.Any]) -> t.Iterator[t.Any]:
        key = attributes["DEVLINK_ATTR_DEV_NAME"]
        if "DEVLINK_ATTR_ESWITCH_MODE" in attributes:
            self._world.set_mode(key, attributes["DEVLINK_ATTR_ESWITCH_MODE"])
        else:
            yield _Answer({"DEVLINK_ATTR_ESWITCH_MODE": self._world.modes[key]})


class _Answer(dict[str, t.Any]):
    def get_attr(self, name: str) -> t.Any:
        return self.get(name)


def round_trip(message: t.Any, attributes: list[t.Any], **fields: int) -> t.Any:
    """A message as it comes out of a socket."""
    one = message()
    one.update(fields)
    one["attrs"] = attributes
    one.encode()
    read = message(one.data)
    read.decode()
    return read


def decoded(message: t.Any, attributes: dict[str, t.Any]) -> t.Any:
    """A link with these attributes, as it comes out of a socket."""
    return round_trip(message, list(attributes.items()), ifi_type=1)
