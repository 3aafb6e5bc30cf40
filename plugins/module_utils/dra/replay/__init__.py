# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Streams of jobs, recorded or randomly generated, and their results in queues.

- `trace`: jobs from a CSV, or generated from the distributions of a published trace.
- `score`: device-hours, waiting times and alignment of jobs that have run.
- `pairs`: whether the devices of a job are aligned.

It imports `kube` and `vendors`. It never talks to a server: its callers submit the jobs, and pass the runs to `score`.
"""
