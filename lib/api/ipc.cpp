// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "api/arguments.h"
#include "engine/ipc/descriptor.h"

using namespace gmm;

gmm_result gmm_ipc_export(gmm_context *context, const void *memory, gmm_ipc_handle *out) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_not_null(memory, "gmm_ipc_export", "memory"));
    GMM_TRY(check_not_null(out, "gmm_ipc_export", "out"));
    return context->ipc().exports.export_block(memory, out);
  });
}

gmm_result gmm_ipc_import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc,
                          void **out) noexcept {
  return make(context, "gmm_ipc_import", out, [&]() -> Status {
    gmm_ipc_import_desc copy;
    GMM_TRY(check_not_null(handle, "gmm_ipc_import", "handle"));
    GMM_TRY(read_import(*context, desc, &copy));
    return context->ipc().import_block(*handle, Device{copy.device}, copy.timeout_ms, out);
  });
}

gmm_result gmm_ipc_close(gmm_context *context, void *memory) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_not_null(memory, "gmm_ipc_close", "memory"));
    return context->ipc().close(memory);
  });
}

gmm_result gmm_ipc_configure(gmm_context *context, const gmm_ipc_desc *desc) noexcept {
  return call(context, [&]() -> Status {
    gmm_ipc_desc copy;
    IpcPolicy policy;
    GMM_TRY(read_checked(desc, 0, &copy));
    if (copy.user_count != 0) GMM_TRY(check_not_null(copy.users, "gmm_ipc_desc", "users"));
    if (copy.user_count > IpcPolicy::kMaxUsers)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_ipc_desc.user_count = %u; at most %u users can be named.",
                  copy.user_count, IpcPolicy::kMaxUsers);
    if (copy.user_count != 0 && copy.directory == nullptr)
      return fail(
          GMM_ERROR_INVALID_VALUE,
          "gmm_ipc_desc.directory is NULL, but users are named, who cannot reach the default directories; set a "
          "directory.");
    if (copy.directory != nullptr) {
      const uint64_t length = std::strlen(copy.directory);
      if (copy.directory[0] != '/' || length >= sizeof policy.directory)
        return fail(GMM_ERROR_INVALID_VALUE,
                    "gmm_ipc_desc.directory = \"%.200s\" is relative or too long; pass an absolute path of less than "
                    "%zu bytes.",
                    copy.directory, sizeof policy.directory);
      std::memcpy(policy.directory, copy.directory, length + 1);
    }
    for (uint32_t i = 0; i < copy.user_count; ++i) policy.users[i] = copy.users[i];
    policy.user_count = copy.user_count;
    return context->ipc().configure(policy);
  });
}

gmm_result gmm_ipc_export_fd(gmm_context *context, const void *memory, gmm_fd_type type,
                             gmm_ipc_fd_info *out) noexcept {
  return answer(context, out, [&](gmm_ipc_fd_info *info) -> Status {
    GMM_TRY(check_not_null(memory, "gmm_ipc_export_fd", "memory"));
    if (type > GMM_FD_DMA_BUF)
      return fail(GMM_ERROR_INVALID_VALUE,
                  "gmm_ipc_export_fd: type = %u; pass GMM_FD_DEFAULT, _OPAQUE, _FILE or _DMA_BUF.", type);
    return export_descriptor(context->core(), memory, type, info);
  });
}

gmm_result gmm_ipc_import_fd(gmm_context *context, int32_t fd, const gmm_ipc_fd_desc *desc, void **out) noexcept {
  return make(context, "gmm_ipc_import_fd", out, [&]() -> Status {
    gmm_ipc_fd_desc copy;
    GMM_TRY(check_not_null(desc, "gmm_ipc_import_fd", "desc"));
    GMM_TRY(read_checked(desc, 0, &copy));
    GMM_TRY(check_device(*context, copy.device));
    if (copy.type > GMM_FD_VULKAN)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_ipc_fd_desc.type = %u; pass a GMM_FD_* type.", copy.type);
    return context->ipc().imports.import_descriptor(fd, copy.type, copy.size, Device{copy.device}, out);
  });
}

gmm_result gmm_ipc_export_legacy(gmm_context *context, const void *memory, gmm_ipc_legacy_info *out) noexcept {
  return answer(context, out, [&](gmm_ipc_legacy_info *info) -> Status {
    GMM_TRY(check_not_null(memory, "gmm_ipc_export_legacy", "memory"));
    return context->ipc().exports.export_legacy(memory, info);
  });
}
