// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <thread>

namespace gmm {
namespace {

Status passed_on(Status status) {
  GMM_TRY(status);
  return Status();
}

TEST(Status, CarriesTheCodeAndTheMessage) {
  EXPECT_TRUE(Status().ok());
  const Status status = fail_native(GMM_ERROR_DRIVER, 42, "%s of %d", "allocation", 7);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(passed_on(status).code(), GMM_ERROR_DRIVER);
  EXPECT_STREQ(last_message(), "allocation of 7");
  EXPECT_EQ(last_native(), 42);
  EXPECT_EQ(fail(GMM_ERROR_BUSY, "later").code(), GMM_ERROR_BUSY);
  EXPECT_EQ(last_native(), 0);
  EXPECT_TRUE(remark(GMM_UNCHANGED, "nothing").ok());
  EXPECT_TRUE(passed_on(Status(GMM_UNCHANGED)).ok());
}

TEST(Status, PrefixPutsWordsInFront) {
  const Status status = prefix(fail(GMM_ERROR_BUSY, "inner"), "outer %d: ", 1);
  EXPECT_EQ(status.code(), GMM_ERROR_BUSY);
  EXPECT_STREQ(last_message(), "outer 1: inner");
}

TEST(Status, LongMessagesAreCut) {
  const std::string text(5000, 'x');
  fail(GMM_ERROR_BUSY, "%s", text.c_str()).ignore();
  EXPECT_EQ(std::string(last_message()), text.substr(0, 1023));
  prefix(Status(GMM_ERROR_BUSY), "%s", text.c_str()).ignore();
  EXPECT_EQ(std::string(last_message()).size(), 1023u);
  fail(GMM_ERROR_BUSY, "%s", text.c_str()).ignore();
  prefix(Status(GMM_ERROR_BUSY), "front").ignore();
  EXPECT_EQ(std::string(last_message()).substr(0, 8), "frontxxx");
  EXPECT_EQ(std::string(last_message()).size(), 1023u);
}

TEST(Status, EveryThreadHasItsOwnMessage) {
  fail(GMM_ERROR_BUSY, "mine").ignore();
  std::thread([] {
    EXPECT_STREQ(last_message(), "");
    fail(GMM_ERROR_BUSY, "theirs").ignore();
  }).join();
  EXPECT_STREQ(last_message(), "mine");
}

TEST(Status, AGuardKeepsTheMessage) {
  fail_native(GMM_ERROR_BUSY, 3, "first").ignore();
  {
    MessageGuard message_guard;
    fail(GMM_ERROR_DRIVER, "second").ignore();
  }
  EXPECT_STREQ(last_message(), "first");
  EXPECT_EQ(last_native(), 3);
}

TEST(Status, SystemErrorsHaveText) {
  char buffer[64];
  EXPECT_NE(std::string(system_error_text(ENOENT, buffer, sizeof buffer)).find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace gmm
