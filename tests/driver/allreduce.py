# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rank of an MPI job: sums an array over all ranks, and checks the sum. Calls the library of Open MPI directly.

python3 allreduce.py NUMBER TIMES
"""

from __future__ import annotations

import ctypes
import sys


def main(number: int, times: int) -> None:
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)

    def symbol(name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))

    world, integer, total = symbol("ompi_mpi_comm_world"), symbol("ompi_mpi_int32_t"), symbol("ompi_mpi_op_sum")
    rank, size = ctypes.c_int(), ctypes.c_int()
    assert not mpi.MPI_Init(None, None)
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    for turn in range(times):
        array = ctypes.c_int32 * number
        mine = array(*((rank.value + 1) * (turn + place % 1000) for place in range(number)))
        found = array()
        assert not mpi.MPI_Allreduce(mine, found, number, integer, total, world)
        ranks = size.value * (size.value + 1) // 2
        right = array(*(ranks * (turn + place % 1000) for place in range(number)))
        assert bytes(found) == bytes(right), f"rank {rank.value}, turn {turn}: the sum is wrong"
    mpi.MPI_Finalize()
    print(f"rank {rank.value} of {size.value}: {times} sums are right", flush=True)


main(int(sys.argv[1]), int(sys.argv[2]))
