// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/transfer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "engine/backup/checksum.h"

namespace gmm {
namespace {

constexpr uint64_t kWindow = 24;                      // in-flight batches, and staging slots
constexpr uint64_t kMaxDirect = uint64_t{32} << 20;   // bytes of a batch without a task
constexpr uint64_t kMaxSkipped = uint64_t{64} << 20;  // bytes of a batch without a copy: progress is due then
constexpr uint64_t kMaxZeroRanges = 8192;             // ranges of one question to the device about zeros

// A call that must not fail is tried again: one refusal must not leave copies to memory that is freed.
template <typename Fn>
Status try_again(Fn call) {
  constexpr uint32_t kTries = 3;
  Status status = call();
  for (uint32_t i = 1; i < kTries && !status.ok(); ++i) status = call();
  return status;
}

Status no_memory_for_transfer() {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan the copies of contents; free host memory.");
}

// A chunk, or a part of it, that a transfer is to copy.
struct ChunkCopy {
  Chunk chunk;
  uintptr_t base = 0;  // of the bytes to copy; a save copies whole chunks
  uint64_t size = 0;
  uintptr_t block = 0;     // BackupPart::blocks
  bool is_kept = false;    // save: a chunk of an earlier save, which needs no copy
  bool is_again = false;   // save: a chunk of an earlier save, copied again to its place
  bool is_placed = false;  // save: the chunk has a range in its tier

  // Save: the chunk needs a place, as no earlier save kept it.
  bool is_new() const { return !is_kept && !is_again; }
  // The chunk waits for a place in a file.
  bool is_for_file() const { return is_new() && !is_placed && chunk.tier == Tier::kFile; }
};

// The plan of the copies, and the window of in-flight batches.
class Transfer {
 protected:
  Transfer(BackupTiers &tiers, TransferBuffers &buffers, Device device, const BackupSteps &steps, bool is_save)
      : tiers_(tiers),
        buffers_(buffers),
        device_(device),
        steps_(steps),
        is_save_(is_save),
        copies_(tiers.core.allocator),
        part_ends_(tiers.core.allocator) {}

  struct Batch : CopyTask {
    Transfer *transfer = nullptr;
    uint64_t first = 0, end = 0;  // copies of the plan
    uint64_t part = 0;
    uint64_t bytes = 0;
    uint64_t slot_bytes = 0;  // that its chunks take of its slot
    Tier tier = Tier::kZero;
    bool is_skipped = false;  // save: nothing to copy, as the contents are zero or kept by an earlier save
    bool is_direct = false;   // the device copies between its memory and the tier
    bool has_task = false, is_submitted = false;
    char *slot = nullptr;
    NativeEvent event = nullptr;  // made when this place of the window first needs one
    int error = 0;                // of the file
    bool is_corrupt = false;
    uint64_t fault_copy = 0;
  };

