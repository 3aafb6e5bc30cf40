# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write a machine as a directory with sys/ and proc/, in the shape that the Linux kernel shows it.

The attributes are those of Documentation/ABI (sysfs-bus-pci, sysfs-class-net, sysfs-class-infiniband,
sysfs-devices-system-cpu, sysfs-devices-node, sysfs-kernel-iommu_groups). Where the kernel answers a read with an
error (EINVAL for the speed of an interface that is down, EOPNOTSUPP for a port name that the driver does not have),
the file is left out, because a plain file cannot fail that way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import typing as t
from pathlib import Path

from . import configspace
from .description import HERE, DescriptionError, Function, Plan, digest, link, load, plan

STAMP = ".machine.json"

_RATE = {
    800000: "800 Gb/sec (4X XDR)",
    400000: "400 Gb/sec (4X NDR)",
    200000: "200 Gb/sec (4X HDR)",
    100000: "100 Gb/sec (4X EDR)",
    50000: "50 Gb/sec (2X EDR)",
    40000: "40 Gb/sec (4X QDR)",
    25000: "25 Gb/sec (1X EDR)",
    10000: "10 Gb/sec (1X QDR)",
    1000: "2.5 Gb/sec (1X SDR)",
}
_PORT_STATE = {
    "up": ("4: ACTIVE", "5: LinkUp"),
    "init": ("2: INIT", "5: LinkUp"),
    "nolink": ("1: DOWN", "2: Polling"),
    "down": ("1: DOWN", "3: Disabled"),
}


