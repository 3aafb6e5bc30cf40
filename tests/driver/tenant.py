# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changes that a tenant can try in its network namespace: each setting of an interface, one by one. `view` returns what
a tenant sees of the interface, for comparison with what the next tenant sees."""

from __future__ import annotations

import ctypes
import functools
import itertools
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

#: linux/rtnetlink.h and linux/if_link.h
_RTM_NEWADDR, _RTM_GETADDR, _RTM_NEWROUTE, _RTM_GETNEIGH, _RTM_NEWQDISC, _RTM_GETQDISC = 20, 22, 24, 30, 36, 38
_IFLA_OPERSTATE, _IF_OPER_TESTING, _IF_OPER_DORMANT = 16, 4, 5
_NUD_PERMANENT, _RTN_UNICAST, _IFA_F_TENTATIVE = 0x80, 1, 0x40
#: linux/bpf.h: commands, types of programs, and attach points
_BPF_PROG_LOAD, _BPF_PROG_ATTACH, _BPF_LINK_CREATE = 5, 8, 28
_SCHED_CLS, _XDP_PROGRAM = 3, 6
_XDP, _TCX_INGRESS, _TCX_EGRESS = 37, 46, 47

T = t.TypeVar("T")

#: Attributes of rtnetlink that are not settings: they move an interface to another namespace, number it, or filter.
_NO_SETTINGS = ("net-ns-pid", "net-ns-fd", "target-netnsid", "link-netnsid", "new-netnsid", "new-ifindex", "ext-mask")
#: Attributes that may differ between two tenants, by their names in the specification.
_VOLATILE = {
    "stats", "stats64", "carrier-changes", "carrier-up-count", "carrier-down-count", "event", "link", "link-netnsid",
    "qdisc", "operstate", "carrier",
}  # fmt: skip
#: IPv6 attributes that the kernel changes by itself: flags, statistics, cache, ICMP statistics.
_INET6_VOLATILE = (1, 3, 5, 6)
_SYSCTLS = ("ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh")
#: Values to write to files.
_FILE_VALUES = ("1", "2", "0", "3", "10", "1000", "20000")
#: Sysctls and files that are left out: the kernel changes them by itself, or they would delay a test.
_SYSCTLS_LEFT = ("base_reachable_time", "retrans_time", "mc_forwarding", "stable_secret")
_FILES_LEFT = ("carrier", "speed", "duplex", "uevent", "operstate", "dormant", "testing", "ifindex", "iflink")
_FILES_LEFT += ("carrier_changes", "carrier_up_count", "carrier_down_count", "addr_assign_type", "name_assign_type")
_QUEUE_FILES_LEFT = ("tx_timeout", "inflight", "limit", "stall_cnt", "stall_max", "traffic_class")


class Change(t.NamedTuple):
    """A change that a tenant tries. `run` makes it, and returns whether the kernel accepted it."""

    name: str
    run: t.Callable[[Pod], bool]


def call_in_pod(pod: Pod, function: t.Callable[..., T], *args: t.Any) -> T:
    """Call a function in a thread in the pod's network namespace, with the /sys of that namespace. Returns its
    result."""

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
    """What a tenant sees of its interface: files, attributes, BPF programs, qdiscs, addresses and neighbors."""
    seen = call_in_pod(pod, _files, name)
    names = {entry["number"]: entry["name"] for entry in netlink_specs.sets(_spec(specs, "rt_link"))["link-attrs"]}
    with Netlink(pod.pin) as connection:
        link = links.get(connection, name=name, vfs=True)
        assert link is not None
        seen["flags"] = hex(link.flags & ~0x10040)  # all but IFF_RUNNING and IFF_LOWER_UP
        for kind, value in link.raw.items():
            attribute = names.get(kind, str(kind))
            if attribute == "af-spec":
                for family, inner in netlink.pairs(value):
                    for number, part in netlink.pairs(inner):
                        if family != socket.AF_INET6 or number not in _INET6_VOLATILE:
                            seen[f"af-spec {family} {number}"] = part.hex()
            elif attribute not in _VOLATILE:
                seen[attribute] = value.hex()
        seen["dormant"] = str(link.raw.get(_IFLA_OPERSTATE, b"\0")[0] in (_IF_OPER_TESTING, _IF_OPER_DORMANT))
        seen["programs"] = repr(programs.listed(link.index))
        for message, size, what in (
            (_RTM_GETQDISC, 20, "qdiscs"),
            (_RTM_GETADDR, 8, "addresses"),
            (_RTM_GETNEIGH, 12, "neighbors"),
        ):
            bodies = []
            for _unused, body in connection.dump(message, bytes(size)):
                (owner,) = struct.unpack_from("=i", body, 4)
                (state,) = struct.unpack_from("=H", body, 8) if what == "neighbors" else (0,)
                learned = what == "neighbors" and not (state & _NUD_PERMANENT and body[11] == _RTN_UNICAST)
                if owner == link.index and not learned:
                    head = bytearray(body[:4])
                    if what == "addresses":
                        head[2] &= ~_IFA_F_TENTATIVE  # duplicate address detection ends some time after the link is up
                    bodies.append(head.hex())
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


# ---- changes to try


def changes(pod: Pod, name: str, specs: Path) -> list[Change]:
    """All changes to try with an interface, from the specifications of the kernel and from its files."""
    found = [
        Change(f"rt_link {attribute.path} #{number}", functools.partial(_set_link, name, attribute, number))
        for attribute in netlink_specs.attributes(_spec(specs, "rt_link"), "link-attrs")
        if attribute.path.split(".")[1] not in _NO_SETTINGS
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
            message_type = _message_number(ethtool, operation["name"])
            accepted = [field for field in operation["do"]["request"]["attributes"] if field != "header"]
            for attribute in netlink_specs.attributes(ethtool, operation["attribute-set"], accepted):
                label = f"ethtool {operation['name']} {attribute.path}"
                for number in range(_VALUES):
                    run = functools.partial(_ethtool, name, message_type, attribute, number)
                    found.append(Change(f"{label} #{number}", run))
    tc = _spec(specs, "tc")
    found += [
        Change(f"tc qdisc {kind}", functools.partial(_qdisc, name, kind))
        for kind in netlink_specs.kinds(tc, "options-msg")
    ]
    for spec, set_name, message, head in (
        ("rt_addr", "addr-attrs", _RTM_NEWADDR, _address_head),
        ("rt_route", "route-attrs", _RTM_NEWROUTE, _route_head),
    ):
        found += [
            Change(
                f"{spec} {attribute.path} #{number}",
                functools.partial(_message, name, message, head, attribute, number),
            )
            for attribute in netlink_specs.attributes(_spec(specs, spec), set_name)
            for number in range(_VALUES)
        ]
    for path in call_in_pod(pod, _paths, name):
        found += [Change(f"{path} = {value}", functools.partial(_write, path, value)) for value in _FILE_VALUES]
    return found + [Change(line, functools.partial(_run_command, line.format(name=name))) for line in _COMMANDS]


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


def _send(connection: Netlink, kind: int, body: bytes, flags: int = 0) -> bool:
    """Send a request. Returns whether the kernel accepted it."""
    try:
        connection.request(kind, body, flags)
    except OSError:
        return False
    return True


def _value(attribute: netlink_specs.Attribute, number: int, current: bytes = b"") -> bytes | None:
    """The encoded attribute with its value of this number, or None if there are fewer values."""
    return next(itertools.islice(attribute.values(current), number, None), None)


def _set_link(name: str, attribute: netlink_specs.Attribute, number: int, pod: Pod) -> bool:
    with Netlink(pod.pin) as connection:
        link = links.get(connection, name=name)
        if link is None:
            return False
        value = _value(attribute, number)
        if value is None:
            return False
        (kind,) = struct.unpack_from("=H", value, 2)
        if attribute.path.count(".") == 1:
            value = _value(attribute, number, link.raw.get(kind & 0x3FFF, b""))
        body = links.header(link.index) + (value or b"")
        return _send(connection, links.RTM_SETLINK, body) or _send(connection, links.RTM_NEWLINK, body)


def _set_flag(name: str, bit: int, on: bool, pod: Pod) -> bool:
    with Netlink(pod.pin) as connection:
        body = links.header(_index(connection, name), (1 << bit) if on else 0, 1 << bit)
        return _send(connection, links.RTM_SETLINK, body)


def _message_number(spec: netlink_specs.Object, name: str) -> int:
    """The number of an ethtool request. Requests and replies are numbered separately (enum-model: directional)."""
    number = 0
    for operation in spec["operations"]["list"]:
        number = operation.get("do", {}).get("request", {}).get("value", number + 1)
        if operation["name"] == name:
            return number
    raise KeyError(name)


def _ethtool(name: str, message_type: int, attribute: netlink_specs.Attribute, number: int, pod: Pod) -> bool:
    value = _value(attribute, number)
    if value is None:
        return False
    with Netlink(pod.pin, 16) as connection:
        family = connection.request(16, struct.pack("=BBxx", 3, 1) + netlink.text(2, "ethtool"))
        family_id = netlink.number(netlink.attributes(family[0][1], 4)[1])
        body = struct.pack("=BBxx", message_type, 1) + netlink.nest(1, netlink.text(2, name)) + value
        return _send(connection, family_id, body)


def _qdisc(name: str, kind: str, pod: Pod) -> bool:
    with Netlink(pod.pin) as connection:
        parent, handle = (0xFFFFFFF1, 0xFFFF0000) if kind in ("ingress", "clsact") else (0xFFFFFFFF, 0x10000)
        body = struct.pack("=BxxxiIII", 0, _index(connection, name), handle, parent, 0) + netlink.text(1, kind)
        return _send(connection, _RTM_NEWQDISC, body, netlink.CREATE | netlink.REPLACE)


def _address_head(index: int) -> bytes:
    local = socket.inet_aton("10.77.0.2")
    head = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, index)
    return head + netlink.attribute(1, local) + netlink.attribute(2, local)


def _route_head(index: int) -> bytes:
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, 24, 0, 0, 254, 4, 253, 1, 0)
    return head + netlink.attribute(1, socket.inet_aton("10.78.0.0")) + netlink.u32(4, index)


def _message(
    name: str, kind: int, head: t.Callable[[int], bytes], attribute: netlink_specs.Attribute, number: int, pod: Pod
) -> bool:
    value = _value(attribute, number)
    if value is None:
        return False
    with Netlink(pod.pin) as connection:
        return _send(connection, kind, head(_index(connection, name)) + value, netlink.CREATE | netlink.REPLACE)


def _write(path: Path, value: str, pod: Pod) -> bool:
    def write() -> bool:
        try:
            if path.read_text(encoding="utf-8").strip() == value:
                return False
            path.write_text(value, encoding="utf-8")
        except OSError:
            return False
        return True

    return call_in_pod(pod, write)


def _run_command(command: str, pod: Pod) -> bool:
    pod.run(command, check=False)
    return True


def load_program(kind: int) -> int:
    """Load a BPF program of a type, which returns 2 (XDP_PASS, TCX_DROP). Returns its descriptor."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    instructions, license_name = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    request = struct.pack("=IIQQ", kind, 2, ctypes.addressof(instructions), ctypes.addressof(license_name))
    return programs._call(_BPF_PROG_LOAD, request + bytes(104))


