// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the driver API of libcuda.so.1, opened at run time.
//
// Its objects: Driver (driver.h) has the library's entries and explains its results. Devices (devices.h) has the
// devices and their contexts. The guards of context_guard.h change a thread's driver state for one operation.
// CudaBackend, in cuda_backend.cpp, carries out each operation of backend.h by a few of the driver's calls.
//
// Locks: the backend takes one of its own, in Devices.
#ifndef GMM_BACKEND_CUDA_CUDA_BACKEND_H
#define GMM_BACKEND_CUDA_CUDA_BACKEND_H

#include "backend/backend.h"

namespace gmm {

// Fails with NO_BACKEND if there is no driver or no device, or if the library was built without CUDA.
Status cuda_backend_create(const HostAllocator &allocator, const Log &log, Backend **out);
// Whether the program expects CUDA: the driver's device file is there, and CUDA_VISIBLE_DEVICES does not hide all GPUs.
bool cuda_is_expected();

}  // namespace gmm
#endif
