# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How System handles messages and errors of pyroute2. Here, messages are plain dicts, and errors have a code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import ansible_collections
import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System


class NetlinkError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


def failing_request(code: int, text: str = ""):
    def request() -> None:
        raise NetlinkError(code, text or os.strerror(abs(code)))

    return request


def test_an_error_of_the_kernel_has_its_name_its_text_and_a_fix():
    with pytest.raises(HostError) as raised:
        System().request_change("set it", failing_request(errno.EBUSY, "Can't change it now"))
    assert raised.value.code == errno.EBUSY
    assert "cannot set it: Device or resource busy [EBUSY]: Can't change it now (a program or pod is using it" in str(
        raised.value
    )
    with pytest.raises(HostError, match=r"Device or resource busy \[EBUSY\] \("):
        System().read("read it", failing_request(errno.EBUSY))


def test_the_error_of_a_node_without_pyroute2_contains_what_to_install():
    program = (
        "import sys; sys.modules['pyroute2'] = None\n"
        "from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System\n"
        "try: System().socket('IPRoute')\n"
        "except HostError as error: print(error)"
    )
    paths = [os.path.dirname(path) for path in ansible_collections.__path__] + [os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert "pyroute2 (0.7.2 or later) is missing: " in done.stdout, done.stdout + done.stderr
    assert "install python3-pyroute2 from the distribution" in done.stdout


def test_an_error_with_code_0_is_ignored_and_other_exceptions_are_raised():
    System().request_change("set it", failing_request(0, "done, but slowly"))
    with pytest.raises(ZeroDivisionError):
        System().request_change("set it", lambda: 1 // 0)


@pytest.mark.parametrize("raises", [False, True], ids=["flag", "error"])
def test_a_list_that_changed_meanwhile_is_read_again(raises):
    """pyroute2 before 0.9 raises an error with the code -1. Later releases only set a flag in the messages."""
    requests = []

    def request() -> list[dict[str, dict[str, int]]]:
        requests.append(1)
        if len(requests) < 3 and raises:
            failing_request(-1, "dump interrupted")()
        return [{"header": {"flags": 2}}, {"header": {"flags": 0x12 if len(requests) < 3 else 2}}]

    assert System().dump("list them", request) == [{"header": {"flags": 2}}] * 2
    assert len(requests) == 3


def test_a_list_that_changes_all_the_time_is_an_error():
    with pytest.raises(HostError, match=r"list them: Resource temporarily .* \[EAGAIN\]: the list kept changing"):
        System().dump("list them", lambda: [{"header": {"flags": 0x12}}])


def test_a_recorded_tree_has_no_sockets(tmp_path):
    with pytest.raises(HostError, match="a recorded tree has no kernel"):
        System(str(tmp_path)).socket("IPRoute")


@pytest.mark.parametrize("content", ["content", None])
def test_a_masked_file_is_not_replaced_or_removed(tmp_path, content):
    """systemd's files are masked with a link to /dev/null. A pipe stands for it here."""
    os.mkfifo(tmp_path / "null")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/lanewise.conf").symlink_to(tmp_path / "null")
    with pytest.raises(HostError, match=r"/etc/lanewise.conf leads to .*/null, which is not a regular file"):
        System(str(tmp_path)).install("/etc/lanewise.conf", content, "write it")
    assert (tmp_path / "null").is_fifo() and (tmp_path / "etc/lanewise.conf").is_symlink()


def test_folders_of_lanewise_are_removed_with_their_last_file(tmp_path):
    system = System(str(tmp_path))
    files = ("/opt/lanewise/fabric/fabric.pyz", "/etc/lanewise/fabric.json", "/etc/sysctl.d/90-lanewise.conf")
    for file in files:
        system.install(file, "content", "write it")
    (tmp_path / "etc/lanewise/driver.yml").touch()
    for file in files:
        system.install(file, None, "remove it")
    assert not (tmp_path / "opt/lanewise").exists() and (tmp_path / "opt").is_dir()
    assert [path.name for path in (tmp_path / "etc/lanewise").iterdir()] == ["driver.yml"]
    assert (tmp_path / "etc/sysctl.d").is_dir()
