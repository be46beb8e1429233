// SPDX-License-Identifier: Apache-2.0
#include "preload/entries.h"

#include <cstring>

namespace gmm::preload {
namespace {

// The table is not constexpr, because the loader fills in the addresses.
const EntryInfo kEntries[kEntryCount] = {
#define X(symbol, stream, type, name, version) \
  {#symbol, name, version, NullStream::stream, reinterpret_cast<void *>(&::symbol)},
    GMM_PRELOAD_DRIVER(X)
#undef X
#define X(symbol, stream, ...) {#symbol, nullptr, 0, NullStream::stream, reinterpret_cast<void *>(&::symbol)},
        GMM_PRELOAD_RUNTIME(X)
#undef X
};

}  // namespace

const EntryInfo &entry_info(Entry entry) { return kEntries[static_cast<uint32_t>(entry)]; }

Entry find_symbol(const char *symbol) {
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return Entry::kCount;
  for (uint32_t i = 0; i < kEntryCount; ++i)
    if (std::strcmp(kEntries[i].symbol, symbol) == 0) return static_cast<Entry>(i);
  return Entry::kCount;
}

Entry find_name(const char *name, int version, bool per_thread) {
  Entry found = Entry::kCount;
  int newest = 0;
  if (name == nullptr) return found;
  const NullStream other = per_thread ? NullStream::kLegacy : NullStream::kPerThread;
  for (uint32_t i = 0; i < kEntryCount; ++i) {
    const EntryInfo &row = kEntries[i];
    if (row.name == nullptr || row.version > version || row.version < newest || row.null_stream == other) continue;
    if (std::strcmp(row.name, name) != 0) continue;
    found = static_cast<Entry>(i);
    newest = row.version;
  }
  // Some drivers accept the symbol itself as a name.
  return found != Entry::kCount ? found : find_symbol(name);
}

bool is_hook(const void *address) {
  for (const EntryInfo &row : kEntries)
    if (row.hook == address) return true;
  return false;
}

}  // namespace gmm::preload
