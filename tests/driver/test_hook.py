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
from ansible_collections.lanewise.dra.tests.driver.folders import under
from ansible_collections.lanewise.dra.tests.driver.kubelet import UID, FileService
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.base.calls import AttachRequest
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.base.paths import Paths
from lanewise_driver.claims import cdi, claim_files
from lanewise_driver.hook import program as hook
from lanewise_driver.hook import server as hook_server
from lanewise_driver.hook.install import install_hook
from lanewise_driver.hook.server import HookServer
from lanewise_driver.kernel import netns
from lanewise_driver.web import Web

CLAIM = UID.format(1)
INSTANCE = "0b0f4c0e-1111-4000-8000-00000000000{}"
NOBODY = 65534
ANNOTATIONS = {
    "io.kubernetes.cri.sandbox-uid": "pod-uid",
    "io.kubernetes.cri.sandbox-name": "worker-0",
    "io.kubernetes.cri.sandbox-namespace": "training",
    "io.kubernetes.cri.sandbox-id": "f00d",
    "io.kubernetes.cri.container-name": 'has a "pid": 1 in it',
    "pid": "7",
}
#: Interpreters that distributions have, but that are too old for the driver.
OLD = sorted(
    path
    for folder in (Path("/usr/bin"), *Path.home().glob(".pyenv/versions/*/bin"))
    for path in folder.glob("python3.[6-9]")
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the socket is for root alone")
pytestmark = needs_root


@pytest.fixture
def paths() -> t.Iterator[Paths]:
    """Folders with short names, as sockets need."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="d") as folder:
        made = under(Path(folder), hook_python=Path(sys.executable))
        made.make()
        install_hook(made)
        yield made


@pytest.fixture
def service(paths: Paths) -> FileService:
    return FileService(paths.state_dir)


@pytest.fixture
def server(paths: Paths, service: FileService) -> t.Iterator[HookServer]:
    running = HookServer(paths, service, Metrics())
    running.start()
    yield running
    running.stop(1)


@pytest.fixture(scope="session")
def container() -> t.Iterator[int]:
    """The process id of a container's first process, in a new network namespace."""
    child = subprocess.Popen(["unshare", "--net", "sleep", "300"])
    own = os.stat("/proc/self/ns/net").st_ino
    for _unused in range(200):
        if os.stat(f"/proc/{child.pid}/ns/net").st_ino != own:
            break
        time.sleep(0.02)
    else:
        pytest.skip("no network namespaces here")
    yield child.pid
    child.kill()
    child.wait()


class Hook(subprocess.Popen[bytes]):
    """The command of the CDI spec, started."""

    def __init__(self, paths: Paths, pid: int, wait: float = cdi.HOOK_WAIT_SECONDS, **changes: t.Any) -> None:
        state = {"ociVersion": "1.2.0", "id": "c0ffee", "status": "created", "pid": pid, "bundle": "/run/b"}
        state["annotations"] = {**ANNOTATIONS, **changes.pop("annotations", {})}
        command = [*cdi.hook_command(paths, CLAIM)[:-1], str(wait)]
        pipe = subprocess.PIPE
        changes.setdefault("env", {"LC_ALL": "C.UTF-8"})
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=pipe, **changes)
        assert self.stdin
        self.stdin.write(json.dumps(state).encode())
        self.stdin.close()
        self.stdin = None

    def ended(self) -> tuple[int, str]:
        """Exit status and standard error."""
        out, err = self.communicate(timeout=60)
        assert out == b""
        return self.returncode, err.decode()


