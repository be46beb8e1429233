# SPDX-License-Identifier: Apache-2.0
"""gmm.memory_saver under the name and with the modules of torch_memory_saver: see gmm._memory_saver.by_name."""
from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess
from gmm.memory_saver import register_hook_mode

#: The instance of the process.
torch_memory_saver = TorchMemorySaver()
#: Its name in an earlier release.
memory_saver = torch_memory_saver
