// SPDX-License-Identifier: Apache-2.0
// gmm as its users call it: the C interface of the shared library.
#include <gmm/gmm.h>

#include <vector>

#include "subject_loops.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

gmm_backend backend = GMM_BACKEND_AUTO;
uint64_t reserve = 0;

constexpr uint32_t kAllKinds =
    1u << GMM_BENCH_DEVICE | 1u << GMM_BENCH_VMM | 1u << GMM_BENCH_HOST | 1u << GMM_BENCH_MANAGED;

struct Gmm {
  static constexpr const char *kName = "gmm";
  static constexpr uint32_t kKinds = kAllKinds;
  static constexpr bool kNeedsCuda = false;
  using Stream = const gmm_alloc_desc *;  // a program keeps a descriptor a stream

  gmm_context *context = nullptr;
  gmm_scope_desc scope = {};
  std::vector<gmm_alloc_desc> streams;
  std::string failure;

  bool fail(gmm_result result) {
    failure = std::string(gmm_result_name(result)) + ": " + gmm_last_error_message();
    return false;
  }

  bool open(const gmm_bench_options &options) {
    gmm_result result = create_gmm_context(&context);
    if (result < 0) return fail(result);
    scope.struct_size = sizeof scope;
    scope.flags = GMM_SCOPE_KIND;
    scope.kind = options.kind;
    gmm_alloc_desc stream = {};
    stream.struct_size = sizeof stream;
    stream.kind = options.kind;
    stream.device = options.device;
    streams.assign(options.stream_count, stream);
    gmm_stream_desc made = {};
    made.struct_size = sizeof made;
    made.device = options.device;
    for (uint32_t i = 1; i < options.stream_count; ++i) {
      result = gmm_stream_create(context, &made, &streams[i].stream);
      if (result < 0) return fail(result);
    }
    return true;
  }

  void close() {
    for (size_t i = 1; i < streams.size(); ++i)
      if (streams[i].stream != nullptr) check("stream", gmm_stream_destroy(context, streams[i].stream));
    streams.clear();
    check("release", gmm_context_release(context));
    context = nullptr;
  }

  static void check(const char *what, gmm_result result) {
    if (result < 0)
      std::fprintf(stderr, "gmm-bench: warning: %s: %s: %s\n", what, gmm_result_name(result), gmm_last_error_message());
  }

  Stream stream(uint32_t index) { return &streams[index]; }
  bool thread_begin() { return true; }
  void thread_end() {}

  void *allocate(uint64_t size, Stream stream) {
    void *block = nullptr;
    return gmm_alloc(context, size, stream, &block) == GMM_OK ? block : nullptr;
  }
  bool deallocate(void *block, uint64_t, Stream stream) { return gmm_free(context, block, stream->stream) == GMM_OK; }

  bool use(void *block, Stream stream) { return gmm_record_use(context, block, stream->stream) == GMM_OK; }

  uint64_t statistic(uint64_t gmm_stats_info::*field, bool whole) {
    gmm_stats_info out = {};
    out.struct_size = sizeof out;
    return gmm_stats_query(context, whole ? nullptr : &scope, &out) == GMM_OK ? out.*field : GMM_BENCH_UNKNOWN;
  }
  uint64_t reserved() { return statistic(&gmm_stats_info::reserved_bytes, false); }
  uint64_t peak_reserved() { return statistic(&gmm_stats_info::peak_reserved_bytes, false); }
  uint64_t backend_calls() { return statistic(&gmm_stats_info::backend_calls, true); }
  std::string error() { return failure.empty() ? gmm_last_error_message() : failure; }
};

// The typed call: kind, device and tag are settled once.
struct GmmHeap : Gmm {
  static constexpr const char *kName = "gmm-heap";
  gmm_heap *heap = nullptr;

  bool open(const gmm_bench_options &options) {
    if (!Gmm::open(options)) return false;
    gmm_heap_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = options.kind;
    desc.device = options.device;
    const gmm_result result = gmm_heap_create(context, &desc, &heap);
    return result < 0 ? fail(result) : true;
  }
  void close() {
    if (heap != nullptr) check("heap", gmm_heap_destroy(heap));
    heap = nullptr;
    Gmm::close();
  }
  void *allocate(uint64_t size, Stream stream) {
    void *block = nullptr;
    return gmm_heap_alloc(heap, size, 0, 0, stream->stream, &block) == GMM_OK ? block : nullptr;
  }
};

// The heap reserves the bytes of set_gmm_reserve() beforehand.
struct GmmReserved : GmmHeap {
  static constexpr const char *kName = "gmm-heap-reserved";
  bool open(const gmm_bench_options &options) {
    if (!GmmHeap::open(options)) return false;
    const gmm_result result = gmm_heap_reserve(heap, reserve);
    return result < 0 ? fail(result) : true;
  }
};

constexpr gmm_bench_subject kGmm = make_subject<Gmm>();
constexpr gmm_bench_subject kGmmHeap = make_subject<GmmHeap>();
constexpr gmm_bench_subject kGmmReserved = make_subject<GmmReserved>();

}  // namespace

const gmm_bench_subject *gmm_subject() { return &kGmm; }
const gmm_bench_subject *gmm_heap_subject() { return &kGmmHeap; }
const gmm_bench_subject *gmm_reserved_subject() { return &kGmmReserved; }
void set_gmm_reserve(uint64_t bytes) { reserve = bytes; }

void set_gmm_backend(gmm_backend chosen) { backend = chosen; }

gmm_result create_gmm_context(gmm_context **out) {
  gmm_context_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.backend = backend;
  desc.host_memory = uint64_t{256} << 30;
  return gmm_context_create(&desc, out);
}

}  // namespace gmm_bench
