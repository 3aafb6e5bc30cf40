# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A tenant that changes everything it can in its network namespace: each setting of an interface, one by one. `view` is
everything that a tenant sees of the interface, for comparison with what another tenant saw."""

from __future__ import annotations

import ctypes
import functools
import random
import socket
import struct
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.driver import netlink_specs
from ansible_collections.lanewise.dra.tests.driver.nodes import Pod
from lanewise_driver.kernel import links, netlink, netns, programs
from lanewise_driver.kernel.netlink import Netlink

_CLONE_NEWNS, _CLONE_FS = 0x00020000, 0x00000200
_MS_PRIVATE, _MS_REC = 1 << 18, 16384
_libc = ctypes.CDLL(None, use_errno=True)

T = t.TypeVar("T")

#: Attributes of rtnetlink that move an interface to another namespace or that count. They are not settings.
_MOVES = ("net-ns-pid", "net-ns-fd", "target-netnsid", "link-netnsid", "new-netnsid", "new-ifindex", "ext-mask")
#: Attributes that may differ between two tenants, by their names in the specification.
_VOLATILE = {
    "stats", "stats64", "carrier-changes", "carrier-up-count", "carrier-down-count", "event", "link", "link-netnsid",
    "qdisc", "operstate", "carrier",
}  # fmt: skip
_INET6_RUNS = (1, 3, 5, 6)  # flags, statistics, cache, ICMP statistics
_SYSCTLS = ("ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh")
_FILE_VALUES = ("1", "2", "0", "3", "10", "1000", "20000")
#: Sysctls and files that the kernel changes by itself, or that would make a test wait if they were set.
_SYSCTLS_LEFT = ("base_reachable_time", "retrans_time", "mc_forwarding", "stable_secret")
_FILES_LEFT = ("carrier", "speed", "duplex", "uevent", "operstate", "dormant", "testing", "ifindex", "iflink")
_FILES_LEFT += ("carrier_changes", "carrier_up_count", "carrier_down_count", "addr_assign_type", "name_assign_type")
_QUEUE_FILES_LEFT = ("tx_timeout", "inflight", "limit", "stall_cnt", "stall_max", "traffic_class")


class Change(t.NamedTuple):
    """Something that a tenant does; `does` returns whether the kernel accepted it."""

    name: str
    does: t.Callable[[Pod], bool]


def inside(pod: Pod, function: t.Callable[..., T], *args: t.Any) -> T:
    """Call a function in a thread that is in the pod's network namespace and has the /sys of that namespace."""

    def work() -> T:
        if _libc.unshare(_CLONE_FS | _CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        if _libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None):
            raise OSError(ctypes.get_errno(), "mount")
        return function(*args)

    return netns.run(pod.pin, work)


# ---- what a tenant sees


def view(pod: Pod, name: str, specs: Path) -> dict[str, str]:
    """Everything that a tenant sees of its interface."""
    seen = inside(pod, _files, name)
    names = {entry["number"]: entry["name"] for entry in netlink_specs.sets(_spec(specs, "rt_link"))["link-attrs"]}
    with Netlink(pod.pin) as connection:
        link = links.get(connection, name=name, vfs=True)
        assert link is not None
        seen["flags"] = hex(link.flags & ~0x10040)  # all but IFF_RUNNING and IFF_LOWER_UP
        for kind, value in link.raw.items():
            attribute = names.get(kind, str(kind))
            if attribute == "af-spec":
                for family, inner in netlink.pairs(value):
                    for place, part in netlink.pairs(inner):
                        if family != socket.AF_INET6 or place not in _INET6_RUNS:
                            seen[f"af-spec {family} {place}"] = part.hex()
            elif attribute not in _VOLATILE:
                seen[attribute] = value.hex()
        seen["dormant"] = str(link.raw.get(16, b"\0")[0] in (4, 5))
        seen["programs"] = repr(programs.listed(link.index))
        for message, size, what in ((38, 20, "qdiscs"), (22, 8, "addresses"), (30, 12, "neighbors")):
            bodies = []
            for _unused, body in connection.dump(message, bytes(size)):
                (owner,) = struct.unpack_from("=i", body, 4)
                learnt = what == "neighbors" and not (struct.unpack_from("=H", body, 8)[0] & 0x80 and body[11] == 1)
                if owner == link.index and not learnt:
                    bodies.append(body[:4].hex())
            seen[what] = " ".join(sorted(bodies))
    return seen


@functools.cache
def _spec(folder: Path, name: str) -> netlink_specs.Object:
    return netlink_specs.load(folder, name)


def _files(name: str) -> dict[str, str]:
    found = {}
    for path in _paths(name):
        try:
            found[str(path)] = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return found


