// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/restore.h"

namespace gmm {

Status BackupRestore::run(const BackupPart *parts, uint64_t count) {
  GMM_TRY(plan_restore(parts, count, &plan_));
  bool staged = false;
  for (const BackupMove &move : plan_.moves)
    staged = staged || (move.chunk.tier != Tier::kZero && !tiers_.is_direct(move.chunk.tier));
  GMM_TRY(tell(0));
  Status status;
  if (!plan_.moves.empty()) status = open();
  if (status.ok() && staged) status = open_ring();
  if (status.ok()) status = copy_all();
  if (!close(!status.ok())) {
    tiers_.ring.abandon();
    tiers_.arena.abandon();
    tiers_.pageable.abandon();
    if (status.ok()) status = fail(GMM_ERROR_DRIVER, "Copies of contents could not be waited for; see the log.");
  }
  return status;
}

Status BackupRestore::copy_all() {
  Backend &backend = *tiers_.core.backend;
  uint64_t read = 0, issued = 0, done = 0;
  GMM_TRY(end_parts());  // parts without contents
  for (;;) {
    if (next_ < plan_.moves.size() && read - done < kWindow) {
      submit(make_flight(read++));
    } else if (issued < read && issued - done < device_ahead()) {
      Flight &next = flight(issued);
      GMM_TRY(begin_parts(next.part + 1));  // its memory comes while the threads read
      GMM_TRY(finish_task(next));
      GMM_TRY(issue(next));
      ++issued;
    } else if (done < issued) {
      GMM_TRY(backend.event_synchronize(flight(done).event));
      GMM_TRY(finish(flight(done)));
      ++done;
    } else {
      return Status();
    }
  }
}

}  // namespace gmm
