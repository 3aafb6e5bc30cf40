# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run one rank of an MPI job that sums arrays over all ranks with MPI_Allreduce, and checks the sums.

python3 allreduce.py LENGTH REPETITIONS. It calls the library of Open MPI directly.
"""

from __future__ import annotations

import ctypes
import sys


def main(length: int, repetitions: int) -> None:
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)

    def symbol(name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))

    communicator, addition = symbol("ompi_mpi_comm_world"), symbol("ompi_mpi_op_sum")
    integer = symbol("ompi_mpi_int32_t")
    rank, size = ctypes.c_int(), ctypes.c_int()
    assert not mpi.MPI_Init(None, None)
    mpi.MPI_Comm_rank(communicator, ctypes.byref(rank))
    mpi.MPI_Comm_size(communicator, ctypes.byref(size))
    for repetition in range(repetitions):
        array = ctypes.c_int32 * length
        own = array(*((rank.value + 1) * (repetition + index % 1000) for index in range(length)))
        summed = array()
        assert not mpi.MPI_Allreduce(own, summed, length, integer, addition, communicator)
        factor = size.value * (size.value + 1) // 2
        expected = array(*(factor * (repetition + index % 1000) for index in range(length)))
        assert bytes(summed) == bytes(expected), f"rank {rank.value}, repetition {repetition}: the sum is wrong"
    mpi.MPI_Finalize()
    print(f"rank {rank.value} of {size.value}: {repetitions} sums are right", flush=True)


main(int(sys.argv[1]), int(sys.argv[2]))
