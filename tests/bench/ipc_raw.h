// SPDX-License-Identifier: Apache-2.0
// What `gmm-bench ipc` holds gmm against: the driver's or the system's own calls to share one allocation.
#ifndef GMM_BENCH_IPC_RAW_H
#define GMM_BENCH_IPC_RAW_H

#include <cstdint>
#include <memory>
#include <string>

namespace gmm_bench {

// What goes from process to process: 64 bytes, and a descriptor or -1.
struct IpcRawMessage {
  uint8_t bytes[64] = {};
  int fd = -1;
};

// Functions that return bool: false leaves why in `error`. On one thread.
class IpcRaw {
 public:
  virtual ~IpcRaw() = default;
  virtual bool make(uint64_t size) = 0;            // the exporter's memory; ends with the process
  virtual bool give(IpcRawMessage *out) = 0;       // the receiver's to close, and the sender's once it is sent
  virtual bool take(const IpcRawMessage &in) = 0;  // maps it, ready for use
  virtual bool drop() = 0;                         // what take() mapped last
  std::string error;
};

// kind: GMM_KIND_DEVICE, _VMM or _HOST.
std::unique_ptr<IpcRaw> host_ipc_raw(uint32_t kind);
std::unique_ptr<IpcRaw> cuda_ipc_raw(uint32_t kind, int32_t device, std::string *error);

}  // namespace gmm_bench
#endif
