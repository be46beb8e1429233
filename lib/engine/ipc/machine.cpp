// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/hash_table.h"

namespace gmm {

uint64_t ipc_machine() {
  if (const char *name = environment_text(Variable::kIpcMachine)) return hash_of_text(name) | 1;
  char text[64] = {};
  const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t length = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  return length > 0 ? hash_of_text(text) | 1 : 0;
}

}  // namespace gmm
