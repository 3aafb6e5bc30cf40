# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hook as a container runtime runs it, against the driver's socket, with real processes and network namespaces.

This file has more than 500 lines because hook and server are tested together, with the same processes and fixtures.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.folders import under
from ansible_collections.lanewise.dra.tests.driver.kubelet import UID, FileService
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.base.calls import AttachRequest
from lanewise_driver.base.errors import Busy
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.base.paths import Paths
from lanewise_driver.claims import cdi, claim_files
from lanewise_driver.claims.next_pod import NextPod
from lanewise_driver.hook import program as hook
from lanewise_driver.hook import server as hook_server
from lanewise_driver.hook.install import install_hook
from lanewise_driver.hook.server import HookServer
from lanewise_driver.kernel import netns
from lanewise_driver.web import Web

CLAIM_UID = UID.format(1)
INSTANCE_UID = "0b0f4c0e-1111-4000-8000-00000000000{}"
NOBODY_UID = 65534
ANNOTATIONS = {
    "io.kubernetes.cri.sandbox-uid": "pod-uid",
    "io.kubernetes.cri.sandbox-name": "worker-0",
    "io.kubernetes.cri.sandbox-namespace": "training",
    "io.kubernetes.cri.sandbox-id": "f00d",
    "io.kubernetes.cri.container-name": 'has a "pid": 1 in it',
    "pid": "7",
}
#: Interpreters that distributions have, but that are too old for the driver.
OLD_PYTHONS = sorted(
    path
    for folder in (Path("/usr/bin"), *Path.home().glob(".pyenv/versions/*/bin"))
    for path in folder.glob("python3.[6-9]")
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the socket is for root only")
pytestmark = needs_root


@pytest.fixture
def paths() -> t.Iterator[Paths]:
    """Folders with short names, as sockets need."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="d") as folder:
        short_paths = under(Path(folder), hook_python=Path(sys.executable))
        short_paths.make()
        install_hook(short_paths)
        yield short_paths


@pytest.fixture
def service(paths: Paths) -> FileService:
    return FileService(paths.state_dir)


@pytest.fixture
def server(paths: Paths, service: FileService) -> t.Iterator[HookServer]:
    started = HookServer(paths, service, Metrics())
    started.start()
    yield started
    started.stop(1)


@pytest.fixture(scope="session")
def container() -> t.Iterator[int]:
    """The process ID of a container's first process, in a new network namespace."""
    child = subprocess.Popen(["unshare", "--net", "sleep", "300"])
    own = os.stat("/proc/self/ns/net").st_ino
    for _unused in range(200):
        if os.stat(f"/proc/{child.pid}/ns/net").st_ino != own:
            break
        time.sleep(0.02)
    else:
        pytest.skip("could not create a network namespace")
    yield child.pid
    child.kill()
    child.wait()


class Hook(subprocess.Popen[bytes]):
    """A process of the hook, started with the command of the CDI spec. `options` are those of Popen."""

    def __init__(self, paths: Paths, pid: int, wait: float = cdi.HOOK_WAIT_SECONDS, **options: t.Any) -> None:
        state = {"ociVersion": "1.2.0", "id": "c0ffee", "status": "created", "pid": pid, "bundle": "/run/b"}
        state["annotations"] = {**ANNOTATIONS, **options.pop("annotations", {})}
        command = [*cdi.hook_command(paths, CLAIM_UID)[:-1], str(wait)]
        pipe = subprocess.PIPE
        options.setdefault("env", {"LC_ALL": "C.UTF-8"})
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=pipe, **options)
        assert self.stdin
        self.stdin.write(json.dumps(state).encode())
        self.stdin.close()
        self.stdin = None

    def result(self) -> tuple[int, str]:
        """Wait for the end. Returns the exit status and the standard error."""
        out, err = self.communicate(timeout=60)
        assert out == b""
        return self.returncode, err.decode()


