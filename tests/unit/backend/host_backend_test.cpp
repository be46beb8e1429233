// SPDX-License-Identifier: Apache-2.0
// The conformance suite for the host backend, and what only that backend promises.
#include "backend/host/host_backend.h"

#include "backend_conformance.h"
#include "host_backend_test.h"

namespace gmm::test {

Status open_host(const HostAllocator &allocator, const Log &log, uint64_t memory, uint32_t devices, Backend **out) {
  HostBackendOptions options;
  options.memory = memory;
  options.devices = devices;
  return host_backend_create(allocator, log, options, out);
}

namespace {

const std::vector<BackendUnderTest> kBackends = {
    {"host", [](const HostAllocator &a, const Log &l, Backend **out) { return open_host(a, l, 0, 0, out); },
     shared_memory_in_use},
    {"host_small_pair",
     [](const HostAllocator &a, const Log &l, Backend **out) { return open_host(a, l, uint64_t{64} << 20, 2, out); },
     shared_memory_in_use},
};

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformance, ::testing::ValuesIn(kBackends),
                         [](const auto &info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gmm::test

int main(int argc, char **argv) {
  return gmm::test::conformance_main(argc, argv, gmm::test::kBackends, gmm::test::host_child_roles());
}
