// SPDX-License-Identifier: Apache-2.0
#include "preload/libc.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace gmm::preload {
namespace {

const char *file_name(const char *path) {
  const char *slash = path != nullptr ? std::strrchr(path, '/') : nullptr;
  return slash != nullptr ? slash + 1 : path;
}

bool begins(const char *text, const char *with) {
  return text != nullptr && std::strncmp(text, with, std::strlen(with)) == 0;
}

// --- A symbol of one object, by its GNU hash table ------------------------------------------------------------

struct Tables {
  const ElfW(Sym) *symbols = nullptr;
  const char *strings = nullptr;
  const uint32_t *hash = nullptr;
};

Tables tables_of(const dl_phdr_info *object) {
  Tables tables;
  for (uint32_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) &part = object->dlpi_phdr[i];
    if (part.p_type != PT_DYNAMIC) continue;
    // The GNU linker writes addresses into these entries, and others write offsets.
    const auto at = [&](ElfW(Addr) address) {
      return address < object->dlpi_addr ? address + object->dlpi_addr : address;
    };
    for (auto *entry = reinterpret_cast<const ElfW(Dyn) *>(object->dlpi_addr + part.p_vaddr); entry->d_tag != DT_NULL;
         ++entry) {
      if (entry->d_tag == DT_SYMTAB) tables.symbols = reinterpret_cast<const ElfW(Sym) *>(at(entry->d_un.d_ptr));
      if (entry->d_tag == DT_STRTAB) tables.strings = reinterpret_cast<const char *>(at(entry->d_un.d_ptr));
      if (entry->d_tag == DT_GNU_HASH) tables.hash = reinterpret_cast<const uint32_t *>(at(entry->d_un.d_ptr));
    }
  }
  return tables;
}

void *symbol_of(const dl_phdr_info *object, const char *name) {
  const Tables tables = tables_of(object);
  if (tables.symbols == nullptr || tables.strings == nullptr || tables.hash == nullptr) return nullptr;
  uint32_t hash = 5381;
  for (const char *c = name; *c != '\0'; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
  const uint32_t bucket_count = tables.hash[0], first = tables.hash[1], bloom_words = tables.hash[2];
  const uint32_t *buckets = tables.hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chain = buckets + bucket_count;
  uint32_t index = bucket_count != 0 ? buckets[hash % bucket_count] : 0;
  if (index < first) return nullptr;
  for (;; ++index) {
    const uint32_t entry = chain[index - first];
    const ElfW(Sym) &symbol = tables.symbols[index];
    if ((entry | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && (symbol.st_info & 15) == STT_FUNC &&
        std::strcmp(tables.strings + symbol.st_name, name) == 0)
      return reinterpret_cast<void *>(object->dlpi_addr + symbol.st_value);
    if ((entry & 1) != 0) return nullptr;  // the last entry of the chain
  }
}

struct Wanted {
  const char *name;
  void *found;
};

// Looks in the C library, or in the library that held dlsym before glibc 2.34.
int look_in(dl_phdr_info *object, size_t, void *user) {
  auto *wanted = static_cast<Wanted *>(user);
  const char *file = file_name(object->dlpi_name);
  if (!begins(file, "libc.so") && !begins(file, "libdl.so") && !begins(file, "libc-2.") && !begins(file, "ld-musl"))
    return 0;
  wanted->found = symbol_of(object, wanted->name);
  return wanted->found != nullptr ? 1 : 0;
}

// Answers for a function that does not exist. The calling conventions allow further arguments.
void *nothing_found() { return nullptr; }

std::atomic<void *> g_dlsym{nullptr}, g_dlvsym{nullptr};

template <typename Function>
Function find_once(std::atomic<void *> &known, const char *name) {
  void *function = known.load(std::memory_order_relaxed);
  if (__builtin_expect(function == nullptr, 0)) {
    Wanted wanted{name, nullptr};
    dl_iterate_phdr(look_in, &wanted);
    function = wanted.found != nullptr ? wanted.found : reinterpret_cast<void *>(nothing_found);
    known.store(function, std::memory_order_relaxed);
  }
  return reinterpret_cast<Function>(function);
}

struct Stem {
  const char *stem;
  char *path;
  uint64_t size;
};

int look_for_file(dl_phdr_info *object, size_t, void *user) {
  auto *stem = static_cast<Stem *>(user);
  if (!begins(file_name(object->dlpi_name), stem->stem)) return 0;
  return std::snprintf(stem->path, stem->size, "%s", object->dlpi_name) < static_cast<int>(stem->size) ? 1 : 0;
}

}  // namespace

DlsymFn system_dlsym() { return find_once<DlsymFn>(g_dlsym, "dlsym"); }

DlvsymFn system_dlvsym() { return find_once<DlvsymFn>(g_dlvsym, "dlvsym"); }

bool find_loaded(const char *stem, char *path, uint64_t size) {
  Stem wanted{stem, path, size};
  return dl_iterate_phdr(look_for_file, &wanted) != 0;
}

}  // namespace gmm::preload