  // add(const BackupPart &, ByteRange, its index) plans the copies of one range. False: there is no host memory.
  template <typename Fn>
  Status plan(const BackupPart *parts, uint64_t count, Fn add) {
    for (uint64_t p = 0; p < count; ++p) {
      for (uint64_t r = 0; r < parts[p].range_count; ++r)
        if (!add(parts[p], parts[p].ranges[r], r)) return no_memory_for_transfer();
      if (!part_ends_.push_back(copies_.size())) return no_memory_for_transfer();
    }
    return Status();
  }
  Status open_stream() {
    for (Batch &batch : batches_) {
      batch.transfer = this;
      batch.run = &run_task;
    }
    return tiers_.core.backend->stream_create(device_, 0, &stream_);
  }
  Status open_slots() {
    GMM_TRY(buffers_.slots.open(device_, kWindow * kMaxChunk));
    for (uint64_t i = 0; i < kWindow; ++i) batches_[i].slot = buffers_.slots.data() + i * kMaxChunk;
    is_staged_ = true;
    return Status();
  }
  // After a failure the whole device may be waited for instead of the stream.
  bool wait_for_device(bool has_failed) {
    Backend &backend = *tiers_.core.backend;
    return try_again([&] {
             const Status status = backend.stream_synchronize(device_, stream_);
             return status.ok() || !has_failed ? status : backend.synchronize(device_);
           })
        .ok();
  }
  // Waits for copy threads and device, and destroys stream and events. False: the device may still copy, and *status
  // is a failure. Then nobody uses or frees the host memory of the tiers and of the slots again.
  bool close(Status *status) {
    Backend &backend = *tiers_.core.backend;
    const Log &log = tiers_.core.log;
    bool is_idle = true;
    {
      MessageGuard message_guard;
      for (Batch &batch : batches_)
        if (batch.is_submitted) tiers_.threads_of(batch.tier).wait(&batch);
      if (stream_ == nullptr) return true;
      is_idle = wait_for_device(!status->ok());
      if (!is_idle)
        log.write(LogLevel::kError, "Waiting for copies of contents failed; their host memory is not used again: %s",
                  last_message());
      for (Batch &batch : batches_)
        if (batch.event != nullptr && !try_again([&] { return backend.event_destroy(batch.event); }).ok())
          log.write(LogLevel::kWarning, "An event is leaked: %s", last_message());
      if (!try_again([&] { return backend.stream_destroy(stream_); }).ok())
        log.write(LogLevel::kWarning, "A stream is leaked: %s", last_message());
    }
    if (is_idle) return true;
    buffers_.slots.abandon();
    tiers_.abandon_host_memory();
    if (status->ok())
      *status = fail(GMM_ERROR_DRIVER, "Waiting for copies of contents failed; the log has the driver's message.");
    return false;
  }

