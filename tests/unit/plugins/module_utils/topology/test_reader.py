# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.reader import Reader


@pytest.fixture
def reader(tree):
    return Reader(str(tree.root))


def test_text_is_stripped(tree, reader):
    tree.write("sys/a", "  word ")
    assert reader.text("/sys/a") == "word"


def test_a_missing_file_is_not_reported(reader):
    assert reader.text("/sys/none") is None
    assert reader.unreadable_count == 0


def test_a_nul_byte_in_a_path_gives_nothing(reader):
    assert reader.text("/sys/\0") is None
    assert reader.names("/sys/\0") == []
    assert reader.link("/sys/\0") is None


def test_a_directory_in_place_of_a_file_is_unreadable(tree, reader):
    (tree.root / "sys/a").mkdir()
    assert reader.text("/sys/a") is None
    assert reader.unreadable == ["/sys/a: Is a directory"]


def test_a_fifo_in_place_of_a_file_is_unreadable_and_does_not_block(tree, reader):
    os.mkfifo(tree.root / "sys/a")
    assert reader.text("/sys/a") is None
    assert len(reader.unreadable) == 1


def test_a_link_in_place_of_a_file_is_unreadable_and_not_followed(tree, reader, tmp_path):
    (tmp_path / "outside").write_text("secret\n", encoding="utf-8")
    (tree.root / "sys/a").symlink_to(tmp_path / "outside")
    assert reader.text("/sys/a") is None
    assert reader.unreadable_count == 1


def test_a_directory_outside_the_root_is_not_entered(tree, reader, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/cpulist").write_text("0-99\n", encoding="utf-8")
    (tmp_path / "outside/link").symlink_to("away")
    (tree.root / "sys/node0").symlink_to(tmp_path / "outside")
    assert reader.names("/sys/node0") == []
    assert reader.text("/sys/node0/cpulist") is None
    assert reader.link("/sys/node0/link") is None
    with reader.opened("/sys/node0/cpulist") as file:
        assert file.read(0, 4) is None
    assert reader.unreadable == ["/sys/node0: leads out of the root"]


@pytest.mark.parametrize("target", ["../../../..", "../../../../..", "..", "../../../../../tree/../.."])
def test_a_link_to_a_folder_above_the_root_leads_to_the_root(tree, reader, tmp_path, target):
    (tmp_path / "address").write_text("secret\n", encoding="utf-8")
    (tree.root / "sys/class/net").mkdir(parents=True)
    (tree.root / "sys/class/net/eth0").symlink_to(target)
    path = reader.link("/sys/class/net/eth0")
    assert ".." not in path and path.rstrip("/") in ("", "/sys/class")
    for up in ("/..", "/../..", "/sys/../.."):
        assert reader.text(f"{up}/address") is None and reader.names(up) == []


def test_a_link_with_very_many_folders_is_unreadable(tree, reader):
    (tree.root / "sys/a").symlink_to("b/" * 1500 + "c")
    path = reader.link("/sys/a")
    assert reader.text(f"{path}/address") is None and reader.names(path) == []
    assert "has more than 100 folders" in reader.unreadable[0] and len(reader.unreadable[0]) < 300


def test_a_file_in_an_open_folder_is_read_up_to_the_same_size(tree, reader):
    tree.write("sys/a/b", "0123456789\n")
    with reader.folder("/sys/a") as folder:
        assert folder.text("b", size=4) == reader.text("/sys/a/b", size=4) == "0123"


def test_a_looping_link_is_unreadable(tree, reader):
    (tree.root / "sys/a").symlink_to("a")
    assert reader.text("/sys/a/b") is None
    assert reader.names("/sys/a") == []
    assert reader.unreadable_count == 2


def test_bytes_that_are_not_utf_8_are_unreadable(tree, reader):
    tree.write("sys/a", b"\xff\xfe\n")
    assert reader.text("/sys/a") is None
    assert reader.unreadable == ["/sys/a: not UTF-8 text"]


def test_a_character_cut_at_the_size_limit_is_dropped(tree, reader):
    tree.write("sys/a", "aaa\u00e9")
    assert reader.text("/sys/a", 4) == "aaa"


def test_a_text_that_must_be_whole_needs_a_final_newline(tree, reader):
    tree.write("sys/a", b"1")
    assert reader.text("/sys/a") == "1"
    assert reader.text("/sys/a", whole=True) is None
    assert reader.unreadable == ["/sys/a: truncated: no line end"]


@pytest.mark.parametrize(("text", "expected"), [("12", 12), ("-1", -1), ("0", 0), ("18446744073709551615", 2**64 - 1)])
def test_integers_are_read_with_their_sign_and_up_to_64_bits(tree, reader, text, expected):
    tree.write("sys/a", text)
    assert reader.integer("/sys/a") == expected


@pytest.mark.parametrize("text", ["1_0", "0x1", "1.5", "\u0663", "9" * 4000, "one"])
def test_invalid_integers_are_unreadable(tree, reader, text):
    tree.write("sys/a", text)
    assert reader.integer("/sys/a") is None
    assert reader.unreadable_count == 1


def test_a_name_that_is_not_utf_8_is_reported(tree, reader):
    os.mkdir(os.fsencode(tree.root / "sys") + b"/d")
    os.mkdir(os.fsencode(tree.root / "sys") + b"/d/\xff")
    (tree.root / "sys/d/\u00e9").mkdir()
    assert reader.names("/sys/d") == ["\u00e9"]
    assert reader.unreadable == ["/sys/d: contains a name that is not UTF-8 text: b'\\xff'"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("../devices/a", "/sys/devices/a"),
        ("/sys/devices/a", "/sys/devices/a"),
        ("../../../../../../sys/devices/a", "/sys/devices/a"),
    ],
)
def test_links_stay_below_the_root(tree, reader, target, expected):
    (tree.root / "sys/class").mkdir()
    (tree.root / "sys/class/a").symlink_to(target)
    assert reader.link("/sys/class/a") == expected


