// SPDX-License-Identifier: Apache-2.0
// A tool of NVTX sees the operations of gmm and their bytes, and blocks of a GPU's DEVICE memory. The tool is
// nvtx_tool.c, which gmm opens.
#include "../support/gmm_test.h"

extern char nvtx_tool_seen[];

// Checks that the tool saw this range since the last call.
static void sees(const char *operation, unsigned long long bytes) {
  char wanted[64];
  snprintf(wanted, sizeof wanted, "gmm %s %llu()", operation, bytes);
  CHECK_MESSAGE(strcmp(nvtx_tool_seen, wanted) == 0, "the tool saw %s, not %s", nvtx_tool_seen, wanted);
  nvtx_tool_seen[0] = 0;
}

VMM_CASE(a_tool_sees_operations_and_bytes) {
  const unsigned long long size = 4 * MIB;
  const gmm_tag tag = make_tag("seen", GMM_CONTENTS_HOST);
  nvtx_tool_seen[0] = 0;
  void *block = FILLED_TAG(size, tag, 1);
  sees("growth", size);
  const unsigned long long reserved = stats().reserved_bytes;
  MUST(gmm_pause(context, NULL, NULL));
  sees("pause", reserved);
  MUST(gmm_resume(context, NULL, NULL));
  sees("resume", reserved);
  MUST(gmm_move(context, block, GMM_DEVICE_HOST, NULL));
  sees("move", size);
  FREE(block);
  CHECK(gmm_compact(context, NULL, NULL, DESC(compact_info)) >= 0);
  sees("compact", reserved);
}

CASE_OF_KINDS(a_tool_sees_blocks, 1u << GMM_KIND_DEVICE) {
  if (backend_id() == GMM_BACKEND_HOST) SKIP("valgrind and the address sanitizer see them");
  nvtx_tool_seen[0] = 0;
  void *first = ALLOC(1000), *second = ALLOC(5000);
  FREE(first, second);
  NOTHING_STAYS();
  CHECK_MESSAGE(strncmp(nvtx_tool_seen, "gmm growth ", 11) == 0 && strstr(nvtx_tool_seen, "(allocation ") != NULL &&
                    strstr(nvtx_tool_seen, "{)block 1000[block 5000[]]}") != NULL,
                "%s", nvtx_tool_seen);
}

int main(void) { return run_cases(); }