  // Batches that the device has at the same time. With staging most batches are with the copy threads, so that a disk
  // has all of its requests and the next ones are ready.
  uint64_t device_window() const { return is_staged_ ? 4 : 12; }
  Batch &batch_at(uint64_t index) { return batches_[index % kWindow]; }
  // Makes the next batch from copies at next_copy_ on, in the window's place for `index`. A batch has copies of one
  // part.
  Batch &make_batch(uint64_t index) {
    Batch &made = batch_at(index);
    const ChunkCopy &copy = copies_[next_copy_];
    made.first = next_copy_;
    made.part =
        static_cast<uint64_t>(std::upper_bound(part_ends_.begin(), part_ends_.end(), next_copy_) - part_ends_.begin());
    made.tier = copy.chunk.tier;
    made.is_skipped = is_save_ && (copy.is_kept || copy.chunk.tier == Tier::kZero);
    made.is_direct = tiers_.is_direct(made.tier);
    made.has_task = !made.is_skipped && made.tier != Tier::kZero && (!made.is_direct || copy.chunk.has_checksum);
    made.is_submitted = false;
    made.error = 0;
    made.is_corrupt = false;
    made.bytes = copy.size;
    made.slot_bytes = size_in_tier(copy.chunk.size);
    const uint64_t end = part_ends_[made.part];
    for (++next_copy_; next_copy_ < end && can_append(made, next_copy_); ++next_copy_) {
      made.bytes += copies_[next_copy_].size;
      made.slot_bytes += size_in_tier(copies_[next_copy_].chunk.size);
    }
    made.end = next_copy_;
    return made;
  }
  // Queues the device's copies and an event behind them.
  Status issue(Batch &batch) {
    if (batch.is_skipped) return Status();
    Backend &backend = *tiers_.core.backend;
    if (batch.event == nullptr) GMM_TRY(backend.event_create(device_, &batch.event));
    const bool is_zero = batch.tier == Tier::kZero;
    uint64_t slot_offset = 0, size = 0;
    uintptr_t device = 0;
    char *host = nullptr;
    const auto copy_or_fill = [&] {
      return is_zero ? backend.fill(device_, stream_, reinterpret_cast<void *>(device), 0, size)
                     : copy_bytes(batch, host, device, size);
    };
    for (uint64_t i = batch.first; i < batch.end; ++i) {
      const ChunkCopy &copy = copies_[i];
      char *from = is_zero ? nullptr : bytes_of(batch, copy.chunk, slot_offset) + (copy.base - copy.chunk.base);
      if (size != 0 && device + size == copy.base && (is_zero || host + size == from)) {
        size += copy.size;
      } else {
        if (size != 0) GMM_TRY(copy_or_fill());
        device = copy.base;
        host = from;
        size = copy.size;
      }
      slot_offset += size_in_tier(copy.chunk.size);
    }
    GMM_TRY(copy_or_fill());
    return backend.event_record(batch.event, device_, stream_);
  }
  void submit_task(Batch &batch) {
    if (!batch.has_task) return;
    batch.is_submitted = true;
    tiers_.threads_of(batch.tier).submit(&batch);
  }
  Status finish_task(Batch &batch) {
    if (!batch.is_submitted) return Status();
    tiers_.threads_of(batch.tier).wait(&batch);
    batch.is_submitted = false;
    const Chunk &chunk = copies_[batch.fault_copy].chunk;
    if (batch.is_corrupt) return corrupt_chunk(chunk);
    if (batch.error == 0) return Status();
    return name_chunk(tiers_.file.error_status(batch.error, is_save_), chunk);
  }
  // The batch is done: progress is due, and its part may be complete.
  Status finish(Batch &batch) {
    finished_copies_ = batch.end;
    finished_bytes_ += batch.bytes;
    (batch.is_skipped || batch.tier == Tier::kZero ? tiers_.skipped_bytes : tiers_.copied_bytes)
        .fetch_add(batch.bytes, std::memory_order_relaxed);
    GMM_TRY(report_progress(finished_bytes_));
    return finish_parts();
  }
  Status report_progress(uint64_t bytes) {
    return steps_.progress == nullptr ? Status() : steps_.progress(steps_.user, bytes);
  }
  Status begin_parts(uint64_t end) {
    for (; begun_parts_ < end; ++begun_parts_)
      if (steps_.before != nullptr) GMM_TRY(steps_.before(steps_.user, begun_parts_));
    return Status();
  }
  Status finish_parts() {
    for (; finished_parts_ < part_ends_.size() && part_ends_[finished_parts_] <= finished_copies_; ++finished_parts_) {
      if (!is_save_) GMM_TRY(begin_parts(finished_parts_ + 1));
      if (steps_.after != nullptr) GMM_TRY(steps_.after(steps_.user, finished_parts_));
    }
    return Status();
  }

  BackupTiers &tiers_;
  TransferBuffers &buffers_;
  const Device device_;
  const BackupSteps &steps_;
  const bool is_save_;
  Vector<ChunkCopy> copies_;    // by part, then by address
  Vector<uint64_t> part_ends_;  // for each part, the index behind its last copy
  gmm_stream stream_ = nullptr;
  uint64_t next_copy_ = 0;  // the first copy that is in no batch yet

