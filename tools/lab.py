# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Get what the lab's virtual nodes need: QEMU, a kernel with test modules, a disk image. All of it is from Debian.

    python3 tools/lab.py

Nothing is installed. Packages are downloaded with a separate apt configuration from the archive that the machine's apt
uses, unpacked into the user's cache directory, and run from there with their own libraries. Each part is stored under
the hash of its recipe in tests/lab/, so checkouts share it. See docs/lab.md. Uses the standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from environment import CACHE, REPOSITORY, Missing, locked, say

RECIPES = REPOSITORY / "tests" / "lab"
LAB = CACHE / "lab"
SUITE = "trixie"
MIRROR = "LANEWISE_DEBIAN_MIRROR"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: With libarchive, e2fsprogs creates a filesystem with owners and devices from an archive without root.
TOOLS = ("qemu-system-x86", "qemu-utils", "e2fsprogs", "libarchive13t64", "mmdebstrap")
SOURCE = "linux-source-6.12"
KERNEL = ("linux-image-amd64", "linux-headers-amd64", SOURCE, "busybox-static")
BUILD = ("make", "gcc", "binutils", "bash", "coreutils", "cpio", "dash", "diffutils", "findutils", "grep", "gzip")
BUILD += ("kmod", "mawk", "patch", "sed", "tar", "xz-utils", "zstd")
IMAGE = ("systemd-sysv", "udev", "dbus", "openssh-server", "sudo", "kmod", "procps", "pciutils")
IMAGE += ("iproute2", "iputils-ping", "ethtool", "nftables", "rdma-core", "ibverbs-utils", "rdmacm-utils", "perftest")
IMAGE += ("python3", "python3-venv", "python3-pyroute2", "python3-yaml", "containerd", "runc", "iptables", "libstdc++6")
#: Open MPI with UCX. Their other dependencies are in the image, or for devices that the lab does not have.
OPENMPI = ("openmpi-bin", "openmpi-common", "libopenmpi40", "libucx0", "libpmix2t64", "libhwloc15", "libfabric1")
OPENMPI += ("libevent-core-2.1-7t64", "libevent-pthreads-2.1-7t64", "libpsm2-2", "libmunge2", "libnuma1", "libltdl7")
LOADERS = {"grub-pc": ("grub-pc",), "systemd-boot": ("systemd-boot", "dosfstools")}
#: Seconds of the first run on two cores, downloads included.
FIRST_RUN_SECONDS = {"tools": 15, "kernel": 100, "image": 90, "loaders": 25, "specifications": 20, "openmpi": 5}


class StepFailed(Exception):
    """A step failed. The text has the end of its program's output."""


def run(command: t.Sequence[object], **options: t.Any) -> str:
    """The output of a program. Raises StepFailed with the end of the output if the program fails."""
    arguments = [str(argument) for argument in command]
    answer = subprocess.run(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **options
    )
    if answer.returncode:
        lines = answer.stdout.strip().splitlines()
        errors = [line for line in lines[:-20] if line.startswith(("E: ", "W: "))]
        raise StepFailed(
            "\n".join([f"{' '.join(arguments)[:200]}: status {answer.returncode}", *errors[:5], *lines[-20:]])
        )
    return answer.stdout


def require_supported() -> None:
    """Raises Missing, with the reason, if the lab cannot run here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Missing("needs Linux on x86-64")
    for program, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("perl", "perl"), ("ssh", "openssh-client")):
        if not shutil.which(program):
            raise Missing(f"needs {program} (Debian package {package})")
    if not KEYRING.exists():
        raise Missing(f"needs the keys of Debian's archive, {KEYRING} (package debian-archive-keyring)")
    archive()


@functools.lru_cache(None)
def archive() -> str:
    """The address of Debian's archive: that in the variable, or the one that apt uses on this machine."""
    if os.environ.get(MIRROR):
        return os.environ[MIRROR].rstrip("/")
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    answer = subprocess.run(listing, capture_output=True, text=True, check=False)
    system = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    if "ID=debian" in system:
        for line in answer.stdout.splitlines():
            address, release, component = line.split(" ")  # the release of a flat repository is empty
            if component == "main" and "-" not in release and "/" not in release:
                return address.rstrip("/")
    raise Missing(f"apt uses no Debian archive on this machine; set {MIRROR} to one, such as http://HOST/debian")


