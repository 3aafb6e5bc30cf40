# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two pods with NICs of one card, the hostile pod and its neighbour, and machines on the network. The driver's code
attaches the NICs to the pods, with addresses of a rail, and takes them back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from lanewise_driver.dra.config.rail_range import read_ranges
from lanewise_driver.dra.kube.reader import Reader
from lanewise_driver.interface import host_state, interfaces, rails, take_back
from lanewise_driver.interface.children import Siblings
from lanewise_driver.interface.identity import Identity
from lanewise_driver.kernel import netns

from . import frames

PROGRAM = Path(__file__).with_name("program.py")
TIMEOUT_SECONDS = 120.0
#: The capabilities of a hostile pod, fewest first: of a container that drops all capabilities, of a default container,
#: and of a container that may configure its network.
NONE, RAW, ADMIN = "", "net_raw", "net_raw net_admin"
#: The text of the broadcast that ends a listener's wait.
_END = "end"
#: Keys of host states that change when another pod gets the card, or when igbvf resets a VF (permanentMac).
_NOT_COMPARED = ("uppers", "child", "permanentMac")
#: The multicast frames of a pod that the ACLs of the switch drop: all above this rate.
_MULTICAST_LIMIT = "limit rate over 50/second burst 20 packets"
_RANGES = [
    {"rail": 0, "range": "10.100.0.16/28", "pool": "10.100.0.0/16"},
    {"rail": 0, "range": "fd00:100::10/124", "pool": "fd00:100::/64"},
]


