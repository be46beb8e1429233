# SPDX-License-Identifier: Apache-2.0
"""Ranks that reduce, pause as one, and reduce again. Usage: reduce.py [RANKS]. It needs PyTorch.

With a GPU for each rank the group is NCCL's, else gloo's over host memory.
"""
import multiprocessing
import os
import sys
import tempfile

import gmm

COUNT = 1 << 20
SIZE = 4 * COUNT


class Interface:
    """A block as a CUDA array."""

    def __init__(self, buffer):
        self.__cuda_array_interface__ = {"shape": (COUNT,), "typestr": "<f4", "data": (buffer.address, False),
                                         "version": 3, "strides": None}
        self.buffer = buffer


def work(folder, rank, ranks, has_nccl):
    import torch
    from torch import distributed

    options = {}
    if has_nccl:
        torch.cuda.set_device(rank)
        options["device_id"] = torch.device("cuda", rank)
    distributed.init_process_group("nccl" if has_nccl else "gloo", init_method=f"file://{folder}/group", rank=rank,
                                   world_size=ranks, **options)
    with gmm.Context("cuda" if has_nccl else "host") as context:
        tag = context.tag("weights", gmm.Contents.HOST)
        registered = set()  # without NCCL: the registrations of a communicator
        if has_nccl:
            from gmm import nccl

            buffer = context.alloc(SIZE, comm=True, device=rank, tag=tag)
            tensor = torch.as_tensor(Interface(buffer), device=f"cuda:{rank}")
            registration = nccl.register(buffer)
        else:
            buffer = context.alloc(SIZE, gmm.Kind.VMM, tag=tag)
            tensor = torch.frombuffer(buffer, dtype=torch.float32)
            registered.add(buffer.address)
            registration = context.watch(tag, losing=lambda info: registered.discard(buffer.address),
                                         restored=lambda info: registered.add(buffer.address))

        def reduce(value):
            assert has_nccl or buffer.address in registered
            tensor.fill_(value + rank)
            distributed.all_reduce(tensor)
            assert bool((tensor == value * ranks + sum(range(ranks))).all()), "the sum is wrong"

        reduce(1)
        kept = float(tensor[0])
        if has_nccl:
            torch.cuda.synchronize()
        with gmm.job.paused(tag, context=context) as released:
            assert not registered and context.tag_info(tag).active_bytes == 0
            if rank == 0:
                print(f"each of {ranks} ranks over {'NCCL' if has_nccl else 'gloo'} released {released >> 20} MiB, "
                      "which no communicator has registered")
        assert float(tensor[0]) == kept, "the contents were lost"
        reduce(5)
        if rank == 0:
            print("the contents are back, and the next sum is right")
        registration.close()
        distributed.barrier()
        distributed.destroy_process_group()
        del tensor
        buffer.free()


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        print(f"skipped: no PyTorch ({error})")
        return
    has_nccl = torch.cuda.device_count() >= ranks and torch.distributed.is_nccl_available()
    if not has_nccl:
        os.environ["GMM_BACKEND"] = "host"
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started = [spawn.Process(target=work, args=(folder, rank, ranks, has_nccl)) for rank in range(ranks)]
        for process in started:
            process.start()
        for process in started:
            process.join()
    if any(process.exitcode != 0 for process in started):
        sys.exit("a rank failed")


if __name__ == "__main__":
    main()
