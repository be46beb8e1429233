// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/save.h"

#include <cinttypes>

#include "engine/backup/checksum.h"

namespace gmm {
namespace {

constexpr uint64_t kProbes = 8192;  // ranges that a device is asked about at once

}  // namespace

Status BackupSave::run(const BackupPart *parts, uint64_t count) {
  GMM_TRY(plan_save(parts, count, &plan_));
  GMM_TRY(tiers_.settings.limits(tiers_.arena.bytes(), tiers_.pageable.bytes(), &limits_));
  // What could fail for want of memory after the copies.
  for (uint64_t p = 0, first = 0; p < count; first = plan_.part_ends[p++])
    if (!parts[p].kept->chunks.reserve(parts[p].kept->chunks.size() + plan_.part_ends[p] - first))
      return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan the copies of contents; free memory.");
  GMM_TRY(tell(0));
  bool work = false;
  for (const BackupMove &move : plan_.moves) work = work || !move.kept;
  Status status;
  if (work) status = open();
  if (work && status.ok()) {
    find_zeros();
    status = place_all(0);
  }
  if (status.ok()) status = copy_all();
  if (status.ok() && in_file_) status = tiers_.file.sync();
  const bool settled = close(!status.ok());
  if (status.ok() && !settled)
    status = fail(GMM_ERROR_DRIVER, "Copies of contents could not be waited for; see the log.");
  if (status.ok())
    keep(parts, count);
  else
    give_up(settled);
  MessageGuard message;
  tiers_.arena.cancel_planned();
  return status;
}

void BackupSave::find_zeros_of(uint64_t *next) {
  Backend &backend = *tiers_.core.backend;
  ZeroRange *host = reinterpret_cast<ZeroRange *>(tiers_.probes.data());
  uint64_t count = 0;
  const uint64_t first = *next;
  for (; *next < plan_.moves.size() && count < kProbes; ++*next) {
    const BackupMove &move = plan_.moves[*next];
    if (move.kept) continue;
    host[count++] = ZeroRange{move.base, move.size, 0, 0};
  }
  if (count == 0) return;
  Status status = backend.find_zeros(device_, stream(), static_cast<ZeroRange *>(tiers_.probes.device_data()), count);
  if (status.ok()) status = backend.stream_synchronize(device_, stream());
  if (!status.ok()) {
    // The kernel may still write to it.
    bool settled = false;
    for (uint32_t i = 0; i < 3 && !settled; ++i)
      settled = backend.stream_synchronize(device_, stream()).ok() || backend.synchronize(device_).ok();
    if (!settled) tiers_.probes.abandon();
    if (!tiers_.cannot_find_zeros.exchange(true, std::memory_order_relaxed))
      tiers_.core.log.write(LogLevel::kWarning, "Contents that are zero are copied like others: %s", last_message());
    *next = plan_.moves.size();
    return;
  }
  count = 0;
  for (uint64_t i = first; i < *next; ++i) {
    BackupMove &move = plan_.moves[i];
    // Everything is in the arena until it has a place.
    if (!move.kept) move.chunk.tier = host[count++].nonzero != 0 ? Tier::kArena : Tier::kZero;
  }
}

void BackupSave::find_zeros() {
  for (BackupMove &move : plan_.moves)
    if (!move.kept) move.chunk.tier = Tier::kArena;
  MessageGuard keep;
  if (!tiers_.probes.open(device_, kProbes * sizeof(ZeroRange)).ok() || tiers_.probes.device_data() == nullptr) return;
  for (uint64_t next = 0; next < plan_.moves.size();) find_zeros_of(&next);
}

Status BackupSave::place(BackupMove &move, bool arena, const Chunk *before) {
  Chunk &chunk = move.chunk;
  const uint64_t room = backup_room_of(chunk.size);
  const auto hint = [&](Tier tier) {
    return before != nullptr && before->tier == tier ? before->where + backup_room_of(before->size) : 0;
  };
  chunk.checked = (flags_ & GMM_TAG_CHECKSUM) != 0;
  move.placed = true;
  chunk.tier = Tier::kArena;
  if (arena && tiers_.arena.take(room, hint(chunk.tier), limits_.arena, &chunk.where)) return Status();
  chunk.tier = Tier::kPageable;
  if (contents_ != GMM_CONTENTS_FILE && tiers_.pageable.take(room, hint(chunk.tier), limits_.pageable, &chunk.where))
    return Status();
  chunk.tier = Tier::kFile;
  move.placed = false;  // until the file has reserved room for all
  return Status();
}

// Room for what needs it, from this move on.
Status BackupSave::place_all(uint64_t from) {
  const bool arena = contents_ != GMM_CONTENTS_FILE && !arena_refused_;
  uint64_t in_file = 0;
  bool staged = false;
  const Chunk *before = nullptr;
  for (uint64_t i = from; i < plan_.moves.size(); ++i) {
    BackupMove &move = plan_.moves[i];
    if (move.kept || move.placed || move.chunk.tier == Tier::kZero) continue;
    GMM_TRY(place(move, arena, before));
    if (!move.placed) in_file += backup_room_of(move.chunk.size);
    staged = staged || !tiers_.is_direct(move.chunk.tier);
    before = &move.chunk;
  }
  if (staged) GMM_TRY(open_ring());
  if (in_file == 0) return Status();
  in_file_ = true;
  char directory[BackupSettings::kMostPath];
  tiers_.settings.directory(directory);
  GMM_TRY(tiers_.file.reserve(directory, in_file));
  uint64_t hint = 0;
  for (uint64_t i = from; i < plan_.moves.size(); ++i) {
    BackupMove &move = plan_.moves[i];
    if (move.kept || move.placed || move.chunk.tier != Tier::kFile) continue;
    const uint64_t room = backup_room_of(move.chunk.size);
    GMM_TRY(tiers_.file.take(room, hint, &move.chunk.where));
    hint = move.chunk.where + room;
    move.placed = true;
  }
  return Status();
}

// Where the arena cannot grow after all, what has no memory yet goes elsewhere.
Status BackupSave::start_flight(uint64_t index) {
  Flight *flight = &make_flight(index);
  if (!flight->idle && flight->tier == Tier::kArena) {
    Status status;
    for (uint64_t i = flight->first; i < flight->end && status.ok(); ++i)
      status = tiers_.arena.make_ready(device_, plan_.moves[i].chunk.where, backup_room_of(plan_.moves[i].chunk.size));
    if (!status.ok()) {
      tiers_.core.log.write(LogLevel::kWarning, "The page-locked arena stays at %" PRIu64 " bytes: %s",
                            tiers_.arena.bytes(), last_message());
      arena_refused_ = true;
      next_ = flight->first;
      for (uint64_t i = next_; i < plan_.moves.size(); ++i) {
        BackupMove &move = plan_.moves[i];
        if (!move.placed || move.chunk.tier != Tier::kArena) continue;
        if (tiers_.arena.is_ready(move.chunk.where, backup_room_of(move.chunk.size))) continue;
        tiers_.give(move.chunk, false);
        move.placed = false;
      }
      tiers_.arena.cancel_planned();
      GMM_TRY(place_all(next_));
      flight = &make_flight(index);
    }
  }
  return issue(*flight);
}

Status BackupSave::copy_all() {
  Backend &backend = *tiers_.core.backend;
  uint64_t issued = 0, copied = 0, done = 0;
  GMM_TRY(end_parts());  // parts without ranges
  for (;;) {
    // What is over ends now.
    while (done < copied && (!flight(done).submitted || tiers_.threads_of(flight(done).tier).is_done(&flight(done)))) {
      GMM_TRY(finish_task(flight(done)));
      GMM_TRY(finish(flight(done)));
      ++done;
    }
    if (next_ < plan_.moves.size() && issued - done < kWindow && issued - copied < device_ahead()) {
      GMM_TRY(start_flight(issued));
      ++issued;
    } else if (copied < issued) {
      // Also where the window is full: the disk finds its next requests queued.
      Flight &next = flight(copied);
      if (!next.idle) GMM_TRY(backend.event_synchronize(next.event));
      submit(next);
      ++copied;
    } else if (done < issued) {
      GMM_TRY(finish_task(flight(done)));
      GMM_TRY(finish(flight(done)));
      ++done;
    } else {
      return Status();
    }
  }
}

// The new chunks take their places among the kept ones; those that they replace go.
void BackupSave::keep(const BackupPart *parts, uint64_t count) {
  for (uint64_t p = 0, first = 0; p < count; first = plan_.part_ends[p++]) {
    Vector<Chunk> &chunks = parts[p].kept->chunks;
    uint64_t stay = 0, move = first;
    for (uint64_t i = 0; i < chunks.size(); ++i) {
      const Chunk &chunk = chunks[i];
      while (move < plan_.part_ends[p] && plan_.moves[move].base + plan_.moves[move].size <= chunk.base) ++move;
      bool replaced = false;
      for (uint64_t m = move; m < plan_.part_ends[p] && plan_.moves[m].base < chunk.base + chunk.size; ++m)
        replaced = replaced || !plan_.moves[m].kept;
      if (replaced)
        tiers_.give(chunk, true);
      else
        chunks[stay++] = chunk;
    }
    chunks.truncate(stay);
    // From the back, so that each is moved once.
    uint64_t added = 0;
    for (uint64_t m = first; m < plan_.part_ends[p]; ++m) added += plan_.moves[m].kept ? 0 : 1;
    uint64_t to = stay + added, old = stay;
    for (uint64_t i = 0; i < added; ++i) chunks.push_back_reserved(Chunk());
    for (uint64_t m = plan_.part_ends[p]; m-- > first;) {
      const BackupMove &next = plan_.moves[m];
      if (next.kept) continue;
      while (old != 0 && chunks[old - 1].base > next.base) chunks[--to] = chunks[--old];
      chunks[--to] = next.chunk;
      tiers_.count(next.chunk);
    }
  }
}

void BackupSave::give_up(bool settled) {
  MessageGuard message;
  if (!settled) {
    tiers_.ring.abandon();
    tiers_.arena.abandon();
    tiers_.pageable.abandon();
  }
  for (const BackupMove &move : plan_.moves)
    if (move.placed && (settled || !tiers_.is_direct(move.chunk.tier))) tiers_.give(move.chunk, false);
  if (in_file_) tiers_.file.close_unused();  // a disk that is full gets its room back
}

}  // namespace gmm
