# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of PyTorch."""
cuda = "13.0"
hip = None
