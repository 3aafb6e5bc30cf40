# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attacks of a pod on another pod with a NIC of the same card, and on machines on the network.

`program` runs in the pods and on the machines, `frames` builds what they send, `testbed` creates pods, card and
network, `attempts` lists the attacks, and `table` reads the table of docs/security.md. The same code runs in network
namespaces of this machine, and in a virtual node with VFs (`python3 -m hostile`, beside the package `lanewise_driver`).
It imports nothing else from the tests.
"""
