// SPDX-License-Identifier: Apache-2.0
// The tour in C++17: gmm.hpp with exceptions. Objects free their memory, so a failure anywhere leaks nothing.
#include <cstdio>
#include <exception>
#include <gmm/gmm.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kBlock = uint64_t{64} << 20;

void must(bool holds, const char *what) {
  if (!holds) throw std::runtime_error(std::string("not true: ") + what);
}

std::vector<uint8_t> pattern(unsigned first) {
  std::vector<uint8_t> bytes(kBlock);
  for (uint64_t i = 0; i < kBlock; ++i) bytes[i] = static_cast<uint8_t>(first + i * 31 + i / 4096);
  return bytes;
}

void write(gmm::context_ref context, gmm::stream_ref stream, void *memory, const std::vector<uint8_t> &bytes) {
  context.copy(memory, bytes.data(), bytes.size(), stream);
  stream.synchronize();
}

bool holds(gmm::context_ref context, gmm::stream_ref stream, const void *memory, const std::vector<uint8_t> &bytes) {
  std::vector<uint8_t> found(bytes.size());
  context.copy(found.data(), memory, found.size(), stream);
  stream.synchronize();
  return found == bytes;
}

void tour() {
  const gmm::context context = gmm::context::create();
  const gmm::stream stream = gmm::stream::create(context);
  const gmm_device_info device = context.device_query(gmm::device_id(0));
  const std::vector<uint8_t> bytes = pattern(0);

  // Managed memory: one address on the host and the device, and pages that move between them.
  gmm::alloc_desc managed;
  managed.kind = GMM_KIND_MANAGED;
  if (device.kinds & (1u << GMM_KIND_MANAGED)) {
    const gmm::buffer block = context.alloc(kBlock, managed);
    write(context, stream, block.data(), bytes);
    context.advise(block.data(), 0, GMM_ADVISE_SET_PREFERRED_LOCATION, gmm::device_id(0));
    context.prefetch(block.data(), 0, gmm::device_id(0), stream);
    must(holds(context, stream, block.data(), bytes), "the bytes of managed memory are as written");
  }

  // A tag's blocks are limited, counted and paused together.
  gmm::tag_desc settings;
  settings.contents = GMM_CONTENTS_HOST;
  const gmm::tag tag = gmm::tag::create(context, "tour", settings);
  gmm::alloc_desc desc;
  desc.kind = GMM_KIND_VMM;
  desc.tag = tag;
  if (device.capabilities & GMM_DEVICE_CAN_PAUSE) {
    gmm::buffer block = context.alloc(kBlock, desc);
    write(context, stream, block.data(), bytes);
    tag.pause();
    must(context.query(block.data()).state == GMM_STATE_PAUSED, "the block is paused");
    tag.resume();
    must(holds(context, stream, block.data(), bytes), "a resume brings the bytes back to the same address");
    block.free(stream);
    must(context.stats_query(gmm::scope().tag(tag)).live_blocks == 0, "no block of the tag is live");
  }

  // A failure is an exception with a code and a message.
  try {
    const gmm::buffer too_large = context.alloc(uint64_t{1} << 62);
    must(false, "2^62 bytes cannot be had");
  } catch (const gmm::error &error) {
    must(error.code() < 0 && *error.message() != 0, "the error says why");
  }

  // Containers take page-locked memory from the context.
  const gmm::cpu_heap heap = gmm::cpu_heap::create(context);
  const std::vector<int, gmm::allocator<int>> numbers(1000, 7, heap);
  must(context.query(numbers.data()).kind == GMM_KIND_HOST, "the container lies in page-locked memory");

  std::printf("tour in C++17: ok, backend %s, device 0: %s\n", context.query().backend_name, device.name);
}

}  // namespace

int main() {
  try {
    tour();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "tour in C++17: %s\n", error.what());
    return 1;
  }
}
