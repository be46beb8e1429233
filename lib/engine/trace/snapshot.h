// SPDX-License-Identifier: Apache-2.0
// The snapshot: a copy of what lies in the heaps of a context, to read by index or to write as one JSON object.
// FORMAT.md in this folder describes the fields of the object. The report of the blocks that are live at the end of
// their context is made from one, too.
#ifndef GMM_ENGINE_TRACE_SNAPSHOT_H
#define GMM_ENGINE_TRACE_SNAPSHOT_H

#include <gmm/stats.h>

#include "base/vector.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

// Any thread reads it after take().
class JsonWriter;
class Snapshot {
 public:
  explicit Snapshot(const HostAllocator &allocator)
      : allocator_(allocator),
        heaps_(allocator),
        extents_(allocator),
        blocks_(allocator),
        notes_(allocator),
        devices_(allocator) {}

  // Copies a heap, under its lock. Without `waits` nothing, where a pause or another operation has the lock.
  // OUT_OF_HOST_MEMORY.
  Status copy_heap(Heap &heap, const Tag &tag, bool waits);
  // Copies the heaps of a checked scope. OUT_OF_HOST_MEMORY.
  Status take(Core &core, HeapSet &heaps, const TagTable &tags, const gmm_scope_desc &scope);
  // Asks the driver what is in use of each device that has a heap. OUT_OF_HOST_MEMORY.
  Status add_devices(Backend &backend);
  void query(gmm_snapshot_info *out) const;
  uint64_t block_count() const { return blocks_.size(); }
  uint64_t extent_count() const { return extents_.size(); }
  // fn(const void *memory, uint64_t size, uint32_t flags, const BlockNotes::Note &) for each block. flags:
  // GMM_ALLOC_PAUSED.
  template <typename Fn>
  void for_each_block(Fn fn) const {
    for (const BlockCopy &block : blocks_)
      fn(reinterpret_cast<const void *>(block.address), block.size, block.is_elastic ? uint32_t{GMM_ALLOC_PAUSED} : 0,
         note_of(block));
  }
  // *heap: the heap of the block if a user made it; only a name for it, as it may have ended since.
  void query_block(uint64_t index, gmm_block_info *out, Heap **heap) const;
  void query_extent(uint64_t index, gmm_extent_info *out, Heap **heap) const;
  // IO: `write` stopped. No lock is held.
  Status write(gmm_write_fn write, void *user) const;
  // Writes a warning for each group of blocks of one tag, kind, device, size and name, at most kMostLines: those of
  // most bytes first. One for the sum follows. Nothing is live: writes nothing. It sorts the blocks.
  void report_leaks(const Core &core);

 private:
  struct HeapCopy {
    Heap *heap;  // never read
    Kind kind;
    gmm_device device;
    gmm_tag tag;
    bool is_of_user;
    char tag_name[sizeof(Tag::name)];
    uint64_t capture;
    HeapTotals totals;
    uint64_t extents_end, blocks_end;  // its extents and blocks reach from those of the heap before to here
  };
  struct ExtentCopy {
    uintptr_t address;
    uint64_t size;
    uint32_t heap;  // its index
    uint32_t importers;
    gmm_device location;  // where its pages lie
    bool mapped;
  };
  struct BlockCopy {
    uintptr_t address;
    uint64_t size, reserved_size;
    uint32_t heap;  // its index
    uint32_t note;  // its index, from 1; 0: none
    bool paused, is_elastic;
  };

  // Memory that a pause of everything would leave on a device with a heap.
  struct DeviceCopy {
    gmm_device device;
    DeviceUse use;
    uint64_t held;     // extents of DEVICE and VMM heaps that lie there
    uint64_t foreign;  // VMM memory that gmm gave up and others hold; of `use.used` and not of `held`
  };

  static constexpr BlockNotes::Note kNoNote = {};
  const BlockNotes::Note &note_of(const BlockCopy &block) const {
    return block.note == 0 ? kNoNote : notes_[block.note - 1];
  }
  // False: there is no host memory.
  bool write_stacks(JsonWriter *writer) const;
  bool copy_span(Span &span, Heap &of, bool paused);

  static constexpr uint32_t kMostLines = 32;
  const HostAllocator allocator_;
  gmm_backend backend_ = GMM_BACKEND_AUTO;
  const char *backend_name_ = "";       // static
  const StackTable *stacks_ = nullptr;  // of the context
  Vector<HeapCopy> heaps_;
  Vector<ExtentCopy> extents_;
  Vector<BlockCopy> blocks_;
  Vector<BlockNotes::Note> notes_;
  Vector<DeviceCopy> devices_;
};

}  // namespace gmm
#endif
