// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/gpu_backend.h"
#include "backend/host/host_backend.h"
#include "backend/sycl/sycl_backend.h"
#include "base/environment.h"
#include "engine/context/context.h"

namespace gmm {
namespace {

Status from_environment(gmm_backend *backend) {
  // The words of the table stand in the order of these numbers.
  static_assert(GMM_BACKEND_AUTO == 0 && GMM_BACKEND_HOST == 1 && GMM_BACKEND_CUDA == 2 && GMM_BACKEND_SYCL == 3 &&
                GMM_BACKEND_HIP == 4);
  if (environment_word(Variable::kBackend, backend) != Reading::kBad) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "GMM_BACKEND=%.64s names no backend; set it to %s.",
              environment_text(Variable::kBackend), environment_row(Variable::kBackend).values);
}

}  // namespace

Status open_backend(const gmm_context_desc &desc, const HostAllocator &allocator, const Log &log, Backend **out) {
  gmm_backend wanted = desc.backend;
  if (wanted > GMM_BACKEND_HIP) return fail(GMM_ERROR_INVALID_VALUE, "backend = %u is no GMM_BACKEND_* value.", wanted);
  if (wanted == GMM_BACKEND_AUTO) GMM_TRY(from_environment(&wanted));
  uint32_t strict = 0;
  environment_word(Variable::kStrictHost, &strict);  // a bad value was warned of, and leaves it at 0
  const HostBackendOptions options{desc.host_memory, desc.host_devices,
                                   strict != 0 || (desc.flags & GMM_CONTEXT_STRICT_HOST) != 0,
                                   environment_text(Variable::kHostCard)};
  switch (wanted) {
    case GMM_BACKEND_SYCL:
      return sycl_backend_create(allocator, log, out);
    case GMM_BACKEND_CUDA:
      return cuda_backend_create(allocator, log, out);
    case GMM_BACKEND_HIP:
      return hip_backend_create(allocator, log, out);
    case GMM_BACKEND_HOST:
      return host_backend_create(allocator, log, options, out);
    default:
      break;
  }
  const struct {
    Status (*create)(const HostAllocator &, const Log &, Backend **);
    bool (*is_expected)();
    const char *device;
  } gpus[] = {{&cuda_backend_create, &cuda_is_expected, "an NVIDIA"},
              {&hip_backend_create, &hip_is_expected, "an AMD"}};
  for (const auto &each : gpus) {
    MessageGuard message_guard;  // that there is no GPU is no failure of the caller's
    if (each.create(allocator, log, out).ok()) return Status();
    if (each.is_expected())
      log.complain("Going on without %s device: %s", each.device, last_message());
    else
      log.write(LogLevel::kInfo, "Going on without %s device: %s", each.device, last_message());
  }
  return host_backend_create(allocator, log, options, out);
}

}  // namespace gmm