def test_the_hook_sends_the_container_and_its_namespace(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    assert Hook(paths, container).result() == (0, "")
    (request,) = service.attached
    assert (request.uid, request.pid, request.container) == (CLAIM_UID, container, "c0ffee")
    assert (request.pod_uid, request.pod_namespace, request.pod_name) == ("pod-uid", "training", "worker-0")
    # the descriptor was that of the container's namespace, and is closed
    assert (service.folder / "netns").read_text() == str(os.stat(f"/proc/{container}/ns/net").st_ino)
    assert not request.netns.exists()
    assert 'lanewise_operation_seconds_count{operation="attach",outcome="ok"} 1.0' in server.metrics.text().decode()


def test_attach_while_a_client_holds_all_connections_to_the_metrics(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    """If each connection took a thread, no thread would be left for hooks."""
    web = Web("127.0.0.1:0", server.metrics, list)
    web.start()
    threads = threading.active_count()
    try:
        with contextlib.ExitStack() as stack:
            for _number in range(512):
                stack.enter_context(socket.create_connection(("127.0.0.1", web.port), timeout=20))
            assert threading.active_count() == threads
            for _attempt in range(3):
                assert Hook(paths, container).result() == (0, "")
        assert len(service.attached) == 3
    finally:
        web.stop()


def test_the_pod_is_read_from_the_annotations_of_cri_o(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    of_containerd = {name: "" for name in ANNOTATIONS}
    of_cri_o = {
        "io.kubernetes.pod.uid": "u",
        "io.kubernetes.pod.name": "n",
        "io.kubernetes.pod.namespace": "s",
        "io.kubernetes.cri-o.SandboxID": "i",
    }
    assert Hook(paths, container, annotations={**of_containerd, **of_cri_o}).result()[0] == 0
    (request,) = service.attached
    assert (request.pod_uid, request.pod_name, request.pod_namespace) == ("u", "n", "s")


@pytest.mark.parametrize("field", ["uid", "namespace", "name"])
def test_no_pod_is_identified_if_annotations_contradict_each_other(field: str) -> None:
    """CRI-O passes on the annotations of a pod, which may have the names that containerd uses."""
    by_cri_o, by_containerd = f"io.kubernetes.pod.{field}", f"io.kubernetes.cri.sandbox-{field}"
    for pod_annotations, expected in (
        ({by_cri_o: "own"}, "own"),
        ({by_containerd: "own"}, "own"),
        ({by_cri_o: "own", by_containerd: "own"}, "own"),
        ({by_containerd: "another", by_cri_o: "own"}, ""),
    ):
        request = AttachRequest(CLAIM_UID, Path("/proc/self/ns/net"), 0, "c", pod_annotations)
        assert getattr(request, f"pod_{field}") == expected
        assert request.contradiction == ("" if expected else f"{by_cri_o} and {by_containerd}")


def test_a_refusal_is_reported_in_one_line_at_once(server: HookServer, paths: Paths, container: int) -> None:
    start = time.monotonic()
    result = Hook(paths, container, annotations={"refuse": "nic0:\n no µlink"}).result()
    assert result == (1, "lanewise.dev: nic0: no µlink\n")
    assert time.monotonic() - start < 10, "a retry would not help"


def test_the_hook_tries_again_while_the_device_is_busy(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    service.busy = 3
    assert Hook(paths, container).result() == (0, "")
    assert service.busy == 0 and len(service.attached) == 1
    service.busy = 1000
    status, reported = Hook(paths, container, wait=3).result()
    assert (status, reported) == (1, "lanewise.dev: gave up after 3 seconds: nic0 is still with claim other\n")


def test_a_timeout_reports_the_last_answer_of_the_driver(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    """If the timeout interrupts an attempt, the driver's last answer explains more than the timeout."""
    service.busy, service.delay = 1000, 3
    status, reported = Hook(paths, container, wait=5.5).result()
    assert (status, reported) == (1, "lanewise.dev: gave up after 5.5 seconds: nic0 is still with claim other\n")


def test_the_hook_waits_for_a_driver_that_starts(paths: Paths, service: FileService, container: int) -> None:
    waiting = Hook(paths, container)
    time.sleep(1)
    assert waiting.poll() is None
    server = HookServer(paths, service, Metrics())
    server.start()
    assert waiting.result() == (0, "")
    server.stop(1)
    assert not paths.hook_socket.exists()


#: A driver whose attaches do not end.
HANGING_DRIVER = """
import sys, time
from pathlib import Path
from lanewise_driver.hook.server import HookServer
from lanewise_driver.base.metrics import Metrics
from ansible_collections.lanewise.dra.tests.driver.folders import under
class Slow:
    def attach(self, request):
        print("attaching", flush=True)
        time.sleep(300)
HookServer(under(Path(sys.argv[1])), Slow(), Metrics()).start()
print("up", flush=True)
time.sleep(300)
"""


def test_the_hook_waits_for_the_next_driver_after_a_kill(paths: Paths, service: FileService, container: int) -> None:
    root = paths.run_dir.parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(
        [sys.executable, "-c", HANGING_DRIVER, str(root)], stdout=subprocess.PIPE, env=environment
    )
    assert driver.stdout and driver.stdout.readline() == b"up\n"
    waiting = Hook(paths, container)
    assert driver.stdout.readline() == b"attaching\n"
    driver.kill()
    driver.communicate()
    time.sleep(0.5)
    assert paths.hook_socket.exists() and waiting.poll() is None
    server = HookServer(paths, service, Metrics())
    server.start()
    assert waiting.result() == (0, "")
    server.stop(1)


def test_the_hook_does_not_contact_the_driver_if_the_devices_are_attached(paths: Paths, container: int) -> None:
    """The driver does not run here. A container in the pinned namespace starts if the driver has recorded that the
    devices are attached; if they were attached early, the hook records the start. A container in another namespace
    never starts."""
    pin = paths.pin(CLAIM_UID)
    netns.pin(f"/proc/{container}/ns/net", pin)
    try:
        assert Hook(paths, container, 0.1).result()[0] == 1  # pinned, but not attached yet
        paths.attached_marker(CLAIM_UID).touch()
        started = time.monotonic()
        assert Hook(paths, container, 30).result() == (0, "")
        assert time.monotonic() - started < 20
        assert not paths.early_marker(CLAIM_UID).exists()  # it was not attached early
        paths.early_marker(CLAIM_UID).touch()
        assert Hook(paths, os.getpid(), 0.1).result()[0] == 1 and claim_files.awaits_container(paths, CLAIM_UID)
        command = [sys.executable, "-I", "-S", str(paths.hook_program), str(paths.hook_socket), CLAIM_UID, "30"]
        subprocess.run(command, input=json.dumps({"pid": container}).encode(), check=True)
        assert not claim_files.awaits_container(paths, CLAIM_UID)
        paths.early_marker(CLAIM_UID).write_bytes(b"")
        assert claim_files.awaits_container(paths, CLAIM_UID)
        # the shell script decides without Python, which is slow to start
        without_python = dataclasses.replace(paths, hook_python=Path("/bin/false"))
        assert Hook(without_python, container, 30).result() == (0, "")
        assert not claim_files.awaits_container(paths, CLAIM_UID)
        assert Hook(without_python, os.getpid(), 0.1).result() == (1, "")
        assert Hook(paths, os.getpid(), 0.1).result()[0] == 1  # like a new sandbox of the pod
    finally:
        netns.unpin(pin)
    assert Hook(paths, container, 0.1).result()[0] == 1  # the namespace is no longer pinned


def test_the_hook_gives_up_in_time(paths: Paths, service: FileService, container: int) -> None:
    status, reported = Hook(paths, container, wait=0.5).result()
    missing = f"the driver does not answer at {paths.hook_socket}: No such file or directory"
    assert (status, reported) == (1, f"lanewise.dev: gave up after 0.5 seconds: {missing}\n")
    server = HookServer(paths, service, Metrics())
    server.start()
    service.delay = 3
    status, reported = Hook(paths, container, wait=0.5).result()
    assert (status, reported) == (1, "lanewise.dev: gave up after 0.5 seconds: the driver has not finished\n")
    server.stop(10)


@pytest.mark.parametrize(
    "python", OLD_PYTHONS or [pytest.param(None, marks=pytest.mark.skip("no old Python is installed"))], ids=str
)
def test_an_old_python_runs_the_hook(
    server: HookServer, paths: Paths, service: FileService, container: int, python: Path, tmp_path: Path
) -> None:
    old_paths = dataclasses.replace(paths, hook_python=python)
    assert Hook(old_paths, container).result() == (0, "")
    refusal = Hook(old_paths, container, annotations={"refuse": "no link"}).result()
    assert refusal == (1, "lanewise.dev: no link\n")
    unanswered = Hook(dataclasses.replace(old_paths, run_dir=tmp_path), container, wait=0.5).result()
    missing = f"the driver does not answer at {tmp_path}/hook.sock: No such file or directory"
    assert unanswered == (1, f"lanewise.dev: gave up after 0.5 seconds: {missing}\n")
    service.delay = 3
    slow = Hook(old_paths, container, wait=0.5).result()
    assert slow == (1, "lanewise.dev: gave up after 0.5 seconds: the driver has not finished\n")


def test_the_hook_uses_only_syntax_of_old_pythons() -> None:
    """For machines without an old Python, where the previous test is skipped."""
    # ast does not know the grammar of 3.6, the oldest supported version
    tree = ast.parse(Path(hook.__file__).read_text(), feature_version=(3, 7))
    annotations = [node.annotation for node in ast.walk(tree) if isinstance(node, (ast.arg, ast.AnnAssign))]
    annotations += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(annotations) > 9
    for annotation in annotations:
        assert isinstance(annotation, (ast.Constant, ast.Name, type(None))), ast.unparse(annotation)


def test_stop_lets_running_attaches_end(paths: Paths, service: FileService, container: int) -> None:
    server = HookServer(paths, service, Metrics())
    server.start()
    service.delay = 1.5
    running = Hook(paths, container)
    assert service.running.acquire(timeout=20)
    server.stop(20)
    assert running.result() == (0, "")
    assert not paths.hook_socket.exists()


#: A client that sends its standard input to the socket as another user.
CLIENT = """
import os, socket, sys
uid, netns = int(sys.argv[1]), os.open(sys.argv[2], os.O_RDONLY)
os.seteuid(uid)
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect("hook.sock")
        socket.send_fds(connection, [sys.stdin.buffer.read()], [netns])
        connection.shutdown(socket.SHUT_WR)
        print(connection.recv(100))
    except OSError as error:
        print(type(error).__name__)
"""


def test_only_root_can_send_requests(server: HookServer, paths: Paths, service: FileService, container: int) -> None:
    """The mode of the folder, the mode of the socket and the server each keep other users out."""

    def answer_to(uid: int) -> str:
        command = [sys.executable, "-c", CLIENT, str(uid), f"/proc/{container}/ns/net"]
        done = subprocess.run(
            command, input=encode_request(container), capture_output=True, cwd=paths.run_dir, check=True
        )
        return done.stdout.decode().strip()

    assert stat.S_IMODE(paths.hook_socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.run_dir.stat().st_mode) == 0o700
    assert answer_to(NOBODY_UID) == "PermissionError"
    paths.run_dir.chmod(0o711)
    assert answer_to(NOBODY_UID) == "PermissionError"
    paths.hook_socket.chmod(0o666)
    assert answer_to(NOBODY_UID) in ("b''", "BrokenPipeError", "ConnectionResetError")
    assert service.attached == []
    assert b'lanewise_errors_total{part="hooks"} 1.0' in server.metrics.text()
    assert answer_to(0) == repr(b"done\n")
    assert len(service.attached) == 1


def test_the_hook_does_not_depend_on_its_callers_environment(
    server: HookServer, paths: Paths, tmp_path: Path, container: int
) -> None:
    for name in ("os", "time", "_socket", "socket", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)\n")
        (paths.hook_program.parent / f"{name}.py").write_text("raise SystemExit(98)\n")
    environment = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/nonexistent",
        "PYTHONSTARTUP": str(tmp_path / "os.py"),
        "PYTHONUSERBASE": str(tmp_path),
        "PYTHONINSPECT": "1",
        "PATH": "",
        "LC_ALL": "nonsense",
    }
    assert Hook(paths, container, cwd=tmp_path, env=environment).result() == (0, "")
    assert Hook(paths, container, cwd="/", env={}).result() == (0, "")


def test_a_newer_instance_takes_over(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    new_service = FileService(paths.netns_dir)
    old = HookServer(paths, service, Metrics(), INSTANCE_UID.format(1))
    new = HookServer(paths, new_service, Metrics(), INSTANCE_UID.format(2))
    old.start()
    new.start()
    assert Hook(paths, container).result() == (0, "")
    assert (len(service.attached), len(new_service.attached)) == (0, 1)
    # the newer instance fails and ends, and the older one takes over again
    new.stop(1)
    assert Hook(paths, container).result() == (0, "")
    assert (len(service.attached), len(new_service.attached)) == (1, 1)
    third = HookServer(paths, new_service, Metrics(), INSTANCE_UID.format(3))
    third.start()
    old.stop(1)
    assert Hook(paths, container).result() == (0, "")
    assert len(new_service.attached) == 2
    third.stop(1)
    assert list(paths.run_dir.glob("hook.sock*")) == []


def test_a_deleted_socket_is_created_again(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    server = HookServer(paths, service, Metrics())
    server.start()
    paths.hook_socket.unlink()
    assert Hook(paths, container).result() == (0, "")
    server.stop(1)


def test_the_server_survives_too_many_open_files(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the check of its own socket then fails."""
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.05)
    server = HookServer(paths, service, Metrics())
    server.start()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        time.sleep(0.3)  # several checks
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert server._thread and server._thread.is_alive()
    assert Hook(paths, container).result() == (0, "")
    server.stop(1)


def test_a_slow_request_is_refused_in_time(server: HookServer, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_server, "READ_TIMEOUT_SECONDS", 0.5)
    start = time.monotonic()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(paths.hook_socket))
        client.send(b"{")
        time.sleep(0.4)
        client.send(b" ")
        client.settimeout(5)
        assert client.recv(100) == b""
    assert time.monotonic() - start < 0.8


def test_the_socket_of_a_killed_newer_instance_is_replaced(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    server = HookServer(paths, service, Metrics(), INSTANCE_UID.format(1))
    server.start()
    draft = paths.run_dir / "draft"
    with socket.socket(socket.AF_UNIX) as newer:
        newer.bind(str(draft))
        newer.listen()
        newer.settimeout(0.5)
        draft.rename(paths.hook_socket)
        with pytest.raises(TimeoutError):  # the check does not connect to it
            newer.accept()
        inode = paths.hook_socket.stat().st_ino
    assert Hook(paths, container).result() == (0, "")
    assert paths.hook_socket.stat().st_ino != inode
    server.stop(1)
    assert not paths.hook_socket.exists()


def test_sockets_of_killed_drivers_are_removed(paths: Paths, service: FileService) -> None:
    old, fresh = (paths.hook_socket.with_name(f"{paths.hook_socket.name}.{name}") for name in ("0badcafe", "f7e5f7e5"))
    for draft in (old, fresh):
        with socket.socket(socket.AF_UNIX) as leftover:
            leftover.bind(str(draft))
    os.utime(old, (0, time.time() - 60))
    server = HookServer(paths, service, Metrics())
    server.start()
    assert not old.exists() and fresh.exists()  # another instance may be creating that one
    server.stop(1)
    fresh.unlink()


def test_many_containers_start_at_once(server: HookServer, paths: Paths, service: FileService, container: int) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    service.delay = 0.2
    hooks = [Hook(paths, container) for _unused in range(40)]
    assert [running.result() for running in hooks] == [(0, "")] * 40
    assert len(service.attached) == 40
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    assert threading.active_count() < 40


def test_the_hook_tries_again_if_the_server_could_not_start_a_thread(
    server: HookServer, paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "hook" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")  # the error of Python at a limit on processes
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert Hook(paths, container).result() == (0, "")
    assert len(refused) == 3 and len(service.attached) == 1
    assert b'lanewise_errors_total{part="hooks"} 3.0' in server.metrics.text()


def test_a_hook_retries_if_its_claim_cannot_be_assigned_to_its_pod_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that requests the claim's current pod cannot start at a limit on processes."""
    assigned: list[tuple[str, str]] = []
    next_pod = NextPod(lambda uid, pod_uid: assigned.append((uid, pod_uid)))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Busy, match="was prepared for another pod"):
            next_pod.request(CLAIM_UID, "pod")
    next_pod.check(CLAIM_UID, "pod")  # nothing runs
    with pytest.raises(Busy):
        next_pod.request(CLAIM_UID, "pod")
    until(lambda: assigned == [(CLAIM_UID, "pod")])


def test_stop_does_not_wait_for_a_free_worker(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "WORKERS", 1)
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    server = HookServer(paths, service, Metrics())
    server.start()
    service.delay = 4
    hooks = [Hook(paths, container, wait=1) for _unused in range(3)]
    assert service.running.acquire(timeout=20)
    start = time.monotonic()
    server.stop(0.1)
    assert time.monotonic() - start < 3.5
    assert {running.result()[0] for running in hooks} == {1}


def send(paths: Paths, content: bytes, descriptors: t.Sequence[int] = ()) -> bytes:
    """Send bytes and descriptors to the driver's socket. Returns the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(paths.hook_socket))
        answer = b""
        try:
            if descriptors:
                content = content[socket.send_fds(connection, [content], descriptors) :]
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(4096):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer


def encode_request(pid: t.Any, uid: str = CLAIM_UID, **state: t.Any) -> bytes:
    """A request of the hook: a line with the claim and the process ID, then the OCI state."""
    return f"{uid} {pid}\n".encode() + json.dumps({"pid": pid, "id": "c", "bundle": "b", **state}).encode()


def test_any_bytes_get_an_answer_or_a_closed_connection(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    """Afterwards, the driver still serves valid requests."""
    netns = os.open(f"/proc/{container}/ns/net", os.O_RDONLY)
    tokens = st.sampled_from(
        [encode_request(container), CLAIM_UID.encode(), b"\n", b"{}", b"[", b"\xff", b"null", b'{"pid": 1}']
    )

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.binary(max_size=20) | tokens, max_size=4), st.booleans())
    def check(parts: list[bytes], with_namespace: bool) -> None:
        content = b"".join(parts)
        answer = send(paths, content, [netns] if with_namespace and content else [])
        assert answer == b"" or answer.endswith(b"\n")
        assert answer.split(b" ")[0] in (b"", b"done\n", b"refused")
        if answer == b"done\n":
            assert with_namespace and json.loads(content.partition(b"\n")[2])["pid"] == container

    check()
    for content in (
        b"[" * 100_000,
        encode_request(container) + b" " * (5 << 20),
        encode_request(container, annotations={"x": 1}),
    ):
        answer = send(paths, content, [netns])
        assert answer == b"" or answer.startswith(b"refused")
    attached = len(service.attached)
    assert send(paths, encode_request(container), [netns]) == b"done\n"
    assert len(service.attached) == attached + 1
    os.close(netns)


def test_invalid_requests_are_refused(server: HookServer, paths: Paths, service: FileService, container: int) -> None:
    netns = os.open(f"/proc/{container}/ns/net", os.O_RDONLY)
    mount = os.open(f"/proc/{container}/ns/mnt", os.O_RDONLY)
    plain = os.open("/dev/null", os.O_RDONLY)
    wrong_state = b"refused the hook did not send the OCI state of a container\n"
    assert send(paths, encode_request(container)) == b"refused the hook did not send a network namespace\n"
    assert send(paths, encode_request(container), [mount]) == b"refused the hook did not send a network namespace\n"
    assert send(paths, encode_request(container), [plain]) == b"refused the hook did not send a network namespace\n"
    assert send(paths, f"{CLAIM_UID} 1\n".encode() + encode_request(2).split(b"\n")[1], [netns]) == wrong_state
    assert send(paths, encode_request(True), [netns]) == wrong_state
    assert send(paths, encode_request(container, id=None), [netns]) == wrong_state
    for uid in ("../../x", "", "."):
        assert send(paths, encode_request(container, uid), [netns]).startswith(b"refused")
    assert service.attached == []
    for descriptor in (netns, mount, plain):
        os.close(descriptor)


def test_connections_that_send_nothing_do_not_block_hooks(
    server: HookServer, paths: Paths, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "READ_TIMEOUT_SECONDS", 0.5)
    silent = [socket.socket(socket.AF_UNIX) for _unused in range(hook_server.WORKERS)]
    for connection in silent:
        connection.connect(str(paths.hook_socket))
    assert Hook(paths, container).result() == (0, "")
    for connection in silent:
        connection.close()


ANNOTATION_TEXTS = st.text(st.characters(codec="utf-8"), max_size=10) | st.sampled_from(
    ["pid", '"pid"', '\\"pid": 5', '"pid":9']
)


@settings(max_examples=1000, deadline=None)
@given(
    st.dictionaries(ANNOTATION_TEXTS, ANNOTATION_TEXTS, max_size=6),
    st.integers(min_value=1, max_value=2**22),
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_the_hook_finds_the_same_process_id_as_a_json_parser(
    annotations: dict[str, str], pid: int, pid_first: bool, indent: int | str | None, ascii_only: bool
) -> None:
    """The hook finds the number without a JSON parser, however a runtime formats its state."""
    state = {"annotations": annotations, "status": "created", "id": "c"}
    state = {"pid": pid, **state} if pid_first else {**state, "pid": pid}
    assert hook.process_id(json.dumps(state, indent=indent, ensure_ascii=ascii_only).encode()) == pid


@pytest.mark.parametrize("state", [b"", b"{}", b'{"pid": "7"}', b'{"pid"', b'{"pid": 0}', b'{"pid": -4}', b"\xff"])
def test_a_state_without_a_process_id_is_refused(paths: Paths, state: bytes) -> None:
    command = cdi.hook_command(paths, CLAIM_UID)
    done = subprocess.run(command, input=state, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        b"lanewise.dev: the container runtime did not pass the container's process id\n",
    )


def test_a_container_whose_process_has_ended_is_reported(paths: Paths) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    status, reported = Hook(paths, child.pid).result()
    problem = f"could not open the network namespace of process {child.pid}: No such file or directory"
    assert (status, reported) == (1, f"lanewise.dev: {problem}\n")


def test_wrong_arguments_print_the_usage(paths: Paths) -> None:
    for arguments in ([], ["a", "b"], ["a", "b", "soon"]):
        command = [*cdi.hook_command(paths, CLAIM_UID)[:4], *arguments]
        done = subprocess.run(command, input=b"", capture_output=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith(b"lanewise.dev: usage")


def measure_cpu_time(command: list[str], state: bytes = b"") -> float:
    """The CPU time of a command in milliseconds: the minimum of several runs, as other programs may disturb some."""
    times = []
    for _unused in range(12):
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdin
        child.stdin.write(state)
        child.stdin.close()
        _unused, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0 and child.stderr
        child.stderr.close()
        times.append((usage.ru_utime + usage.ru_stime) * 1000)
    return min(times)


def test_the_hook_starts_quickly(
    server: HookServer, paths: Paths, container: int, record_property: t.Callable[[str, object], None]
) -> None:
    """It takes little more time than an empty Python program, because it imports no large modules."""
    command = cdi.hook_command(paths, CLAIM_UID)
    state = encode_request(container).split(b"\n")[1]
    true_ms = measure_cpu_time(["true"])
    python = [command[2], "-I", "-S"]
    python_ms = measure_cpu_time([*python, "-c", "pass"])
    hook_ms = measure_cpu_time(command, state)
    record_property("CPU time in ms", {"true": true_ms, "python": python_ms, "hook": hook_ms})
    print(f"CPU time: true {true_ms:.1f} ms, python {python_ms:.1f} ms, hook {hook_ms:.1f} ms")
    assert hook_ms < python_ms + 15
    import_times = subprocess.run(
        [*python, "-X", "importtime", *command[3:]], input=state, capture_output=True, check=True
    ).stderr.decode()
    modules = {line.rpartition("|")[2].strip() for line in import_times.splitlines()}
    assert "_socket" in modules and not modules & {"json", "re", "socket", "enum", "site", "collections", "typing"}
