// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: which symbol a name means for a version.
#include <cstring>

#include "state.h"

extern "C" {

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
  if (CUresult early = fake::enter(fake::Entry::cuGetProcAddress_v2)) return early;
  if (!symbol || !pfn || flags > 2) return CUDA_ERROR_INVALID_VALUE;
  static const struct {
    const char *name;
    void *address;
    int version;
  } rows[] = {
#define X(name, suffix, version, parameters) {#name, reinterpret_cast<void *>(&name##suffix), version},
      FAKE_CUDA_ENTRIES(X)
#undef X
  };
  *pfn = nullptr;
  bool known = false;
  int limit = std::min(cudaVersion, fake::state().configuration.version);
  for (auto &row : rows) {  // later rows of one name are newer
    if (strcmp(row.name, symbol)) continue;
    known = true;
    if (row.version <= limit) *pfn = row.address;
  }
  // The per-thread variants take a null stream for another one: giving the plain entry would be a silent lie.
  if (flags == 2) *pfn = nullptr, known = false;
  if (symbolStatus)
    *symbolStatus = *pfn    ? CU_GET_PROC_ADDRESS_SUCCESS
                    : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, nullptr);
}

}  // extern "C"
