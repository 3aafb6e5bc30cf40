# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sysctls read and written with io_submit(2) behave as with read(2) and write(2). docs/bench has the time saved."""

from __future__ import annotations

import errno
import os
import typing as t
from pathlib import Path

import pytest
from lanewise_driver.kernel import aio, netns, sysctls

CONF = Path("/proc/sys/net/ipv6/conf")
ADDR_GEN_MODE = CONF / "lo" / "addr_gen_mode"

pytestmark = pytest.mark.skipif(not ADDR_GEN_MODE.exists(), reason="the kernel has no IPv6")


def _content(path: Path, read: t.Callable[[int], bytes]) -> bytes | int | None:
    """The content, or errno if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read(descriptor)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)


def test_every_ipv6_sysctl_is_read_as_by_a_plain_read() -> None:
    files = [
        path for folder in (CONF / "lo", CONF / "default") for path in folder.iterdir() if os.access(path, os.R_OK)
    ]
    assert len(files) > 50
    for path in files:
        assert _content(path, aio.read) == _content(path, lambda descriptor: os.read(descriptor, 4096)), path


def test_an_unset_stable_secret_is_an_error_that_sysctls_read_leaves_out() -> None:

    def check() -> None:
        assert _content(CONF / "lo" / "stable_secret", aio.read) == errno.EIO
        assert "net.ipv6.conf.IFNAME.stable_secret" not in sysctls.read("lo")
        sysctls.write("lo", {"net.ipv6.conf.IFNAME.stable_secret": "2001:db8::1"})
        assert sysctls.read("lo")["net.ipv6.conf.IFNAME.stable_secret"] == "2001:0db8:0000:0000:0000:0000:0000:0001"

    _in_new_namespace(check)


def test_accepted_values_are_written_and_refused_values_raise_the_errno_of_the_kernel() -> None:
    def check() -> None:
        key = "net.ipv6.conf.IFNAME.addr_gen_mode"
        sysctls.write("lo", {key: "1"})
        assert ADDR_GEN_MODE.read_text() == "1\n" and sysctls.get("lo", key) == "1"
        with pytest.raises(OSError, match="addr_gen_mode = 9") as caught:
            sysctls.write("lo", {key: "9"})
        assert caught.value.errno == errno.EINVAL
        assert ADDR_GEN_MODE.read_text() == "1\n"

    _in_new_namespace(check)


def test_the_result_of_an_interrupted_request_is_not_returned_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception between the two system calls of a request leaves a result that nobody has read."""
    original_call = aio._call

    def interrupted(number: int, *arguments: t.Any) -> int:
        if original_call(number, *arguments) == 1 and len(arguments) == 3:  # io_submit
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(aio, "_context", aio._Context())
    mtu = CONF / "lo" / "mtu"
    assert len(mtu.read_bytes()) > len(ADDR_GEN_MODE.read_bytes())
    assert _content(ADDR_GEN_MODE, aio.read) == ADDR_GEN_MODE.read_bytes()
    if aio._context._calls is None:
        pytest.skip("the kernel or a seccomp filter refuses io_submit(2)")
    monkeypatch.setattr(aio, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _content(mtu, aio.read)
    monkeypatch.setattr(aio, "_call", original_call)
    assert _content(ADDR_GEN_MODE, aio.read) == ADDR_GEN_MODE.read_bytes()


def _in_new_namespace(function: t.Callable[[], None]) -> None:
    """Call a function in a new network namespace."""
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    namespace = netns.new()
    try:
        netns.run(namespace, function)
    finally:
        os.close(namespace)
