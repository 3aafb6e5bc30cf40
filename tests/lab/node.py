# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Virtual nodes with two sockets, PCIe switches, SR-IOV NICs and GPUs, in plain QEMU processes. See docs/lab.md.

    with Lab() as lab:
        node, peer = lab.start(2)
        node.ssh("ip -json link")

A node boots once. Its state is saved as a snapshot, and later nodes are restored from it. The host needs neither root
nor a network: nodes are reached on 127.0.0.1, and their fabrics are sockets in the lab's folder.

This file has more than 500 lines because a node is one class, from its disk to its shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ansible_collections.lanewise.dra.tests.cluster import supervisor
from ansible_collections.lanewise.dra.tests.cluster.controlplane import free_ports
from ansible_collections.lanewise.dra.tools import lab as artifacts
from environment import say  # tools/lab.py has put its folder on the path

#: A limit in seconds for operations that take less than one second unless the machine is overloaded.
TIMEOUT = 600
#: Seconds without console output after which a boot is considered hung. With emulated clocks, one boot in dozens hangs.
SILENCE = 300
BOOTS = 3
SOCKETS = (0, 1)
#: An argument of lab_pci_ids: the ids of the emulated GPU, and the ids of an NVIDIA GPU that the kernel then reports.
GPU_IDS = "1af4:1050=10de:2330:030200"
#: The same for a NIC and its VFs. They stay bound to igb and igbvf.
NIC_IDS = "8086:10c9=15b3:1021,8086:10ca=15b3:101e"


class Failed(Exception):
    """A node did not start, or a command on it failed. The message has the end of its console or the output."""


@dataclass(frozen=True)
class Device:
    """A PCI function of a node, and its place in the PCI topology."""

    kind: t.Literal["nic", "gpu", "nvme"]
    address: str
    numa: int
    root: str  # as in /sys/devices
    bridges: tuple[str, ...]  # root port, upstream port and downstream port of the switch


