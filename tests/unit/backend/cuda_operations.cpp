// SPDX-License-Identifier: Apache-2.0
// The list of everything that the CUDA backend does. Tests put each operation of it through the same.
#include <fcntl.h>
#include <gmm/pin.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_backend_test.h"

namespace gmm::test {
namespace {

constexpr Device kDevice{0};
constexpr uint64_t kSize = kWorldSize;
constexpr gmm_kind_mask kHasVmm = 1u << GMM_KIND_VMM, kHasHost = 1u << GMM_KIND_HOST,
                        kHasManaged = 1u << GMM_KIND_MANAGED;

Status nothing(World &) { return Status(); }

std::function<Status(World &)> allocate(Kind kind) {
  return [kind](World &w) { return w.backend->allocate(kind, kDevice, kSize, &w.allocation); };
}
Status deallocate(World &w) { return w.backend->deallocate(w.allocation); }

Status reserve(World &w) { return w.backend->reserve(kSize, &w.base); }
Status unreserve(World &w) { return w.backend->unreserve(w.base, kSize); }
Status release(World &w) { return w.backend->release(w.handle); }
Status map(World &w) { return w.backend->map(w.base, kSize, w.handle); }
Status unmap(World &w) { return w.backend->unmap(w.base, kSize); }
std::function<Status(World &)> create(Device location) {
  return [location](World &w) { return w.backend->create(location, kSize, &w.handle); };
}
std::function<Status(World &)> access(Device owner) {
  return [owner](World &w) { return w.backend->set_access(w.base, kSize, owner, 0); };
}

// One after the other, until one fails.
std::function<Status(World &)> all(std::vector<std::function<Status(World &)>> steps) {
  return [steps = std::move(steps)](World &w) {
    for (const auto &step : steps) GMM_TRY(step(w));
    return Status();
  };
}
const std::function<Status(World &)> kMapped = all({reserve, create(kDevice), map});
const std::function<Status(World &)> kMappedOnHost = all({reserve, create(kHostLocation), map});
const std::function<Status(World &)> kUnmapped = all({unmap, release, unreserve});

Status take_memory(World &w) {
  w.memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return Status(w.memory == MAP_FAILED ? GMM_ERROR_SYSTEM : GMM_OK);
}
Status give_memory(World &w) { return Status(munmap(w.memory, kSize) == 0 ? GMM_OK : GMM_ERROR_SYSTEM); }
std::function<Status(World &)> pin(uint32_t flags) {
  return [flags](World &w) { return w.backend->pin(w.memory, kSize, flags, kDevice, &w.pointer); };
}
Status unpin(World &w) { return w.backend->unpin(w.memory, kSize); }
Status close_fd(World &w) { return Status(close(w.fd) == 0 ? GMM_OK : GMM_ERROR_SYSTEM); }
Status duplicate_fd(World &w) {
  w.fd = fcntl(w.allocation.fd, F_DUPFD_CLOEXEC, 3);
  return Status(w.fd < 0 ? GMM_ERROR_SYSTEM : GMM_OK);
}
Status export_fd(World &w) { return w.backend->export_fd(w.handle, &w.fd); }

Status make_stream(World &w) { return w.backend->stream_create(kDevice, 0, &w.stream); }
Status end_stream(World &w) { return w.backend->stream_destroy(w.stream); }
Status make_event(World &w) { return w.backend->event_create(kDevice, &w.event); }
Status end_event(World &w) { return w.backend->event_destroy(w.event); }
Status record(World &w) { return w.backend->event_record(w.event, kDevice, w.stream); }
Status wait(World &w) { return w.backend->stream_synchronize(kDevice, w.stream); }
void no_work(void *) {}

std::vector<Operation> make() {
  std::vector<Operation> list;
  const auto add = [&](const char *name, gmm_kind_mask kinds, std::function<Status(World &)> prepare,
                       std::function<Status(World &)> run, std::function<Status(World &)> undo,
                       uint32_t capabilities = 0) {
    list.push_back({name, kinds, capabilities, std::move(prepare), std::move(run), std::move(undo)});
  };
  add(
      "device_info", 0, nothing,
      [](World &w) {
        gmm_device_info info = {};
        return w.backend->device_info(kDevice, &info);
      },
      nothing);
  add("allocate device", 0, nothing, allocate(Kind::kDevice), deallocate);
  add("allocate host", kHasHost, nothing, allocate(Kind::kHost), deallocate);
  add("allocate managed", kHasManaged, nothing, allocate(Kind::kManaged), deallocate);
  add("deallocate device", 0, allocate(Kind::kDevice), deallocate, nothing);
  add("deallocate host", kHasHost, allocate(Kind::kHost), deallocate, nothing);
  add("deallocate managed", kHasManaged, allocate(Kind::kManaged), deallocate, nothing);
  add(
      "import_host", kHasHost, all({allocate(Kind::kHost), duplicate_fd}),
      [](World &w) {
        Status status = w.backend->import_host(w.fd, kSize, kDevice, true, &w.second);
        // A failure leaves the descriptor to the caller.
        EXPECT_TRUE(status.ok() || fcntl(w.fd, F_GETFD) != -1);
        return status;
      },
      all({[](World &w) { return w.backend->deallocate(w.second); }, deallocate}));

  add("reserve", kHasVmm, nothing, reserve, unreserve);
  add("unreserve", kHasVmm, reserve, unreserve, nothing);
  add("create", kHasVmm, nothing, create(kDevice), release);
  add("create on host", kHasVmm, nothing, create(kHostLocation), release);
  add("release", kHasVmm, create(kDevice), release, nothing);
  add("map", kHasVmm, all({reserve, create(kDevice)}), map, kUnmapped);
  add("unmap", kHasVmm, kMapped, unmap, all({release, unreserve}));
  add("set_access", kHasVmm, kMapped, access(kDevice), kUnmapped);
  add("set_access of a device to host pages", kHasVmm, kMappedOnHost, access(kDevice), kUnmapped);
  add("set_access of the host", kHasVmm, kMappedOnHost, access(kHostLocation), kUnmapped);
  add("export_fd", kHasVmm, create(kDevice), export_fd, all({close_fd, release}), GMM_DEVICE_CAN_EXPORT_FD);
  add(
      "import_fd", kHasVmm, all({create(kDevice), export_fd}),
      [](World &w) { return w.backend->import_fd(w.fd, kSize, kDevice, &w.other); },
      all({[](World &w) { return w.backend->release(w.other); }, close_fd, release}), GMM_DEVICE_CAN_EXPORT_FD);

  add(
      "legacy_export", 0, allocate(Kind::kDevice),
      [](World &w) { return w.backend->legacy_export(w.allocation.driver_base, w.bytes); }, deallocate,
      GMM_DEVICE_CAN_LEGACY_IPC);
  add("pin", 0, take_memory, pin(0), all({unpin, give_memory}), GMM_DEVICE_CAN_PIN);
  add("unpin", 0, all({take_memory, pin(0)}), unpin, give_memory, GMM_DEVICE_CAN_PIN);
  for (gmm_advice advice = GMM_ADVISE_SET_READ_MOSTLY; advice <= GMM_ADVISE_UNSET_ACCESSED_BY; ++advice)
    add(
        "advise", kHasManaged, allocate(Kind::kManaged),
        [advice](World &w) { return w.backend->advise(w.allocation.base, kSize, advice, kDevice); }, deallocate,
        GMM_DEVICE_CAN_CONCURRENT_MANAGED);
  add(
      "prefetch", kHasManaged, all({allocate(Kind::kManaged), make_stream}),
      [](World &w) { return w.backend->prefetch(w.allocation.base, kSize, kHostLocation, kDevice, w.stream); },
      all({end_stream, deallocate}), GMM_DEVICE_CAN_CONCURRENT_MANAGED);

  add("stream_create", 0, nothing, make_stream, end_stream);
  add("stream_destroy", 0, make_stream, end_stream, nothing);
  add("stream_synchronize", 0, make_stream, wait, end_stream);
  add("stream_synchronize default", 0, nothing, wait, nothing);
  add(
      "stream_is_capturing", 0, make_stream,
      [](World &w) {
        bool capturing = true;
        Status status = w.backend->stream_is_capturing(kDevice, w.stream, &capturing);
        EXPECT_TRUE(!status.ok() || !capturing);
        return status;
      },
      end_stream);
  add(
      "stream_call", 0, make_stream,
      [](World &w) { return w.backend->stream_call(kDevice, w.stream, no_work, nullptr); }, end_stream);
  add(
      "copy to device", kHasHost,
      all({allocate(Kind::kDevice), make_stream,
           [](World &w) { return w.backend->allocate(Kind::kHost, kDevice, kSize, &w.second); }}),
      [](World &w) { return w.backend->copy(kDevice, w.stream, w.allocation.base, w.second.base, kSize); },
      all({end_stream, deallocate, [](World &w) { return w.backend->deallocate(w.second); }}));
  add(
      "copy on host", kHasHost, all({allocate(Kind::kHost), make_stream, take_memory}),
      [](World &w) { return w.backend->copy(kDevice, w.stream, w.allocation.base, w.memory, kSize); },
      all({end_stream, deallocate, give_memory}));
  add(
      "fill", 0, all({allocate(Kind::kDevice), make_stream}),
      [](World &w) { return w.backend->fill(kDevice, w.stream, w.allocation.base, 1, kSize); },
      all({end_stream, deallocate}));
  add(
      "find_zeros", kHasHost,
      all({allocate(Kind::kHost), make_stream,
           [](World &w) { return w.backend->allocate(Kind::kDevice, kDevice, kSize, &w.second); }}),
      [](World &w) {
        ZeroRange *range = static_cast<ZeroRange *>(w.allocation.base);
        *range = ZeroRange{reinterpret_cast<uint64_t>(w.second.base), kSize, 0, 0};
        return w.backend->find_zeros(kDevice, w.stream, range, 1);
      },
      all({end_stream, deallocate, [](World &w) { return w.backend->deallocate(w.second); }}));
  add(
      "synchronize", 0, nothing, [](World &w) { return w.backend->synchronize(kDevice); }, nothing);
  add("event_create", 0, nothing, make_event, end_event);
  add("event_destroy", 0, make_event, end_event, nothing);
  add("event_record", 0, all({make_stream, make_event}), record, all({end_event, end_stream}));
  add("event_record default", 0, make_event, record, end_event);
  add(
      "event_synchronize", 0, all({make_stream, make_event, record}),
      [](World &w) { return w.backend->event_synchronize(w.event); }, all({end_event, end_stream}));
  add(
      "event_query", 0, all({make_stream, make_event, record, wait}),
      [](World &w) {
        bool passed = false;
        Status status = w.backend->event_query(w.event, &passed);
        EXPECT_TRUE(!status.ok() || passed);
        return status;
      },
      all({end_event, end_stream}));
  add(
      "stream_wait", 0, all({make_stream, make_event, record}),
      [](World &w) { return w.backend->stream_wait(kDevice, w.stream, w.event); }, all({end_event, end_stream}));
  add(
      "identify device", 0, allocate(Kind::kDevice),
      [](World &w) {
        ForeignPointer out;
        w.backend->identify(w.allocation.base, &out);
        return Status();
      },
      deallocate);
  add(
      "identify vmm", kHasVmm, all({reserve, create(kDevice), map, access(kDevice)}),
      [](World &w) {
        ForeignPointer out;
        w.backend->identify(w.base, &out);
        return Status();
      },
      kUnmapped);
  return list;
}

}  // namespace

const std::vector<Operation> &operations() {
  static const std::vector<Operation> list = make();
  return list;
}

bool possible(Backend &backend, const Operation &operation) {
  gmm_device_info info = {};
  EXPECT_OK(backend.device_info(kDevice, &info));
  return (info.kinds & operation.kinds) == operation.kinds &&
         (info.capabilities & operation.capabilities) == operation.capabilities;
}

}  // namespace gmm::test
