// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/machine.h"

#include "base/hash_table.h"
#include "base/process.h"

namespace gmm {

uint64_t ipc_machine() {
  char text[64] = {};
  return machine_boot(text, sizeof text) ? hash_of_text(text) | 1 : 0;
}

}  // namespace gmm
