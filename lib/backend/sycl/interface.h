// SPDX-License-Identifier: Apache-2.0
// dpctl's C interface to SYCL, libDPCTLSyclInterface.so. gmm opens it at run time.
#ifndef GMM_BACKEND_SYCL_INTERFACE_H
#define GMM_BACKEND_SYCL_INTERFACE_H

#include "backend/sycl/interface_table.h"
#include "base/status.h"

namespace gmm::sycl {

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
  bool passed(EventRef event) const { return DPCTLEvent_GetCommandExecutionStatus(event) == kComplete; }
  // The handler of queues that gmm creates.
  static void device_failed(int code);

#define GMM_SYCL_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  GMM_SYCL_FUNCTIONS(GMM_SYCL_DECLARE)
#undef GMM_SYCL_DECLARE
};

}  // namespace gmm::sycl
#endif