def build(description: dict | str | Path, out: Path) -> Path:
    """Build one machine below C(out) and return C(out).

    C(description) is a dictionary, a file or the name of a machine of this package. The tree is written beside
    C(out) and moved there when it is whole; nothing is written when C(out) already holds this very machine.
    Raises description.DescriptionError, and OSError when C(out) exists and is not a machine.
    """
    machine, out = load(description), Path(out)
    stamp = {"name": machine.get("name"), "hash": _hash(machine)}
    if _stamp(out) == stamp:
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(out.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes may want the same machine
        return _build(machine, out, stamp)
    finally:
        os.close(lock)


def _build(machine: dict[str, t.Any], out: Path, stamp: dict[str, t.Any]) -> Path:
    found = _stamp(out)
    if found == stamp:
        return out
    if found is None and out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} exists and is not a machine")
    files, links = compose(machine)
    files[STAMP] = json.dumps(stamp).encode()
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write(work, out, files, links)
        work.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        os.rename(work, out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return out


def hand_over(root: Path, address: str) -> None:
    """Take a NIC's interfaces and RDMA devices out of a tree as the kernel does where a container gets them.

    The folders of their classes below the function stay, and are empty; lab tests see that on a real kernel.
    """
    function = (root / "sys/bus/pci/devices" / address).resolve()
    for name in ("net", "infiniband"):
        for device in (function / name).iterdir() if (function / name).is_dir() else ():
            shutil.rmtree(device)
            (root / "sys/class" / name / device.name).unlink()


def compose(machine: dict[str, t.Any]) -> tuple[dict[str, bytes], dict[str, str]]:
    """All files (path -> content) and all symbolic links (path -> target) of a machine, relative to its root."""
    tree = _Tree(plan(machine))
    tree.compose()
    return tree.files, tree.links


def synthetic(functions: int = 100, pairs: int = 8) -> dict[str, t.Any]:
    """A description with exactly C(functions) PCI functions for benchmarks: a two-socket server.

    Up to C(pairs) GPUs and NICs sit below switches, a GPU and a NIC each on ports of their own. All else is functions
    of the CPUs, as most functions of a real server are. Raises DescriptionError below 1 function.
    """
    if functions < 1:
        raise DescriptionError("a synthetic machine needs at least one function")
    roots: dict[str, t.Any] = {}
    left, index = functions, 0
    while left:
        domain = index // 4
        at, root = f"{domain:04x}:{index % 4 * 0x40:02x}", {"numa": index % 2}
        index += 1
        if left >= 6 and pairs:
            here = min(2, pairs, (left - 2) // 4)
            switch = {}
            for slot in range(here):
                switch[f"{2 * slot:02x}.0 pex-dsp"] = {"00.0 h100-sxm": {}}
                switch[f"{2 * slot + 1:02x}.0 pex-dsp"] = {"00.0 cx7-ib": {}}
            root["01.0 spr-root-port"] = {"00.0 pex-usp": switch}
            left -= 2 + 4 * here
            pairs -= here
        plain = min(30, left)
        if plain:
            root[f"02-{plain + 1:02x}.0 intel-host"] = {}
            left -= plain
        roots[at] = root
    return {
        "name": f"synthetic-{functions}",
        "summary": f"{functions} PCI functions for benchmarks",
        "system": {"vendor": "Synthetic", "product": f"{functions} functions"},
        "cpu": {"model": "Intel(R) Xeon(R) Platinum 8480C", "sockets": 2, "cores": 8, "threads": 2, "memory_gib": 64},
        "roots": roots,
    }


def cpu_list(cpus: t.Iterable[int]) -> str:
    """A kernel list string ("0-3,8") of CPU or node numbers."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def cpu_mask(cpus: t.Iterable[int], bits: int) -> str:
    """A kernel mask string of C(bits) bits: comma separated words of 32 bits, the first one possibly shorter."""
    digits = f"{sum(1 << c for c in cpus):0{-(-bits // 4)}x}"
    words = []
    while digits:
        digits, words = digits[:-8], [digits[-8:], *words]
    return ",".join(words)


def _stamp(out: Path) -> dict[str, t.Any] | None:
    try:
        return json.loads((out / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _hash(machine: dict[str, t.Any]) -> str:
    state = hashlib.blake2b(json.dumps(machine, sort_keys=True, default=str).encode(), digest_size=16)
    for source in ("builder.py", "configspace.py", "description.py", "parts.yml"):
        state.update((HERE / source).read_bytes())
    return state.hexdigest()


def _write(top: Path, before: Path, files: dict[str, bytes], links: dict[str, str]) -> None:
    """Write a tree below C(top). What the tree C(before) has alike is moved over as a hard link: file systems are slow
    at deleting some thousand files and creating them again (ext4 avoids inodes that were freed a moment ago)."""
    made = {""}
    base, old = str(top), str(before)

    def folder(path: str) -> None:
        if path not in made:
            folder(path.rpartition("/")[0])
            os.mkdir(f"{base}/{path}")
            made.add(path)

    for path, content in files.items():
        folder(path.rpartition("/")[0])
        if path.endswith("/"):
            continue
        try:
            handle = os.open(f"{old}/{path}", os.O_RDONLY | os.O_NOFOLLOW)
            same = os.read(handle, len(content) + 1) == content
            os.close(handle)
        except OSError:
            same = False
        if same:
            os.link(f"{old}/{path}", f"{base}/{path}")
            continue
        handle = os.open(f"{base}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(handle, content)
        os.close(handle)
    for path, target in links.items():
        folder(path.rpartition("/")[0])
        try:
            same = os.readlink(f"{old}/{path}") == target
        except OSError:
            same = False
        if same:
            os.link(f"{old}/{path}", f"{base}/{path}", follow_symlinks=False)
        else:
            os.symlink(target, f"{base}/{path}")


class _Tree:
    """Collects files and links. Paths below sys/ are given without that prefix to put(), sub() and link()."""

    def __init__(self, planned: Plan) -> None:
        self.plan = planned
        self.machine = planned.machine
        self.system: dict[str, t.Any] = self.machine.get("system") or {}
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.nodes: dict[int, list[int]] = {}
        self.cpus = 1
        self.ifindex = 1
        self.net_paths: dict[str, str] = {}
        self.macs: dict[str, str] = {}
        self.counters: dict[str, int] = {}

    # Building blocks

    def put(self, path: str, *values: t.Any) -> None:
        self.files[f"sys/{path}"] = "".join(f"{v}\n" for v in values).encode()

    def proc(self, path: str, text: str) -> None:
        self.files[f"proc/{path}"] = text.encode()

    def attributes(self, path: str, values: dict[str, t.Any]) -> None:
        for name, value in values.items():
            if value is not None:
                self.put(f"{path}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """A link at sys/C(path) to sys/C(target), relative as kernfs_get_target_path writes it: the common base
        is always above the target, never the target itself."""
        here, there = path.split("/")[:-1], target.split("/")
        common = 0
        while common < min(len(here), len(there) - 1) and here[common] == there[common]:
            common += 1
        self.links[f"sys/{path}"] = "/".join([".."] * (len(here) - common) + there[common:])

    def class_device(self, subsystem: str, path: str, parent: str | None) -> None:
        name = path.rsplit("/", 1)[1]
        self.link(f"class/{subsystem}/{name}", path)
        self.link(f"{path}/subsystem", f"class/{subsystem}")
        if parent:
            self.link(f"{path}/device", parent)

    def count(self, what: str) -> int:
        self.counters[what] = self.counters.get(what, -1) + 1
        return self.counters[what]

    def made_up(self, *words: t.Any) -> int:
        return digest(self.machine.get("name"), *words)

    # The machine

    def compose(self) -> None:
        self.processors()
        self.identity()
        self.loopback()
        for path, numa in self.plan.roots.items():
            self.pci_bus(path, path.rsplit("/pci", 1)[1], numa, path)
        for folder in ("devices", "drivers", "slots"):
            self.files[f"sys/bus/pci/{folder}/"] = b""
        for name in ("net", "infiniband", "infiniband_verbs", "infiniband_mad", "nvme", "iommu"):
            self.files[f"sys/class/{name}/"] = b""
        for function in self.plan.functions:
            self.function(function)
        for function in sorted(self.plan.functions, key=lambda f: f.pf is not None):  # PFs are probed first
            self.functions_of_driver(function)
        for function in self.plan.functions:
            self.representors(function)
        self.iommu()
        for name, spec in (self.machine.get("virtual_nets") or {}).items():
            self.virtual_net(name, spec)
        self.routes()
        self.nvidia()
        for path, text in (self.machine.get("files") or {}).items():
            self.files[path] = f"{text}\n".encode()

    def processors(self) -> None:
        cpu = self.machine["cpu"]
        sockets, cores, threads = cpu.get("sockets", 1), cpu["cores"], cpu.get("threads", 1)
        per_socket = cpu.get("numa_per_socket", 1)
        self.cpus = total = sockets * cores * threads
        base = "devices/system/cpu"
        everything = cpu_list(range(total))
        self.attributes(
            base,
            {
                "online": everything,
                "possible": everything,
                "present": everything,
                "offline": "",
                "kernel_max": 8191,
                "smt/active": int(threads > 1),
            },
        )
        packages = {
            s: [s * cores + c + n * sockets * cores for n in range(threads) for c in range(cores)]
            for s in range(sockets)
        }
        texts: dict[tuple[int, ...], tuple[str, str]] = {}

        def text(cpus: list[int]) -> tuple[str, str]:
            key = tuple(cpus)
            if key not in texts:
                texts[key] = cpu_mask(cpus, total), cpu_list(cpus)
            return texts[key]

        for number in range(total):
            socket, core = divmod(number % (sockets * cores), cores)
            node = socket * per_socket + core * per_socket // cores
            self.nodes.setdefault(node, []).append(number)
            siblings = text([socket * cores + core + n * sockets * cores for n in range(threads)])
            package = text(packages[socket])
            place = f"{base}/cpu{number}"
            self.attributes(
                f"{place}/topology",
                {
                    "physical_package_id": socket,
                    "die_id": 0,
                    "core_id": core,
                    "thread_siblings": siblings[0],
                    "thread_siblings_list": siblings[1],
                    "core_cpus": siblings[0],
                    "core_cpus_list": siblings[1],
                    "core_siblings": package[0],
                    "core_siblings_list": package[1],
                    "package_cpus": package[0],
                    "package_cpus_list": package[1],
                },
            )
            if number:
                self.put(f"{place}/online", 1)
            self.link(f"{place}/node{node}", f"devices/system/node/node{node}")
            self.link(f"devices/system/node/node{node}/cpu{number}", place)
            self.link(f"bus/cpu/devices/cpu{number}", place)
        self.numa(cpu, sockets, per_socket)
        self.cpuinfo(cpu, total, sockets, cores, threads)

    def numa(self, cpu: dict[str, t.Any], sockets: int, per_socket: int) -> None:
        base = "devices/system/node"
        socket_of = {n: n // per_socket for n in range(sockets * per_socket)}
        memory = {n: cpu.get("memory_gib", 64) for n in socket_of}
        for extra in cpu.get("memory_nodes", []):  # memory without CPUs, such as GPU memory on Grace
            for index, node in enumerate(range(extra["first"], extra["first"] + extra.get("count", 1))):
                socket_of[node] = extra["socket"]
                memory[node] = 0 if index else extra["gib"]
                self.nodes[node] = []
        far = {"socket": 12, "remote": 21, "memory": 80, "memory_remote": 120, **cpu.get("distances", {})}

        def distance(a: int, b: int) -> int:
            if a == b:
                return 10
            plain = self.nodes[a] and self.nodes[b]
            same = socket_of[a] == socket_of[b]
            return far["socket" if same else "remote"] if plain else far["memory" if same else "memory_remote"]

        ordered = sorted(self.nodes)
        with_cpu = cpu_list(n for n in ordered if self.nodes[n])
        with_memory = cpu_list(n for n in ordered if memory[n])
        self.attributes(
            base,
            {
                "online": cpu_list(ordered),
                "possible": cpu_list(ordered),
                "has_cpu": with_cpu,
                "has_memory": with_memory,
                "has_normal_memory": with_memory,
            },
        )
        for node in ordered:
            kib = memory[node] << 20
            self.attributes(
                f"{base}/node{node}",
                {
                    "cpulist": cpu_list(self.nodes[node]),
                    "cpumap": cpu_mask(self.nodes[node], self.cpus),
                    "distance": " ".join(str(distance(node, other)) for other in ordered),
                    "meminfo": f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib * 9 // 10} kB",
                },
            )
            self.link(f"bus/node/devices/node{node}", f"{base}/node{node}")
        kib = sum(memory.values()) << 20
        self.proc("meminfo", f"MemTotal:       {kib} kB\nMemFree:        {kib * 9 // 10} kB\n")

    def cpuinfo(self, cpu: dict[str, t.Any], total: int, sockets: int, cores: int, threads: int) -> None:
        blocks = []
        for number in range(total):
            socket, core = divmod(number % (sockets * cores), cores)
            if self.arch == "aarch64":
                blocks.append(
                    f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd aes sha2 crc32 atomics sve\n"
                    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
                    "CPU revision\t: 0\n"
                )
            else:
                vendor, family, model = cpu.get("vendor", "GenuineIntel"), cpu.get("family", 6), cpu.get("number", 143)
                flags = "fpu vme msr pae apic sse sse2 ht syscall nx lm constant_tsc avx avx2 x2apic"
                flags += " hypervisor" if self.system.get("hypervisor") else ""
                blocks.append(
                    f"processor\t: {number}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
                    f"model name\t: {cpu['model']}\nstepping\t: 8\nphysical id\t: {socket}\n"
                    f"siblings\t: {cores * threads}\ncore id\t\t: {core}\ncpu cores\t: {cores}\nflags\t\t: {flags}\n"
                )
        self.proc("cpuinfo", "\n".join(blocks) + "\n")

    @property
    def arch(self) -> str:
        return self.system.get("arch", "x86_64")

    def identity(self) -> None:
        system = self.system
        release = system.get("kernel", "6.8.0-60-generic")
        self.proc(
            "cmdline",
            f"BOOT_IMAGE=/boot/vmlinuz-{release} root=/dev/nvme0n1p2 ro"
            f"{''.join(' ' + w for w in system.get('cmdline', '').split())}\n",
        )
        self.proc("version", f"Linux version {release} (builder@example.com) (gcc) #1 SMP PREEMPT_DYNAMIC\n")
        self.proc("sys/kernel/osrelease", f"{release}\n")
        self.proc("sys/kernel/ostype", "Linux\n")
        self.proc("sys/kernel/arch", f"{self.arch}\n")
        self.proc("sys/kernel/hostname", f"{self.machine.get('name', 'machine')}\n")
        dmi = "devices/virtual/dmi/id"
        self.attributes(
            dmi,
            {
                "sys_vendor": system.get("vendor"),
                "product_name": system.get("product"),
                "board_vendor": system.get("vendor"),
                "board_name": system.get("board"),
                "bios_vendor": system.get("bios_vendor", "American Megatrends International, LLC."),
                "bios_version": system.get("bios"),
                "chassis_type": 1 if system.get("hypervisor") else 23,
            },
        )
        self.link("class/dmi/id", dmi)
        for module, version in (system.get("modules") or {}).items():
            self.put(f"module/{module}/initstate", "live")
            if version:
                self.put(f"module/{module}/version", version)

    # PCI

    def local_cpus(self, node: int) -> list[int]:
        """CPUs of a node; all of them without one (cpumask_of_pcibus)."""
        return self.nodes.get(node, []) if node >= 0 else list(range(self.cpus))

    def pci_bus(self, parent: str, name: str, numa: int, device: str) -> None:
        path = f"{parent}/pci_bus/{name}"
        cpus = self.local_cpus(numa)
        self.put(f"{path}/cpuaffinity", cpu_mask(cpus, self.cpus))
        self.put(f"{path}/cpulistaffinity", cpu_list(cpus))
        self.class_device("pci_bus", path, device)

    def function(self, fn: Function) -> None:
        spec, path = fn.spec, fn.path
        vendor, device = spec["id"].split(":")
        sub_vendor, sub_device = spec.get("subsystem", "0000:0000").split(":")
        code = spec["class"]
        modalias = (
            f"pci:v0000{vendor.upper()}d0000{device.upper()}sv0000{sub_vendor.upper()}"
            f"sd0000{sub_device.upper()}bc{code[:2].upper()}sc{code[2:4].upper()}i{code[4:].upper()}"
        )
        cpus = self.local_cpus(fn.numa)
        driver = spec.get("driver")
        uevent = [f"DRIVER={driver}"] if driver else []
        uevent += [
            f"PCI_CLASS={int(code, 16):X}",
            f"PCI_ID={vendor.upper()}:{device.upper()}",
            f"PCI_SUBSYS_ID={sub_vendor.upper()}:{sub_device.upper()}",
            f"PCI_SLOT_NAME={fn.address}",
            f"MODALIAS={modalias}",
        ]
        self.attributes(
            path,
            {
                "class": f"0x{code}",
                "vendor": f"0x{vendor}",
                "device": f"0x{device}",
                "subsystem_vendor": f"0x{sub_vendor}",
                "subsystem_device": f"0x{sub_device}",
                "revision": f"0x{spec.get('rev', '00')}",
                "modalias": modalias,
                "uevent": "\n".join(uevent),
                "enable": spec.get("enable", 1 if driver else 0),
                "irq": 0,
                "driver_override": "(null)",
                "numa_node": fn.numa,
                "local_cpus": cpu_mask(cpus, self.cpus),
                "local_cpulist": cpu_list(cpus),
            },
        )
        self.files[f"sys/{path}/resource"] = b"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13
        self.link(f"{path}/subsystem", "bus/pci")
        self.link(f"bus/pci/devices/{fn.address}", path)
        if driver:
            self.link(f"{path}/driver", f"bus/pci/drivers/{driver}")
            self.link(f"bus/pci/drivers/{driver}/{fn.address}", path)
        if fn.secondary is not None:
            self.pci_bus(path, f"{fn.domain:04x}:{fn.secondary:02x}", fn.numa, path)
        if "slot" in spec and fn.function == 0:
            self.put(f"bus/pci/slots/{spec['slot']}/address", fn.address[:-2])
        if spec.get("model") and driver == "amdgpu":
            self.put(f"{path}/product_name", spec["model"])
        self.pci_link(fn)
        self.pci_config(fn)
        self.pci_sriov(fn)

    def links_of(self, fn: Function) -> tuple[tuple[float, int] | None, tuple[float, int] | None]:
        """(current, best) link of a function; a link runs at what both of its ends can do."""
        if "link" not in fn.spec:
            return None, None
        best = link(fn.spec["link"])
        if fn.pf:
            return (0, 0), best
        if "trained" in fn.spec:
            return link(fn.spec["trained"]), best
        other = None
        if fn.port in ("root", "downstream"):
            other = fn.children[0] if fn.children else None
            if other is None:
                return (2.5, 0), best  # an empty slot
        elif fn.parent and fn.parent.port in ("root", "downstream"):
            other = fn.parent
        if other is None or "link" not in other.spec:
            return best, best
        if "trained" in other.spec:
            return link(other.spec["trained"]), best
        theirs = link(other.spec["link"])
        return (min(best[0], theirs[0]), min(best[1], theirs[1])), best

    def pci_link(self, fn: Function) -> None:
        now, best = self.links_of(fn)
        if best is None:
            return

        def speed(value: float) -> str:
            return f"{value:.1f} GT/s PCIe" if value else "Unknown"

        if fn.spec.get("link_files") is False:  # PCI Express attributes need the capability, which hypervisors hide
            return
        self.attributes(
            fn.path,
            {
                "current_link_speed": speed(now[0]),
                "current_link_width": now[1],
                "max_link_speed": speed(best[0]),
                "max_link_width": best[1],
                "ari_enabled": int(fn.pf is not None),
            },
        )

    def pci_config(self, fn: Function) -> None:
        spec = fn.spec
        vendor, device = (int(x, 16) for x in spec["id"].split(":"))
        now, best = self.links_of(fn)
        hidden = spec.get("link_files") is False
        data = configspace.config_space(
            vendor,
            device,
            int(spec["class"], 16),
            int(spec.get("rev", "00"), 16),
            subsystem=tuple(int(x, 16) for x in spec.get("subsystem", "0000:0000").split(":")),
            buses=(fn.bus, fn.secondary, fn.subordinate) if fn.secondary is not None else None,
            port=None if hidden else fn.port,
            link=now,
            max_link=best,
            multifunction=fn.multifunction,
            slot="slot" in spec or fn.port in ("root", "downstream"),
            has_vpd="vpd" in spec,
            serial=int(spec["dsn"].replace("-", ""), 16) if "dsn" in spec else None,
            acs=(spec["acs_capable"], fn.acs_enabled) if fn.acs_enabled is not None else None,
            sriov=fn.sriov,
            virtual=fn.pf is not None,
        )
        size = self.system.get("config_bytes", len(data))  # 64 is what the kernel gives to other users than root
        self.files[f"sys/{fn.path}/config"] = data[:size]
        card = spec.get("vpd")
        if card:
            fields = {k: v for k, v in card.items() if len(k) == 2}
            serial = self.made_up("card", fn.address[:-2] if "uuid" not in card else card["uuid"])
            fields.setdefault("SN", f"MT{serial % 10**10:010d}")
            if vendor == 0x15B3:
                word = card.get("uuid", fn.address[:-2])
                fields["V3"] = f"{self.made_up('uuid', word):032x}"
            self.files[f"sys/{fn.path}/vpd"] = configspace.vpd(card["name"], fields)

    def pci_sriov(self, fn: Function) -> None:
        if fn.sriov:
            self.attributes(
                fn.path,
                {
                    "sriov_totalvfs": fn.sriov["total"],
                    "sriov_numvfs": fn.sriov["num"],
                    "sriov_offset": fn.sriov["offset"],
                    "sriov_stride": fn.sriov["stride"],
                    "sriov_vf_device": f"{fn.sriov['vf']:x}",
                    "sriov_drivers_autoprobe": fn.spec.get("autoprobe", 1),
                },
            )
        for vf in fn.vfs:
            self.link(f"{fn.path}/virtfn{vf.vf_number}", vf.path)
            self.link(f"{vf.path}/physfn", fn.path)

    def iommu(self) -> None:
        spec = self.system.get("iommu")
        if not spec:
            return
        kind, homes = spec.get("unit", "dmar"), {}
        for fn in self.plan.functions:
            if fn.group is None:
                continue
            group = f"kernel/iommu_groups/{fn.group}"
            self.put(f"{group}/type", fn.spec.get("iommu_type", spec.get("type", "DMA-FQ")))
            self.put(f"{group}/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi")
            self.link(f"{group}/devices/{fn.address}", fn.path)
            self.link(f"{fn.path}/iommu_group", group)
            if fn.root not in homes:  # one unit for each root complex
                number = len(homes)
                homes[fn.root] = f"devices/virtual/iommu/{kind}{number}"
                if kind == "smmu3":
                    base = 0x5000000 + 0x1000000 * number
                    homes[fn.root] = f"devices/platform/arm-smmu-v3.{number}.auto/iommu/smmu3.0x{base:016x}"
                self.class_device("iommu", homes[fn.root], None)
            self.link(f"{fn.path}/iommu", homes[fn.root])
            self.link(f"{homes[fn.root]}/devices/{fn.address}", fn.path)

    # What drivers register

    def functions_of_driver(self, fn: Function) -> None:
        spec = fn.spec
        if spec.get("driver") in (None, "vfio-pci", "pci-stub"):
            return
        if spec.get("net"):
            for index, net in enumerate(spec["net"] if isinstance(spec["net"], list) else [spec["net"]]):
                self.pci_net(fn, net, index)
        if spec.get("rdma"):
            self.rdma(fn)
        if spec.get("nvme"):
            self.nvme(fn)
        if spec.get("drm"):
            self.drm(fn)

    def mac(self, fn: Function, index: int = 0) -> str:
        tail = self.made_up("mac", fn.address, index) & 0xFFFFFF
        oui = fn.spec.get("oui", "02:00:00")
        if fn.pf:
            oui = f"{int(oui[:2], 16) & 0xFE | 2:02x}{oui[2:]}"
        return ":".join([oui, *(f"{tail >> s & 0xFF:02x}" for s in (16, 8, 0))])

    def net_name(self, fn: Function, net: dict[str, t.Any], index: int) -> str:
        """Name of the predictable path policy (systemd.net-naming-scheme)."""
        if "name" in net:
            return net["name"]
        at = fn.pf or fn
        name = "ib" if net["type"] == "ib" else "en"
        name += (f"P{at.domain}" if at.domain else "") + f"p{at.bus}s{at.device}"
        name += f"f{at.function}" if at.multifunction or at.function else ""
        if fn.pf:
            return f"{name}v{fn.vf_number}"
        if net.get("port_name"):
            return f"{name}n{net['port_name']}"
        return f"{name}d{index}" if index else name

    def pci_net(self, fn: Function, net: dict[str, t.Any], index: int) -> None:
        name = self.net_name(fn, net, index)
        fn.spec.setdefault("_nets", []).append(name)
        port_name = net.get("port_name")
        if fn.pf:
            port_name = None
        elif port_name == "p0":
            port_name = f"p{fn.function}"
            name = name[:-2] + port_name if "name" not in net else name
            fn.spec["_nets"][-1] = name
        switch = f"{self.made_up('switch', fn.address[:-2]) & 0xFFFFFFFFFFFF:012x}" if net.get("switchdev") else None
        if fn.pf:
            switch = None
        state = fn.spec.get("state", "up")
        address = mac = self.mac(fn, index)
        if net["type"] == "ib":
            guid = self.guid(fn)
            tail = ":".join(f"{guid >> shift & 0xFF:02x}" for shift in range(56, -1, -8))
            address = f"00:00:10:29:fe:80:00:00:00:00:00:00:{tail}"  # queue pair number, then the port's GID
        self.macs[name] = mac
        self.interface(
            f"{fn.path}/net/{name}",
            fn.path,
            {
                "type": 32 if net["type"] == "ib" else 1,
                "address": address,
                "mtu": net.get("mtu", 1500),
                "state": state,
                "speed": net.get("speed"),
                "dev_port": index,
                "port_name": port_name,
                "switch_id": switch,
                "assign": 3 if fn.pf else 0,
                "alias": net.get("alias"),
            },
        )

    def interface(self, path: str, device: str | None, net: dict[str, t.Any]) -> None:
        name = path.rsplit("/", 1)[1]
        state, kind = net.get("state", "up"), net.get("type", 1)
        up = state == "up"
        index = self.ifindex
        self.ifindex += 1
        flags = 0x1003 if state != "down" else 0x1002
        self.net_paths[name] = path
        uevent = [f"DEVTYPE={net['devtype']}"] if net.get("devtype") else []
        self.attributes(
            path,
            {
                "address": net["address"],
                "addr_len": net["address"].count(":") + 1,
                "broadcast": net.get("broadcast", ":".join(["ff"] * (net["address"].count(":") + 1))),
                "addr_assign_type": net.get("assign", 0),
                "mtu": net.get("mtu", 1500),
                "type": kind,
                "ifindex": index,
                "iflink": net.get("iflink", index),
                "flags": f"0x{net.get('flags', flags):x}",
                "operstate": net.get("operstate", "up" if up else "down"),
                "carrier": None if state == "down" else int(up),
                "dormant": None if state == "down" else 0,
                "speed": None if state == "down" or not net.get("speed") else net["speed"] if up else -1,
                "duplex": None if state == "down" or not net.get("speed") else "full" if up else "unknown",
                "dev_id": f"0x{net.get('dev_id', 0):x}",
                "dev_port": net.get("dev_port", 0),
                "link_mode": 0,
                "tx_queue_len": 1000,
                "netdev_group": 0,
                "name_assign_type": net.get("name_assign", 4),
                "phys_port_name": net.get("port_name"),
                "phys_switch_id": net.get("switch_id"),
                "uevent": "\n".join([*uevent, f"INTERFACE={name}", f"IFINDEX={index}"]),
            },
        )
        self.files[f"sys/{path}/ifalias"] = f"{net['alias']}\n".encode() if net.get("alias") else b""
        self.class_device("net", path, device)

    def representors(self, fn: Function) -> None:
        pattern = fn.spec.get("representors")
        if not pattern:
            return
        uplink = self.net_paths[fn.spec["_nets"][0]]
        switch = self.files[f"sys/{uplink}/phys_switch_id"].decode().strip()
        for vf in fn.vfs:
            self.interface(
                f"{fn.path}/net/{pattern.format(vf.vf_number)}",
                fn.path,
                {
                    "address": self.mac(vf, 9),
                    "assign": 1,
                    "speed": fn.spec["net"]["speed"],
                    "switch_id": switch,
                    "port_name": f"pf{fn.function}vf{vf.vf_number}",
                },
            )

    def guid(self, fn: Function) -> int:
        """The driver's GUID: the card's MAC address with 0300h in its middle (mlx5)."""
        mac = int(self.mac(fn).replace(":", ""), 16)
        return mac >> 24 << 40 | 0x0300 << 24 | mac & 0xFFFFFF

    def rdma(self, fn: Function) -> None:
        spec = fn.spec["rdma"]
        name = spec.get("name") or f"{spec['prefix']}{self.count(spec['prefix'])}"
        nets = fn.spec.get("_nets", [])
        infiniband = (fn.spec.get("net") or {}).get("type") == "ib" or spec.get("link_layer") == "InfiniBand"
        speed = spec.get("speed") or (fn.spec.get("net") or {}).get("speed")
        guid, path = self.guid(fn), f"{fn.path}/infiniband/{name}"

        def words(value: int, count: int) -> str:
            return ":".join(f"{value >> 16 * i & 0xFFFF:04x}" for i in reversed(range(count)))

        system_guid = self.guid(fn.pf or fn) & ~0x7 if fn.spec.get("oui") else guid
        self.attributes(
            path,
            {
                "node_type": "1: CA",
                "node_guid": words(guid, 4),
                "sys_image_guid": words(system_guid, 4),
                "fw_ver": spec.get("fw"),
                "board_id": spec.get("board"),
                "hca_type": spec.get("hca"),
                "hw_rev": "0",
                "node_desc": f"{self.machine.get('name')} {name}",
            },
        )
        self.class_device("infiniband", path, fn.path)
        state = fn.spec.get("state", "up")
        state = "nolink" if state == "down" and infiniband else state
        logical, physical = _PORT_STATE[spec.get("state", state)]
        rate = _RATE[speed] if logical != "1: DOWN" or not infiniband else "10 Gb/sec (4X SDR)"
        port = f"{path}/ports/1"
        number = self.count("lid") + 1
        self.attributes(
            port,
            {
                "state": logical,
                "phys_state": physical,
                "rate": rate,
                "link_layer": "InfiniBand" if infiniband else "Ethernet",
                "lid": f"0x{number if infiniband and logical == '4: ACTIVE' else 0xFFFF if infiniband else 0:x}",
                "sm_lid": "0x1" if infiniband and logical == "4: ACTIVE" else "0x0",
                "lid_mask_count": 0,
                "sm_sl": 0,
                "cap_mask": "0xa651e84a" if infiniband else "0x04010000",
                "pkeys/0": "0xffff",
            },
        )
        if infiniband:
            self.put(f"{port}/gids/0", words(0xFE80 << 112 | guid, 8))
            self.put(f"{port}/gid_attrs/types/0", "IB/RoCE v1")
            count = 1
        else:
            mac = int(self.mac(fn).replace(":", ""), 16) ^ 2 << 40
            local = 0xFE80 << 112 | mac >> 24 << 40 | 0xFFFE << 24 | mac & 0xFFFFFF
            octets = [int(x) for x in fn.spec["ip"].split(".")] if "ip" in fn.spec else None
            entries = [local] + ([0xFFFF << 32 | int.from_bytes(bytes(octets), "big")] if octets else [])
            count = 2 * len(entries)
            for index in range(count):
                self.put(f"{port}/gids/{index}", words(entries[index // 2], 8))
                self.put(f"{port}/gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1")
                if nets:
                    self.put(f"{port}/gid_attrs/ndevs/{index}", nets[0])
        self.put(f"{port}/gids/{count}", words(0, 8))  # the rest of the table is empty; one such entry is enough
        self.rdma_characters(fn, name)

    def rdma_characters(self, fn: Function, name: str) -> None:
        number = self.count("uverbs")
        path = f"{fn.path}/infiniband_verbs/uverbs{number}"
        self.attributes(path, {"ibdev": name, "abi_version": 1, "dev": f"231:{192 + number}"})
        self.class_device("infiniband_verbs", path, fn.path)
        self.put("class/infiniband_verbs/abi_version", 6)
        self.put("class/infiniband_mad/abi_version", 5)
        for kind, minor in (("umad", number), ("issm", 64 + number)):
            path = f"{fn.path}/infiniband_mad/{kind}{number}"
            self.attributes(path, {"ibdev": name, "port": 1, "dev": f"231:{minor}"})
            self.class_device("infiniband_mad", path, fn.path)

    def nvme(self, fn: Function) -> None:
        spec = fn.spec["nvme"]
        number = self.count("nvme")
        name = f"nvme{number}"
        path = f"{fn.path}/nvme/{name}"
        serial = f"{spec['serial']}{self.made_up('nvme', fn.address) % 10**10:010d}"
        self.attributes(
            path,
            {
                "model": f"{spec['model']:<40}",
                "serial": f"{serial:<20}",
                "firmware_rev": f"{spec['fw']:<8}",
                "address": fn.address,
                "state": "live",
                "transport": "pcie",
                "cntlid": 1,
                "numa_node": fn.numa,
                "dev": f"241:{number}",
            },
        )
        self.class_device("nvme", path, fn.path)
        block = f"{path}/{name}n1"
        self.attributes(
            block,
            {
                "size": spec["gib"] << 21,
                "dev": f"259:{number}",
                "queue/rotational": 0,
                "queue/hw_sector_size": 512,
                "removable": 0,
                "nsid": 1,
            },
        )
        self.class_device("block", block, path)

    def drm(self, fn: Function) -> None:
        number = self.count("card")
        self.put(f"{fn.path}/drm/card{number}/dev", f"226:{number}")
        self.class_device("drm", f"{fn.path}/drm/card{number}", fn.path)
        if fn.spec["drm"] != "card":
            render = 128 + self.count("render")
            self.put(f"{fn.path}/drm/renderD{render}/dev", f"226:{render}")
            self.class_device("drm", f"{fn.path}/drm/renderD{render}", fn.path)

    def nvidia(self) -> None:
        cards = [f for f in self.plan.functions if f.spec.get("driver") == "nvidia" and f.spec.get("model")]
        for minor, fn in enumerate(cards):
            uuid = f"{self.made_up('gpu', fn.address):032x}"
            uuid = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
            self.proc(
                f"driver/nvidia/gpus/{fn.address}/information",
                (
                    f"Model: \t\t {fn.spec['model']}\nIRQ:   \t\t {100 + minor}\nGPU UUID: \t GPU-{uuid}\n"
                    f"Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
                    f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {fn.address}\nDevice Minor: \t {minor}\n"
                    f"GPU Firmware: \t 570.133.20\nGPU Excluded:\t No\n"
                ),
            )
        if cards:
            self.proc("driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  570.133.20\n")

    # Interfaces without a card

    def loopback(self) -> None:
        self.interface(
            "devices/virtual/net/lo",
            None,
            {
                "address": "00:00:00:00:00:00",
                "broadcast": "00:00:00:00:00:00",
                "type": 772,
                "mtu": 65536,
                "flags": 0x9,
                "operstate": "unknown",
                "name_assign": 2,
            },
        )

    def virtual_net(self, name: str, spec: dict[str, t.Any]) -> None:
        kind, lower = spec["kind"], spec.get("lower", [])
        device = None
        if "under" in spec:  # a paravirtual card
            device = "/".join(["devices", *filter(None, [self.machine.get("under"), spec["under"]])])
        path = f"{device or 'devices/virtual'}/net/{name}"
        for below in lower:
            if below not in self.net_paths:
                raise DescriptionError(f"{name}: no interface {below!r}; there are {', '.join(self.net_paths)}")
        mac = self.macs[lower[0]] if lower else "02:00:00:00:00:01"
        self.macs[name] = mac
        below_index = None
        if lower and kind in ("vlan", "macvlan"):
            below_index = int(self.files[f"sys/{self.net_paths[lower[0]]}/ifindex"])
        assign = {"bond": 2, "vlan": 2, "netvsc": 0}.get(kind, 3)
        self.interface(
            path,
            device,
            {
                "address": mac,
                "assign": assign,
                "speed": spec.get("speed"),
                "mtu": spec.get("mtu", 1500),
                "devtype": kind if kind in ("bond", "vlan", "bridge") else None,
                "iflink": below_index or self.ifindex,
                "flags": 0x1403 if kind == "bond" else 0x1003,
            },
        )
        for below in lower:
            self.link(f"{path}/lower_{below}", self.net_paths[below])
            self.link(f"{self.net_paths[below]}/upper_{name}", path)
            if kind in ("bond", "bridge", "netvsc"):
                self.link(f"{self.net_paths[below]}/master", path)
        if kind == "bond":
            self.attributes(
                f"{path}/bonding",
                {
                    "slaves": " ".join(lower),
                    "mode": spec.get("mode", "802.3ad 4"),
                    "mii_status": "up",
                    "active_slave": lower[0] if spec.get("mode", "").startswith("active-backup") else "",
                },
            )
            for below in lower:
                place = self.net_paths[below]
                self.attributes(
                    f"{place}/bonding_slave",
                    {"perm_hwaddr": self.macs[below], "state": "active", "mii_status": "up", "queue_id": 0},
                )
                self.put(f"{place}/address", mac)
                self.put(f"{place}/flags", "0x1903")
            members = (self.files.get("sys/class/net/bonding_masters", b"").decode().split()) + [name]
            self.put("class/net/bonding_masters", " ".join(members))
        elif kind == "bridge":
            self.attributes(f"{path}/bridge", {"bridge_id": f"8000.{mac.replace(':', '')}", "stp_state": 0})
            for number, below in enumerate(lower, 1):
                place = self.net_paths[below]
                self.attributes(f"{place}/brport", {"port_no": f"0x{number:x}", "state": 3})
                self.link(f"{place}/brport/bridge", path)
                self.link(f"{path}/brif/{below}", f"{place}/brport")
        elif kind == "vlan":
            head = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n"
            text = self.files.get("proc/net/vlan/config", head.encode()).decode()
            self.proc("net/vlan/config", f"{text}{name:<15}| {spec['id']:<4} | {lower[0]}\n")

    def routes(self) -> None:
        route = self.machine.get("default_route")
        rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
        if route:
            if route not in self.net_paths:
                raise DescriptionError(f"default_route: no interface {route!r}; there are {', '.join(self.net_paths)}")
            rows.append(f"{route}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0")
            rows.append(f"{route}\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0")
        self.proc("net/route", "".join(f"{row:<127}\n" for row in rows))