def _paths(name: str) -> list[Path]:
    base = Path("/sys/class/net", name)
    found = [path for path in base.iterdir() if path.is_file() and path.name not in _FILES_LEFT]
    queues = [path for path in (base / "queues").rglob("*") if path.is_file() and path.name not in _QUEUE_FILES_LEFT]
    sysctls = [
        path for folder in _SYSCTLS for path in sorted(Path("/proc/sys/net", folder, name).glob("*"))
        if path.name not in _SYSCTLS_LEFT
    ]  # fmt: skip
    return sorted(found) + sorted(queues) + sysctls


# ---- what a tenant changes


def changes(pod: Pod, name: str, specs: Path) -> list[Change]:
    """All changes to try with an interface, from the specifications of the kernel and from its files."""
    found = [
        Change(f"rt_link {one.path} #{number}", functools.partial(_set_link, name, one, number))
        for one in netlink_specs.attributes(_spec(specs, "rt_link"), "link-attrs")
        if one.path.split(".")[1] not in _MOVES
        for number in range(_VALUES)
    ]
    found += [
        Change(f"flag {bit} {word}", functools.partial(_set_flag, name, bit, word == "on"))
        for bit in range(32)
        for word in ("on", "off")
    ]
    ethtool = _spec(specs, "ethtool")
    for operation in ethtool["operations"]["list"]:
        if operation["name"].endswith(("-set", "-act")):
            number = _command(ethtool, operation["name"])
            only = [word for word in operation["do"]["request"]["attributes"] if word != "header"]
            for one in netlink_specs.attributes(ethtool, operation["attribute-set"], only):
                label = f"ethtool {operation['name']} {one.path}"
                parts = [functools.partial(_ethtool, name, number, one, place) for place in range(_VALUES)]
                found += [Change(f"{label} #{place}", part) for place, part in enumerate(parts)]
    tc = _spec(specs, "tc")
    found += [
        Change(f"tc qdisc {kind}", functools.partial(_qdisc, name, kind))
        for kind in netlink_specs.kinds(tc, "options-msg")
    ]
    for spec, set_name, message, head in (
        ("rt_addr", "addr-attrs", 20, _address_head),
        ("rt_route", "route-attrs", 24, _route_head),
    ):
        found += [
            Change(f"{spec} {one.path} #{place}", functools.partial(_message, name, message, head, one, place))
            for one in netlink_specs.attributes(_spec(specs, spec), set_name)
            for place in range(_VALUES)
        ]
    for path in inside(pod, _paths, name):
        found += [Change(f"{path} = {value}", functools.partial(_write, path, value)) for value in _FILE_VALUES]
    return found + [Change(word, functools.partial(_command_line, word.format(name=name))) for word in _COMMANDS]


#: How many values of an attribute are tried.
_VALUES = 12
#: Changes without a specification in the kernel source: rules, neighbours, filters and stacked interfaces.
_COMMANDS = (
    "ip neigh add 10.7.7.7 lladdr 02:00:00:00:00:09 dev {name}",
    "ip neigh add proxy 10.7.7.8 dev {name}",
    "ip rule add iif {name} table 77",
    "bridge fdb add 02:00:00:00:00:0a dev {name} self",
    "ip maddr add 33:33:00:00:00:77 dev {name}",
    "ip link property add dev {name} altname another-name",
    "tc qdisc add dev {name} clsact; tc filter add dev {name} ingress prio 1 u32 match u32 0 0 action mirred egress "
    "redirect dev lo",
    "ip link add link {name} name v0 type macvlan mode bridge; ip link set v0 up",
    "ip link add link {name} name v1 type macvlan mode passthru; ip link set v1 up",
    "ip link add link {name} name v2 type macvtap; ip link set v2 up",
    "ip link add v3 type vxlan id 7 dev {name} dstport 4789 group 239.1.1.1",
    "ip link add v4 type bridge; ip link set {name} master v4",
    "ip link add v5 type vrf table 9; ip link set {name} master v5",
    "ip link set {name} name renamed",
    "ip link set {name} down",
)


def _index(connection: Netlink, name: str) -> int:
    link = links.get(connection, name=name)
    return link.index if link is not None else 0


def _sent(connection: Netlink, kind: int, body: bytes, flags: int = 0) -> bool:
    try:
        connection.request(kind, body, flags)
    except OSError:
        return False
    return True


def _value(one: netlink_specs.Attribute, number: int, now: bytes = b"") -> bytes | None:
    for place, value in enumerate(one.values(now)):
        if place == number:
            return value
    return None


