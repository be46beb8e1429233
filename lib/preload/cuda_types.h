// SPDX-License-Identifier: Apache-2.0
// The types of the interposed functions, as the binary interfaces of the CUDA driver and runtime have them. They are
// written out, because one library without headers of CUDA serves every version from 11 on.
#ifndef GMM_PRELOAD_CUDA_TYPES_H
#define GMM_PRELOAD_CUDA_TYPES_H

#include <cstddef>
#include <cstdint>

namespace gmm::preload {

// CUresult and cudaError_t. The numbers below are the same in both.
using Code = int;
inline constexpr Code kSuccess = 0;
inline constexpr Code kInvalidValue = 1;
inline constexpr Code kOutOfMemory = 2;
inline constexpr Code kNotInitialized = 3;
inline constexpr Code kInvalidDevice = 101;
inline constexpr Code kInvalidHandle = 400;
inline constexpr Code kNotFound = 500;
inline constexpr Code kNotSupported = 801;
inline constexpr Code kCaptureUnsupported = 900;
inline constexpr Code kUnknown = 999;

using DevicePointer = unsigned long long;  // CUdeviceptr
using Stream = void *;                     // CUstream, cudaStream_t
inline Stream per_thread_stream() { return reinterpret_cast<Stream>(uintptr_t{2}); }
// The stream that a function of the kind _ptsz works on.
inline Stream of_thread(Stream stream) { return stream == nullptr ? per_thread_stream() : stream; }

// Flags of host and managed memory that change the kind of memory.
inline constexpr unsigned int kHostWriteCombined = 4;
inline constexpr unsigned int kAttachGlobal = 1;

// Flags of cuGetProcAddress and cudaGetDriverEntryPoint.
inline constexpr unsigned long long kLegacyStreams = 1;
inline constexpr unsigned long long kPerThreadStreams = 2;

inline constexpr int kCaptureModeRelaxed = 2;

}  // namespace gmm::preload
#endif
