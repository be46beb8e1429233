// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/serve_link.h"

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/local_socket.h"
#include "base/process.h"
#include "base/spawn.h"
#include "engine/ipc/directory.h"
#include "engine/lease/messages.h"

namespace gmm {
namespace {

constexpr uint64_t kStartAgainMs = 1000;  // between tries to start a server

}  // namespace

StartFailureText::StartFailureText(int error) {
  if (error != 0)
    std::snprintf(text, sizeof text, ", and the command gmm could not be started: %s%s", ErrorText(error).text,
                  error == ENOENT ? " beside the library or on PATH" : "");
}

ServeLink::~ServeLink() {
  if (directory_ >= 0) os::close_socket(directory_);
}

Status ServeLink::open(const IpcPolicy &policy) {
  policy_ = &policy;
  return ipc_directory_open_own(&directory_, folder_, policy);
}

int ServeLink::connect(bool may_start, int32_t *out, PeerUser *peer) {
  int error = os::make_socket(out);
  if (error == 0) error = os::connect_socket(*out, directory_, kServeSocket);
  if (may_start && (error == ENOENT || error == ECONNREFUSED)) start_server();
  if (error == 0) error = check_peer_user(*out, *policy_, peer);
  if (error != 0 && *out >= 0) os::close_socket(std::exchange(*out, -1));
  return error;
}

// If several processes start one, the lock of the folder decides.
void ServeLink::start_server() {
  if (!reap_starter() || monotonic_ms() < start_at_) return;
  start_at_ = monotonic_ms() + kStartAgainMs;
  const char *words[8 + 2 * IpcPolicy::kMaxUsers] = {"gmm", "serve", "--on-demand", "--folder", folder_};
  char users[IpcPolicy::kMaxUsers][12];
  for (uint32_t i = 0; i < policy_->user_count; ++i) {
    std::snprintf(users[i], sizeof users[i], "%u", policy_->users[i]);
    words[5 + 2 * i] = "--user";
    words[6 + 2 * i] = users[i];
  }
  start_error_ = os::start_command(words, &starter_);
  if (start_error_ != 0) starter_ = 0;
}

bool ServeLink::reap_starter() {
  if (starter_ != 0 && os::has_program_ended(starter_)) starter_ = 0;
  return starter_ == 0;
}

}  // namespace gmm
