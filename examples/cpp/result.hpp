// SPDX-License-Identifier: Apache-2.0
// Results as exceptions, and a context that releases itself.
#ifndef GMM_EXAMPLES_RESULT_HPP
#define GMM_EXAMPLES_RESULT_HPP

#include <gmm/gmm.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

inline constexpr uint64_t kMiB = 1024 * 1024;

struct NotSupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(const char *call, gmm_result result) {
  if (result == GMM_ERROR_NOT_SUPPORTED) throw NotSupported(gmm_last_error_message());
  if (result != GMM_OK)
    throw std::runtime_error(std::string(call) + ": " + gmm_result_name(result) + ": " + gmm_last_error_message());
}

struct Release {
  void operator()(gmm_context *context) const {
    if (gmm_context_release(context) != GMM_OK) std::fprintf(stderr, "release: %s\n", gmm_last_error_message());
  }
};
using Context = std::unique_ptr<gmm_context, Release>;

inline Context open_context(gmm_context_desc desc) {
  desc.struct_size = sizeof desc;
  gmm_context *context = nullptr;
  check("gmm_context_create", gmm_context_create(&desc, &context));
  return Context(context);
}

inline gmm_device_info device_info(gmm_context *context) {
  gmm_device_info info = {};
  info.struct_size = sizeof info;
  check("gmm_device_query", gmm_device_query(context, 0, &info));
  return info;
}

#endif
