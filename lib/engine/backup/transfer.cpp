// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/transfer.h"

#include <cinttypes>
#include <cstring>

#include "engine/backup/checksum.h"

namespace gmm {

Status BackupTransfer::open() {
  Backend &backend = *tiers_.core.backend;
  GMM_TRY(backend.stream_create(device_, &stream_));
  for (Flight &flight : flights_) {
    flight.transfer = this;
    flight.run = out_ ? &BackupTransfer::run_save : &BackupTransfer::run_restore;
  }
  return Status();
}

Status BackupTransfer::open_ring() {
  GMM_TRY(tiers_.ring.open(device_, kWindow * kBackupChunk));
  for (uint64_t i = 0; i < kWindow; ++i) flights_[i].slot = tiers_.ring.data() + i * kBackupChunk;
  staged_ = true;
  return Status();
}

bool BackupTransfer::close(bool failed) {
  constexpr uint32_t kTries = 3;  // one refusal of the driver must not leave copies to memory that goes
  Backend &backend = *tiers_.core.backend;
  MessageGuard keep;
  for (Flight &flight : flights_)
    if (flight.submitted) tiers_.threads_of(flight.tier).wait(&flight);
  if (stream_ == nullptr) return true;
  bool settled = false;
  for (uint32_t i = 0; i < kTries && !settled; ++i)
    settled = backend.stream_synchronize(device_, stream_).ok() || (failed && backend.synchronize(device_).ok());
  if (!settled)
    tiers_.core.log.write(LogLevel::kError,
                          "Copies of contents could not be waited for; their host memory is not used again: %s",
                          last_message());
  Status ended;
  for (Flight &flight : flights_) {
    if (flight.event == nullptr) continue;
    for (uint32_t i = 0; i < kTries; ++i)
      if (ended = backend.event_destroy(flight.event); ended.ok()) break;
    if (!ended.ok()) tiers_.core.log.write(LogLevel::kWarning, "An event is left over: %s", last_message());
  }
  for (uint32_t i = 0; i < kTries; ++i)
    if (ended = backend.stream_destroy(stream_); ended.ok()) break;
  if (!ended.ok()) tiers_.core.log.write(LogLevel::kWarning, "A stream is left over: %s", last_message());
  stream_ = nullptr;
  return settled;
}

uint64_t BackupTransfer::part_of(uint64_t move) const {
  uint64_t low = 0, high = plan_.part_ends.size();
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (plan_.part_ends[middle] > move)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Whether one more move goes with those of the flight, which take so many bytes of its slot.
bool BackupTransfer::fits(const Flight &flight, uint64_t move, uint64_t taken) const {
  const BackupMove &next = plan_.moves[move], &last = plan_.moves[move - 1];
  const bool idle = out_ && (next.kept || next.chunk.tier == Tier::kZero);
  if (idle != flight.idle) return false;
  if (idle) return flight.bytes + next.size <= kMostSkipped;
  if (next.chunk.tier != flight.tier) return false;
  if (flight.tier == Tier::kZero) return flight.bytes + next.size <= kMostSkipped;
  if (next.chunk.checked != last.chunk.checked) return false;
  if (flight.direct) return flight.bytes + next.size <= (flight.has_task ? kBackupChunk : kMostDirect);
  if (taken + backup_room_of(next.chunk.size) > kBackupChunk) return false;
  // One request to the file.
  return flight.tier != Tier::kFile || next.chunk.where == last.chunk.where + backup_room_of(last.chunk.size);
}

BackupTransfer::Flight &BackupTransfer::make_flight(uint64_t index) {
  Flight &flight = flights_[index % kWindow];
  const BackupMove &move = plan_.moves[next_];
  flight.first = next_;
  flight.part = part_of(next_);
  flight.tier = move.chunk.tier;
  flight.idle = out_ && (move.kept || move.chunk.tier == Tier::kZero);
  flight.direct = tiers_.is_direct(flight.tier);
  flight.has_task = !flight.idle && flight.tier != Tier::kZero && (!flight.direct || move.chunk.checked);
  flight.submitted = false;
  flight.fault = Fault::kNone;
  flight.bytes = move.size;
  uint64_t taken = backup_room_of(move.chunk.size);
  const uint64_t end = plan_.part_ends[flight.part];
  for (++next_; next_ < end && fits(flight, next_, taken); ++next_) {
    flight.bytes += plan_.moves[next_].size;
    taken += backup_room_of(plan_.moves[next_].chunk.size);
  }
  flight.end = next_;
  return flight;
}

char *BackupTransfer::host_address(const Flight &flight, const BackupMove &move, uint64_t slot_offset) const {
  char *chunk = flight.direct ? tiers_.address(move.chunk) : flight.slot + slot_offset;
  return chunk + (move.base - move.chunk.base);
}

// Copies what lies in one piece on both sides.
Status BackupTransfer::copy_run(const Flight &flight, char *host, uintptr_t device, uint64_t size) {
  Backend &backend = *tiers_.core.backend;
  while (size != 0) {
    uint64_t step = size;
    if (flight.tier == Tier::kArena) {
      const uint64_t left = BackupArena::left_in_segment(static_cast<uint64_t>(host - tiers_.arena.address(0)));
      if (step > left) step = left;
    }
    void *memory = reinterpret_cast<void *>(device);
    GMM_TRY(out_ ? backend.copy(device_, stream_, host, memory, step)
                 : backend.copy(device_, stream_, memory, host, step));
    host += step;
    device += step;
    size -= step;
  }
  return Status();
}

Status BackupTransfer::issue(Flight &flight) {
  if (flight.idle) return Status();
  Backend &backend = *tiers_.core.backend;
  // The first copies of each place in the window make its event: a short transfer makes few.
  if (flight.event == nullptr) GMM_TRY(backend.event_create(device_, &flight.event));
  const bool zero = flight.tier == Tier::kZero;
  uint64_t slot_offset = 0, size = 0;
  uintptr_t device = 0;
  char *host = nullptr;
  for (uint64_t i = flight.first; i < flight.end; ++i) {
    const BackupMove &move = plan_.moves[i];
    char *from = zero ? nullptr : host_address(flight, move, slot_offset);
    if (size != 0 && device + size == move.base && (zero || host + size == from)) {
      size += move.size;
    } else {
      if (size != 0)
        GMM_TRY(zero ? backend.fill(device_, stream_, reinterpret_cast<void *>(device), 0, size)
                     : copy_run(flight, host, device, size));
      device = move.base;
      host = from;
      size = move.size;
    }
    slot_offset += backup_room_of(move.chunk.size);
  }
  GMM_TRY(zero ? backend.fill(device_, stream_, reinterpret_cast<void *>(device), 0, size)
               : copy_run(flight, host, device, size));
  return backend.event_record(flight.event, device_, stream_);
}

void BackupTransfer::submit(Flight &flight) {
  if (!flight.has_task) return;
  flight.submitted = true;
  tiers_.threads_of(flight.tier).submit(&flight);
}

Status BackupTransfer::finish_task(Flight &flight) {
  if (!flight.submitted) return Status();
  tiers_.threads_of(flight.tier).wait(&flight);
  flight.submitted = false;
  return flight.fault == Fault::kNone ? Status() : fault_of(flight);
}

Status BackupTransfer::fault_of(const Flight &flight) {
  const Chunk &chunk = plan_.moves[flight.fault_move].chunk;
  Status status;
  if (flight.fault == Fault::kCorrupt)
    status = fail(GMM_ERROR_CORRUPT, "the bytes that were kept differ from their checksum; they cannot be trusted.");
  else
    status = tiers_.file.failed(flight.error, flight.fault == Fault::kWrite);
  return prefix(status, "Contents of %#" PRIxPTR " to %#" PRIxPTR ": ", chunk.base, chunk.base + chunk.size);
}

void BackupTransfer::run_save(BackupTask *task) {
  Flight &flight = *static_cast<Flight *>(task);
  BackupTransfer &self = *flight.transfer;
  uint64_t slot_offset = 0;
  for (uint64_t i = flight.first; i < flight.end; ++i) {
    Chunk &chunk = self.plan_.moves[i].chunk;
    char *bytes = flight.direct ? self.tiers_.address(chunk) : flight.slot + slot_offset;
    if (chunk.checked) chunk.checksum = backup_checksum(bytes, chunk.size);
    if (flight.tier == Tier::kPageable && !flight.direct) std::memcpy(self.tiers_.address(chunk), bytes, chunk.size);
    slot_offset += backup_room_of(chunk.size);
  }
  if (flight.tier != Tier::kFile) return;
  flight.error = self.tiers_.file.write(self.plan_.moves[flight.first].chunk.where, flight.slot, slot_offset);
  flight.fault_move = flight.first;
  if (flight.error != 0) flight.fault = Fault::kWrite;
}

void BackupTransfer::run_restore(BackupTask *task) {
  Flight &flight = *static_cast<Flight *>(task);
  BackupTransfer &self = *flight.transfer;
  uint64_t slot_offset = 0;
  if (flight.tier == Tier::kFile) {
    uint64_t size = 0;
    for (uint64_t i = flight.first; i < flight.end; ++i) size += backup_room_of(self.plan_.moves[i].chunk.size);
    flight.error = self.tiers_.file.read(self.plan_.moves[flight.first].chunk.where, flight.slot, size);
    flight.fault_move = flight.first;
    if (flight.error != 0) {
      flight.fault = Fault::kRead;
      return;
    }
  }
  for (uint64_t i = flight.first; i < flight.end; ++i) {
    const Chunk &chunk = self.plan_.moves[i].chunk;
    char *bytes = flight.direct ? self.tiers_.address(chunk) : flight.slot + slot_offset;
    if (flight.tier == Tier::kPageable && !flight.direct) std::memcpy(bytes, self.tiers_.address(chunk), chunk.size);
    if (chunk.checked && backup_checksum(bytes, chunk.size) != chunk.checksum) {
      flight.fault = Fault::kCorrupt;
      flight.fault_move = i;
      return;
    }
    slot_offset += backup_room_of(chunk.size);
  }
}

Status BackupTransfer::tell(uint64_t bytes) {
  return steps_.progress == nullptr ? Status() : steps_.progress(steps_.user, bytes);
}

Status BackupTransfer::begin_parts(uint64_t upto) {
  for (; begun_parts_ < upto; ++begun_parts_)
    if (steps_.before != nullptr) GMM_TRY(steps_.before(steps_.user, begun_parts_));
  return Status();
}

Status BackupTransfer::end_parts() {
  for (; ended_parts_ < plan_.part_ends.size() && plan_.part_ends[ended_parts_] <= done_moves_; ++ended_parts_) {
    if (!out_) GMM_TRY(begin_parts(ended_parts_ + 1));
    if (steps_.after != nullptr) GMM_TRY(steps_.after(steps_.user, ended_parts_));
  }
  return Status();
}

Status BackupTransfer::finish(Flight &flight) {
  done_moves_ = flight.end;
  done_bytes_ += flight.bytes;
  (flight.idle || flight.tier == Tier::kZero ? tiers_.skipped : tiers_.copied)
      .fetch_add(flight.bytes, std::memory_order_relaxed);
  GMM_TRY(tell(done_bytes_));
  return end_parts();
}

}  // namespace gmm