 private:
  bool can_append(const Batch &batch, uint64_t copy) const {
    const ChunkCopy &next = copies_[copy], &last = copies_[copy - 1];
    const bool is_skipped = is_save_ && (next.is_kept || next.chunk.tier == Tier::kZero);
    if (is_skipped != batch.is_skipped) return false;
    if (is_skipped) return batch.bytes + next.size <= kMaxSkipped;
    if (next.chunk.tier != batch.tier) return false;
    if (batch.tier == Tier::kZero) return batch.bytes + next.size <= kMaxSkipped;
    if (next.chunk.has_checksum != last.chunk.has_checksum) return false;
    if (batch.is_direct) return batch.bytes + next.size <= (batch.has_task ? kMaxChunk : kMaxDirect);
    if (batch.slot_bytes + size_in_tier(next.chunk.size) > kMaxChunk) return false;
    // A batch is one request to the file.
    return batch.tier != Tier::kFile || next.chunk.location == last.chunk.location + size_in_tier(last.chunk.size);
  }
  // Where the host has the bytes of the chunk while the device copies them.
  char *bytes_of(const Batch &batch, const Chunk &chunk, uint64_t slot_offset) const {
    return batch.is_direct ? tiers_.address(chunk) : batch.slot + slot_offset;
  }
  // Copies bytes that are contiguous on both sides, in one call for each segment of the arena.
  Status copy_bytes(const Batch &batch, char *host, uintptr_t device, uint64_t size) {
    Backend &backend = *tiers_.core.backend;
    while (size != 0) {
      uint64_t step = size;
      if (batch.tier == Tier::kArena) {
        const uint64_t left = BackupArena::left_in_segment(static_cast<uint64_t>(host - tiers_.arena.address(0)));
        if (step > left) step = left;
      }
      void *memory = reinterpret_cast<void *>(device);
      GMM_TRY(is_save_ ? backend.copy(device_, stream_, host, memory, step)
                       : backend.copy(device_, stream_, memory, host, step));
      host += step;
      device += step;
      size -= step;
    }
    return Status();
  }
  // The host's part of a batch. A save comes after the device's copies: it computes checksums, and moves bytes from the
  // slot to the tier. A restore comes before them: it moves bytes from the tier to the slot, and compares checksums.
  static void run_task(CopyTask *task) {
    Batch &batch = *static_cast<Batch *>(task);
    Transfer &self = *batch.transfer;
    const bool is_save = self.is_save_;
    const bool is_file = batch.tier == Tier::kFile, is_moved = batch.tier == Tier::kPageable && !batch.is_direct;
    const uint64_t location = self.copies_[batch.first].chunk.location;
    batch.fault_copy = batch.first;
    if (is_file && !is_save) batch.error = self.tiers_.file.read(location, batch.slot, batch.slot_bytes);
    if (batch.error != 0) return;
    uint64_t slot_offset = 0;
    for (uint64_t i = batch.first; i < batch.end; ++i) {
      Chunk &chunk = self.copies_[i].chunk;
      char *bytes = self.bytes_of(batch, chunk, slot_offset);
      slot_offset += size_in_tier(chunk.size);
      if (is_save) {
        if (chunk.has_checksum) chunk.checksum = chunk_checksum(bytes, chunk.size);
        if (is_moved) std::memcpy(self.tiers_.address(chunk), bytes, chunk.size);
        continue;
      }
      if (is_moved) std::memcpy(bytes, self.tiers_.address(chunk), chunk.size);
      if (chunk.matches_checksum(bytes)) continue;
      batch.is_corrupt = true;
      batch.fault_copy = i;
      return;
    }
    if (is_file && is_save) batch.error = self.tiers_.file.write(location, batch.slot, batch.slot_bytes);
  }

  Batch batches_[kWindow];
  bool is_staged_ = false;
  uint64_t finished_copies_ = 0, finished_bytes_ = 0;
  uint64_t begun_parts_ = 0, finished_parts_ = 0;
};

// --- Save ---------------------------------------------------------------------------------------------------------

class Save : private Transfer {
 public:
  Save(BackupTiers &tiers, TransferBuffers &buffers, Device device, const BackupSteps &steps, gmm_contents contents,
       uint32_t flags)
      : Transfer(tiers, buffers, device, steps, true), contents_(contents), flags_(flags) {}
  Status run(const BackupPart *parts, uint64_t count) {
    GMM_TRY(plan(parts, count, [&](const BackupPart &part, ByteRange range, uint64_t i) {
      return plan_range(*part.kept, range, part.blocks == nullptr ? 0 : part.blocks[i]);
    }));
    GMM_TRY(tiers_.settings.limits(tiers_.arena.bytes(), tiers_.pageable.bytes(), &limits_));
    // commit() must not fail, so its memory comes first.
    for (uint64_t p = 0, first = 0; p < count; first = part_ends_[p++])
      if (!parts[p].kept->chunks.reserve(parts[p].kept->chunks.size() + part_ends_[p] - first))
        return no_memory_for_transfer();
    GMM_TRY(report_progress(0));
    bool has_copies = false;
    for (const ChunkCopy &copy : copies_) {
      has_copies = has_copies || !copy.is_kept;
      if (copy.is_again && copy.chunk.tier == Tier::kFile) files_ |= BackupFile::bit_of(copy.chunk.location);
    }
    Status status;
    if (has_copies) status = open_stream();
    if (has_copies && status.ok()) {
      find_zeros();
      status = place_chunks(0);
    }
    if (status.ok()) status = copy_all();
    if (status.ok() && files_ != 0) status = tiers_.file.sync(files_);
    const bool is_idle = close(&status);
    if (status.ok())
      commit(parts, count);
    else
      abort(is_idle);
    MessageGuard message_guard;
    tiers_.arena.cancel_planned();
    return status;
  }

