// SPDX-License-Identifier: Apache-2.0
// Memory that others hold while gmm pauses it: it counts as theirs, never as returned.
#include <unistd.h>

#include "pause_support.h"

enum { SHARED = 4, PRIVATE = 6 };  // MiB of two blocks

static gmm_tag tag;
static void *shared, *own;

static int export_shared(void) {
  gmm_ipc_fd_info info = {.struct_size = sizeof info};
  MUST(gmm_ipc_export_fd(context, shared, GMM_FD_DEFAULT, &info));
  CHECK(info.size == SHARED * MIB && info.offset == 0);
  return info.fd;
}

static void begin(void) {
  tag = make_tag("shared", GMM_CONTENTS_HOST);
  shared = FILLED_ALONE(SHARED * MIB, tag, 1);
  own = FILLED_ALONE(PRIVATE * MIB, tag, 2);
  // The first pause page-locks host memory for the contents, for which a driver takes memory of each device.
  OK(pause_of(tag));
  OK(resume_of(tag));
}

// Pauses, tells what a resume must give, and resumes.
static void pause_with(uint64_t foreign) {
  gmm_pause_desc desc = one_tag(&tag);
  uint64_t went = 0, came = 0;
  const uint64_t all = stats_of(GMM_SCOPE_TAG, 0, tag, GMM_KIND_UNSPECIFIED).reserved_bytes;
  const uint64_t before = on_host_backend() ? 0 : free_device_bytes();
  OK(gmm_pause(context, &desc, &went));
  CHECK_MESSAGE(went == all - foreign, "%llu of %llu bytes went back", (unsigned long long)went,
                (unsigned long long)all);
  // A driver may keep or give a page for itself.
  if (!on_host_backend()) {
    const uint64_t after = free_device_bytes();
    CHECK_MESSAGE((after - before + MIB - (all - foreign)) < 2 * MIB,
                  "the device has %lld bytes more, and %llu of %llu went", (long long)(after - before),
                  (unsigned long long)(all - foreign), (unsigned long long)all);
  }
  CHECK(tag_info(tag).foreign_bytes == foreign);
  CHECK(tag_info(tag).paused_bytes == all);
  CHECK(stats().foreign_bytes == foreign);
  CHECK(stats_of(GMM_SCOPE_TAG, 0, tag, GMM_KIND_UNSPECIFIED).foreign_bytes == foreign);
  CHECK(stats_of(GMM_SCOPE_DEVICE, device, 0, GMM_KIND_UNSPECIFIED).foreign_bytes == foreign);
  CHECK(stats_of(GMM_SCOPE_KIND, 0, 0, GMM_KIND_HOST).foreign_bytes == 0);
  OK(gmm_resume(context, &desc, &came));
  CHECK(came == all);
  CHECK_PATTERN(shared, SHARED * MIB, 1);
  CHECK_PATTERN(own, PRIVATE * MIB, 2);
}

VMM_CASE(an_open_descriptor_keeps_the_pages) {
  begin();
  pause_with(0);
  const int fd = export_shared(), again = dup(fd);
  close(fd);
  pause_with(SHARED * MIB);
  close(again);
  pause_with(0);  // the resume brought new pages, which nobody exported
  close(export_shared());
  pause_with(0);
}

VMM_CASE(an_import_keeps_the_pages) {
  begin();
  const int fd = export_shared();
  const gmm_ipc_fd_desc desc = {.struct_size = sizeof desc,
                                .type = on_host_backend() ? GMM_FD_FILE : GMM_FD_OPAQUE,
                                .device = device,
                                .size = SHARED * MIB};
  void *view = NULL;
  MUST(gmm_ipc_import_fd(context, fd, &desc, &view));
  close(fd);
  pause_with(SHARED * MIB);
  CHECK_PATTERN(view, SHARED * MIB, 1);  // of the old pages
  OK(gmm_ipc_close(context, view));
  pause_with(0);
}

// The context's own growth during a pause is no foreign memory, and a limit is told.
VMM_CASE(other_memory_is_not_foreign) {
  begin();
  CHECK(stats().limit_bytes == GMM_NO_LIMIT);
  set_limit(GMM_SCOPE_TAG, tag, 64 * MIB);
  CHECK(stats_of(GMM_SCOPE_TAG, 0, tag, GMM_KIND_UNSPECIFIED).limit_bytes == 64 * MIB);
  CHECK(stats_of(GMM_SCOPE_TAG | GMM_SCOPE_KIND, 0, tag, GMM_KIND_VMM).limit_bytes == GMM_NO_LIMIT);
  if ((device_info.capabilities & GMM_DEVICE_CAN_HOST_NUMA) != 0 && !on_host_backend()) {
    // Pages on the host leave the device's free memory alone.
    OK(gmm_move(context, own, GMM_DEVICE_HOST, NULL));
    OK(pause_of(tag));
    CHECK(tag_info(tag).foreign_bytes == 0);
    OK(resume_of(tag));
  }
}

int main(void) { return run_cases(); }
