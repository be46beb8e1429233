// SPDX-License-Identifier: Apache-2.0
// A thread's entries about objects of a registry (base/registry.h), by their slots: a part of the thread's record
// (base/thread_record.h). The thread alone reads and writes it.
#ifndef GMM_BASE_SLOT_TABLE_H
#define GMM_BASE_SLOT_TABLE_H

#include <cstdlib>

#include "base/registry.h"
#include "base/thread_record.h"

namespace gmm {

// An entry of an object that ended is never found, as serials are not used again.
class SlotTable {
 public:
  // The value that set() noted for the object; NULL: none.
  static void *find(const ThreadRecord &record, ThreadPart part, const RegistryKey &key) {
    const SlotTable *table = record.part<SlotTable>(part);
    if (table == nullptr || key.slot >= table->size_ || table->entries()[key.slot].serial != key.serial) return nullptr;
    return table->entries()[key.slot].value;
  }
  // Makes room for an object's entry. `end` gets the table when the part ends: it calls take(). False: there is no host
  // memory.
  static bool reserve(ThreadRecord *record, ThreadPart part, const RegistryKey &key, void (*end)(void *table)) {
    SlotTable *table = record->part<SlotTable>(part);
    const uint64_t before = table == nullptr ? 0 : table->size_;
    if (key.slot < before) return true;
    const uint64_t size = (uint64_t{key.slot} + 64) & ~uint64_t{63};
    table = static_cast<SlotTable *>(std::realloc(table, sizeof(SlotTable) + size * sizeof(Entry)));
    if (table == nullptr) return false;
    table->size_ = size;
    for (uint64_t i = before; i < size; ++i) table->entries()[i] = Entry{};
    record->set_part(part, table, end);
    return true;
  }
  // After reserve().
  static void set(ThreadRecord *record, ThreadPart part, const RegistryKey &key, void *value) {
    record->part<SlotTable>(part)->entries()[key.slot] = Entry{key.serial, value};
  }
  // Calls fn(object, value) for each entry whose object lives, and that object does not end during the call. Frees the
  // table. A forked child finds no object of its parent, whose memory is not the child's to give back.
  template <typename Fn>
  static void take(void *memory, Registry &registry, Fn fn) {
    SlotTable *table = static_cast<SlotTable *>(memory);
    for (uint32_t slot = 0; slot < table->size_; ++slot) {
      const Entry entry = table->entries()[slot];
      const RegistryKey key{slot, entry.serial};
      if (void *object = registry.visit(key); object != nullptr) {
        fn(object, entry.value);
        registry.leave(key);
      }
    }
    std::free(table);
  }

 private:
  struct Entry {
    uint64_t serial;
    void *value;
  };
  // They lie behind the table.
  Entry *entries() { return reinterpret_cast<Entry *>(this + 1); }
  const Entry *entries() const { return reinterpret_cast<const Entry *>(this + 1); }

  uint64_t size_;
};

}  // namespace gmm
#endif
