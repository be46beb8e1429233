// SPDX-License-Identifier: Apache-2.0
// The number of this machine in handles of fabric memory: who has another number reaches no broker here.
#ifndef GMM_ENGINE_IPC_MACHINE_H
#define GMM_ENGINE_IPC_MACHINE_H

#include <cstdint>

namespace gmm {

// A hash of the system's boot id, which containers share. 0: it is not known.
uint64_t ipc_machine();

}  // namespace gmm
#endif
