// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/peer_user.h"

#include "engine/ipc/second_process.h"

namespace gmm {
namespace {

using test::Process;

class IpcPeerUserTest : public test::ProcessTest {};

TEST_F(IpcPeerUserTest, APolicyAllowsItsUsersAndTheUserOfTheProcess) {
  IpcPolicy policy;
  EXPECT_TRUE(policy.allows(::geteuid()));
  EXPECT_FALSE(policy.allows(::geteuid() + 1));
  policy.users[0] = ::geteuid() + 1;
  EXPECT_FALSE(policy.allows(::geteuid() + 1)) << "user_count is 0";
  policy.user_count = 1;
  EXPECT_TRUE(policy.allows(::geteuid() + 1));
  EXPECT_FALSE(policy.allows(::geteuid() + 2));
}

TEST_F(IpcPeerUserTest, TheKernelNamesThePeer) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  PeerUser peer;
  EXPECT_EQ(check_peer_user(pair[0], kIpcDefaultPolicy, &peer), 0);
  EXPECT_EQ(peer.process, ::getpid());
  EXPECT_EQ(peer.user, ::geteuid());
  EXPECT_TRUE(peer.is_allowed);
  ::close(pair[0]);
  ::close(pair[1]);
  EXPECT_EQ(check_peer_user(-1, kIpcDefaultPolicy, &peer), EBADF);
  EXPECT_FALSE(peer.is_allowed) << "nothing is allowed after an error";
}

TEST_F(IpcPeerUserTest, AnotherUserIsRefusedTwice) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to play another user";
  test::Exporter exporter;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  // The mode of the directory hides the socket.
  Process outside("stranger", hex_of(exporter.handle));
  EXPECT_EQ(outside.line(), std::to_string(GMM_ERROR_IPC_REFUSED) + " no connection");
  // In an open directory the broker refuses the user, even with the right token.
  char name[kIpcNameSize];
  ipc_socket_name(exporter.handle.exporter, name);
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  ASSERT_EQ(::chmod((directory_ + "/" + name).c_str(), 0666), 0);
  Process inside("stranger", hex_of(exporter.handle));
  EXPECT_EQ(inside.line(),
            std::to_string(GMM_ERROR_IPC_REFUSED) + " answered 32 bytes with " + std::to_string(GMM_ERROR_IPC_REFUSED));
  EXPECT_EQ(exporter.resolved, 0);
  EXPECT_TRUE(exporter.journal.has("of user 65534: only user 0 may import"));
}

TEST_F(IpcPeerUserTest, AnotherUsersSocketReceivesNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to play another user";
  Process impostor("impostor");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(impostor.line().c_str()), &handle).ok()) << last_message();
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle, IpcWant::kCount, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "belongs to user 65534"), nullptr) << last_message();
  EXPECT_EQ(impostor.line(), "received nothing");
  char name[kIpcNameSize];
  ipc_socket_name(handle.exporter, name);
  EXPECT_EQ(::unlink((directory_ + "/" + name).c_str()), 0);
}

}  // namespace
}  // namespace gmm
