# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.binary_wrapper: the C functions of a library."""
from gmm._memory_saver.preload import BinaryWrapper  # pylint: disable=unused-import # upstream's name