@dataclass(frozen=True)
class Shape:
    """The configuration of a node's virtual machine. Each shape has its own snapshot."""

    memory: int = 1024  # MiB, half of it on each socket
    iommu: bool = False  # an IOMMU that remaps interrupts, for vfio
    kernel: str = ""  # more arguments for the kernel's command line

    @property
    def devices(self) -> list[Device]:
        """All PCI functions. NVMe disks are plugged in later, as QEMU cannot save them in a snapshot."""
        found = []
        for number in SOCKETS:
            bus = 0x20 * (number + 1)
            for port, kind in enumerate(("nic", "gpu", "nvme")):
                bridges = (f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:00.0", f"0000:{bus + 2:02x}:{port:02x}.0")
                address = f"0000:{bus + 3 + port:02x}:00.0"
                found.append(Device(t.cast(t.Any, kind), address, number, f"pci0000:{bus:02x}", bridges))
        return found

    def arguments(self, index: int) -> list[str]:
        """QEMU's arguments, except for those that differ between runs."""
        half = self.memory // 2
        args = ["-machine", f"q35,usb=off{',kernel-irqchip=split' if self.iommu else ''}", "-nodefaults"]
        # one thread for all CPUs: with one thread each, one boot in a dozen hangs
        args += ["-accel", "tcg,thread=single,tb-size=256", "-cpu", "Nehalem", "-smp", "4,sockets=2,cores=2"]
        args += ["-m", str(self.memory), "-display", "none", "-rtc", "base=utc", "-no-user-config"]
        for number in SOCKETS:
            args += ["-object", f"memory-backend-ram,id=ram{number},size={half}M"]
            args += ["-numa", f"node,nodeid={number},cpus={2 * number}-{2 * number + 1},memdev=ram{number}"]
        args += ["-numa", "dist,src=0,dst=1,val=21"]
        if self.iommu:
            args += ["-device", "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"]
        args += ["-device", "virtio-blk-pci,drive=disk,addr=2,num-queues=1"]
        args += ["-device", "virtio-net-pci,netdev=mgmt,addr=3,romfile="]
        args += ["-device", "virtio-rng-pci,addr=4"]
        for number in SOCKETS:
            bus = 0x20 * (number + 1)
            args += [
                "-device",
                f"pxb-pcie,id=host{number},bus=pcie.0,addr={0x10 + number},bus_nr={bus},numa_node={number}",
            ]
            args += ["-device", f"pcie-root-port,id=root{number},bus=host{number},addr=0,chassis={10 + number},slot=0"]
            args += ["-device", f"x3130-upstream,id=switch{number},bus=root{number}"]
            for port in range(3):
                chassis = f"chassis={20 + number},slot={port}"
                args += [
                    "-device",
                    f"xio3130-downstream,id=port{number}{port},bus=switch{number},addr={port},{chassis}",
                ]
            mac = f"52:54:00:1a:{index:02x}:{number:02x}"
            args += ["-device", f"igb,id=nic{number},bus=port{number}0,netdev=fabric{number},mac={mac},romfile="]
            args += ["-device", f"virtio-gpu-pci,id=gpu{number},bus=port{number}1,max_outputs=1"]
        return args

    def command_line(self, index: int) -> str:
        """The kernel's command line, if QEMU starts the kernel."""
        text = "root=/dev/vda rw console=ttyS0 pci=realloc tsc=reliable no_timer_check mitigations=off audit=0"
        text += " lsm=capability systemd.ssh_auto=no"
        text += f" systemd.hostname={name_of(index)} systemd.machine_id={index + 1:032x}"
        text += " intel_iommu=on iommu=pt" if self.iommu else ""
        return f"{text} {self.kernel}".strip()


def name_of(index: int) -> str:
    return f"lab-{index}"


@dataclass
class Supervisor:
    """The supervisor of the lab's processes. They end with it, and it ends with its owner."""

    folder: Path
    process: subprocess.Popen[str]
    guard: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, folder: Path) -> Supervisor:
        tree = artifacts.tools()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, QEMU_MODULE_DIR=str(tree / artifacts.LIBRARIES / "qemu")),
        )
        return cls(folder, process)

    def request(self, **command: t.Any) -> dict[str, t.Any]:
        assert self.process.stdin and self.process.stdout
        with self.guard:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            answer: dict[str, t.Any] = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout
        if not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            if self.folder.exists():  # the supervisor was killed; its children died with it
                shutil.rmtree(self.folder)


class Ended(Failed):
    """QEMU itself has ended. The message has the end of its output."""


