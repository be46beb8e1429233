// SPDX-License-Identifier: Apache-2.0
// The backends of GPUs: NVIDIA's, by the driver API of libcuda.so.1, and AMD's, by libamdhip64.so. The libraries are
// opened at run time.
//
// Its objects: Driver (driver.h) has the library's entries and explains its results. A Vendor has everything in which
// the two differ. Devices (devices.h) has the devices and their contexts. The guards of context_guard.h change a
// thread's driver state for one operation. GpuBackend, in gpu_backend.cpp, carries out each operation of backend.h by a
// few of the driver's calls. They have CUDA's names; hip.cpp puts HIP's in their place.
//
// Locks: the backend takes one of its own, in Devices.
#ifndef GMM_BACKEND_GPU_GPU_BACKEND_H
#define GMM_BACKEND_GPU_GPU_BACKEND_H

#include "backend/backend.h"

namespace gmm {

// Each fails with NO_BACKEND if there is no driver or no device.
Status cuda_backend_create(const HostAllocator &allocator, const Log &log, Backend **out);
Status hip_backend_create(const HostAllocator &allocator, const Log &log, Backend **out);
// Whether the program expects such GPUs: the driver's device file is there, and no variable hides all GPUs.
bool cuda_is_expected();
bool hip_is_expected();

}  // namespace gmm
#endif
