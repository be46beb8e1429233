// SPDX-License-Identifier: Apache-2.0
// Helpers of the host backend's tests.
#ifndef GMM_TESTS_UNIT_BACKEND_HOST_BACKEND_TEST_H
#define GMM_TESTS_UNIT_BACKEND_HOST_BACKEND_TEST_H

#include "backend_conformance.h"

namespace gmm::test {

inline constexpr uint64_t kUnit = kExtentAlignment;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr Device kFirst{0}, kSecond{1};

// `memory`: bytes a device pretends to have, 0: the machine's; `devices`: 0 is one.
Status open_host(const HostAllocator &allocator, const Log &log, uint64_t memory, uint32_t devices, Backend **out);
// Bytes of touched memory files that this process has mapped.
uint64_t shared_memory_in_use(Backend &backend);
// What the program plays under limits that only a process of its own may have.
std::vector<ChildRole> host_child_roles();

}  // namespace gmm::test
#endif
