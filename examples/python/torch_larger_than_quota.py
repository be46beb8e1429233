# SPDX-License-Identifier: Apache-2.0
"""Trains a model that is three times as large as its quota of GPU memory.

With ordinary memory the training would end with torch.OutOfMemoryError. With managed memory the weights and the
optimizer's state live in host memory, and a layer's pages are on the GPU while the layer works. A limit cannot hold
that to the quota, since it counts managed memory wherever its pages are. So the program adds up at each step what it
has on the GPU, and fails when the sum exceeds the quota. The driver tells for each block where it is to be. The
program also prints by how much the GPU's free memory fell; the two figures agree when no other program uses the GPU.

    python torch_larger_than_quota.py [--quota MIB] [--steps N]

It needs a CUDA device with twice the model's memory free, and requests no more managed memory than the device has.
"""
import argparse
import ctypes
import sys

MIB = 1 << 20
LAYERS, WIDTH, BATCH = 12, 2048, 64
MODEL_BYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4 * 4  # weights, gradients and two moments of Adam, in float32


PREFERRED_LOCATION = 2  # CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION


def on_the_gpu():
    """Bytes of managed memory in use whose place is the GPU, as the driver says of each block."""
    import gmm

    driver, total = ctypes.CDLL("libcuda.so.1"), 0
    for heap in gmm.context().snapshot()["heaps"]:
        for block in heap["blocks"] if str(heap["kind"]).upper() == "MANAGED" else ():
            address, size = block["address"], block["size"]
            address = int(address, 0) if isinstance(address, str) else address
            place = ctypes.c_int32(-2)
            # The page in the middle: a block may share its first and last page with others.
            page = (address + size // 2) & ~4095
            if driver.cuMemRangeGetAttribute(ctypes.byref(place), ctypes.c_size_t(4), PREFERRED_LOCATION,
                                             ctypes.c_uint64(page), ctypes.c_size_t(4096)) != 0:
                raise RuntimeError("the driver does not say where managed memory is to be")
            total += size if place.value >= 0 else 0
    return total


def train(torch, steps, uvm_to, measure):
    """Steps a layer's weights as soon as their gradient is there, so that not all gradients are there at once."""
    def fetch(tensors):
        for tensor in tensors:
            uvm_to(uvm_to(tensor.detach(), "cpu", non_blocking=True), "cuda")

    def evict(tensors):
        for tensor in tensors:
            uvm_to(tensor.detach(), "cpu", non_blocking=True)

    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
    for layer in layers:
        layer.to("cuda")
        evict(layer.parameters())
    optimizers = {parameter: torch.optim.Adam([parameter], lr=1e-4) for parameter in layers.parameters()}

    def step(parameter):
        optimizer = optimizers[parameter]
        state = [value for value in optimizer.state[parameter].values() if value.is_cuda]
        fetch(state)
        optimizer.step()
        parameter.grad = None
        measure()
        evict([parameter, *(value for value in optimizer.state[parameter].values() if value.is_cuda)])

    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, _: fetch(layer.parameters()))
        layer.register_forward_hook(lambda layer, _, __: evict(layer.parameters()))
        layer.register_full_backward_pre_hook(lambda layer, _: fetch(layer.parameters()))
    x = torch.randn(BATCH, WIDTH, device="cuda")
    target = torch.tanh(x.roll(1, 1))
    losses = []
    for _ in range(steps):
        h = x
        for layer in layers:
            h = h + torch.tanh(layer(h))
        loss = torch.nn.functional.mse_loss(h, target)
        loss.backward()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quota", type=int, default=256, help="MiB of GPU memory")
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    quota, steps = arguments.quota * MIB, arguments.steps
    try:
        import torch
    except ImportError:
        return "skipped: PyTorch is not installed"
    if not torch.cuda.is_available():
        return "skipped: PyTorch sees no CUDA device"
    import gmm.torch

    gmm.torch.install()
    torch.cuda.set_enabled_uvm()
    free = torch.cuda.mem_get_info()[0]
    if free < 2 * MODEL_BYTES:
        sys.exit(f"{free // MIB} MiB are free, {2 * MODEL_BYTES // MIB} MiB are wanted")
    warm = torch.ones(64, 64, device="cuda")
    (warm @ warm).sum().item()  # what the libraries take for themselves
    torch.cuda.synchronize()
    before, most, taken = torch.cuda.mem_get_info()[0], 0, 0

    def measure():
        nonlocal most, taken
        torch.cuda.synchronize()
        most = max(most, on_the_gpu())
        taken = max(taken, before - torch.cuda.mem_get_info()[0])

    losses = train(torch, steps, gmm.torch.uvm_to, measure)
    asked = gmm.context().stats(kind=gmm.Kind.MANAGED).peak_live_bytes
    if not losses[-1] < losses[0] or asked <= quota or most > quota:
        sys.exit(f"losses {losses}, {asked} bytes managed, {most} of them on the GPU, quota {quota}")
    return (f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {steps} steps; {asked // MIB} MiB managed, at most "
            f"{most // MIB} MiB of it on the GPU (the driver had {taken // MIB} MiB less, whosever they are), "
            f"quota {arguments.quota} MiB")


if __name__ == "__main__":
    print(main())