def test_the_hook_sends_the_container_and_its_namespace(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    assert Hook(paths, container).ended() == (0, "")
    (request,) = service.attached
    assert (request.uid, request.pid, request.container) == (CLAIM, container, "c0ffee")
    assert (request.pod_uid, request.pod_namespace, request.pod_name) == ("pod-uid", "training", "worker-0")
    # the descriptor led to the container's namespace, and is closed
    assert (service.folder / "netns").read_text() == str(os.stat(f"/proc/{container}/ns/net").st_ino)
    assert not request.netns.exists()
    assert 'lanewise_operation_seconds_count{operation="attach",outcome="ok"} 1.0' in server.metrics.text().decode()


def test_attach_while_a_client_holds_all_connections_to_the_metrics(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    """Each connection used to take a thread, until none was left for hooks."""
    web = Web("127.0.0.1:0", server.metrics, list)
    web.start()
    threads = threading.active_count()
    try:
        with contextlib.ExitStack() as stack:
            for _number in range(512):
                stack.enter_context(socket.create_connection(("127.0.0.1", web.port), timeout=20))
            assert threading.active_count() == threads
            for _time in range(3):
                assert Hook(paths, container).ended() == (0, "")
        assert len(service.attached) == 3
    finally:
        web.stop()


def test_the_pod_is_read_from_the_annotations_of_cri_o(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    ours = {name: "" for name in ANNOTATIONS}
    theirs = {
        "io.kubernetes.pod.uid": "u",
        "io.kubernetes.pod.name": "n",
        "io.kubernetes.pod.namespace": "s",
        "io.kubernetes.cri-o.SandboxID": "i",
    }
    assert Hook(paths, container, annotations={**ours, **theirs}).ended()[0] == 0
    (request,) = service.attached
    assert (request.pod_uid, request.pod_name, request.pod_namespace) == ("u", "n", "s")


@pytest.mark.parametrize("what", ["uid", "namespace", "name"])
def test_contradicting_annotations_name_no_pod(what: str) -> None:
    """CRI-O passes on the annotations of a pod, which may have the names that containerd uses."""
    by_cri_o, by_containerd = f"io.kubernetes.pod.{what}", f"io.kubernetes.cri.sandbox-{what}"
    for written, expected in (
        ({by_cri_o: "own"}, "own"),
        ({by_containerd: "own"}, "own"),
        ({by_cri_o: "own", by_containerd: "own"}, "own"),
        ({by_containerd: "another", by_cri_o: "own"}, ""),
    ):
        request = AttachRequest(CLAIM, Path("/proc/self/ns/net"), 0, "c", written)
        assert getattr(request, f"pod_{what}") == expected
        assert request.contradiction == ("" if expected else f"{by_cri_o} and {by_containerd}")


def test_refusal_is_reported_in_one_line(server: HookServer, paths: Paths, container: int) -> None:
    start = time.monotonic()
    done = Hook(paths, container, annotations={"refuse": "nic0:\n no µlink"}).ended()
    assert done == (1, "lanewise.dev: nic0: no µlink\n")
    assert time.monotonic() - start < 10, "a retry would not help"


def test_a_busy_answer_is_tried_again(server: HookServer, paths: Paths, service: FileService, container: int) -> None:
    service.busy = 3
    assert Hook(paths, container).ended() == (0, "")
    assert service.busy == 0 and len(service.attached) == 1
    service.busy = 1000
    status, reported = Hook(paths, container, wait=3).ended()
    assert (status, reported) == (1, "lanewise.dev: gave up after 3 seconds: nic0 is still with claim other\n")


def test_a_timeout_reports_the_last_answer_of_the_driver(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    """At a timeout in the middle of an attempt, the driver's last answer says more than the timeout."""
    service.busy, service.delay = 1000, 3
    status, reported = Hook(paths, container, wait=5.5).ended()
    assert (status, reported) == (1, "lanewise.dev: gave up after 5.5 seconds: nic0 is still with claim other\n")


def test_the_hook_waits_for_a_driver_that_starts(paths: Paths, service: FileService, container: int) -> None:
    waiting = Hook(paths, container)
    time.sleep(1)
    assert waiting.poll() is None
    server = HookServer(paths, service, Metrics())
    server.start()
    assert waiting.ended() == (0, "")
    server.stop(1)
    assert not paths.hook_socket.exists()


DAEMON = """
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
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(root)], stdout=subprocess.PIPE, env=environment)
    assert daemon.stdout and daemon.stdout.readline() == b"up\n"
    waiting = Hook(paths, container)
    assert daemon.stdout.readline() == b"attaching\n"
    daemon.kill()
    daemon.communicate()
    time.sleep(0.5)
    assert paths.hook_socket.exists() and waiting.poll() is None
    server = HookServer(paths, service, Metrics())
    server.start()
    assert waiting.ended() == (0, "")
    server.stop(1)


def test_the_hook_does_not_ask_the_driver_if_the_devices_are_attached(paths: Paths, container: int) -> None:
    """A container restarts, or a second one of the pod starts, while the driver is down. A container in another
    namespace does not start, and no container starts before the driver has reported that everything is set up."""
    pin = paths.pin(CLAIM)
    netns.pin(f"/proc/{container}/ns/net", pin)
    try:
        assert Hook(paths, container, 0.1).ended()[0] == 1  # pinned is not attached
        paths.attached(CLAIM).touch()
        started = time.monotonic()
        assert Hook(paths, container, 30).ended() == (0, "")
        assert time.monotonic() - started < 20
        assert not paths.early(CLAIM).exists()  # it was not attached early
        paths.early(CLAIM).touch()
        assert Hook(paths, os.getpid(), 0.1).ended()[0] == 1 and claim_files.awaits_container(paths, CLAIM)
        command = [sys.executable, "-I", "-S", str(paths.hook_program), str(paths.hook_socket), CLAIM, "30"]
        subprocess.run(command, input=json.dumps({"pid": container}).encode(), check=True)
        assert not claim_files.awaits_container(paths, CLAIM)
        paths.early(CLAIM).write_bytes(b"")
        assert claim_files.awaits_container(paths, CLAIM)
        never = dataclasses.replace(paths, hook_python=Path("/bin/false"))  # without Python, which is slow to start
        assert Hook(never, container, 30).ended() == (0, "")
        assert not claim_files.awaits_container(paths, CLAIM)
        assert Hook(never, os.getpid(), 0.1).ended() == (1, "")
        assert Hook(paths, os.getpid(), 0.1).ended()[0] == 1  # as for a new sandbox of the pod
    finally:
        netns.unpin(pin)
    assert Hook(paths, container, 0.1).ended()[0] == 1  # taken back


def test_the_hook_gives_up_in_time(paths: Paths, service: FileService, container: int) -> None:
    status, reported = Hook(paths, container, wait=0.5).ended()
    missing = f"the driver does not answer at {paths.hook_socket}: No such file or directory"
    assert (status, reported) == (1, f"lanewise.dev: gave up after 0.5 seconds: {missing}\n")
    server = HookServer(paths, service, Metrics())
    server.start()
    service.delay = 3
    status, reported = Hook(paths, container, wait=0.5).ended()
    assert (status, reported) == (1, "lanewise.dev: gave up after 0.5 seconds: the driver has not finished\n")
    server.stop(10)


@pytest.mark.parametrize(
    "python", OLD or [pytest.param(None, marks=pytest.mark.skip("no old Python is installed"))], ids=str
)
def test_an_old_python_runs_the_hook(
    server: HookServer, paths: Paths, service: FileService, container: int, python: Path, tmp_path: Path
) -> None:
    old_paths = dataclasses.replace(paths, hook_python=python)
    assert Hook(old_paths, container).ended() == (0, "")
    refusal = Hook(old_paths, container, annotations={"refuse": "no link"}).ended()
    assert refusal == (1, "lanewise.dev: no link\n")
    unanswered = Hook(dataclasses.replace(old_paths, run_dir=tmp_path), container, wait=0.5).ended()
    missing = f"the driver does not answer at {tmp_path}/hook.sock: No such file or directory"
    assert unanswered == (1, f"lanewise.dev: gave up after 0.5 seconds: {missing}\n")
    service.delay = 3
    slow = Hook(old_paths, container, wait=0.5).ended()
    assert slow == (1, "lanewise.dev: gave up after 0.5 seconds: the driver has not finished\n")


def test_the_hook_is_written_for_an_old_python() -> None:
    """Covers machines without an old Python: the grammar and the annotations must suit it."""
    # ast has no grammar of 3.6; what 3.7 added is not used here
    tree = ast.parse(Path(hook.__file__).read_text(), feature_version=(3, 7))
    annotations = [node.annotation for node in ast.walk(tree) if isinstance(node, (ast.arg, ast.AnnAssign))]
    annotations += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(annotations) > 9
    for one in annotations:
        assert isinstance(one, (ast.Constant, ast.Name, type(None))), ast.unparse(one)


def test_stop_lets_running_attaches_end(paths: Paths, service: FileService, container: int) -> None:
    server = HookServer(paths, service, Metrics())
    server.start()
    service.delay = 1.5
    running = Hook(paths, container)
    assert service.running.acquire(timeout=20)
    server.stop(20)
    assert running.ended() == (0, "")
    assert not paths.hook_socket.exists()


STRANGER = """
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


def test_only_root_may_ask(server: HookServer, paths: Paths, service: FileService, container: int) -> None:
    """Other users are kept out by the mode of the socket and by that of its folder, and otherwise by the server."""

    def reported(uid: int) -> str:
        command = [sys.executable, "-c", STRANGER, str(uid), f"/proc/{container}/ns/net"]
        done = subprocess.run(command, input=request(container), capture_output=True, cwd=paths.run_dir, check=True)
        return done.stdout.decode().strip()

    assert stat.S_IMODE(paths.hook_socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.run_dir.stat().st_mode) == 0o700
    assert reported(NOBODY) == "PermissionError"
    paths.run_dir.chmod(0o711)
    assert reported(NOBODY) == "PermissionError"
    paths.hook_socket.chmod(0o666)
    assert reported(NOBODY) in ("b''", "BrokenPipeError", "ConnectionResetError")
    assert service.attached == []
    assert b'lanewise_errors_total{part="hooks"} 1.0' in server.metrics.text()
    assert reported(0) == repr(b"done\n")
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
    assert Hook(paths, container, cwd=tmp_path, env=environment).ended() == (0, "")
    assert Hook(paths, container, cwd="/", env={}).ended() == (0, "")


def test_a_newer_instance_takes_over(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    other = FileService(paths.netns_dir)
    old = HookServer(paths, service, Metrics(), INSTANCE.format(1))
    new = HookServer(paths, other, Metrics(), INSTANCE.format(2))
    old.start()
    new.start()
    assert Hook(paths, container).ended() == (0, "")
    assert (len(service.attached), len(other.attached)) == (0, 1)
    # the newer instance fails and ends, and the older one takes over again
    new.stop(1)
    assert Hook(paths, container).ended() == (0, "")
    assert (len(service.attached), len(other.attached)) == (1, 1)
    third = HookServer(paths, other, Metrics(), INSTANCE.format(3))
    third.start()
    old.stop(1)
    assert Hook(paths, container).ended() == (0, "")
    assert len(other.attached) == 2
    third.stop(1)
    assert list(paths.run_dir.glob("hook.sock*")) == []


def test_a_lost_socket_is_created_again(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    server = HookServer(paths, service, Metrics())
    server.start()
    paths.hook_socket.unlink()
    assert Hook(paths, container).ended() == (0, "")
    server.stop(1)


def test_the_socket_of_a_killed_newer_instance_is_replaced(
    paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "CHECK_SECONDS", 0.1)
    server = HookServer(paths, service, Metrics(), INSTANCE.format(1))
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
    assert Hook(paths, container).ended() == (0, "")
    assert paths.hook_socket.stat().st_ino != inode
    server.stop(1)
    assert not paths.hook_socket.exists()


def test_sockets_of_killed_drivers_are_removed(paths: Paths, service: FileService) -> None:
    old, fresh = (paths.hook_socket.with_name(f"{paths.hook_socket.name}.{name}") for name in ("0badcafe", "f7e5f7e5"))
    for draft in (old, fresh):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(draft))
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
    assert [running.ended() for running in hooks] == [(0, "")] * 40
    assert len(service.attached) == 40
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    assert threading.active_count() < 40


def test_the_server_survives_a_machine_without_threads_to_spare(
    server: HookServer, paths: Paths, service: FileService, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server continues, and the hook asks again."""
    start, refused = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "hook" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")  # the error at a limit of processes
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert Hook(paths, container).ended() == (0, "")
    assert len(refused) == 3 and len(service.attached) == 1
    assert b'lanewise_errors_total{part="hooks"} 3.0' in server.metrics.text()


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
    assert {running.ended()[0] for running in hooks} == {1}


def ask(paths: Paths, content: bytes, descriptors: t.Sequence[int] = ()) -> bytes:
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


def request(pid: t.Any, uid: str = CLAIM, **changes: t.Any) -> bytes:
    return f"{uid} {pid}\n".encode() + json.dumps({"pid": pid, "id": "c", "bundle": "b", **changes}).encode()


def test_any_bytes_do_no_harm(server: HookServer, paths: Paths, service: FileService, container: int) -> None:
    """Whatever root sends, the driver answers or closes the connection, and continues to serve."""
    netns = os.open(f"/proc/{container}/ns/net", os.O_RDONLY)
    tokens = st.sampled_from([request(container), CLAIM.encode(), b"\n", b"{}", b"[", b"\xff", b"null", b'{"pid": 1}'])

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.binary(max_size=20) | tokens, max_size=4), st.booleans())
    def check(parts: list[bytes], namespace: bool) -> None:
        content = b"".join(parts)
        answer = ask(paths, content, [netns] if namespace and content else [])
        assert answer == b"" or answer.endswith(b"\n")
        assert answer.split(b" ")[0] in (b"", b"done\n", b"refused")
        if answer == b"done\n":
            assert namespace and json.loads(content.partition(b"\n")[2])["pid"] == container

    check()
    for content in (b"[" * 100_000, request(container) + b" " * (2 << 20), request(container, annotations={"x": 1})):
        answer = ask(paths, content, [netns])
        assert answer == b"" or answer.startswith(b"refused")
    done = len(service.attached)
    assert ask(paths, request(container), [netns]) == b"done\n"
    assert len(service.attached) == done + 1
    os.close(netns)


def test_incomplete_requests_are_refused(
    server: HookServer, paths: Paths, service: FileService, container: int
) -> None:
    netns = os.open(f"/proc/{container}/ns/net", os.O_RDONLY)
    mount = os.open(f"/proc/{container}/ns/mnt", os.O_RDONLY)
    plain = os.open("/dev/null", os.O_RDONLY)
    state = b"refused the hook did not send the OCI state of a container\n"
    assert ask(paths, request(container)) == b"refused the hook did not send a network namespace\n"
    assert ask(paths, request(container), [mount]) == b"refused the hook did not send a network namespace\n"
    assert ask(paths, request(container), [plain]) == b"refused the hook did not send a network namespace\n"
    assert ask(paths, f"{CLAIM} 1\n".encode() + request(2).split(b"\n")[1], [netns]) == state
    assert ask(paths, request(True), [netns]) == state
    assert ask(paths, request(container, id=None), [netns]) == state
    for uid in ("../../x", "", "."):
        assert ask(paths, request(container, uid), [netns]).startswith(b"refused")
    assert service.attached == []
    for descriptor in (netns, mount, plain):
        os.close(descriptor)


def test_slow_hooks_do_not_delay_others(
    server: HookServer, paths: Paths, container: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_server, "READ_TIMEOUT_SECONDS", 0.5)
    stuck = [socket.socket(socket.AF_UNIX) for _unused in range(hook_server.WORKERS)]
    for connection in stuck:
        connection.connect(str(paths.hook_socket))
    assert Hook(paths, container).ended() == (0, "")
    for connection in stuck:
        connection.close()


NAMES = st.text(st.characters(codec="utf-8"), max_size=10) | st.sampled_from(["pid", '"pid"', '\\"pid": 5', '"pid":9'])


@settings(max_examples=1000, deadline=None)
@given(
    st.dictionaries(NAMES, NAMES, max_size=6),
    st.integers(min_value=1, max_value=2**22),
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_the_hook_finds_the_same_process_id_as_a_json_parser(
    annotations: dict[str, str], pid: int, first: bool, indent: int | str | None, ascii_only: bool
) -> None:
    """The hook finds the number without a JSON parser, however a runtime formats its state."""
    state = {"annotations": annotations, "status": "created", "id": "c"}
    state = {"pid": pid, **state} if first else {**state, "pid": pid}
    assert hook.process_id(json.dumps(state, indent=indent, ensure_ascii=ascii_only).encode()) == pid


@pytest.mark.parametrize("state", [b"", b"{}", b'{"pid": "7"}', b'{"pid"', b'{"pid": 0}', b'{"pid": -4}', b"\xff"])
def test_a_state_without_a_process_id_is_refused(paths: Paths, state: bytes) -> None:
    command = cdi.hook_command(paths, CLAIM)
    done = subprocess.run(command, input=state, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        b"lanewise.dev: the container runtime did not pass the container's process id\n",
    )


def test_a_process_that_ended_is_reported(paths: Paths) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    status, reported = Hook(paths, child.pid).ended()
    assert (
        status == 1
        and reported
        == f"lanewise.dev: could not open the network namespace of process {child.pid}: No such file or directory\n"
    )


def test_wrong_arguments_print_the_usage(paths: Paths) -> None:
    for arguments in ([], ["a", "b"], ["a", "b", "soon"]):
        command = [*cdi.hook_command(paths, CLAIM)[:4], *arguments]
        done = subprocess.run(command, input=b"", capture_output=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith(b"lanewise.dev: usage")


def processor_time(command: list[str], state: bytes = b"") -> float:
    """The minimum CPU time of several runs, in milliseconds, so that other programs on this machine do not count."""
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
    """The hook takes little more time than the start of an interpreter, because it loads no large modules."""
    command = cdi.hook_command(paths, CLAIM)
    state = request(container).split(b"\n")[1]
    least = processor_time(["true"])
    python = [command[2], "-I", "-S"]
    bare = processor_time([*python, "-c", "pass"])
    whole = processor_time(command, state)
    record_property("processor time in ms", {"true": least, "python": bare, "hook": whole})
    print(f"processor time: true {least:.1f} ms, python {bare:.1f} ms, hook {whole:.1f} ms")
    assert whole < bare + 15
    loaded = subprocess.run(
        [*python, "-X", "importtime", *command[3:]], input=state, capture_output=True, check=True
    ).stderr.decode()
    modules = {line.rpartition("|")[2].strip() for line in loaded.splitlines()}
    assert "_socket" in modules and not modules & {"json", "re", "socket", "enum", "site", "collections", "typing"}
