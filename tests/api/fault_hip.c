// SPDX-License-Identifier: Apache-2.0
// Where the backend of AMD's GPUs differs from NVIDIA's: the thread's device, messages, the choice of a backend, and
// the faults of ROCm that the fake driver has when FAKE_HIP_QUIRKS names them.
#include <stdlib.h>

#include "../../lib/backend/gpu/driver_api.h"
#include "fake_driver.h"

static int (*get_device)(int *), (*set_device)(int);

static void the_device_of_the_thread_stays(void) {
  if (device_count() < 2) SKIP("one device");
  int now = -1;
  for (int mine = 0; mine < 2; ++mine)
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
      kind = k;
      device = 1 - mine;
      if (!has_kind(k)) continue;
      CHECK(set_device(mine) == 0);
      const gmm_stream stream = open_stream();
      void *block = ALLOC_STREAM(4 * MIB, stream);
      write_pattern(block, 4 * MIB, 1, stream);
      CHECK(check_pattern(__LINE__, block, 4 * MIB, 1, stream));
      FREE_ON(stream, block);
      OK(gmm_trim(context, NULL, NULL));
      CHECK(get_device(&now) == 0 && now == mine);
    }
}

// The driver's memory is looked at, as gmm's own count knows nothing of the faults.
static void memory_of_a_pause_comes_back(void) {
  kind = GMM_KIND_VMM;
  const gmm_tag tag = make_tag("paused", GMM_CONTENTS_HOST);
  void *blocks[3];
  for (int i = 0; i < 3; ++i) blocks[i] = FILLED_TAG(8 * MIB, tag, (uint32_t)i);
  const uint64_t before = free_device_bytes();
  for (int round = 0; round < 3; ++round) {
    MUST(pause_of(tag));
    CHECK(free_device_bytes() >= before + 24 * MIB);
    MUST(resume_of(tag));
    for (uint32_t i = 0; i < 3; ++i) CHECK_PATTERN(blocks[i], 8 * MIB, i);
  }
  FREE_ALL(blocks, 3);
  NOTHING_STAYS();
}

static void messages_name_the_functions_of_hip(void) {
  kind = GMM_KIND_VMM;
  void *block = NULL;
  for (uint64_t k = 1; k < 9; ++k) fake.fail("cuMemCreate", k, CUDA_ERROR_OUT_OF_MEMORY);
  RESULT(try_alloc(2 * MIB, GMM_TAG_CURRENT, &block), GMM_ERROR_OUT_OF_MEMORY);
  fake.fail(NULL, 0, 0);
  CHECK_MESSAGE(message_has("hipMemCreate") && message_has("ulimit -n"), "%s", gmm_last_error_message());
}

static void libraries_that_are_not_hip_are_refused(void) {
  static const char *const rows[][2] = {{"/nonexistent/libamdhip64.so", "install ROCm"}, {"libm.so.6", "has no hip"}};
  for (int i = 0; i < 2; ++i) {
    gmm_context *opened = NULL;
    setenv("GMM_HIP_DRIVER", rows[i][0], 1);
    RESULT(gmm_context_create(DESC(context_desc, .backend = GMM_BACKEND_HIP), &opened), GMM_ERROR_NO_BACKEND);
    CHECK_MESSAGE(message_has(rows[i][1]), "%s", gmm_last_error_message());
  }
  unsetenv("GMM_HIP_DRIVER");
}

static void hip_is_chosen_where_cuda_does_not_answer(void) {
  char was[16];
  snprintf(was, sizeof was, "%s", getenv("GMM_BACKEND"));
  unsetenv("GMM_BACKEND");
  setenv("GMM_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
  gmm_context *chosen = OPEN(.flags = 0);
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(chosen, &info));
  CHECK_EQUAL(info.backend, GMM_BACKEND_HIP);
  CHECK(strcmp(info.driver_version, "7.2") == 0 || strcmp(info.driver_version, "7.1") == 0);
  OK(gmm_context_release(chosen));
  unsetenv("GMM_CUDA_DRIVER");
  setenv("GMM_BACKEND", was, 1);
}

static void the_host_has_vmm_memory_from_rocm_7_2_on(void) {
  const char *quirks = getenv("FAKE_HIP_QUIRKS");
  const bool is_old = quirks != NULL && strstr(quirks, "host") != NULL;
  CHECK_EQUAL((device_info.capabilities & GMM_DEVICE_CAN_HOST_NUMA) == 0, is_old);
}

int main(void) {
  void *library = dlopen("libamdhip64.so", RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) *(void **)&get_device = dlsym(library, "hipGetDevice");
  if (library != NULL) *(void **)&set_device = dlsym(library, "hipSetDevice");
  if (get_device == NULL || set_device == NULL || getenv("GMM_BACKEND") == NULL) {
    printf("1..0 # SKIP the backend is not HIP\n");
    return 0;
  }
  PLAIN(the_device_of_the_thread_stays);
  PLAIN(memory_of_a_pause_comes_back);
  if (!find_fake_driver()) return finish_clean();  // the further cases ask for faults
  PLAIN(messages_name_the_functions_of_hip);
  PLAIN(libraries_that_are_not_hip_are_refused);
  PLAIN(hip_is_chosen_where_cuda_does_not_answer);
  PLAIN(the_host_has_vmm_memory_from_rocm_7_2_on);
  return finish_clean();
}
