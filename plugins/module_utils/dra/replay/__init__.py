# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Streams of jobs, recorded or randomly generated, and how they ran in queues.

- `trace`: jobs from a CSV, or generated from the distributions of a published trace.
- `score`: device-hours, waiting times and alignment of jobs that have run.
- `pairs`: whether the devices of a job are aligned.

This package imports `kube` and `vendors`. It never talks to a server: the callers submit the jobs and pass the runs to
`score`.
"""
