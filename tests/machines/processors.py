# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of CPUs, NUMA nodes, the kernel and the firmware."""

from __future__ import annotations

import functools
import typing as t

from .files import Files, cpu_list, cpu_mask


class Processors(Files):
    """Adds the files of CPUs, NUMA nodes, the kernel and the firmware."""

    def add_processors(self) -> None:
        cpu = self.machine["cpu"]
        sockets, cores, threads = cpu.get("sockets", 1), cpu["cores"], cpu.get("threads", 1)
        per_socket = cpu.get("numa_per_socket", 1)
        self.cpu_count = total = sockets * cores * threads
        base = "devices/system/cpu"
        all_cpus = cpu_list(range(total))
        self.put_attributes(
            base,
            {
                "online": all_cpus,
                "possible": all_cpus,
                "present": all_cpus,
                "offline": "",
                "kernel_max": 8191,
                "smt/active": int(threads > 1),
            },
        )
        packages = {
            socket: tuple(
                socket * cores + core + thread * sockets * cores for thread in range(threads) for core in range(cores)
            )
            for socket in range(sockets)
        }

        @functools.lru_cache(None)
        def mask_and_list(cpus: tuple[int, ...]) -> tuple[str, str]:
            return cpu_mask(cpus, total), cpu_list(cpus)

        for number in range(total):
            socket, core = divmod(number % (sockets * cores), cores)
            node = socket * per_socket + core * per_socket // cores
            self.node_cpus.setdefault(node, []).append(number)
            siblings = mask_and_list(
                tuple(socket * cores + core + thread * sockets * cores for thread in range(threads))
            )
            package = mask_and_list(packages[socket])
            path = f"{base}/cpu{number}"
            self.put_attributes(
                f"{path}/topology",
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
                self.put(f"{path}/online", 1)
            self.put_link(f"{path}/node{node}", f"devices/system/node/node{node}")
            self.put_link(f"devices/system/node/node{node}/cpu{number}", path)
            self.put_link(f"bus/cpu/devices/cpu{number}", path)
        self.add_numa_nodes(cpu, sockets, per_socket)
        self.add_cpuinfo(cpu, total, sockets, cores, threads)

    def add_numa_nodes(self, cpu: dict[str, t.Any], sockets: int, per_socket: int) -> None:
        base = "devices/system/node"
        socket_of = {node: node // per_socket for node in range(sockets * per_socket)}
        memory = {node: cpu.get("memory_gib", 64) for node in socket_of}
        for extra in cpu.get("memory_nodes", []):  # memory without CPUs, such as GPU memory on Grace
            for index, node in enumerate(range(extra["first"], extra["first"] + extra.get("count", 1))):
                socket_of[node] = extra["socket"]
                memory[node] = 0 if index else extra["gib"]
                self.node_cpus[node] = []
        distances = {"socket": 12, "remote": 21, "memory": 80, "memory_remote": 120, **cpu.get("distances", {})}

        def distance(node: int, other: int) -> int:
            if node == other:
                return 10
            same_socket = socket_of[node] == socket_of[other]
            if self.node_cpus[node] and self.node_cpus[other]:
                return distances["socket" if same_socket else "remote"]
            return distances["memory" if same_socket else "memory_remote"]

        ordered = sorted(self.node_cpus)
        with_cpu = cpu_list(node for node in ordered if self.node_cpus[node])
        with_memory = cpu_list(node for node in ordered if memory[node])
        self.put_attributes(
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
            self.put_attributes(
                f"{base}/node{node}",
                {
                    "cpulist": cpu_list(self.node_cpus[node]),
                    "cpumap": cpu_mask(self.node_cpus[node], self.cpu_count),
                    "distance": " ".join(str(distance(node, other)) for other in ordered),
                    "meminfo": f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib * 9 // 10} kB",
                },
            )
            self.put_link(f"bus/node/devices/node{node}", f"{base}/node{node}")
        kib = sum(memory.values()) << 20
        self.put_proc("meminfo", f"MemTotal:       {kib} kB\nMemFree:        {kib * 9 // 10} kB\n")

    def add_cpuinfo(self, cpu: dict[str, t.Any], total: int, sockets: int, cores: int, threads: int) -> None:
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
        self.put_proc("cpuinfo", "\n".join(blocks) + "\n")

    @property
    def arch(self) -> str:
        return self.system.get("arch", "x86_64")

    def add_system(self) -> None:
        system = self.system
        release = system.get("kernel", "6.8.0-60-generic")
        self.put_proc(
            "cmdline",
            f"BOOT_IMAGE=/boot/vmlinuz-{release} root=/dev/nvme0n1p2 ro"
            f"{''.join(' ' + word for word in system.get('cmdline', '').split())}\n",
        )
        self.put_proc("version", f"Linux version {release} (builder@example.com) (gcc) #1 SMP PREEMPT_DYNAMIC\n")
        self.put_proc("sys/kernel/osrelease", f"{release}\n")
        self.put_proc("sys/kernel/ostype", "Linux\n")
        self.put_proc("sys/kernel/arch", f"{self.arch}\n")
        self.put_proc("sys/kernel/hostname", f"{self.machine.get('name', 'machine')}\n")
        dmi = "devices/virtual/dmi/id"
        self.put_attributes(
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
        self.put_link("class/dmi/id", dmi)
        for module, version in (system.get("modules") or {}).items():
            self.put(f"module/{module}/initstate", "live")
            if version:
                self.put(f"module/{module}/version", version)

    def local_cpus(self, node: int) -> list[int]:
        """The CPUs of a NUMA node, or all CPUs if the node is -1 (as the kernel's cpumask_of_pcibus)."""
        return self.node_cpus.get(node, []) if node >= 0 else list(range(self.cpu_count))
