// SPDX-License-Identifier: Apache-2.0
// How long a lease takes from one process to another that must give up its memory, beside the copies alone.
//
// Usage: lease_handover [MIB [MOST]]     default: 8192 1.15
//
// Build: cc -O2 -Iinclude tests/gpu/lease_handover.c -Lbuild/lib -lgmm -o lease_handover
// It takes what is free but 1.5 times the size, so that two do not fit. It prints the copy out and the copy in of plain
// gmm_pause() and gmm_resume(), the handover, and their ratio. The exit code is 1 if that is over MOST. A rehearsal on
// the host backend needs GMM_HOST_CARD, one on the fake driver FAKE_CUDA_CARD.
#include <gmm/gmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7 };
static gmm_context *context;
static gmm_lease *lease;
static gmm_tag tag;

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}
static void must(gmm_result result, const char *what) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, gmm_result_name(result), gmm_last_error_message());
  exit(2);
}
static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *times) {
  qsort(times, ROUNDS, sizeof *times, by_size);
  return times[ROUNDS / 2];
}
static void request(uint64_t bytes) {
  const gmm_lease_amount amount = {.bytes = bytes};
  const gmm_lease_request_desc desc = {
      .struct_size = sizeof desc, .amounts = &amount, .amount_count = bytes != 0 ? 1 : 0, .timeout_ms = 300000};
  must(gmm_lease_request(lease, &desc, NULL), "request");
}
static void *begin(const char *name, uint64_t size) {
  const gmm_context_desc opened = {.struct_size = sizeof opened, .host_memory = size / 2 * 5};
  must(gmm_context_create(&opened, &context), "context");
  const gmm_tag_desc kept = {.struct_size = sizeof kept, .contents = GMM_CONTENTS_HOST};
  must(gmm_tag_create(context, "weights", &kept, &tag), "tag");
  char arbiter[32];
  snprintf(arbiter, sizeof arbiter, "handover-%d", (int)(strcmp(name, "first") == 0 ? getpid() : getppid()));
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = name, .arbiter = arbiter, .residency_ms = 1};
  must(gmm_lease_create(context, &desc, &lease), "lease");
  must(gmm_lease_offer(lease, tag, 1), "offer");
  request(size);
  const gmm_alloc_desc wanted = {.struct_size = sizeof wanted, .kind = GMM_KIND_VMM, .tag = tag};
  void *block = NULL;
  must(gmm_alloc(context, size, &wanted, &block), "memory");
  // Not zeros, which a backup need not copy.
  must(gmm_fill(context, block, 0x5a, size, GMM_STREAM_DEFAULT), "fill");
  must(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT), "synchronize");
  return block;
}

int main(int argc, char **argv) {
  const uint64_t size = (argc > 1 ? strtoull(argv[1], NULL, 10) : 8192) << 20;
  const double most = argc > 2 ? strtod(argv[2], NULL) : 1.15;
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return 2;
  const pid_t child = fork();
  char byte = 0;
  if (child == 0) {
    // The second process takes and returns when it is told.
    close(down[1]);
    close(up[0]);
    if (read(down[0], &byte, 1) != 1) return 0;
    begin("second", size);
    must(gmm_lease_return(lease), "return");
    if (write(up[1], "r", 1) != 1) return 2;
    while (read(down[0], &byte, 1) == 1 && byte == 't') {
      request(0);
      must(gmm_lease_return(lease), "return");
      if (write(up[1], "t", 1) != 1) return 2;
    }
    _exit(0);
  }
  begin("first", size);
  // The rest of the device, so that the second one does not fit beside this.
  gmm_device_info info = {.struct_size = sizeof info};
  must(gmm_device_query(context, 0, &info), "device");
  void *rest = NULL;
  if (info.free_memory > size / 2) {
    const gmm_alloc_desc other = {.struct_size = sizeof other, .kind = GMM_KIND_VMM, .tag = GMM_TAG_DEFAULT};
    must(gmm_alloc(context, (info.free_memory - size / 2) & ~((UINT64_C(2) << 20) - 1), &other, &rest), "the rest");
  }
  const gmm_pause_desc own = {.struct_size = sizeof own, .tags = &tag, .tag_count = 1};
  double out[ROUNDS], in[ROUNDS], handed[ROUNDS];
  for (int i = -1; i < ROUNDS; ++i) {  // the first one makes the arena
    const double began = now_ms();
    must(gmm_pause(context, &own, NULL), "pause");
    const double middle = now_ms();
    must(gmm_resume(context, &own, NULL), "resume");
    if (i < 0) continue;
    out[i] = middle - began;
    in[i] = now_ms() - middle;
  }
  must(gmm_lease_return(lease), "return");
  if (write(down[1], "b", 1) != 1 || read(up[0], &byte, 1) != 1) return 2;
  for (int i = -1; i < ROUNDS; ++i) {
    if (write(down[1], "t", 1) != 1 || read(up[0], &byte, 1) != 1) return 2;
    const double began = now_ms();
    request(0);
    if (i >= 0) handed[i] = now_ms() - began;
    must(gmm_lease_return(lease), "return");
  }
  const double copies = median(out) + median(in), handover = median(handed);
  printf("%s, %llu MiB: out %.1f ms, in %.1f ms, together %.1f ms; handed over in %.1f ms: %.3f times\n", info.name,
         (unsigned long long)(size >> 20), median(out), median(in), copies, handover, handover / copies);
  close(down[1]);
  waitpid(child, NULL, 0);
  gmm_lease_destroy(lease);
  gmm_context_release(context);
  return handover / copies <= most ? 0 : 1;
}
