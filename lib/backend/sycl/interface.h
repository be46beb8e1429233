// SPDX-License-Identifier: Apache-2.0
// dpctl's C interface to SYCL, libDPCTLSyclInterface.so: opened at run time.
#ifndef GMM_BACKEND_SYCL_INTERFACE_H
#define GMM_BACKEND_SYCL_INTERFACE_H

#include "backend/sycl/interface_table.h"
#include "base/status.h"

namespace gmm::sycl {

class Interface {
 public:
  // GMM_ERROR_NO_BACKEND with the reason when there is none.
  Status open();

  // A function gave no event, or no object: dpctl keeps the reason to itself.
  Status failed(const char *function) const;
  // Takes over what a submission gave; NULL is a failure of `function`.
  Status check(EventRef event, const char *function) const {
    if (event == nullptr) return failed(function);
    DPCTLEvent_Delete(event);
    return Status();
  }
  // Waits, and tells of work that failed on the device since anybody asked: SYCL hands that to a handler of the queue.
  Status wait(EventRef event) const;
  bool passed(EventRef event) const { return DPCTLEvent_GetCommandExecutionStatus(event) == kComplete; }
  // The handler, for queues that are made here.
  static void device_failed(int code);

#define GMM_SYCL_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  GMM_SYCL_FUNCTIONS(GMM_SYCL_DECLARE)
#undef GMM_SYCL_DECLARE
};

}  // namespace gmm::sycl
#endif
