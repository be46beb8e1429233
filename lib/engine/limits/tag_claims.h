// SPDX-License-Identifier: Apache-2.0
// The tags that have an operation: a pause, a resume, a discard of kept contents. A tag has one at a time. Operations
// on different tags overlap.
//
// Owns the claims, in the order in which they were asked for. A claim waits for those before it that name one of its
// tags, also for those that wait themselves. So an operation on every tag is not passed by later ones for ever.
// Invariants: a claim takes all of its tags at once. A thread that waits for one visits no heap, as the operation that
// it waits for may wait for the end of a heap.
// Locks: a claim ranks as a lock of an operation. The mutex is brief.
// Callers: pause/, and a move or compaction of watched memory.
#ifndef GMM_ENGINE_LIMITS_TAG_CLAIMS_H
#define GMM_ENGINE_LIMITS_TAG_CLAIMS_H

#include <gmm/types.h>

#include "base/list.h"
#include "base/lock.h"

namespace gmm {

class TagClaims;

// The tags of one operation, from its construction to its end.
class TagClaim : public Link<TagClaims>, NoCopy {
 public:
  // Waits. `count` 0: every tag, also those to come. The tags stay the caller's and are not copied.
  TagClaim(TagClaims &claims, const gmm_tag *tags, uint32_t count);
  ~TagClaim();

 private:
  friend class TagClaims;
  bool overlaps(const TagClaim &other) const {
    if (count_ == 0 || other.count_ == 0) return true;
    for (uint32_t i = 0; i < count_; ++i)
      for (uint32_t k = 0; k < other.count_; ++k)
        if (tags_[i] == other.tags_[k]) return true;
    return false;
  }

  TagClaims &claims_;
  const gmm_tag *const tags_;
  const uint32_t count_;
};

class TagClaims : NoCopy {
 public:
  explicit TagClaims(LockRank rank) : rank_(rank) {}

 private:
  friend class TagClaim;
  bool may_begin(TagClaim &claim) {
    for (TagClaim *before = list_.front(); before != &claim; before = list_.next(before))
      if (before->overlaps(claim)) return false;
    return true;
  }

  const LockRank rank_;  // of a claim
  Mutex mutex_{LockRank::kTagClaims};
  Condition ended_;
  List<TagClaim, TagClaims> list_;  // by the time of the constructor
};

inline TagClaim::TagClaim(TagClaims &claims, const gmm_tag *tags, uint32_t count)
    : claims_(claims), tags_(tags), count_(count) {
  check_lock_order(this, claims.rank_, true);
  {
    LockGuard guard(claims.mutex_);
    claims.list_.push_back(this);
    while (!claims.may_begin(*this)) claims.ended_.wait(claims.mutex_);
  }
  note_locked(this, claims.rank_, true);
  enter_lock();
}

inline TagClaim::~TagClaim() {
  note_unlocked(this);
  {
    LockGuard guard(claims_.mutex_);
    List<TagClaim, TagClaims>::remove(this);
    claims_.ended_.notify_all();
  }
  leave_lock();
}

}  // namespace gmm
#endif
