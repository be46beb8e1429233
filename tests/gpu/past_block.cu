// SPDX-License-Identifier: Apache-2.0
// A kernel writes inside of a block of gmm, past it, or into it after its free. run.sh looks whether compute-sanitizer
// and GMM_DEBUG see that. Usage: past_block device|vmm inside|past|freed
#include <gmm/gmm.h>

#include <cstdio>
#include <cstring>

namespace {

constexpr uint64_t kSize = 1000;

__global__ void write(unsigned char *at) { *at = 1; }

int must(gmm_result result) {
  if (result >= 0) return 0;
  std::fprintf(stderr, "past_block: %s\n", gmm_last_error_message());
  return 1;
}

}  // namespace

int main(int, char **words) {
  gmm_context *context;
  gmm_alloc_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.kind = std::strcmp(words[1], "vmm") == 0 ? GMM_KIND_VMM : GMM_KIND_DEVICE;
  void *block, *neighbour;
  if (cudaFree(nullptr) != cudaSuccess || must(gmm_context_create(nullptr, &context)) != 0 ||
      must(gmm_alloc(context, kSize, &desc, &block)) != 0 || must(gmm_alloc(context, kSize, &desc, &neighbour)) != 0)
    return 1;
  const bool is_freed = std::strcmp(words[2], "freed") == 0;
  if (is_freed && must(gmm_free(context, block, GMM_STREAM_DEFAULT)) != 0) return 1;
  write<<<1, 1>>>(static_cast<unsigned char *>(block) + (std::strcmp(words[2], "past") == 0 ? kSize : 0));
  std::printf("kernel: %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  if (!is_freed && must(gmm_free(context, block, GMM_STREAM_DEFAULT)) != 0) return 1;
  return must(gmm_free(context, neighbour, GMM_STREAM_DEFAULT)) + must(gmm_context_release(context));
}