def _configuration(folder: Path) -> Path:
    """An apt configuration that ignores installed packages, but uses the network settings of this machine's apt."""
    for name in ("empty", "sources", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    sources = [f"URIs: {archive()}\nSuites: {SUITE} {SUITE}-updates"]
    if archive().endswith("/debian"):
        sources.append(f"URIs: {archive()}-security\nSuites: {SUITE}-security")
    signed = f"Types: deb\nComponents: main\nArchitectures: amd64\nSigned-By: {KEYRING}\n"
    (folder / "sources/lab.sources").write_text("\n".join(f"{source}\n{signed}" for source in sources))
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    network = [line for line in dump.splitlines() if line.startswith(("Acquire::http", "Acquire::Check-"))]
    folders = [f'Dir::{name} "{folder}/{value}";' for name, value in (
        ("Etc::Parts", "empty"),
        ("Etc::sourceparts", "sources"),
        ("Etc::preferencesparts", "empty"),
        ("State::lists", "lists"),
        ("State::status", "status"),
        ("State::extended_states", "extended"),
        ("Cache", "cache"),
    )]  # fmt: skip
    folders += [
        'Dir::Etc::Main "/dev/null";',
        'Dir::Etc::sourcelist "/dev/null";',
        'Dir::Etc::preferences "/dev/null";',
    ]
    common = ['Acquire::Languages "none";', 'Acquire::Retries "3";', 'APT::Install-Recommends "false";']
    (folder / "chroot.conf").write_text("\n".join([*network, *common]) + "\n")
    (folder / "apt.conf").write_text("\n".join([*network, *common, *folders, 'APT::Architecture "amd64";']) + "\n")
    return folder / "apt.conf"


def packages(*names: str) -> list[Path]:
    """The downloaded files of packages and of all their dependencies."""
    folder = LAB / "apt"
    with _apt(folder) as environment:
        install = ["apt-get", "-q", "install", "--yes", "--no-install-recommends"]
        with _archive_required():
            run([*install, "--download-only", *names], env=environment)
        not_downloaded = run([*install, "--print-uris", *names], env=environment)
        if "://" in not_downloaded:
            raise StepFailed(f"apt-get did not download all packages:\n{not_downloaded}")
        plan = run([*install, "--simulate", *names], env=environment)
        files = []
        for line in plan.splitlines():
            if line.startswith("Inst "):
                name, version = line.split()[1], line.split("(")[1].split()[0]
                files += (folder / "cache/archives").glob(f"{name}_{version.replace(':', '%3a')}_*.deb")
        return files


def download(names: t.Sequence[str], folder: Path) -> list[Path]:
    """Download packages to a folder, without their dependencies. Returns the files."""
    with _apt(LAB / "apt") as environment, _archive_required():
        run(["apt-get", "-q", "download", *names], env=environment, cwd=folder)
    return sorted(folder.glob("*.deb"))


@contextlib.contextmanager
def _apt(folder: Path) -> t.Iterator[dict[str, str]]:
    """The environment for apt, with package lists that are at most an hour old. Locks the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        environment = dict(os.environ, APT_CONFIG=str(_configuration(folder)), LC_ALL="C")
        lists = folder / "lists"
        newest = max((path.stat().st_mtime for path in lists.glob("*Release")), default=0)
        if time.time() - newest > 3600:
            with _archive_required():
                run(["apt-get", "-q", "--error-on=any", "update"], env=environment)
            for path in lists.glob("*Release"):
                os.utime(path)
        yield environment


@contextlib.contextmanager
def _archive_required() -> t.Iterator[None]:
    """Raise Missing instead of StepFailed."""
    try:
        yield
    except StepFailed as failure:
        raise Missing(f"cannot get Debian packages from {archive()}:\n{failure}") from None


def unpack(files: t.Iterable[Path], folder: Path) -> None:
    """Unpack Debian packages to a folder."""
    for file in files:
        run(["dpkg-deb", "--extract", file, folder])


def cached(name: str, recipe: t.Iterable[object], make: t.Callable[[Path], None]) -> Path:
    """The folder of a part in the cache, created by `make` if it does not exist.

    Its name has the hash of the recipe. Files in the recipe count with their content.
    """
    digest = hashlib.sha256()
    for part in recipe:
        digest.update(part.read_bytes() if isinstance(part, Path) else f"{part}\n".encode())
    target = LAB / f"{name}-{digest.hexdigest()[:12]}"
    LAB.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(target):
        if target.exists():
            return target
        say(f"creating the lab's {name}, once: about {FIRST_RUN_SECONDS.get(name, 60)} s on two idle cores")
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=LAB, prefix=".making-") as folder:
            new = Path(folder) / name
            new.mkdir()
            make(new)
            new.rename(target)
        size = int(run(["du", "--summarize", "--block-size=1M", target]).split()[0])
        say(f"{name}: {time.monotonic() - start:.0f} s, {size} MiB in {target}")
    return target


@functools.lru_cache(None)  # a change of the recipe takes effect in the next process
def tools() -> Path:
    """A folder with QEMU and the programs that create images. Run them by command()."""
    return cached("tools", [SUITE, *TOOLS], lambda folder: unpack(packages(*TOOLS), folder))


def command(tree: Path, program: str) -> list[str]:
    """The command for a program of a folder of packages, with its own loader and libraries, not this machine's."""
    loader = tree / "usr/lib64/ld-linux-x86-64.so.2"
    paths = f"{tree / LIBRARIES}:{tree / LIBRARIES / 'systemd'}"
    return [str(loader), "--library-path", paths, str(tree / program)]


def _chroot_command(tree: Path, *words: str) -> list[str]:
    """The command that runs `words` as root in an unpacked tree, as the machine's root or in a user namespace."""
    steps = 'mount --rbind /dev "$1/dev"; mount --rbind /proc "$1/proc"; exec chroot "$@"'
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin"
    namespaces = ["unshare", *user, "--mount", "--propagation", "private", "sh", "-ec", steps]
    return [*namespaces, "sh", str(tree), "/usr/bin/env", "-i", path, "LC_ALL=C", *words]


@functools.lru_cache(None)
def kernel() -> Path:
    """A folder with `vmlinux`, `initrd`, and `modules.tar`, which also has the test modules of tests/lab/modules."""
    sources = sorted((RECIPES / "modules").iterdir())

    def make(folder: Path) -> None:
        tree = folder.parent / "tree"
        unpack(packages(*KERNEL, *BUILD), tree)
        for link, target in (("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
            if not (tree / link).exists():
                (tree / link).symlink_to(target)
        (tree / "usr/bin/awk").symlink_to("mawk")
        for name in ("dev", "proc", "tmp", "lab"):
            (tree / name).mkdir(exist_ok=True)
        for path in sources:
            shutil.copy(path, tree / "lab")
        run(_chroot_command(tree, "sh", "-e", "/lab/build.sh", str(os.cpu_count() or 1)))
        for name in ("vmlinux", "initrd", "modules.tar", "release"):
            shutil.move(tree / "lab/made" / name, folder / name)
        shutil.rmtree(tree)

    return cached("kernel", [SUITE, *KERNEL, *BUILD, *sources], make)


@functools.lru_cache(None)
def image() -> Path:
    """A folder with `disk`, the SSH key `id` of its root, and `known_hosts` for its host name lab."""
    script = RECIPES / "image.sh"
    boot = kernel()
    programs = tools()

    def make(folder: Path) -> None:
        work = folder.parent
        for name in ("id", "host"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lanewise lab", "-f", folder / name])
        (folder / "known_hosts").write_text(f"lab {(folder / 'host.pub').read_text()}")
        packages("base-files")  # creates the apt configuration and updates the package lists
        run(
            [
                "perl",
                programs / "usr/bin/mmdebstrap",
                "--variant=essential",
                "--format=tar",
                f"--aptopt={LAB / 'apt/chroot.conf'}",
                f"--include={','.join(IMAGE)}",
                f'--customize-hook=sh -e "{script}" "$1" "{folder}" "{boot}"',
                SUITE,
                work / "root.tar",
                LAB / "apt/sources/lab.sources",
            ],
            env=dict(os.environ, TMPDIR=str(work), LC_ALL="C"),
            stdin=subprocess.DEVNULL,
        )
        disk = folder / "disk"
        size = (work / "root.tar").stat().st_size // 2**20 + 3072
        options = ["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^metadata_csum,^has_journal", "-L", "lab"]
        settings = dict(os.environ, MKE2FS_CONFIG="/dev/null")
        # mke2fs loads libarchive by name
        run([*command(programs, "usr/sbin/mke2fs"), *options, "-d", work / "root.tar", disk, f"{size}M"], env=settings)

    return cached("image", [SUITE, *IMAGE, script, boot.name, programs.name], make)


def loaders() -> Path:
    """A folder with boot loaders, for tests in which the firmware starts kernel() from a node's own disk.

    It has a folder with the packages of each boot loader, by its name; the kernel as `vmlinuz`; modules for UEFI below
    `fs`; the UEFI firmware `OVMF.fd`. Raises Missing also if the archive no longer has the release of kernel().
    """
    boot = kernel()
    release = (boot / "release").read_text().strip()

    def make(folder: Path) -> None:
        for name, names in LOADERS.items():
            (folder / name).mkdir()
            for file in packages(*names):
                shutil.copy(file, folder / name)
        tree = folder.parent / "tree"
        image = f"linux-image-{release}"
        unpack([file for file in packages(image, "ovmf") if file.name.startswith((f"{image}_", "ovmf_"))], tree)
        shutil.copy(tree / f"boot/vmlinuz-{release}", folder / "vmlinuz")
        shutil.copy(tree / "usr/share/ovmf/OVMF.fd", folder)
        for name in ("fat", "nls", "efivarfs"):
            shutil.copytree(tree / "usr/lib/modules" / release / "kernel/fs" / name, folder / "fs" / name)
        shutil.rmtree(tree)

    return cached("loaders", [SUITE, *LOADERS["grub-pc"], *LOADERS["systemd-boot"], boot.name], make)


def openmpi() -> Path:
    """A folder with Open MPI, to copy to the root folder of a node. Raises Missing."""

    def make(folder: Path) -> None:
        files = folder.parent / "packages"
        files.mkdir()
        unpack(download(OPENMPI, files), folder)
        shutil.rmtree(folder / "usr/share/doc")

    return cached("openmpi", [SUITE, *OPENMPI], make)


@functools.lru_cache(None)
def specifications() -> Path:
    """A folder with the kernel's netlink specifications, such as rt_link.yaml. Raises Missing and StepFailed."""
    if not list(LAB.glob("specifications-*")):
        require_supported()

    def make(folder: Path) -> None:
        tree = folder.parent / "tree"
        unpack([path for path in packages(SOURCE) if path.name.startswith(f"{SOURCE}_")], tree)
        [source_archive] = (tree / "usr/src").glob("linux-source-*.tar.xz")
        run(
            [
                "tar",
                "-xJf",
                source_archive,
                "-C",
                folder,
                "--strip-components=4",
                "--wildcards",
                "*/Documentation/netlink/specs/*.yaml",
            ]
        )
        shutil.rmtree(tree)

    return cached("specifications", [SUITE, SOURCE], make)


def ensure() -> tuple[Path, Path, Path]:
    """The folders of tools(), kernel() and image(), created if they do not exist. Raises Missing and StepFailed."""
    if not list(LAB.glob("image-*/disk")):  # an existing image works without a network, too
        require_supported()
    return tools(), kernel(), image()


def main() -> int:
    try:
        for path in ensure():
            print(path)
    except (Missing, StepFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