def test_a_file_in_place_of_an_expected_link_is_reported(tree, reader):
    tree.write("sys/a", "")
    assert reader.link("/sys/a", expected=False) is None
    assert reader.unreadable_count == 0
    assert reader.link("/sys/a") is None
    assert reader.unreadable == ["/sys/a: not a symbolic link"]


def test_the_first_hundred_reports_are_kept_and_all_are_counted(reader):
    for number in range(150):
        reader.report(f"/sys/{number}", "broken")
    assert len(reader.unreadable) == 100
    assert reader.unreadable_count == 150


def test_a_kernel_file_that_is_longer_than_one_read_is_read_completely():
    # a read of a kernel file returns about one page; /proc/self/maps of a Python process is longer
    with open("/proc/self/maps", "rb") as handle:
        size = len(handle.read())
    if size <= 8192:
        pytest.skip("this process has few mappings")
    data = Reader("/").data("/proc/self/maps", 1 << 20)
    assert data is not None and len(data) > 8192


def test_permanent_mac_addresses_of_a_recorded_tree_are_not_read_from_this_machine(reader):
    assert reader.permanent_macs(["lo", "eth0"]) == {}


def test_an_empty_file_has_no_integer_and_is_not_reported(tree, reader):
    tree.write("sys/a", b"")
    assert reader.integer("/sys/a") is None
    assert reader.unreadable_count == 0


def test_a_link_is_read_again_each_time(tree, reader):
    """Drivers can be bound and unbound while a reader is in use."""
    for driver in ("mlx5_core", "vfio-pci"):
        (tree.root / "sys/driver").unlink(missing_ok=True)
        tree.link("sys/driver", f"sys/bus/pci/drivers/{driver}")
        assert reader.link("/sys/driver") == f"/sys/bus/pci/drivers/{driver}"