class Node:
    """A virtual machine, created by Lab.start."""

    def __init__(self, process_supervisor: Supervisor, index: int, shape: Shape, count: int) -> None:
        self.index = index
        self.name = name_of(index)
        self.shape = shape
        self.folder = process_supervisor.folder / self.name
        self.folder.mkdir()
        self.port = 0
        self.seconds = 0.0  #: duration of the last start
        self._supervisor = process_supervisor
        self._count = count
        self._running = False
        self._snapshot: Path | None = None

    def __repr__(self) -> str:
        return f"<{self.name} of the lab at port {self.port}>"

    @property
    def devices(self) -> list[Device]:
        """The PCI functions that it has from its start. `plug_nvme` returns the NVMe disks."""
        return [device for device in self.shape.devices if device.kind != "nvme"]

    @property
    def console_log(self) -> str:
        """The output of the kernel and systemd since the last start."""
        path = self.folder / "console"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # starting

    def _fabric(self, count: int) -> list[str]:
        """QEMU's arguments for the fabrics. Each socket's NIC is on a separate fabric: a hub in each node, connected to
        the hub of the first node."""
        args = []
        for number in SOCKETS:
            args += ["-netdev", f"hubport,id=fabric{number},hubid={number}"]
            for peer in range(1, count) if self.index == 0 else [self.index] if count > 1 else []:
                link = f"link{number}-{peer}"
                path = f"addr.type=unix,addr.path={self._supervisor.folder}/{link}"
                side = "server=on" if self.index == 0 else "server=off,reconnect-ms=1000"
                args += ["-netdev", f"stream,id={link},{side},{path}"]
                args += ["-netdev", f"hubport,id=join{number}-{peer},hubid={number},netdev={link}"]
        return args

    def direct_boot(self) -> list[str]:
        """QEMU's arguments that start the kernel without a boot loader."""
        kernel = artifacts.kernel()
        args = ["-kernel", str(kernel / "vmlinux"), "-initrd", str(kernel / "initrd")]
        return [*args, "-append", self.shape.command_line(self.index)]

    def _run(
        self, disk: Path, state: Path | None = None, fabric: bool = True, loader: t.Sequence[str] | None = None
    ) -> None:
        """Start QEMU with a writable disk: boot, or restore a saved state."""
        tree = artifacts.tools()
        self.folder.joinpath("console").write_bytes(b"")
        self.port = free_ports(1)[0]
        args = artifacts.command(tree, "usr/bin/qemu-system-x86_64")
        args += ["-name", self.name, "-L", str(tree / "usr/share/qemu"), "-L", str(tree / "usr/share/seabios")]
        args += ["-drive", f"file={disk},if=none,id=disk,format=qcow2,cache=unsafe,discard=unmap"]
        args += ["-netdev", f"user,id=mgmt,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"]
        args += ["-serial", f"file:{self.folder}/console"]
        args += ["-qmp", f"unix:{self.folder}/qmp,server=on,wait=off"]
        args += self._fabric(self._count if fabric else 1)
        args += self.shape.arguments(self.index)
        args += self.direct_boot() if loader is None else loader
        args += ["-incoming", f"file:{state}"] if state else []
        (self.folder / "command").write_text(shlex.join(args) + "\n")
        self._supervisor.request(start=self.name, command=args, log=str(self.folder / "qemu.log"))
        self._running = True

    def _end(self) -> None:
        if self._running:
            self._running = False
            subprocess.run([*self._ssh, "-O", "exit", "lab"], capture_output=True, check=False)
            self._supervisor.request(stop=self.name)

    def boot(self, disk: Path | None = None, fabric: bool = True) -> None:
        """Boot from the image, and wait until the node is up. A hung boot is repeated."""
        start = time.monotonic()
        for attempt in range(1, BOOTS + 1):
            self._end()
            place = disk or self.folder / "disk.qcow2"
            _overlay(artifacts.image() / "disk", place, "raw")
            self._run(place, fabric=fabric)
            try:
                self.wait()
            except Failed as failed:
                if attempt == BOOTS or isinstance(failed, Ended):
                    raise
                say(f"{self.name}: boot {attempt} of {BOOTS} failed ({str(failed).splitlines()[0]}), again")
            else:
                break
        self._snapshot = None
        self.seconds = time.monotonic() - start

    def resume(self) -> None:
        """Restore the snapshot of this shape. If there is none yet, boot and save it first."""
        tree, kernel, image = artifacts.tools(), artifacts.kernel(), artifacts.image()
        recipe = [tree.name, kernel.name, image.name, *self.shape.arguments(self.index)]
        recipe += ["-append", self.shape.command_line(self.index)]
        self._snapshot = artifacts.cached(f"snapshot-{self.index}", recipe, self._save)
        start = time.monotonic()
        for attempt in range(1, BOOTS + 1):
            self._end()
            try:
                self._load(self._snapshot)
            except Ended as ended:  # QEMU 10.0 sometimes crashes when it restores a state
                if attempt == BOOTS:
                    raise
                say(f"{self.name}: start {attempt} of {BOOTS} failed ({str(ended).splitlines()[0]}), again")
            else:
                break
        self.wait()
        self.ssh(f"date --utc --set=@{time.time():.3f}")
        self.seconds = time.monotonic() - start

    def _load(self, snapshot: Path) -> None:
        disk = self.folder / "disk.qcow2"
        _overlay(snapshot / "disk.qcow2", disk)
        self._run(disk, snapshot / "state")
        # the machine is restored before QEMU has finished the migration
        while (status := self.qmp("query-migrate").get("status")) != "completed":
            if status == "failed":
                raise Failed(f"{self.name}: its saved state could not be loaded: {self._tail()}")
            self.check()
            time.sleep(0.05)
        if self.qmp("query-status")["status"] != "running":  # it was stopped when its state was saved
            self.qmp("cont")

    def _save(self, folder: Path) -> None:
        self.boot(folder / "disk.qcow2", fabric=False)
        self.ssh("systemctl is-system-running --wait || true; udevadm settle; sync; echo 3 > /proc/sys/vm/drop_caches")
        self.qmp("stop")
        self.qmp("migrate", uri=f"file:{folder}/state")
        deadline = time.monotonic() + TIMEOUT
        while (status := self.qmp("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > deadline:
                raise Failed(f"{self.name}: its state could not be saved: {self.qmp('query-migrate')}")
            time.sleep(0.2)
        self.qmp("quit")
        deadline = time.monotonic() + TIMEOUT  # the disk is complete when QEMU has ended
        while self._supervisor.request(poll=self.name)["status"] is None and time.monotonic() < deadline:
            time.sleep(0.1)
        self._end()

    def restore(self) -> None:
        """Return to the state after the first boot. All later changes are lost."""
        if self._snapshot is None:
            self.boot()
        else:
            self.resume()

    def reboot(self) -> None:
        """Reboot cleanly, and wait until the node is up again."""
        start = time.monotonic()
        before = self.ssh("cat /proc/sys/kernel/random/boot_id")
        self.ssh("systemd-run --quiet --on-active=1 --timer-property=AccuracySec=10ms systemctl reboot")
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            subprocess.run([*self._ssh, "-O", "exit", "lab"], capture_output=True, check=False)
            with contextlib.suppress(Failed):
                if self.ssh("cat /proc/sys/kernel/random/boot_id", timeout=30) != before:
                    break
            self.check()
            time.sleep(0.5)
        self.wait()
        self.seconds = time.monotonic() - start

    def power_on(self, loader: t.Sequence[str] | None = None) -> None:
        """Start from the current disk, after the node has powered off. A hung boot is repeated.

        loader: more arguments for QEMU. If given, the firmware starts the boot loader that it finds, also at later
        reboots. Otherwise QEMU starts the kernel.
        """
        self._end()
        self._run(self.folder / "disk.qcow2", loader=loader)
        for attempt in range(1, BOOTS + 1):
            try:
                self.wait()
            except Failed as failed:
                if attempt == BOOTS or isinstance(failed, Ended):
                    raise
                say(f"{self.name}: boot {attempt} of {BOOTS} failed ({str(failed).splitlines()[0]}), again")
                self.qmp("system_reset")  # unlike killing QEMU, this does not lose disk writes
            else:
                break

    def wait(self) -> None:
        """Wait until it responds, services are started and interfaces have their names. Raises Failed."""
        deadline = time.monotonic() + TIMEOUT
        seen, since = 0, time.monotonic()
        while True:
            self.check()
            if self._banner():
                try:
                    self.ssh("systemctl is-system-running --wait; udevadm settle", timeout=TIMEOUT, check=False)
                    return
                except Failed:
                    pass
            size = len(self.console_log)
            if size > seen:
                seen, since = size, time.monotonic()
            if time.monotonic() > deadline or time.monotonic() > since + SILENCE:
                raise Failed(f"{self.name} does not come up:\n{self._tail()}")
            time.sleep(0.2)

    def _banner(self) -> bool:
        """Whether its sshd responds. QEMU accepts connections before sshd runs."""
        with socket.socket() as probe:
            probe.settimeout(SILENCE)  # another connection would only start another process on the node
            try:
                probe.connect(("127.0.0.1", self.port))
                return probe.recv(4) == b"SSH-"
            except OSError:
                return False

    def check(self) -> None:
        """Raises Ended if its QEMU has ended."""
        status = self._supervisor.request(poll=self.name)["status"]
        if status is not None:
            log = (self.folder / "qemu.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise Ended("\n".join([f"QEMU of {self.name} has ended with status {status}", *log[-20:]]))

    def _tail(self) -> str:
        return "\n".join(self.console_log.splitlines()[-25:])

    # using

    @property
    def ssh_options(self) -> list[str]:
        """Options of ssh that trust only this node's key and ignore the user's configuration."""
        image = artifacts.image()
        values = {
            "HostKeyAlias": "lab",
            "UserKnownHostsFile": image / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "ControlMaster": "auto",
            "ControlPath": self.folder / "ssh",
            "ControlPersist": "yes",  # it ends with its node
            "ConnectTimeout": SILENCE,
            "ServerAliveInterval": 30,
            "ServerAliveCountMax": 10,
            "LogLevel": "ERROR",
        }
        return ["-F", "/dev/null", *(f"-o{key}={value}" for key, value in values.items())]

    @property
    def _ssh(self) -> list[str]:
        key = str(artifacts.image() / "id")
        return ["ssh", *self.ssh_options, "-oBatchMode=yes", "-p", str(self.port), "-i", key, "-l", "root"]

    @property
    def ssh_command(self) -> str:
        """The ssh command for interactive use."""
        return f"{shlex.join([*self._ssh])} 127.0.0.1"

    def ssh(self, command: str, check: bool = True, timeout: float = TIMEOUT, stdin: str | None = None) -> str:
        """Run a shell command as root. Returns its standard output, without trailing newlines.

        Raises Failed with its output if its status is not 0 and `check` is true, if the node cannot be reached, and
        after `timeout` seconds.
        """
        try:
            done = subprocess.run(
                [*self._ssh, "127.0.0.1", "--", command],
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name}: {command}: still running after {timeout:.0f} s") from None
        if done.returncode == 255 or (check and done.returncode):
            raise Failed(f"{self.name}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
        return done.stdout.rstrip("\n")

    def status(self, command: str) -> int:
        """The exit status of a command."""
        return int(self.ssh(f"({command}) >/dev/null 2>&1; echo $?"))

    def copy(self, source: Path, destination: str) -> None:
        """Copy a file, or the contents of a folder, to a folder on the node."""
        where = (source, ".") if source.is_dir() else (source.parent, source.name)
        pack = ["tar", "-C", str(where[0]), "--exclude=__pycache__", "-chf", "-", where[1]]
        target = shlex.quote(destination)
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
            done = subprocess.run(
                [*self._ssh, "127.0.0.1", "--", f"mkdir -p {target} && tar -C {target} -xf - --no-same-owner"],
                stdin=tar.stdout,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        if done.returncode or tar.returncode:
            raise Failed(f"{self.name}: cannot copy {source}: {done.stderr}")

    def reach(self, port: int) -> None:
        """Forward a port of 127.0.0.1 on the node to the same port of this host, until the next boot."""
        where = f"127.0.0.1:{port}"
        command = [*self._ssh, "-O", "forward", "-R", f"{where}:{where}", "lab"]
        self.ssh("true")  # makes sure that there is a connection
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{self.name} cannot reach port {port}: {done.stderr}")

    def interface(self, device: Device) -> str:
        """The name of a NIC's interface."""
        return self.ssh(f"ls /sys/bus/pci/devices/{device.address}/net")

    def plug_nvme(self) -> list[Device]:
        """Plug in an NVMe disk below each switch, after the start, because QEMU cannot save them in a snapshot."""
        plugged = [entry for entry in self.shape.devices if entry.kind == "nvme"]
        for device in plugged:
            disk = self.folder / f"nvme{device.numa}.qcow2"
            image = artifacts.command(artifacts.tools(), "usr/bin/qemu-img")
            artifacts.run([*image, "create", "-q", "-f", "qcow2", disk, "64M"])
            self.qmp("blockdev-add", **{"driver": "qcow2", "node-name": f"nvme{device.numa}"},
                     file={"driver": "file", "filename": str(disk)})  # fmt: skip
            self.qmp("device_add", driver="nvme", id=f"nvme{device.numa}", drive=f"nvme{device.numa}",
                     serial=f"lab-{self.index}-{device.numa}", bus=f"port{device.numa}2")  # fmt: skip
            self.ssh(f"until [ -e /sys/bus/pci/devices/{device.address}/nvme ]; do sleep 0.2; done", timeout=TIMEOUT)
        return plugged

    def qmp(self, command: str, **arguments: t.Any) -> t.Any:
        """Run a command of the QEMU Machine Protocol. Returns its result."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            while connection.connect_ex(str(self.folder / "qmp")):
                self.check()
                time.sleep(0.05)
            try:
                with connection.makefile("rw", encoding="utf-8") as lines:
                    lines.readline()
                    for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                        lines.write(json.dumps(request) + "\n")
                        lines.flush()
                        answer = {"event": ""}
                        while "event" in answer:
                            line = lines.readline()
                            if not line:
                                raise ConnectionError("no answer")
                            answer = json.loads(line)
                        if "error" in answer:
                            raise Failed(f"{self.name}: {command}: {answer['error']}")
            except ConnectionError as error:
                raise Ended(f"{self.name}: {command}: QEMU has ended: {error}") from None
        return answer["return"]

    def variables(self) -> dict[str, t.Any]:
        """Its variables for an Ansible inventory."""
        skipped = ("-F", "/dev/null", "-oControlMaster=auto", "-oControlPersist=yes")
        common = [option for option in self.ssh_options if option not in skipped]
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(artifacts.image() / "id"),
            "ansible_ssh_common_args": shlex.join(["-F", "/dev/null", *common]),
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_pipelining": True,
            "ansible_timeout": 120,
        }


def _overlay(base: Path, place: Path, kind: str = "qcow2") -> None:
    place.unlink(missing_ok=True)
    image = artifacts.command(artifacts.tools(), "usr/bin/qemu-img")
    artifacts.run([*image, "create", "-q", "-f", "qcow2", "-F", kind, "-b", base, place])


class Lab:
    """A group of nodes that end together: with `close`, as a context manager, or when this process dies.

    folder: for disks, consoles and sockets. It must not exist, and is removed at the end. By default a temporary one.

    Missing parts are built first. Raises environment.Missing if packages cannot be downloaded, tools.lab.StepFailed and
    Failed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        artifacts.ensure()
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="lanewise-lab-"))
            if len(str(folder)) > 60:  # names of sockets have to fit into 108 bytes
                folder.rmdir()
                folder = Path(tempfile.mkdtemp(prefix="lanewise-lab-", dir="/tmp"))
        else:
            folder.mkdir(mode=0o700, parents=True)
        self.folder = folder.resolve()
        self.nodes: list[Node] = []
        self._supervisor = Supervisor.start(self.folder)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, count: int = 1, snapshot: bool = True, shape: Shape | None = None) -> list[Node]:
        """Start nodes and wait for all of them. Can be called once. Without `snapshot`, they boot and save nothing."""
        assert not self.nodes, "a lab starts once"
        self.nodes = [Node(self._supervisor, index, shape or Shape(), count) for index in range(count)]
        with ThreadPoolExecutor(count) as pool:
            for done in [pool.submit(node.resume if snapshot else node.boot) for node in self.nodes]:
                done.result()
        return self.nodes

    def check(self) -> None:
        """Raises Ended if the QEMU of a node has ended."""
        for node in self.nodes:
            node.check()

    def inventory(self) -> dict[str, t.Any]:
        """An Ansible inventory with all nodes."""
        return {"all": {"hosts": {node.name: node.variables() for node in self.nodes}}}

    def write_inventory(self, path: Path | None = None) -> Path:
        path = path or self.folder / "inventory.json"
        path.write_text(json.dumps(self.inventory(), indent=2) + "\n", encoding="utf-8")
        return path

    def close(self) -> None:
        """Stop all nodes and remove their folder."""
        self._supervisor.end()
