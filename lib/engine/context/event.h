// SPDX-License-Identifier: Apache-2.0
// An event: a point in a stream's order. It is of this context alone, shared by it, imported from another process, or a
// semaphore of another API, which has values.
#ifndef GMM_ENGINE_CONTEXT_EVENT_H
#define GMM_ENGINE_CONTEXT_EVENT_H

#include "engine/context/context.h"
#include "engine/ipc/semaphores.h"

struct gmm_event {
  static constexpr uint64_t kMagic = 0x676d6d2d65766e74;
  static constexpr char kHandleName[] = "event";

  gmm_event(gmm::Context &of, gmm::Device on) : context(&of), device(on), semaphore(of.core()) {}
  static gmm::Status create(gmm::Context &context, gmm::Device device, bool is_shared, gmm_event **out);
  static gmm::Status import(gmm::Context &context, const gmm_ipc_handle &handle, gmm::Device device,
                            uint64_t timeout_ms, gmm_event **out);
  static gmm::Status import_semaphore(gmm::Context &context, const gmm_semaphore_desc &desc, gmm_event **out);
  // After a success the event is gone.
  gmm::Status destroy();

  // INVALID_VALUE: a value for an event that has none. INVALID_HANDLE: the event was imported.
  gmm::Status record(uint64_t value, gmm_stream stream);
  gmm::Status wait_on(gmm_stream stream, uint64_t value);
  // NOT_SUPPORTED: a semaphore does not tell its value.
  gmm::Status synchronize(uint64_t value, uint64_t timeout_ms);
  gmm::Status query(bool *passed);
  gmm::Status export_to(gmm_ipc_handle *out);

  uint64_t magic = kMagic;
  gmm::Context *context;

 private:
  bool is_imported() const { return maker.process != 0; }
  gmm::Status check_value(uint64_t value, const char *function) const;
  gmm::Status check_can_tell(const char *function) const;
  gmm::Status has_passed(const char *function, bool *passed) const;
  gmm::Status wait_until(uint64_t timeout_ms) const;

  gmm::NativeEvent native = nullptr;
  gmm::Device device;
  gmm::EventMaker maker;               // of an imported event
  gmm::SharedEvent *shared = nullptr;  // it owns `native`
  gmm::Semaphore semaphore;            // it has no `native`
};

#endif
