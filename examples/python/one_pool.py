# SPDX-License-Identifier: Apache-2.0
"""One pool under CuPy, PyTorch and Numba: what one frees, another gets, and an array goes through all without a copy.

    python one_pool.py

The program takes those of the three that are installed. Without a GPU it says so and ends.
"""
import importlib.util
import sys

import gmm

MIB = 1 << 20
COUNT = 16 * MIB  # elements of float32
LIBRARIES = {"cupy": "CuPy", "torch": "PyTorch", "numba": "Numba"}


def skipped(why):
    print(f"skipped: {why}")
    sys.exit(0)


def sees_a_gpu(name):
    """Whether the library itself reaches a GPU."""
    if name == "numba":
        from numba import cuda
        return cuda.is_available()
    if name == "cupy":
        import cupy
        return cupy.cuda.is_available()
    import torch
    return torch.cuda.is_available()


def find_libraries():
    if gmm.context().info.backend_name != "cuda":
        skipped("no CUDA driver and device answer here")
    found = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    for name in LIBRARIES:
        if name not in found:
            print(f"{LIBRARIES[name]} is not installed: left out")
    if not found:
        skipped("none of CuPy, PyTorch and Numba is installed")
    blind = [LIBRARIES[name] for name in found if not sees_a_gpu(name)]
    if blind:
        skipped(f"{' and '.join(blind)} cannot use the GPU here")
    return found


def switch_on(found):
    """One line each, before the library's first use of the GPU."""
    if "torch" in found:
        import gmm.torch
        gmm.torch.use(gmm.Kind.DEVICE)
    if "numba" in found:
        import gmm.numba
        gmm.numba.use()
    if "cupy" in found:
        import gmm.cupy
        gmm.cupy.use()


def allocate(name):
    """An array of the library, and its address."""
    if name == "numba":
        from numba import cuda
        array = cuda.device_array(COUNT, dtype="float32")
        return array, array.__cuda_array_interface__["data"][0]
    if name == "cupy":
        import cupy
        array = cupy.empty(COUNT, dtype="float32")
        return array, array.data.ptr
    import torch
    array = torch.empty(COUNT, device="cuda")
    return array, array.data_ptr()


def pass_on(found):
    """Passes one array through all of them. Returns the result as numbers of the host."""
    array = gmm.empty(COUNT, "float32")
    start = array.address
    if "cupy" in found:
        import cupy
        array = cupy.asarray(array)  # or cupy.from_dlpack()
        array[:] = cupy.arange(COUNT, dtype="float32") % 1000
        assert array.data.ptr == start
    else:
        array.fill(0)
    if "numba" in found:
        from numba import cuda

        @cuda.jit
        def double(values):
            i = cuda.grid(1)
            if i < values.size:
                values[i] = values[i] * 2

        view = cuda.as_cuda_array(array)
        double[(COUNT + 255) // 256, 256](view)
        cuda.synchronize()
        assert view.__cuda_array_interface__["data"][0] == start
    if "torch" in found:
        import torch
        tensor = torch.from_dlpack(array)
        tensor.add_(1)
        assert tensor.data_ptr() == start
        return tensor.cpu().numpy()
    return gmm.asarray(array).numpy(copy=True)


def main():
    found = find_libraries()
    switch_on(found)
    context = gmm.context()

    print(f"\n{'':10} {'address of 64 MiB':>20} {'gmm knows it as':>16} {'reserved':>12}")
    for name in found:
        array, address = allocate(name)
        info, stats = context.query(address), context.stats()
        print(f"{LIBRARIES[name]:10} {address:#20x} {info.kind.name + ' ' + info.state.name:>16} "
              f"{stats.reserved_bytes // MIB:8} MiB")
        del array  # what it frees, the next one gets
    print(f"three pools would hold {len(found) * COUNT * 4 // MIB} MiB now" if len(found) == 3 else "")

    result = pass_on(found)
    expected = [(i % 1000 if "cupy" in found else 0) * (2 if "numba" in found else 1) + (1 if "torch" in found else 0)
                for i in range(3000)]
    assert result[:3000].tolist() == expected
    passed = ", ".join(LIBRARIES[name] for name in ("cupy", "numba", "torch") if name in found)
    print("\none array went through", passed, "without a copy")
    print("one_pool: ok")


if __name__ == "__main__":
    main()