 private:
  bool add_new_chunks(uintptr_t begin, uintptr_t end, uintptr_t block) {
    while (begin < end) {
      ChunkCopy copy;
      copy.base = begin;
      copy.size = end - begin < kMaxChunk ? end - begin : kMaxChunk;
      copy.chunk.base = copy.base;
      copy.chunk.size = copy.size;
      copy.block = block;
      if (!copies_.push_back(copy)) return false;
      begin += copy.size;
    }
    return true;
  }
  // Cuts the range at the borders of kept chunks that lie wholly in it. The rest becomes new chunks.
  bool plan_range(const KeptContents &kept, ByteRange range, uintptr_t block) {
    uintptr_t at = range.base;
    for (uint64_t i = kept.first_chunk_behind(range.base); i < kept.chunks.size(); ++i) {
      const Chunk &chunk = kept.chunks[i];
      if (chunk.base >= range.end()) break;
      if (chunk.base < range.base || chunk.end() > range.end()) continue;
      ChunkCopy copy;
      copy.chunk = chunk;
      copy.base = chunk.base;
      copy.size = chunk.size;
      copy.is_kept = steps_.pass != SavePass::kAgain;
      copy.is_again = !copy.is_kept && chunk.tier != Tier::kZero;
      copy.block = block;
      if (!add_new_chunks(at, chunk.base, block) || !copies_.push_back(copy)) return false;
      at = chunk.end();
    }
    return add_new_chunks(at, range.end(), block);
  }
  bool may_use_arena() const { return !is_arena_refused_ && (flags_ & GMM_TAG_PAGEABLE) == 0; }
  // Asks the device about new chunks from *next on, as many as one question takes.
  void find_next_zeros(uint64_t *next) {
    Backend &backend = *tiers_.core.backend;
    ZeroRange *host = reinterpret_cast<ZeroRange *>(buffers_.zero_ranges.data());
    uint64_t count = 0;
    const uint64_t first = *next;
    for (; *next < copies_.size() && count < kMaxZeroRanges; ++*next) {
      const ChunkCopy &copy = copies_[*next];
      if (!copy.is_new()) continue;
      host[count++] = ZeroRange{copy.base, copy.size, 0, 0};
    }
    if (count == 0) return;
    Status status =
        backend.find_zeros(device_, stream_, static_cast<ZeroRange *>(buffers_.zero_ranges.device_data()), count);
    if (status.ok()) status = backend.stream_synchronize(device_, stream_);
    if (!status.ok()) {
      // The kernel may still write to the buffer.
      if (!wait_for_device(true)) buffers_.zero_ranges.abandon();
      if (!tiers_.has_warned_of_zeros.exchange(true, std::memory_order_relaxed))
        tiers_.core.log.write(LogLevel::kWarning, "The device cannot find zeros; contents that are zero are copied: %s",
                              last_message());
      *next = copies_.size();
      return;
    }
    count = 0;
    for (uint64_t i = first; i < *next; ++i) {
      ChunkCopy &copy = copies_[i];
      if (copy.is_new()) copy.chunk.tier = host[count++].nonzero != 0 ? Tier::kArena : Tier::kZero;
    }
  }
  // Finds new chunks that are all zero: they get Tier::kZero, the others Tier::kArena until place_chunks(). A chunk
  // counts as not zero when the device cannot be asked.
  void find_zeros() {
    for (ChunkCopy &copy : copies_)
      if (copy.is_new()) copy.chunk.tier = Tier::kArena;
    if (steps_.pass == SavePass::kAhead) return;
    MessageGuard message_guard;
    if (!buffers_.zero_ranges.open(device_, kMaxZeroRanges * sizeof(ZeroRange)).ok() ||
        buffers_.zero_ranges.device_data() == nullptr)
      return;
    for (uint64_t next = 0; next < copies_.size();) find_next_zeros(&next);
  }
  // Allocates ranges for new chunks from this copy on.
  Status place_chunks(uint64_t from) {
    uint64_t file_bytes = 0;
    bool needs_slots = false;
    const Chunk *previous = nullptr;
    for (uint64_t i = from; i < copies_.size(); ++i) {
      ChunkCopy &copy = copies_[i];
      Chunk &chunk = copy.chunk;
      needs_slots = needs_slots || (copy.is_again && !tiers_.is_direct(chunk.tier));
      if (!copy.is_new() || copy.is_placed || chunk.tier == Tier::kZero) continue;
      chunk.has_checksum = (flags_ & GMM_TAG_CHECKSUM) != 0;
      copy.is_placed =
          contents_ != GMM_CONTENTS_FILE && tiers_.allocate_in_host_memory(limits_, may_use_arena(), previous, &chunk);
      if (!copy.is_placed) {
        chunk.tier = Tier::kFile;
        file_bytes += size_in_tier(chunk.size);
      }
      needs_slots = needs_slots || !tiers_.is_direct(chunk.tier);
      previous = &chunk;
    }
    if (needs_slots) GMM_TRY(open_slots());
    return file_bytes == 0 ? Status() : place_in_file(from, file_bytes);
  }
  // Allocates from the current file, which has reserved as much.
  Status place_run(uint64_t from, uint64_t end) {
    uint64_t hint = 0;
    for (uint64_t i = from; i < end; ++i) {
      ChunkCopy &copy = copies_[i];
      if (!copy.is_for_file()) continue;
      const uint64_t size = size_in_tier(copy.chunk.size);
      GMM_TRY(tiers_.file.allocate(size, hint, &copy.chunk.location));
      hint = copy.chunk.location + size;
      copy.is_placed = true;
      files_ |= BackupFile::bit_of(copy.chunk.location);
    }
    return Status();
  }
  // A file reserves all bytes of its run before it gives out the first range. Without names there is one run. With
  // names the chunks of each block are one.
  Status place_in_file(uint64_t from, uint64_t bytes) {
    char directory[BackupSettings::kMaxDirectory];
    tiers_.settings.directory(directory);
    asked_file_ = true;
    LockGuard guard(tiers_.file.placing);
    if (!tiers_.settings.names_files()) {
      GMM_TRY(tiers_.file.reserve(directory, bytes));
      return place_run(from, copies_.size());
    }
    for (uint64_t begin = from, end; begin < copies_.size(); begin = end) {
      bytes = 0;
      for (end = begin; end < copies_.size() && copies_[end].block == copies_[begin].block; ++end)
        if (copies_[end].is_for_file()) bytes += size_in_tier(copies_[end].chunk.size);
      if (bytes == 0) continue;
      GMM_TRY(tiers_.file.reserve_named(directory, bytes));
      GMM_TRY(place_run(begin, end));
    }
    return Status();
  }
  // The arena cannot grow to its limit after all: chunks in segments that are not ready go to the next tiers.
  Status replace_unready_chunks() {
    is_arena_refused_ = true;
    for (uint64_t i = next_copy_; i < copies_.size(); ++i) {
      ChunkCopy &copy = copies_[i];
      if (!copy.is_placed || copy.chunk.tier != Tier::kArena) continue;
      if (tiers_.arena.is_ready(copy.chunk.location, size_in_tier(copy.chunk.size))) continue;
      tiers_.free(copy.chunk);
      copy.is_placed = false;
    }
    tiers_.arena.cancel_planned();
    return place_chunks(next_copy_);
  }
  Status start_batch(uint64_t index) {
    Batch *next = &make_batch(index);
    if (!next->is_skipped && next->tier == Tier::kArena) {
      Status status;
      for (uint64_t i = next->first; i < next->end && status.ok(); ++i) {
        const Chunk &chunk = copies_[i].chunk;
        status = tiers_.arena.make_ready(device_, chunk.location, size_in_tier(chunk.size));
      }
      if (!status.ok()) {
        tiers_.core.log.write(LogLevel::kWarning, "The page-locked arena stays at %" PRIu64 " bytes: %s",
                              tiers_.arena.bytes(), last_message());
        next_copy_ = next->first;
        GMM_TRY(replace_unready_chunks());
        next = &make_batch(index);
      }
    }
    return issue(*next);
  }
  // Batch indexes: finished <= copied <= issued.
  Status copy_all() {
    Backend &backend = *tiers_.core.backend;
    uint64_t issued = 0, copied = 0, finished = 0;
    GMM_TRY(finish_parts());  // parts without ranges
    for (;;) {
      while (finished < copied && (!batch_at(finished).is_submitted ||
                                   tiers_.threads_of(batch_at(finished).tier).is_done(&batch_at(finished)))) {
        GMM_TRY(finish_task(batch_at(finished)));
        GMM_TRY(finish(batch_at(finished)));
        ++finished;
      }
      if (next_copy_ < copies_.size() && issued - finished < kWindow && issued - copied < device_window()) {
        GMM_TRY(start_batch(issued));
        ++issued;
      } else if (copied < issued) {
        // Tasks are submitted when the window is full, too: the disk has its next requests queued then.
        Batch &next = batch_at(copied);
        if (!next.is_skipped) GMM_TRY(backend.event_synchronize(next.event));
        submit_task(next);
        ++copied;
      } else if (finished < issued) {
        GMM_TRY(finish_task(batch_at(finished)));
        GMM_TRY(finish(batch_at(finished)));
        ++finished;
      } else {
        return Status();
      }
    }
  }
  // Merges the new chunks with the kept ones by address, and drops kept chunks that new ones overlap. Cannot fail.
  void commit(const BackupPart *parts, uint64_t count) {
    for (uint64_t p = 0, first = 0; p < count; first = part_ends_[p++]) {
      const uint64_t end = part_ends_[p];
      Vector<Chunk> &chunks = parts[p].kept->chunks;
      uint64_t remaining = 0, at = first;
      for (uint64_t i = 0; i < chunks.size(); ++i) {
        const Chunk &chunk = chunks[i];
        while (at < end && copies_[at].base + copies_[at].size <= chunk.base) ++at;
        bool is_replaced = false;
        uint64_t checksum = chunk.checksum;
        for (uint64_t c = at; c < end && copies_[c].base < chunk.end(); ++c) {
          is_replaced = is_replaced || copies_[c].is_new();
          if (copies_[c].is_again) checksum = copies_[c].chunk.checksum;
        }
        if (is_replaced) {
          tiers_.drop_kept(chunk);
          continue;
        }
        chunks[remaining] = chunk;
        chunks[remaining++].checksum = checksum;
      }
      chunks.truncate(remaining);
      for (uint64_t c = first; c < end; ++c) {
        if (!copies_[c].is_new()) continue;
        chunks.push_back_reserved(copies_[c].chunk);
        tiers_.count_kept(copies_[c].chunk);
      }
      if (remaining != 0)
        std::sort(chunks.begin(), chunks.end(), [](const Chunk &a, const Chunk &b) { return a.base < b.base; });
    }
  }
  // Frees the ranges of new chunks. Not those that the device may still copy to (`is_idle` is false).
  void abort(bool is_idle) {
    MessageGuard message_guard;
    for (const ChunkCopy &copy : copies_)
      if (copy.is_placed && (is_idle || !tiers_.is_direct(copy.chunk.tier))) tiers_.free(copy.chunk);
    if (asked_file_) tiers_.file.close_unused();  // a full disk gets its blocks back
  }

