# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node made of files, with an emulated kernel, systemd and programs, for features that need real cards.

Examples are SR-IOV, drivers of PCI functions, eswitch modes, DCB and firmware. EmulatedNode.write_attribute does
what the kernel does. To find what a run has changed, tests compare snapshots of all files and of the
emulated kernel's state (`EmulatedNode.snapshot`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.host.access import messages
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System, refused
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import vf
from ansible_collections.lanewise.dra.tests.host.emulated_netlink import EmulatedSocket, round_trip
from ansible_collections.lanewise.dra.tests.host.faults import FailingSystem, NetlinkRefusal
from ansible_collections.lanewise.dra.tests.machines.builder import build

#: The PCI addresses of the NICs: two with VFs, and one beside the GPU.
MLX5, ICE, RAIL = "0000:16:00.0", "0000:17:00.0", "0000:1b:00.0"
_MACHINE: dict[str, t.Any] = {
    "name": "faults",
    "system": {"vendor": "Dell Inc.", "product": "PowerEdge R760", "kernel": "6.8.0-60-generic", "cmdline": "quiet"},
    "cpu": {"model": "Intel(R) Xeon(R) Gold 6430", "sockets": 1, "cores": 2, "memory_gib": 4},
    "roots": {
        "0000:15": {
            "numa": 0,
            "01.0 spr-root-port": {"slot": 1, "00.0 cx6dx": {"vfs": 3}},
            "02.0 spr-root-port": {"slot": 2, "00.0 e810": {"vfs": {"count": 2, "driver": "iavf", "rdma": False}}},
            "03.0 spr-root-port": {
                "slot": 3,
                "00.0 pex-usp": {"00.0 pex-dsp": {"00.0 h100-sxm": {}}, "01.0 pex-dsp": {"00.0 cx7-eth": {}}},
            },
        }
    },
}
_DEVICES = "sys/bus/pci/devices"
_DRIVERS = "sys/bus/pci/drivers"
#: The process ID of kubelet.
_PID = 4242
#: The driver of VFs by the vendor ID of their PF.
_VF_DRIVERS = {"15b3": "mlx5_core", "8086": "iavf"}
#: The settings of a new VF.
_NEW_VF = {
    "mac": "00:00:00:00:00:00",
    "vlan": vf.Vlan(0),
    "rate": vf.Rate(0, 0),
    "spoof_check": False,
    "link_state": "auto",
    "trust": False,
}
_GRUB_LINE = "linux /boot/vmlinuz-6.8.0 root=/dev/sda1 ro"
_FILES: dict[str, str] = {
    **{f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_governor": "powersave" for number in (0, 1)},
    **{
        f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_available_governors": "performance powersave"
        for number in (0, 1)
    },
    **{
        f"sys/devices/system/cpu/cpu{number}/cpuidle/state{state}/{name}": value
        for number in (0, 1)
        for state, values in enumerate(({"name": "C1", "latency": "2"}, {"name": "C6", "latency": "190"}))
        for name, value in {**values, "disable": "0"}.items()
    },
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "0",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": "0",
    "sys/module/ib_core/parameters/netns_mode": "Y",
    "proc/sys/vm/zone_reclaim_mode": "1",
    "proc/sys/kernel/numa_balancing": "1",
    "proc/sys/kernel/random/boot_id": "first",
    "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=/dev/sda1 ro quiet",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
    f"proc/{_PID}/comm": "kubelet",
    f"proc/{_PID}/status": "Uid:\t0\t0\t0\t0",
    f"proc/{_PID}/limits": "Max locked memory         65536                65536                bytes",
    "boot/grub/grub.cfg": f"menuentry 'Debian' $menuentry_id_option 'gnulinux' {{\n\t{_GRUB_LINE} quiet\n}}",
    "usr/sbin/update-grub": "",
    "usr/sbin/update-initramfs": "",
    "boot/initrd.img": "",
    "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""',
    "etc/default/grub.d/50-cloudimg-settings.cfg": "",
    "etc/security/limits.d/10-site.conf": "",
    "etc/modprobe.d/site.conf": "",
    "etc/modules-load.d/site.conf": "",
    "etc/sysctl.d/10-site.conf": "",
    "etc/systemd/system/multi-user.target.wants/kubelet.service": "",
    "etc/containerd/config.toml": 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = false\n'
    '[plugins."io.containerd.nri.v1.nri"]\n  disable = true',
    "usr/bin/containerd": "",
    "etc/kubernetes/kubelet.conf.d/10-site.conf": "",
    "var/lib/kubelet/cpu_manager_state": '{"policyName":"none"}',
    "var/lib/kubelet/memory_manager_state": '{"policyName":"None"}',
    "var/lib/kubelet/device-plugins/kubelet.sock": "",
    "sys/kernel/config/rdma_cm/.keep": "",
}
#: The contents of files in a new folder of configfs.
_CONFIGFS_DEFAULTS = ("IB/RoCE v1", "0", "")
#: The columns of /proc/PID/limits without and with a limit.
_UNLIMITED, _LIMITED = (
    "unlimited            unlimited            bytes",
    "65536                65536                bytes",
)


class EmulatedNode:
    """The files below `root`, and the state of the emulated kernel, systemd and cards."""

    def __init__(self, folder: Path) -> None:
        self.root = build(_MACHINE, folder / "node")
        self._removed_folder = folder / "removed_functions"
        for path, text in _FILES.items():
            self.write(path, text)
        command = ["kubelet", "--config-dir=/etc/kubernetes/kubelet.conf.d"]
        (self.root / f"proc/{_PID}/root").symlink_to("../..")
        (self.root / f"proc/{_PID}/cmdline").write_text("\0".join(command) + "\0")
        for number, irq in enumerate(("98", "99")):
            self.write(f"proc/irq/{irq}/smp_affinity_list", str(number))
            self.write(f"{self._device(RAIL)}/msi_irqs/{irq}", "msix")
        for port in (self.root / _DEVICES).glob("0000:1[89a]:*"):
            self._enable_isolation(port / "config")
        self.running = {"containerd.service": True, "kubelet.service": True}
        self.vfs = {pf: {number: dict(_NEW_VF) for number in range(len(self._vfs(pf)))} for pf in (MLX5, ICE)}
        self.vfs[MLX5][0].update(mac="02:00:00:00:00:01", vlan=vf.Vlan(5))
        self.eswitch_modes = {MLX5: 0, ICE: 0}
        self.firmware = {"NUM_OF_VFS": "0", "SRIOV_EN": "False(0)"}
        #: The mask of priorities with PFC, and DSCP values with their priorities.
        self.dcb = {"pfc": 0, "apps": {(code, code >> 3) for code in range(4)}}
        #: The original folder of each function that is removed now, and the links to each that was ever removed.
        self._original_folders: dict[str, str] = {}
        self._links: dict[str, list[tuple[Path, str]]] = {}
        #: Files as `snapshot` read them, each with its inode, modification time, size and mode.
        self._file_cache: dict[str, t.Any] = {}
        self._all_vfs: list[tuple[str, str]] = [(pf, vf_address) for pf in (MLX5, ICE) for vf_address in self._vfs(pf)]

    @staticmethod
    def _enable_isolation(config: Path) -> None:
        """Enable all ACS features of a PCI configuration space, of which kernels enable most, to isolate devices."""
        data, offset = bytearray(config.read_bytes()), 0x100
        while 0x100 <= offset < len(data) - 8:
            header = int.from_bytes(data[offset : offset + 4], "little")
            if header & 0xFFFF == 0x000D:  # the ACS capability: its control register gets the value of its features
                data[offset + 6 : offset + 8] = data[offset + 4 : offset + 6]
                config.write_bytes(bytes(data))
            offset = header >> 20 & 0xFFC

    # -- files

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def text(self, path: str) -> str:
        file = self.root / path
        return file.read_text().strip() if file.exists() else ""

    def _device(self, address: str) -> str:
        return f"{_DEVICES}/{address}"

    def _vfs(self, pf: str) -> list[str]:
        """The PCI addresses of a PF's VFs."""
        folder = self.root / self._device(pf)
        return [os.path.basename(os.readlink(link)) for link in sorted(folder.glob("virtfn*"))]

    def snapshot(self) -> dict[str, t.Any]:
        """Everything that a run could have changed, except folders of configfs and their default values."""
        found: dict[str, t.Any] = {}
        for folder, folders, names in os.walk(self.root):
            relative = os.path.relpath(folder, self.root)
            if relative.startswith("sys/kernel/config"):
                found.update({f"{relative}/{name}": Path(folder, name).read_text().strip() for name in names})
                continue
            found[relative + "/"] = oct(os.stat(folder).st_mode)
            for name in (*names, *(linked for linked in folders if os.path.islink(os.path.join(folder, linked)))):
                path = os.path.join(folder, name)
                relative_path = os.path.join(relative, name)
                if os.path.islink(path):
                    found[relative_path] = f"-> {os.readlink(path)}"
                else:
                    found[relative_path] = self._mode_and_content(path)
        found = {key: value for key, value in found.items() if value not in _CONFIGFS_DEFAULTS}
        for name in ("running", "vfs", "eswitch_modes", "firmware", "dcb"):
            found[name] = json.dumps(getattr(self, name), default=_as_json, sort_keys=True)
        return found

    def _mode_and_content(self, path: str) -> tuple[str, bytes]:
        """The mode and content of a file, which is read again only if it has changed."""
        status = os.stat(path)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        if self._file_cache.get(path, (None,))[0] != stamp:
            self._file_cache[path] = (stamp, (oct(status.st_mode), Path(path).read_bytes().strip()))
        return self._file_cache[path][1]

    # -- the kernel's attributes

    def write_attribute(self, path: str, value: str) -> bool:
        """Do what the kernel does when this attribute is written. Returns False, and does nothing, if the attribute
        only stores the value: then the caller writes the file."""
        relative = path.lstrip("/")
        name = relative.rpartition("/")[2]
        if name == "sriov_numvfs":
            self._set_num_vfs(relative.split("/")[-2], int(value))
        elif name == "unbind":
            driver = os.path.basename(os.path.realpath(self.root / os.path.dirname(relative)))
            self._unbind(value, driver)
        elif name == "bind":
            self._bind(value, relative.split("/")[-2])
        elif name == "drivers_probe":
            override = self.text(f"{self._device(value)}/driver_override")
            self._bind(value, override if override not in ("", "(null)") else self._default_driver(value))
        elif name == "driver_override":
            self.write(relative, value.strip() or "(null)")
        else:
            return False
        return True

    def _default_driver(self, function: str) -> str:
        return _VF_DRIVERS[self.text(f"{os.path.realpath(self.root / self._device(function) / 'physfn')}/vendor")[2:]]

    def _bind(self, function: str, driver: str) -> None:
        if (self.root / self._device(function) / "driver").is_symlink():
            raise OSError(errno.EBUSY, "bound")
        (self.root / _DRIVERS / driver).mkdir(parents=True, exist_ok=True)
        folder = Path(os.path.realpath(self.root / self._device(function)))
        target = os.path.relpath(self.root / _DRIVERS / driver, folder)
        (folder / "driver").symlink_to(target)

    def _unbind(self, function: str, driver: str) -> None:
        link = self.root / self._device(function) / "driver"
        if not link.is_symlink() or os.path.basename(os.readlink(link)) != driver:
            raise OSError(errno.ENODEV, "not bound")
        link.unlink()

    def _set_num_vfs(self, pf: str, count: int) -> None:
        existing = self._vfs(pf)
        if count and existing:
            raise OSError(errno.EBUSY, "the PF already has VFs")
        folder = Path(os.path.realpath(self.root / self._device(pf)))
        for function in existing:
            self._remove_function(function)
        functions = [function for owner, function in self._all_vfs if owner == pf]
        if count > len(functions):
            raise OSError(errno.ENOSPC, "too many VFs")
        for function in functions[:count]:
            self._restore_function(function)
            if self.text(f"{self._device(pf)}/sriov_drivers_autoprobe") != "0":
                self._bind(function, self._default_driver(function))
        self.vfs[pf] = {number: dict(_NEW_VF) for number in range(count)}
        (folder / "sriov_numvfs").write_text(f"{count}\n")

    def _remove_function(self, function: str) -> None:
        folder = os.path.realpath(self.root / self._device(function))
        if function not in self._links:
            self._links[function] = list(self._links_into(folder))
        for link, _target in self._links[function]:
            link.unlink()
        driver_link = Path(folder, "driver")
        if driver_link.is_symlink():
            driver_link.unlink()
        Path(folder, "driver_override").write_text("(null)\n")
        self._removed_folder.mkdir(exist_ok=True)
        shutil.move(folder, self._removed_folder / function)
        self._original_folders[function] = folder

    def _links_into(self, function_folder: str) -> t.Iterator[tuple[Path, str]]:
        """Links to a function or into it from other folders, and their targets."""
        for folder, folders, names in os.walk(self.root / "sys"):
            if folder.startswith(function_folder):
                folders.clear()
                continue
            for name in (*folders, *names):
                path = os.path.join(folder, name)
                if os.path.islink(path) and os.path.realpath(path).startswith(function_folder):
                    yield Path(path), os.readlink(path)

    def _restore_function(self, function: str) -> None:
        shutil.move(self._removed_folder / function, self._original_folders.pop(function))
        for link, target in self._links[function]:
            link.symlink_to(target)

    # -- programs

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Emulate a program with the method that is named after it."""
        program, arguments = os.path.basename(argv[0]), argv[1:]
        try:
            output = getattr(self, f"_{program.replace('-', '_')}")(arguments)
        except OSError as error:
            return 1, "", str(error)
        return 0, output or "", ""

    def _systemctl(self, argv: list[str]) -> str | None:
        verb, unit = argv[0], argv[1] if len(argv) > 1 else ""
        if verb == "show" and argv[1].startswith("--property=Id"):
            return "\n\n".join(
                f"Id={service}\nLoadState=loaded\nMainPID={_PID if runs else 0}"
                for service, runs in self.running.items()
            )
        if verb == "show" and "--property=ActiveState" in argv:
            return "active\n" if self.running.get(unit) else "inactive\n"
        if verb == "show" and "--property=LimitMEMLOCK" in argv:
            return "infinity\n" if list(self.root.glob(f"etc/systemd/system/{argv[-1]}.d/*.conf")) else "65536\n"
        if verb == "show":
            return f"{_PID if self.running.get(unit) else 0}\n"
        if verb in ("enable", "disable"):
            link = self.root / "etc/systemd/system/multi-user.target.wants" / unit
            link.unlink(missing_ok=True)
            if verb == "enable":
                link.symlink_to(f"/etc/systemd/system/{unit}")
        if verb == "start" or (verb == "try-restart" and self.running.get(unit)):
            self.running[unit] = True
            if unit == "kubelet.service":
                self._start_kubelet()
        if verb == "stop":
            self.running[unit] = False
        return None

    def _start_kubelet(self) -> None:
        text = self.text("etc/kubernetes/kubelet.conf.d/90-lanewise.conf")
        fields = json.loads(text) if text else {}
        for name, key, default in (("cpu", "cpuManagerPolicy", "none"), ("memory", "memoryManagerPolicy", "None")):
            path, policy = f"var/lib/kubelet/{name}_manager_state", fields.get(key, default)
            state = self.text(path)
            if state and json.loads(state)["policyName"] != policy:
                self.running["kubelet.service"] = False  # kubelet refuses a state file of another policy
                return
            self.write(path, json.dumps({"policyName": policy}, separators=(",", ":")))
        self.write("var/lib/kubelet/device-plugins/kubelet.sock", "")

    def _journalctl(self, _argv: list[str]) -> str:
        return ""

    def _modprobe(self, argv: list[str]) -> str | None:
        if argv[0] == "--show-depends":
            return f"insmod {argv[1]}.ko"
        folder = self.root / "sys/module" / argv[-1].replace("-", "_")
        if argv[0] == "--remove":
            shutil.rmtree(folder)
        else:
            folder.mkdir(parents=True)
            (folder / "version").write_text("1\n")
        return None

    def _update_initramfs(self, _argv: list[str]) -> None:
        options = [file.read_text().strip() for file in sorted((self.root / "etc/modprobe.d").glob("*.conf"))]
        self.write("boot/initrd.img", "\n".join(text for text in options if text))

    def _update_grub(self, _argv: list[str]) -> None:
        """Like grub-mkconfig, which reads its settings as shell scripts."""
        folder = self.root / "etc/default"
        script = f'. {folder}/grub; for file in {folder}/grub.d/*.cfg; do . "$file"; done; '
        script += 'echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'
        arguments = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
        line = " ".join([_GRUB_LINE, *arguments])
        self.write("boot/grub/grub.cfg", f"menuentry 'Debian' $menuentry_id_option 'gnulinux' {{\n\t{line}\n}}")

    def _containerd(self, argv: list[str]) -> str:
        if argv == ["--version"]:
            return "containerd github.com/containerd/containerd 1.7.24 88bf19b2105c"
        return self.text("etc/containerd/config.toml") + "\n"

    def _mstconfig(self, argv: list[str]) -> str:
        if "set" in argv:
            name, _equals, value = argv[-1].partition("=")
            self.firmware[name] = {"SRIOV_EN": {"1": "True(1)", "0": "False(0)"}}.get(name, {}).get(value, value)
        rows = [f"         {name}    {value}    {value}    {value}" for name, value in self.firmware.items()]
        return "\n".join(["Configurations:    Default    Current    Next Boot", *rows])

    def prlimit(self, process: int, _resource: int, limits: tuple[int, int]) -> None:
        """Replaces resource.prlimit, which would change a process of the host."""
        columns = _UNLIMITED if limits[0] < 0 else _LIMITED
        self.write(f"proc/{process}/limits", f"Max locked memory         {columns}")

    # -- netlink

    def _interface(self, address: str) -> str:
        return next((self.root / self._device(address) / "net").iterdir()).name

    def _address(self, interface: str) -> str:
        return next(address for address in (MLX5, ICE, RAIL) if self._interface(address) == interface)

    def link(self, interface: str) -> t.Any:
        """The kernel's message about an interface and its VFs."""
        address = self._address(interface)
        attributes: list[t.Any] = [("IFLA_IFNAME", interface), ("IFLA_MIN_MTU", 68), ("IFLA_MAX_MTU", 9978)]
        if address in self.vfs:
            vfs = [
                ("vf", {"attrs": [vf.encoded(number, name, value) for name, value in state.items()]})
                for number, state in self.vfs[address].items()
            ]
            attributes.append(("IFLA_VFINFO_LIST", {"attrs": vfs}))
        return round_trip(messages.Link, attributes, ifi_type=1)

    def set_vf(self, request: t.Any) -> None:
        attributes = dict(request["attrs"])
        vfs = self.vfs[self._address(attributes["IFLA_IFNAME"])]
        # vf.decoded reads the kernel's messages, which have a MAC address for each VF: one is added to the request
        for _vf, info in attributes["IFLA_VFINFO_LIST"]["attrs"]:
            settings = dict(info["attrs"])
            number = next(value["vf"] if "vf" in value else value["attrs"][0][1]["vf"] for value in settings.values())
            if number in vfs and "mac" not in settings:
                info["attrs"].append(vf.encoded(number, "mac", vfs[number]["mac"]))
        message = round_trip(messages.Link, list(attributes.items()), ifi_type=1)
        for number, state in vf.decoded(message).items():
            if number not in vfs:
                raise NetlinkRefusal(errno.EINVAL)
            vfs[number].update(state)

    def dcb_message(self) -> t.Any:
        """The kernel's message about the DCB settings."""
        pfc = {"cap": 8, "enabled": self.dcb["pfc"], "mbc": 0, "pad": 0, "delay": 0, "pad2": 0}
        pfc.update(requests=(0,) * 8, indications=(0,) * 8)
        apps = [
            ("app", {"selector": 5, "priority": priority, "protocol": code})
            for code, priority in sorted(self.dcb["apps"])
        ]
        parts = [("pfc", pfc), ("apps", {"attrs": apps})]
        return round_trip(messages.Dcb, [("ifname", "x"), ("ieee", {"attrs": parts})])

    def set_dcb(self, request: t.Any, delete: bool) -> None:
        for name, part in dict(request["attrs"])["ieee"]["attrs"]:
            if name == "pfc":
                self.dcb["pfc"] = part["enabled"]
            else:
                entries = {(app["protocol"], app["priority"]) for _app, app in part["attrs"]}
                self.dcb["apps"] = self.dcb["apps"] - entries if delete else self.dcb["apps"] | entries

    def set_eswitch_mode(self, pf: str, mode: int) -> None:
        """Set the eswitch mode. ice refuses that while there are VFs, mlx5 while VFs are bound to mlx5_core."""
        vfs = self._vfs(pf)
        drivers = [self.root / self._device(function) / "driver" for function in vfs]
        bound = [link for link in drivers if link.is_symlink() and os.readlink(link).endswith("/mlx5_core")]
        if vfs if pf == ICE else bound:
            raise NetlinkRefusal(errno.EBUSY)
        self.eswitch_modes[pf] = mode


def _as_json(value: t.Any) -> t.Any:
    """A set or a value of a resource as a JSON value."""
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


class EmulatedSystem(System):
    """Access to an emulated node."""

    node: EmulatedNode

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        try:
            if self.node.write_attribute(path, value):
                return
        except OSError as error:
            raise refused(step, error.errno or 0, path, fix) from None
        super().write(path, value.strip() + "\n", step, fix)

    def make_folder(self, path: str, step: str) -> None:
        super().make_folder(path, step)
        match = re.fullmatch(r"/sys/kernel/config/rdma_cm/(\w+)", path)
        if match:
            self.node.write(f"{path[1:]}/ports/1/default_roce_mode", "IB/RoCE v1")
            self.node.write(f"{path[1:]}/ports/1/default_roce_tos", "0")

    def remove_folder(self, path: str, step: str) -> None:
        """As rmdir in configfs, which also removes the files in the folder."""
        shutil.rmtree(self.node.root / path[1:], ignore_errors=True)

    def socket(self, name: str) -> t.Any:
        return EmulatedSocket(self.node)


class FailingEmulatedSystem(FailingSystem, EmulatedSystem):
    """Access to an emulated node, in which one step fails."""

    def __init__(self, node: EmulatedNode, **options: t.Any) -> None:
        super().__init__(root=str(node.root), run=node.run, **options)
        self.node = node
