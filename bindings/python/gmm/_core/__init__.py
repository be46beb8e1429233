# SPDX-License-Identifier: Apache-2.0
"""What a context hands out: buffers, streams, events, tags, tickets, heaps, and the values that calls return."""
