# SPDX-License-Identifier: Apache-2.0
"""gmm under PyTorch: its CUDA allocator, pools with a tag, tensors that grow and shrink (reserve()), and unified memory
(install(), set_enabled_uvm()).

    import gmm.torch

    gmm.torch.use()                       # before the first CUDA tensor: all CUDA memory of PyTorch is gmm's

    weights = gmm.torch.pool("weights")   # or some of it: a torch.cuda.MemPool
    with torch.cuda.use_mem_pool(weights):
        model = make_model().cuda()
    gmm.context().pause("weights")        # the memory goes back to the driver, the tensors' addresses stay

`import gmm.torch` imports PyTorch. All memory is that of gmm.context(): its statistics, tags, quotas, traces and pauses
see the tensors. From then on tensors over gmm's memory travel through torch.multiprocessing without a copy: see
gmm.multiprocessing.enable_torch(). The first use compiles a C++ file: see help(gmm.torch.use).
"""
import _gmm_torch_autoload
from gmm import multiprocessing as _multiprocessing
from gmm._keep import tensors
from gmm._torch.allocator import pool, use
from gmm._torch.elastic import reserve
from gmm._torch.managed import (get_enabled_uvm, get_uvm_move_on_copy, install, is_managed, manage_memory,
                                set_enabled_uvm, set_uvm_move_on_copy, unmanage_memory, uvm_to)

__all__ = ["get_enabled_uvm", "get_uvm_move_on_copy", "install", "is_managed", "manage_memory", "pool",
           "reserve", "set_enabled_uvm", "set_uvm_move_on_copy", "tensors", "unmanage_memory", "use", "uvm_to"]

_multiprocessing.enable_torch()


if __name__ == "__main__":
    from gmm._torch import library

    library.main()
else:
    _gmm_torch_autoload.load(install, set_enabled_uvm)
