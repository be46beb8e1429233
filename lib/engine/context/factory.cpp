// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "backend/cuda/cuda_backend.h"
#include "backend/host/host_backend.h"
#include "backend/sycl/sycl_backend.h"
#include "engine/context/context.h"

namespace gmm {
namespace {

struct Name {
  const char *text;
  gmm_backend backend;
};
constexpr Name kNames[] = {
    {"auto", GMM_BACKEND_AUTO}, {"host", GMM_BACKEND_HOST}, {"cuda", GMM_BACKEND_CUDA}, {"sycl", GMM_BACKEND_SYCL}};

Status from_environment(gmm_backend *backend) {
  const char *text = std::getenv("GMM_BACKEND");
  if (text == nullptr || *text == '\0') return Status();
  for (const Name &name : kNames)
    if (std::strcmp(text, name.text) == 0) {
      *backend = name.backend;
      return Status();
    }
  return fail(GMM_ERROR_INVALID_VALUE, "GMM_BACKEND=%.64s names no backend; set it to auto, host, cuda or sycl.", text);
}

}  // namespace

Status open_backend(const gmm_context_desc &desc, const HostAllocator &allocator, const Log &log, Backend **out) {
  gmm_backend wanted = desc.backend;
  if (wanted > GMM_BACKEND_SYCL)
    return fail(GMM_ERROR_INVALID_VALUE, "backend = %u is no GMM_BACKEND_* value.", wanted);
  if (wanted == GMM_BACKEND_AUTO) GMM_TRY(from_environment(&wanted));
  const HostBackendOptions options{desc.host_memory, desc.host_devices};
  switch (wanted) {
    case GMM_BACKEND_SYCL:
      return sycl_backend_create(allocator, log, out);
    case GMM_BACKEND_CUDA:
      return cuda_backend_create(allocator, log, out);
    case GMM_BACKEND_HOST:
      return host_backend_create(allocator, log, options, out);
    default:
      break;
  }
  if (cuda_backend_create(allocator, log, out).ok()) return Status();
  log.write(LogLevel::kInfo, "Taking the host backend: %s", last_message());
  return host_backend_create(allocator, log, options, out);
}

}  // namespace gmm
