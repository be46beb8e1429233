// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"

namespace gmm {

Status Backend::lacks(const char *operation) const {
  return fail(GMM_ERROR_NOT_SUPPORTED, "The %s backend has no %s; gmm_device_query() says what a device can do.",
              name(), operation);
}

void Backend::destroy() {}
gmm_backend Backend::id() const { return GMM_BACKEND_AUTO; }
const char *Backend::name() const { return "none"; }
void Backend::driver_version(char *text, uint64_t size) const {
  if (size != 0) text[0] = '\0';
}
uint32_t Backend::device_count() const { return 0; }
Status Backend::device_info(Device, gmm_device_info *) { return lacks("devices"); }
Status Backend::device_traits(Device device, gmm_device_info *out) { return device_info(device, out); }
int32_t Backend::host_numa_node(Device) { return -1; }

Status Backend::allocate(Kind, Device, uint64_t, Allocation *) { return lacks("memory of this kind"); }
Status Backend::deallocate(const Allocation &) { return lacks("memory of this kind"); }
Status Backend::import_host(int32_t, uint64_t, Device, bool, Allocation *) { return lacks("shared host memory"); }

Status Backend::reserve(uint64_t, void **) { return lacks("virtual memory management"); }
Status Backend::unreserve(void *, uint64_t) { return lacks("virtual memory management"); }
Status Backend::can_create(Device, uint64_t) { return Status(); }
Status Backend::create(Device, uint64_t, PhysicalHandle *) { return lacks("virtual memory management"); }
Status Backend::comm_traits(Device, CommTraits *) { return lacks("virtual memory management"); }
Status Backend::create_comm(Device device, uint64_t size, PhysicalHandle *out) { return create(device, size, out); }
Status Backend::release(PhysicalHandle) { return lacks("virtual memory management"); }
bool Backend::is_held_elsewhere(PhysicalHandle) { return false; }
Status Backend::free_memory(Device, uint64_t *) { return lacks("a count of free memory"); }
Status Backend::device_use(Device device, DeviceUse *out) {
  gmm_device_info info = {};
  GMM_TRY(device_info(device, &info));
  *out = DeviceUse();
  for (uint32_t i = 0; i < sizeof out->uuid; ++i) out->uuid[i] = info.uuid[i];
  out->total = info.total_memory;
  out->used = info.total_memory - info.free_memory;
  return Status();
}
Status Backend::map(void *, uint64_t, PhysicalHandle) { return lacks("virtual memory management"); }
Status Backend::unmap(void *, uint64_t) { return lacks("virtual memory management"); }
Status Backend::set_access(void *, uint64_t, Device, uint32_t) { return lacks("virtual memory management"); }
Status Backend::populate(void *, uint64_t) { return Status(); }
Status Backend::export_fd(PhysicalHandle, int32_t *) { return lacks("export by file descriptor"); }
Status Backend::import_fd(int32_t, uint64_t, Device, PhysicalHandle *) { return lacks("import by file descriptor"); }
bool Backend::has_fabric(Device) const { return false; }
Status Backend::export_fabric(PhysicalHandle, uint8_t[kFabricHandleSize]) { return lacks("fabric handles"); }
Status Backend::import_fabric(const uint8_t[kFabricHandleSize], uint64_t, Device, PhysicalHandle *) {
  return lacks("fabric handles");
}

Status Backend::legacy_export(void *, uint8_t[kLegacyHandleSize]) { return lacks("legacy IPC"); }
Status Backend::legacy_import(const uint8_t[kLegacyHandleSize], Device, void **) { return lacks("legacy IPC"); }
Status Backend::legacy_close(void *) { return lacks("legacy IPC"); }

Status Backend::export_dma_buf(const void *, uint64_t, int32_t *) { return lacks("dma-buf descriptors"); }
Status Backend::external_import(int32_t, gmm_fd_type, uint64_t, Device, Allocation *) {
  return lacks("descriptors of Vulkan and dma-buf");
}
Status Backend::external_close(const Allocation &) { return lacks("descriptors of Vulkan and dma-buf"); }

Status Backend::pin(void *, uint64_t, uint32_t, Device, void **) { return lacks("pinning"); }
Status Backend::unpin(void *, uint64_t) { return lacks("pinning"); }

Status Backend::advise(void *, uint64_t, gmm_advice, Device) { return lacks("advice for managed memory"); }
Status Backend::prefetch(void *, uint64_t, Device, Device, gmm_stream) { return lacks("prefetch of managed memory"); }

Status Backend::stream_create(Device, int32_t, gmm_stream *) { return lacks("streams"); }
Status Backend::stream_destroy(gmm_stream) { return lacks("streams"); }
Status Backend::stream_synchronize(Device, gmm_stream) { return lacks("streams"); }
Status Backend::stream_is_capturing(Device, gmm_stream, bool *out) {
  *out = false;
  return Status();
}
bool Backend::can_capture() const { return false; }
bool Backend::may_be_capturing(Device, gmm_stream) { return false; }
Status Backend::capture_of(Device, gmm_stream, Capture *out) {
  *out = Capture();
  return Status();
}
Status Backend::at_end_of_graph(Device, void *, void (*fn)(void *), void *user) {
  fn(user);
  return lacks("graphs");
}
Status Backend::stream_query(Device, gmm_stream, bool *) { return lacks("streams"); }
Status Backend::stream_call(Device, gmm_stream, void (*)(void *), void *) { return lacks("calls on streams"); }
Status Backend::copy(Device, gmm_stream, void *, const void *, uint64_t) { return lacks("copies"); }
Status Backend::fill(Device, gmm_stream, void *, uint8_t, uint64_t) { return lacks("fills"); }
Status Backend::find_zeros(Device, gmm_stream, ZeroRange *, uint64_t) { return lacks("search for zeros"); }
Status Backend::synchronize(Device) { return lacks("devices"); }
Status Backend::event_create(Device, NativeEvent *) { return lacks("events"); }
Status Backend::event_destroy(NativeEvent) { return lacks("events"); }
Status Backend::event_record(NativeEvent, Device, gmm_stream) { return lacks("events"); }
Status Backend::event_synchronize(NativeEvent) { return lacks("events"); }
Status Backend::event_query(NativeEvent, bool *) { return lacks("events"); }
Status Backend::stream_wait(Device, gmm_stream, NativeEvent) { return lacks("events"); }
Status Backend::shared_event_create(Device, NativeEvent *) { return lacks("events between processes"); }
Status Backend::shared_event_export(Device, NativeEvent, uint8_t[kLegacyHandleSize], int32_t *) {
  return lacks("events between processes");
}
Status Backend::shared_event_import(Device, const uint8_t[kLegacyHandleSize], int32_t, const Peer &, NativeEvent *) {
  return lacks("events between processes");
}

Status Backend::shared_event_wait(Device device, gmm_stream stream, NativeEvent event) {
  return stream_wait(device, stream, event);
}

Status Backend::semaphore_import(gmm_semaphore_type, int32_t, Device, NativeSemaphore *) {
  return lacks("semaphores of this type");
}
Status Backend::semaphore_destroy(NativeSemaphore, Device) { return lacks("semaphores"); }
Status Backend::semaphore_signal(NativeSemaphore, Device, gmm_stream, uint64_t) { return lacks("signals"); }
Status Backend::semaphore_wait(NativeSemaphore, Device, gmm_stream, uint64_t) { return lacks("semaphores"); }
bool Backend::calls_may_wait() const { return false; }

void Backend::identify(const void *, ForeignPointer *) {}

bool Backend::is_cpu_memory() const { return false; }

void *Backend::device_address(const void *address) const { return const_cast<void *>(address); }

Status no_memory_for(const char *action) {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "%s: the host has no memory for it; free memory.", action);
}

Status start_stream_thread(Thread *out, void *(*fn)(void *), void *stream) {
  const int error = start_thread(out, ThreadSignals::kFaults, fn, stream);
  if (error == 0) return Status();
  return fail_native(
      GMM_ERROR_SYSTEM, error,
      "Starting the thread of a stream: the system refused (%s); raise the limit of threads (ulimit -u), or use fewer "
      "streams.",
      ErrorText(error).text);
}

}  // namespace gmm
