# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CPUs, NUMA nodes and the names of a machine."""

from __future__ import annotations

import typing as t

from .files import Files, cpu_list, cpu_mask


class Processors(Files):
    """CPUs, NUMA nodes and the names of a machine."""

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

    def local_cpus(self, node: int) -> list[int]:
        """The CPUs of a node, or all CPUs without a node (cpumask_of_pcibus)."""
        return self.nodes.get(node, []) if node >= 0 else list(range(self.cpus))