def _link_program(descriptor: int, index: int, attach_point: int) -> int:
    """Attach a BPF program to an interface by a BPF link. Returns the descriptor of the link."""
    return programs._call(
        _BPF_LINK_CREATE, struct.pack("=IIIIIIQ", descriptor, index, attach_point, 0, 0, 0, 0) + bytes(32)
    )


def attach_programs(pod: Pod, name: str, generator: random.Random) -> list[int]:
    """Attach random BPF programs to the interface, with and without BPF links. Returns their descriptors."""
    with Netlink(pod.pin) as connection:
        index = _index(connection, name)
    made: list[int] = []

    def attach() -> None:
        for attach_point in (_TCX_INGRESS, _TCX_EGRESS):
            if generator.random() < 0.5:
                made.append(descriptor := load_program(_SCHED_CLS))
                if generator.random() < 0.5:
                    made.append(_link_program(descriptor, index, attach_point))
                else:
                    programs._call(
                        _BPF_PROG_ATTACH, struct.pack("=IIIIIIQ", index, descriptor, attach_point, 0, 0, 0, 0)
                    )
        if generator.random() < 0.5:
            made.append(descriptor := load_program(_XDP_PROGRAM))
            made.append(_link_program(descriptor, index, _XDP))

    try:
        netns.run(pod.pin, attach)
    except OSError:
        pass  # the kernel has no such attach point
    return made
