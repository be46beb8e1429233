// SPDX-License-Identifier: Apache-2.0
// The driver's or the system's own calls that share one allocation, with which `gmm-bench ipc` compares gmm.
#ifndef GMM_BENCH_IPC_RAW_H
#define GMM_BENCH_IPC_RAW_H

#include <cstdint>
#include <memory>
#include <string>

namespace gmm_bench {

// A message from process to process: 64 bytes, and a descriptor or -1.
struct IpcRawMessage {
  uint8_t bytes[64] = {};
  int fd = -1;
};

// Functions that return bool: false leaves the reason in `error`. On one thread.
class IpcRaw {
 public:
  virtual ~IpcRaw() = default;
  virtual bool make(uint64_t size) = 0;            // the exporter's memory; ends with the process
  virtual bool give(IpcRawMessage *out) = 0;       // the receiver closes its descriptor, and the sender after sending
  virtual bool take(const IpcRawMessage &in) = 0;  // maps it, ready for use
  virtual bool drop() = 0;                         // unmaps the mapping of the last take()
  std::string error;
};

// kind: GMM_KIND_DEVICE, _VMM or _HOST. NULL with `error`.
std::unique_ptr<IpcRaw> ipc_raw(bool cuda, uint32_t kind, int32_t device, std::string *error);

}  // namespace gmm_bench
#endif
