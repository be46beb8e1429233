// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_event.h"

namespace gmm {

Status HostEvent::record(HostStream *stream) {
  HostStream *before = nullptr;
  {
    LockGuard lock(mutex_);
    if (shared_ != nullptr) {
      uint64_t number = 0;
      GMM_TRY(shared_->begin(&number));
      GMM_TRY(stream->pass(shared_, number));
      shared_->publish(number);
    }
    stream->retain();
    before = stream_;
    position_ = stream->position();
    stream_ = stream;
  }
  if (before != nullptr) before->release();
  return Status();
}

HostStream *HostEvent::get(uint64_t *position) {
  LockGuard lock(mutex_);
  if (stream_ != nullptr) stream_->retain();
  *position = position_;
  return stream_;
}

HostEvent::~HostEvent() {
  if (stream_ != nullptr) stream_->release();
  if (shared_ != nullptr) shared_->release();
}

}  // namespace gmm
