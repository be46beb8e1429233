// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/events.h"

#include "engine/ipc/two_contexts.h"

namespace gmm {
namespace {

class IpcEventsTest : public test::TwoContextsTest {
 protected:
  // Returns the import; *own is the event where the context made it.
  static EventImport *import_event(gmm_context *context, const gmm_ipc_handle &bytes, SharedEvent **own) {
    EventImport *import = nullptr;
    EXPECT_TRUE(context->ipc.events.import_event(bytes, Device{0}, test::kPatience, &import, own).ok())
        << last_message();
    return import;
  }
};

TEST_F(IpcEventsTest, TheMakerGetsItsOwnEventOnceMore) {
  IpcEvents &events = exporter_->ipc.events;
  SharedEvent *event = nullptr, *own = nullptr;
  ASSERT_TRUE(events.create(Device{0}, &event).ok()) << last_message();
  gmm_ipc_handle bytes;
  ASSERT_TRUE(events.export_event(*event, &bytes).ok()) << last_message();
  EXPECT_EQ(import_event(exporter_, bytes, &own), nullptr);
  EXPECT_EQ(own, event);
  EXPECT_TRUE(events.destroy(own).ok());
  EXPECT_TRUE(events.has(decode(bytes).allocation));
  EXPECT_TRUE(events.destroy(event).ok());
  EXPECT_FALSE(events.has(decode(bytes).allocation));
}

TEST_F(IpcEventsTest, AnImportedEventEndsAfterItsImporters) {
  IpcEvents &events = exporter_->ipc.events;
  SharedEvent *event = nullptr, *own = nullptr;
  ASSERT_TRUE(events.create(Device{0}, &event).ok()) << last_message();
  gmm_ipc_handle bytes;
  ASSERT_TRUE(events.export_event(*event, &bytes).ok()) << last_message();
  const IpcHandle handle = decode(bytes);
  EventImport *import = import_event(importer_, bytes, &own);
  ASSERT_NE(import, nullptr);
  EXPECT_EQ(own, nullptr);
  EXPECT_TRUE(import->check("test").ok()) << last_message();
  IpcGrant grant;
  ASSERT_TRUE(events.grant(handle.allocation, handle.token, &grant).ok());  // a second importer, by hand
  EXPECT_TRUE(events.destroy(event).ok());
  EXPECT_TRUE(test::eventually([&] { return import->check("test").code() == GMM_ERROR_IPC_PEER_GONE; }));
  EXPECT_TRUE(events.has(handle.allocation)) << "an importer is left";
  EXPECT_EQ(events.grant(handle.allocation, handle.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_TRUE(importer_->ipc.events.close_import(import).ok());
  events.importer_gone(handle.allocation);
  EXPECT_TRUE(test::eventually([&] { return !events.has(handle.allocation); }));
}

}  // namespace
}  // namespace gmm
