# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.binary_wrapper: the C functions of a library."""
from gmm._memory_saver import preload


class BinaryWrapper:
    """The C functions at cdll, and set_config() for the region of this thread."""

    def __init__(self, path_binary):
        library = preload.load(path_binary)
        self.cdll = library.cdll
        self.set_config = library.set_region
