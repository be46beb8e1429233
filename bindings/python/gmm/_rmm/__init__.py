# SPDX-License-Identifier: Apache-2.0
"""Behind gmm.rmm: a resource that RMM's C++ calls without Python, and one that calls Python."""