  const gmm_contents contents_;
  const uint32_t flags_;
  BackupLimits limits_;
  bool is_arena_refused_ = false, asked_file_ = false;
  uint64_t files_ = 0;  // bits of the files that have new chunks
};

// --- Restore ------------------------------------------------------------------------------------------------------

class Restore : private Transfer {
 public:
  Restore(BackupTiers &tiers, TransferBuffers &buffers, Device device, const BackupSteps &steps)
      : Transfer(tiers, buffers, device, steps, false) {}
  Status run(const BackupPart *parts, uint64_t count) {
    GMM_TRY(plan(parts, count,
                 [&](const BackupPart &part, ByteRange range, uint64_t) { return plan_range(*part.kept, range); }));
    bool needs_slots = false;
    for (const ChunkCopy &copy : copies_)
      needs_slots = needs_slots || (copy.chunk.tier != Tier::kZero && !tiers_.is_direct(copy.chunk.tier));
    GMM_TRY(report_progress(0));
    Status status;
    if (!copies_.empty()) status = open_stream();
    if (status.ok() && needs_slots) status = open_slots();
    if (status.ok()) status = copy_all();
    close(&status);
    return status;
  }

 private:
  // The kept chunks of the range, as far as they lie in it.
  bool plan_range(const KeptContents &kept, ByteRange range) {
    for (uint64_t i = kept.first_chunk_behind(range.base); i < kept.chunks.size(); ++i) {
      const Chunk &chunk = kept.chunks[i];
      if (chunk.base >= range.end()) break;
      ChunkCopy copy;
      copy.chunk = chunk;
      copy.base = chunk.base > range.base ? chunk.base : range.base;
      copy.size = (chunk.end() < range.end() ? chunk.end() : range.end()) - copy.base;
      if (!copies_.push_back(copy)) return false;
    }
    return true;
  }
  // Batch indexes: finished <= issued <= read.
  Status copy_all() {
    Backend &backend = *tiers_.core.backend;
    uint64_t read = 0, issued = 0, finished = 0;
    GMM_TRY(finish_parts());  // parts without contents
    for (;;) {
      if (next_copy_ < copies_.size() && read - finished < kWindow) {
        submit_task(make_batch(read++));
      } else if (issued < read && issued - finished < device_window()) {
        Batch &next = batch_at(issued);
        GMM_TRY(begin_parts(next.part + 1));  // the caller maps the part's memory while copy threads read
        GMM_TRY(finish_task(next));
        GMM_TRY(issue(next));
        ++issued;
      } else if (finished < issued) {
        GMM_TRY(backend.event_synchronize(batch_at(finished).event));
        GMM_TRY(finish(batch_at(finished)));
        ++finished;
      } else {
        return Status();
      }
    }
  }
};

}  // namespace

Status save_contents(BackupTiers &tiers, TransferBuffers &buffers, Device device, gmm_contents contents, uint32_t flags,
                     const BackupPart *parts, uint64_t count, const BackupSteps &steps) {
  return Save(tiers, buffers, device, steps, contents, flags).run(parts, count);
}

Status restore_contents(BackupTiers &tiers, TransferBuffers &buffers, Device device, const BackupPart *parts,
                        uint64_t count, const BackupSteps &steps) {
  return Restore(tiers, buffers, device, steps).run(parts, count);
}

}  // namespace gmm
