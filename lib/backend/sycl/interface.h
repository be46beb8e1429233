// SPDX-License-Identifier: Apache-2.0
// dpctl's C interface to SYCL, libDPCTLSyclInterface.so. gmm opens it at run time, so a build needs no dpctl: the
// functions stand here as the headers of dpctl 0.20 to 0.22 declare them (dpctl/include/syclinterface).
#ifndef GMM_BACKEND_SYCL_INTERFACE_H
#define GMM_BACKEND_SYCL_INTERFACE_H

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace gmm::sycl {

// Opaque pointers to a sycl::context, sycl::device and so on. The _Delete function of its kind frees each.
using ContextRef = struct OpaqueContext *;
using DeviceRef = struct OpaqueDevice *;
using EventRef = struct OpaqueEvent *;
using PlatformRef = struct OpaquePlatform *;
using QueueRef = struct OpaqueQueue *;
using SelectorRef = struct OpaqueSelector *;
using DeviceVectorRef = struct OpaqueDeviceVector *;
using ErrorHandler = void(int code);

inline constexpr int kAllDevices = (1 << 6) - 1;  // DPCTL_ALL
inline constexpr int kInOrder = 1 << 1;           // DPCTL_IN_ORDER
inline constexpr int kComplete = 3;               // DPCTL_COMPLETE, of an event

enum UsmType { kUsmUnknown = 0, kUsmDevice = 1, kUsmShared = 2, kUsmHost = 3 };

// DPCTLSyclAspectType
inline constexpr int kAspectCpu = 1;
inline constexpr int kAspectUsmDevice = 12;
inline constexpr int kAspectUsmHost = 13;
inline constexpr int kAspectUsmShared = 14;
inline constexpr int kAspectUsmSystem = 15;
inline constexpr int kAspectUsmAtomicShared = 17;

// X(name, result, parameters)
#define GMM_SYCL_FUNCTIONS(X)                                                          \
  X(DPCTLService_GetDPCPPVersion, char *, ())                                          \
  X(DPCTLCString_Delete, void, (char *))                                               \
  X(DPCTLDefaultSelector_Create, SelectorRef, ())                                      \
  X(DPCTLDeviceSelector_Delete, void, (SelectorRef))                                   \
  X(DPCTLDevice_CreateFromSelector, DeviceRef, (SelectorRef))                          \
  X(DPCTLDevice_GetPlatform, PlatformRef, (DeviceRef))                                 \
  X(DPCTLDevice_AreEq, bool, (DeviceRef, DeviceRef))                                   \
  X(DPCTLDevice_HasAspect, bool, (DeviceRef, int))                                     \
  X(DPCTLDevice_GetName, char *, (DeviceRef))                                          \
  X(DPCTLDevice_GetGlobalMemSize, size_t, (DeviceRef))                                 \
  X(DPCTLDevice_GetMaxMemAllocSize, size_t, (DeviceRef))                               \
  X(DPCTLDevice_Delete, void, (DeviceRef))                                             \
  X(DPCTLPlatform_GetDefaultContext, ContextRef, (PlatformRef))                        \
  X(DPCTLPlatform_GetDevices, DeviceVectorRef, (PlatformRef, int))                     \
  X(DPCTLPlatform_Delete, void, (PlatformRef))                                         \
  X(DPCTLDeviceVector_Size, size_t, (DeviceVectorRef))                                 \
  X(DPCTLDeviceVector_GetAt, DeviceRef, (DeviceVectorRef, size_t))                     \
  X(DPCTLDeviceVector_Delete, void, (DeviceVectorRef))                                 \
  X(DPCTLContext_AreEq, bool, (ContextRef, ContextRef))                                \
  X(DPCTLContext_Delete, void, (ContextRef))                                           \
  X(DPCTLQueue_Create, QueueRef, (ContextRef, DeviceRef, ErrorHandler *, int))         \
  X(DPCTLQueue_Copy, QueueRef, (QueueRef))                                             \
  X(DPCTLQueue_Delete, void, (QueueRef))                                               \
  X(DPCTLQueue_GetContext, ContextRef, (QueueRef))                                     \
  X(DPCTLQueue_GetDevice, DeviceRef, (QueueRef))                                       \
  X(DPCTLQueue_IsInOrder, bool, (QueueRef))                                            \
  X(DPCTLQueue_Memcpy, EventRef, (QueueRef, void *, const void *, size_t))             \
  X(DPCTLQueue_Memset, EventRef, (QueueRef, void *, uint8_t, size_t))                  \
  X(DPCTLQueue_Prefetch, EventRef, (QueueRef, const void *, size_t))                   \
  X(DPCTLQueue_MemAdvise, EventRef, (QueueRef, const void *, size_t, int))             \
  X(DPCTLQueue_SubmitBarrier, EventRef, (QueueRef))                                    \
  X(DPCTLQueue_SubmitBarrierForEvents, EventRef, (QueueRef, const EventRef *, size_t)) \
  X(DPCTLEvent_WaitAndThrow, void, (EventRef))                                         \
  X(DPCTLEvent_GetCommandExecutionStatus, int, (EventRef))                             \
  X(DPCTLEvent_Delete, void, (EventRef))                                               \
  X(DPCTLaligned_alloc_device, void *, (size_t, size_t, QueueRef))                     \
  X(DPCTLaligned_alloc_host, void *, (size_t, size_t, QueueRef))                       \
  X(DPCTLaligned_alloc_shared, void *, (size_t, size_t, QueueRef))                     \
  X(DPCTLfree_with_context, void, (void *, ContextRef))                                \
  X(DPCTLUSM_GetPointerType, int, (const void *, ContextRef))                          \
  X(DPCTLUSM_GetPointerDevice, DeviceRef, (const void *, ContextRef))

class Interface {
 public:
  // Fails with NO_BACKEND and the reason.
  Status open();

  // The failure of a function that returned no event or no object. dpctl does not report the reason.
  Status failed(const char *function) const;
  // Deletes the event of a submission. NULL means that `function` failed.
  Status check(EventRef event, const char *function) const {
    if (event == nullptr) return failed(function);
    DPCTLEvent_Delete(event);
    return Status();
  }
  // Waits for an event, and reports work that failed on the device since the last report. SYCL passes such failures to
  // a handler of the queue.
  Status wait(EventRef event) const;
  // check() that waits for the event before it deletes it.
  Status check_done(EventRef event, const char *function) const {
    if (event == nullptr) return failed(function);
    const Status status = wait(event);
    DPCTLEvent_Delete(event);
    return status;
  }
  bool passed(EventRef event) const { return DPCTLEvent_GetCommandExecutionStatus(event) == kComplete; }
  // The handler of queues that gmm creates.
  static void device_failed(int code);

#define GMM_SYCL_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  GMM_SYCL_FUNCTIONS(GMM_SYCL_DECLARE)
#undef GMM_SYCL_DECLARE
};

}  // namespace gmm::sycl
#endif
