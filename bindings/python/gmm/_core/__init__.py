# SPDX-License-Identifier: Apache-2.0
"""Objects that a context hands out (buffers, streams, events, tags, tickets, heaps), and the answers of calls."""
