/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <unistd.h>

static gmm_csharp_fail_fn fail_delegate;
static gmm_csharp_log_fn log_delegate;
static gmm_csharp_oom_fn oom_delegate;
static gmm_write_fn write_delegate;
static gmm_csharp_run_fn run_delegate;

void gmm_csharp_register(gmm_csharp_fail_fn fail, gmm_csharp_log_fn log, gmm_csharp_oom_fn oom, gmm_write_fn write, gmm_csharp_run_fn run) {
  fail_delegate = fail;
  log_delegate = log;
  oom_delegate = oom;
  write_delegate = write;
  run_delegate = run;
}

void gmm_csharp_throw(gmm_result result) {
  fail_delegate(result, gmm_last_native_code(), gmm_result_name(result), gmm_last_error_message());
}

void gmm_csharp_close(int32_t fd) { close(fd); }

void gmm_csharp_log(void *user, gmm_log_level level, const char *message) { log_delegate(user, level, message); }

int32_t gmm_csharp_oom(void *user, const gmm_oom_info *info) {
  return oom_delegate(user, info->device, info->kind, info->tag, info->requested, info->reserved, info->attempt, info->cause);
}

int32_t gmm_csharp_write(void *user, const char *text, uint64_t size) { return write_delegate(user, text, size); }

void gmm_csharp_run(void *user) { run_delegate(user); }