def sh(command: str, check: bool = True) -> str:
    """Run a shell command on the node. Returns its output."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout


@dataclass
class Host:
    """A pod or a machine: its network namespace (None: the node's), and its interface there."""

    namespace: str | None
    interface: str
    mac: str
    ipv4: str
    ipv6: str
    #: The capabilities of the commands that the host runs; None: all.
    capabilities: str | None = None
    #: The process whose user namespace the host is in, if any.
    process: int = 0

    def command(self, *words: str, capabilities: str | None = None) -> list[str]:
        """The command that runs `words` on the host, with these capabilities or else those of the host."""
        capabilities = self.capabilities if capabilities is None else capabilities
        enter = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        if self.process and capabilities is not None:
            enter = ["nsenter", f"--target={self.process}", "--user", "--net", "--mount"]
        if capabilities is None:
            return [*enter, *words]
        kept = ",".join(["-all", *(f"+{name}" for name in capabilities.split())])
        return [*enter, "setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}", "--", *words]

    def run(self, command: str) -> bool:
        """Run a shell command. Returns whether it succeeded."""
        return not subprocess.run(self.command("sh", "-c", command), capture_output=True, check=False).returncode

    def ip_json(self, words: str) -> t.Any:
        """The decoded output of `ip -j`, run with all capabilities."""
        unrestricted = Host(self.namespace, self.interface, self.mac, self.ipv4, self.ipv6)
        return json.loads(sh(" ".join(unrestricted.command("ip", "-j", *words.split()))) or "[]")

    def run_program(self, *words: str, text: str = "") -> bool:
        """Run program.py with `text` on standard input. Returns whether it succeeded."""
        command = self.command(sys.executable, "-I", str(PROGRAM), *words)
        return not subprocess.run(command, input=text, capture_output=True, text=True, check=False).returncode

    def send(self, *sent: bytes, times: int = 1) -> bool:
        """Send each frame so many times. Returns whether the host may send frames."""
        return self.run_program("send", self.interface, text="".join(f"{times} {frame.hex()}\n" for frame in sent))

    def broadcast_end(self) -> None:
        """Send a broadcast that marks the end of earlier frames."""
        frame = frames.datagram(frames.BROADCAST, self.mac, "255.255.255.255", self.ipv4, _END)
        Host(self.namespace, self.interface, self.mac, self.ipv4, self.ipv6).send(frame)


class Received(t.NamedTuple):
    """A frame: the text of its marker, the MAC address of its sender, and its VLAN (0: none)."""

    text: str
    source: str
    vlan: int


class Listener:
    """Receives frames on an interface until the end of `with`. `permitted`: the host has the capabilities for that."""

    def __init__(
        self, host: Host, interface: str = "", promiscuous: bool = False, capabilities: str | None = None
    ) -> None:
        more = ["promiscuous"] if promiscuous else []
        words = (sys.executable, "-I", str(PROGRAM), "receive", interface or host.interface, *more)
        self._process = subprocess.Popen(
            host.command(*words, capabilities=capabilities), stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout
        self._out = self._process.stdout
        self._received: list[Received] = []
        self.permitted = self._out.readline() == "ready\n"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._out:
            text, source, vlan = line.split()
            self._received.append(Received(text, source, int(vlan)))

    def received_before_broadcast(self, sender: Host) -> list[Received]:
        """Send a broadcast from `sender`, and return what was received before it."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.permitted and not any(frame.text == _END for frame in self._received):
            if time.monotonic() > end:
                raise TimeoutError(f"the broadcast of {sender} was not received")
            sender.broadcast_end()
            time.sleep(0.05)
        return [frame for frame in list(self._received) if frame.text != _END]

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_unused: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._out.close()


@dataclass
class Testbed:
    """Two pods and the network. `config` is the InterfaceConfig of both pods, and `hostile_nic` and `neighbour_nic` are
    their NICs. `router` is a machine on the network, and `other` a second machine, if there is one."""

    hostile_nic: Identity
    neighbour_nic: Identity
    config: dict[str, t.Any]
    router: Host
    other: Host | None = None
    #: Whether pods have user namespaces, and whether the card's port of the switch has ACLs.
    user_namespaces: bool = False
    acls: bool = False
    pods: dict[str, Host] = field(default_factory=dict)
    #: For claims that ended during an attempt: what the driver could not restore, and what differs on the node.
    not_restored: list[str] = field(default_factory=list)
    #: Why the driver withholds a NIC from the next pods.
    withheld: list[str] = field(default_factory=list)
    #: Whether pods have received frames from the network, which needs some time at first.
    _connected: bool = False
    _states: dict[str, tuple[Identity, t.Any, dict[str, t.Any]]] = field(default_factory=dict)

    @property
    def hostile(self) -> Host:
        return self.pods["hostile"]

    @property
    def neighbour(self) -> Host:
        return self.pods["neighbour"]

    def begin(self, capabilities: str) -> None:
        """Clear the neighbor tables of the machines on the network. Then create both pods and attach their NICs."""
        for host in (self.router, self.other):
            if host:
                sh(" ".join(host.command("ip", "neigh", "flush", "dev", host.interface)))
        self.pods = {"neighbour": self.attach("neighbour", self.neighbour_nic, 1)}
        self.pods["hostile"] = self.attach("hostile", self.hostile_nic, 2)
        self.hostile.capabilities = capabilities
        if not self._connected:
            for host in self.pods.values():
                with Listener(host, capabilities=ADMIN) as listener:
                    listener.received_before_broadcast(self.router)
            self._connected = True
        if self.acls:
            set_port_acls(self.pods.values())

    def attach(self, name: str, nic: Identity, number: int) -> Host:
        """Create a pod and attach its NIC as the driver does, with the address of this number in each range."""
        process = _new_user_namespace(name) if self.user_namespaces else 0
        sh(f"ip -n {name} link set lo up" if process else f"ip netns add {name}; ip -n {name} link set lo up")
        ranges = read_ranges(Reader(), _RANGES, "rail_addresses")
        addresses = [list(rail_range.addresses())[number] for rail_range in ranges]
        rail_addresses = [rails.make_rail_address(entry, str(address)) for entry, address in zip(ranges, addresses)]
        config = {"name": "net1", "dad": "none", **self.config, rails.FIELD: rail_addresses}
        state = interfaces.snapshot(nic)
        self._states[name] = (nic, state, config)
        network = interfaces.attach(nic, state, config, pin(name)).network
        ipv4, ipv6 = map(str, addresses)
        return Host(name, "net1", str(network["hardwareAddress"]), ipv4, ipv6, process=process)

    def end(self, name: str) -> list[str]:
        """End the claim of a pod, and then the pod. Returns what the driver could not restore, and what differs on the
        node."""
        nic, state, config = self._states.pop(name)
        outcome = take_back.take_back(nic, state, pin(name), config, siblings=self._siblings())
        self.withheld += [reason.text for reason in outcome.reasons]
        if self.pods[name].process:
            os.kill(self.pods[name].process, signal.SIGKILL)
            os.waitpid(self.pods[name].process, 0)
        sh(f"ip netns del {name}")
        now = interfaces.snapshot(nic)
        changed = [
            f"{key} is {now.get(key)}, was {state[key]}"
            for key in state
            if key not in _NOT_COMPARED and now.get(key) != state[key]
        ]
        return [*outcome.notes, *changed]

    def _siblings(self) -> Siblings:
        """The children of the card in the pods whose claims have not ended."""
        found: dict[tuple[int, int], list[int]] = {}
        for name, (_nic, state, _config) in self._states.items():
            device, inode = netns.identity(pin(name))
            found[device, inode] = [state[host_state.CHILD]["index"]] if host_state.CHILD in state else []
        return found

    def end_all(self) -> list[str]:
        """End all claims and pods. Returns what could not be restored, also of claims that ended during the attempt."""
        left = [*self.not_restored, *(line for name in list(self._states) for line in self.end(name))]
        self.not_restored.clear()
        return left


def pin(name: str) -> Path:
    """The file of a pod's network namespace."""
    return Path("/run/netns", name)


def _new_user_namespace(name: str) -> int:
    """Create a network namespace that belongs to a user namespace, as for a pod with `hostUsers: false`. Returns the
    process that keeps it."""
    process = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,  # it ends with this process
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    sh(f"mkdir -p /run/netns; touch {pin(name)}; mount --bind /proc/{process.pid}/ns/net {pin(name)}")
    return process.pid


def set_port_acls(pods: t.Iterable[Host]) -> None:
    """Set ACLs on the switch port of the card: only known pairs of MAC and IP addresses, no VLAN tags, no router
    advertisements, and a limited rate of multicast frames."""
    known = list(pods)

    def pairs(family: str) -> str:
        return ", ".join(f"{pod.mac} . {getattr(pod, family)}" for pod in known)

    local = ", ".join(f"{pod.mac} . {frames.link_local(pod.mac)}, {pod.mac} . ::" for pod in known)
    rules = [
        "type filter hook prerouting priority 0",
        "iifname != port0 accept",
        "ether type { 8021q, 8021ad } drop",
        f"ether saddr != {{ {', '.join(pod.mac for pod in known)} }} drop",
        f"ether saddr . ip saddr != {{ {pairs('ipv4')} }} drop",
        f"arp saddr ether . arp saddr ip != {{ {pairs('ipv4')} }} drop",
        f"ether saddr . ip6 saddr != {{ {pairs('ipv6')}, {local} }} drop",
        "icmpv6 type nd-router-advert drop",
        *(f"ether saddr {pod.mac} ether daddr & 01:00:00:00:00:00 != 0 {_MULTICAST_LIMIT} drop" for pod in known),
    ]
    body = "".join(f"{rule}\n" for rule in rules)
    table = f"table bridge acl\ndelete table bridge acl\ntable bridge acl {{\nchain card {{\n{body}}}\n}}\n"
    subprocess.run(["ip", "netns", "exec", "switch", "nft", "-f", "-"], input=table, text=True, check=True)


def macvlan(mode: str) -> Testbed:
    """Pods with macvlan children of a card. The card is a veth whose peer is a port of a switch (a bridge), with two
    machines at other ports. Call this in new namespaces."""
    sh("sysctl -qw net.ipv6.conf.default.accept_dad=0")
    sh("ip netns add switch; ip -n switch link add switch type bridge mcast_snooping 0")
    sh("ip -n switch link set switch up")
    sh("ip link add card address 02:00:00:00:0c:01 type veth peer name port0; ip link set card up")
    sh("ip link set port0 netns switch; ip -n switch link set port0 master switch up")
    machines = []
    for number, name in enumerate(("router", "other"), 1):
        host = Host(name, "eth0", f"02:00:00:00:0f:0{number}", f"10.100.255.{number}", f"fd00:100::ffff:{number}")
        sh(
            f"ip netns add {name}; ip -n switch link add port{number} type veth "
            f"peer name eth0 address {host.mac} netns {name}"
        )
        sh(f"ip -n switch link set port{number} master switch up; ip -n {name} link set eth0 up")
        sh(f"ip -n {name} addr add {host.ipv4}/16 dev eth0; ip -n {name} addr add {host.ipv6}/64 dev eth0 nodad")
        machines.append(host)
    card = Identity(None, None, "card")
    return Testbed(card, card, {"child": {"type": "macvlan", "mode": mode}}, machines[0], machines[1])


def virtual_functions(card: str) -> Testbed:
    """Pods with VFs of a card, whose PF is the machine on the network."""
    device = Path("/sys/class/net", card, "device")
    found = []
    for number in (0, 1):
        address = (device / f"virtfn{number}").resolve().name
        (name,) = os.listdir(f"/sys/bus/pci/devices/{address}/net")
        found.append(Identity(address, None, name))
    mac = Path("/sys/class/net", card, "address").read_text(encoding="ascii").strip()
    router = Host(None, card, mac, "10.100.255.1", "fd00:100::ffff:1")
    sh(f"ip addr replace {router.ipv4}/16 dev {card}; ip addr replace {router.ipv6}/64 dev {card} nodad")
    return Testbed(found[0], found[1], {}, router)