def _set_link(name: str, one: netlink_specs.Attribute, number: int, pod: Pod) -> bool:
    with Netlink(pod.pin) as connection:
        link = links.get(connection, name=name)
        if link is None:
            return False
        value = _value(one, number)
        if value is None:
            return False
        (kind,) = struct.unpack_from("=H", value, 2)
        if one.path.count(".") == 1:
            value = _value(one, number, link.raw.get(kind & 0x3FFF, b""))
        body = links.header(link.index) + (value or b"")
        return _sent(connection, links.RTM_SETLINK, body) or _sent(connection, links.RTM_NEWLINK, body)


def _set_flag(name: str, bit: int, on: bool, pod: Pod) -> bool:
    with Netlink(pod.pin) as connection:
        body = links.header(_index(connection, name), (1 << bit) if on else 0, 1 << bit)
        return _sent(connection, links.RTM_SETLINK, body)


def _command(spec: netlink_specs.Object, name: str) -> int:
    """The number of an ethtool message; only requests count (enum-model: directional)."""
    number = 0
    for operation in spec["operations"]["list"]:
        number = operation.get("do", {}).get("request", {}).get("value", number + 1)
        if operation["name"] == name:
            return number
    raise KeyError(name)


def _ethtool(name: str, number: int, one: netlink_specs.Attribute, place: int, pod: Pod) -> bool:
    value = _value(one, place)
    if value is None:
        return False
    with Netlink(pod.pin, 16) as connection:
        family = connection.request(16, struct.pack("=BBxx", 3, 1) + netlink.text(2, "ethtool"))
        number_of_family = netlink.number(netlink.attributes(family[0][1], 4)[1])
        body = struct.pack("=BBxx", number, 1) + netlink.nest(1, netlink.text(2, name)) + value
        return _sent(connection, number_of_family, body)


def _qdisc(name: str, kind: str, pod: Pod) -> bool:
    with Netlink(pod.pin) as connection:
        parent, handle = (0xFFFFFFF1, 0xFFFF0000) if kind in ("ingress", "clsact") else (0xFFFFFFFF, 0x10000)
        body = struct.pack("=BxxxiIII", 0, _index(connection, name), handle, parent, 0) + netlink.text(1, kind)
        return _sent(connection, 36, body, netlink.CREATE | netlink.REPLACE)


def _address_head(index: int) -> bytes:
    local = socket.inet_aton("10.77.0.2")
    head = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, index)
    return head + netlink.attribute(1, local) + netlink.attribute(2, local)


def _route_head(index: int) -> bytes:
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, 24, 0, 0, 254, 4, 253, 1, 0)
    return head + netlink.attribute(1, socket.inet_aton("10.78.0.0")) + netlink.u32(4, index)


def _message(
    name: str, kind: int, head: t.Callable[[int], bytes], one: netlink_specs.Attribute, place: int, pod: Pod
) -> bool:
    value = _value(one, place)
    if value is None:
        return False
    with Netlink(pod.pin) as connection:
        return _sent(connection, kind, head(_index(connection, name)) + value, netlink.CREATE | netlink.REPLACE)


def _write(path: Path, value: str, pod: Pod) -> bool:
    def write() -> bool:
        try:
            if path.read_text(encoding="utf-8").strip() == value:
                return False
            path.write_text(value, encoding="utf-8")
        except OSError:
            return False
        return True

    return inside(pod, write)


def _command_line(command: str, pod: Pod) -> bool:
    pod.run(command, check=False)
    return True


def program(kind: int) -> int:
    """The descriptor of a BPF program that passes everything."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    held, words = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    request = struct.pack("=IIQQ", kind, 2, ctypes.addressof(held), ctypes.addressof(words))
    return programs._call(5, request + bytes(104))


def attach_programs(pod: Pod, name: str, generator: random.Random) -> list[int]:
    """Attach random BPF programs to the interface, with and without BPF links. Returns their descriptors."""
    with Netlink(pod.pin) as connection:
        index = _index(connection, name)
    made: list[int] = []

    def attach() -> None:
        for place in (46, 47):
            if generator.random() < 0.5:
                made.append(descriptor := program(3))
                if generator.random() < 0.5:
                    made.append(
                        programs._call(28, struct.pack("=IIIIIIQ", descriptor, index, place, 0, 0, 0, 0) + bytes(32))
                    )
                else:
                    programs._call(8, struct.pack("=IIIIIIQ", index, descriptor, place, 0, 0, 0, 0))
        if generator.random() < 0.5:
            made.append(descriptor := program(6))
            made.append(programs._call(28, struct.pack("=IIIIIIQ", descriptor, index, 37, 0, 0, 0, 0) + bytes(32)))

    try:
        netns.run(pod.pin, attach)
    except OSError:
        pass  # the kernel has no such attach point
    return made
