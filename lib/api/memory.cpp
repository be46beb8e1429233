// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"
#include "base/name.h"
#include "engine/context/allocation.h"
#include "engine/ipc/descriptor.h"

using namespace gmm;

namespace {

Status check_size(uint64_t size) {
  if (__builtin_expect(size - 1 < kMaxSize, 1)) return Status();
  if (size == 0) return fail(GMM_ERROR_INVALID_SIZE, "gmm_alloc: size = 0; request at least 1 byte.");
  return fail(GMM_ERROR_SIZE_OVERFLOW,
              "gmm_alloc: size = %" PRIu64 " is beyond any address space; request at most %" PRIu64 " bytes.", size,
              kMaxSize);
}

Status check_kind(gmm_kind kind) {
  if (kind <= GMM_KIND_MANAGED) return Status();
  return fail(GMM_ERROR_INVALID_KIND, "kind = %u is no GMM_KIND_* value; pass one.", kind);
}

Status check_alignment(uint64_t alignment) {
  if ((alignment & (alignment - 1)) == 0 && alignment <= kExtentAlignment) return Status();
  return fail(GMM_ERROR_INVALID_ALIGNMENT,
              "alignment = %" PRIu64 " is not a power of two up to %" PRIu64 "; pass one, or 0.", alignment,
              kExtentAlignment);
}

constexpr uint32_t kAllocFlags = GMM_ALLOC_DEDICATED | GMM_ALLOC_ZERO | GMM_ALLOC_COMM | GMM_ALLOC_PAUSED;
constexpr uint32_t kVmmFlags = GMM_ALLOC_COMM | GMM_ALLOC_PAUSED;

// Memory for network libraries and paused memory are VMM, and dedicated.
Status check_flags_of_vmm(Kind kind, const char *function, uint32_t *flags) {
  if ((*flags & kVmmFlags) == 0) return Status();
  const bool is_paused = (*flags & GMM_ALLOC_PAUSED) != 0;
  if (is_paused && (*flags & (GMM_ALLOC_COMM | GMM_ALLOC_ZERO)) != 0)
    return fail(GMM_ERROR_INVALID_FLAGS,
                "%s: flags = 0x%x: GMM_ALLOC_PAUSED gives no memory yet; leave out GMM_ALLOC_COMM and GMM_ALLOC_ZERO, "
                "and see GMM_RESUME_ZERO.",
                function, *flags);
  *flags |= GMM_ALLOC_DEDICATED;
  if (kind == Kind::kVmm) return Status();
  return fail(GMM_ERROR_INVALID_KIND, "%s: %s gives VMM memory, but the kind is %s; pass GMM_KIND_VMM.", function,
              is_paused ? "GMM_ALLOC_PAUSED" : "GMM_ALLOC_COMM", kind_name(kind));
}

Status alloc(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc, void **out) {
  gmm_alloc_desc copy;
  GMM_TRY(check_size(size));
  GMM_TRY(read_checked(desc, kAllocFlags, &copy));
  GMM_TRY(check_kind(copy.kind));
  GMM_TRY(check_device(*context, copy.device));
  GMM_TRY(check_alignment(copy.alignment));
  if (copy.kind == GMM_KIND_UNSPECIFIED) copy.kind = (copy.flags & kVmmFlags) != 0 ? GMM_KIND_VMM : GMM_KIND_DEVICE;
  GMM_TRY(check_flags_of_vmm(static_cast<Kind>(copy.kind), "gmm_alloc", &copy.flags));
  if (copy.tag == GMM_TAG_CURRENT) copy.tag = context->tags().current();
  Heap *heap = nullptr;
  GMM_TRY(context->heap_for(static_cast<Kind>(copy.kind), Device{copy.device}, copy.tag, &heap));
  return context->allocate(*heap, size, copy.alignment, copy.flags, copy.stream, out);
}

}  // namespace

static constexpr gmm_alloc_desc kDefaults = {sizeof(gmm_alloc_desc), 0, 0, GMM_TAG_CURRENT,
                                             GMM_STREAM_DEFAULT,     0, 0, 0};

// Returns the heap of a descriptor without alignment, flags or other special wishes, if the heap exists. NULL: alloc()
// checks everything and creates the heap. One test of all wishes was faster than a test of each field.
static inline Heap *plain_heap(const Context &context, const gmm_alloc_desc &desc) {
  if ((desc.alignment | desc.flags | desc.reserved) != 0 || !has_first_fields_only(desc)) return nullptr;
  if (desc.kind >= kKindCount || static_cast<uint32_t>(desc.device) >= context.device_count()) return nullptr;
  const Tag *tag = tag_of(context, desc.tag);
  const uint32_t kind = desc.kind == GMM_KIND_UNSPECIFIED ? uint32_t{GMM_KIND_DEVICE} : desc.kind;
  return existing_heap(tag, kind, desc.device);
}

// Not inlined, so that the fast paths, which call it last, save no register.
__attribute__((noinline)) static gmm_result check_and_alloc(gmm_context *context, uint64_t size,
                                                            const gmm_alloc_desc *desc, void **out) {
  return make(context, "gmm_alloc", out, [&] { return alloc(context, size, desc, out); });
}

static inline __attribute__((always_inline)) gmm_result alloc_or_check(gmm_context *context, uint64_t size,
                                                                       const gmm_alloc_desc *desc, void **out) {
  if (__builtin_expect(
          context != nullptr && context->is_context() && out != nullptr && size - 1 < kMaxSize && context->is_open(),
          1)) {
    Heap *heap = plain_heap(*context, *desc);
    if (__builtin_expect(heap != nullptr, 1)) return alloc_plain(context, heap, size, desc->stream, out);
  }
  return check_and_alloc(context, size, desc, out);
}

// A copy of the fast path, which knows the descriptor.
__attribute__((noinline)) static gmm_result alloc_by_defaults(gmm_context *context, uint64_t size, void **out) {
  return alloc_or_check(context, size, &kDefaults, out);
}

gmm_result gmm_alloc(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc, void **out) noexcept {
  if (__builtin_expect(desc == nullptr, 0)) return alloc_by_defaults(context, size, out);
  return alloc_or_check(context, size, desc, out);
}

__attribute__((noinline)) static gmm_result check_and_alloc_from_heap(gmm_heap *heap, uint64_t size, uint64_t alignment,
                                                                      uint32_t flags, gmm_stream stream, void **out) {
  return make(heap, "gmm_heap_alloc", out, [&]() -> Status {
    GMM_TRY(check_size(size));
    GMM_TRY(check_alignment(alignment));
    GMM_TRY(check_flags(flags, kAllocFlags, "gmm_heap_alloc", ": flags"));
    GMM_TRY(check_flags_of_vmm(heap->options().kind, "gmm_heap_alloc", &flags));
    return heap->context->allocate(*heap, size, alignment, flags, stream, out);
  });
}

gmm_result gmm_heap_alloc(gmm_heap *heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream,
                          void **out) noexcept {
  if (__builtin_expect(heap == nullptr || heap->magic != gmm_heap::kMagic || out == nullptr || size - 1 >= kMaxSize ||
                           (alignment | flags) != 0,
                       0))
    return check_and_alloc_from_heap(heap, size, alignment, flags, stream, out);
  return heap_alloc_plain(heap, size, stream, out);
}

__attribute__((noinline)) static gmm_result check_and_free(gmm_context *context, void *memory, gmm_stream stream) {
  if (context == nullptr || !context->is_context() || memory == nullptr) return result_of(Context::check(context));
  return result_of(context->free(memory, stream));
}

gmm_result gmm_free(gmm_context *context, void *memory, gmm_stream stream) noexcept {
  if (__builtin_expect(context != nullptr && context->is_context() && memory != nullptr && context->is_open() &&
                           free_into_cache(context->core(), memory, stream),
                       1))
    return GMM_OK;
  return check_and_free(context, memory, stream);
}

// The message is the code's fixed text: what stood in the way is found out by the plain form.
__attribute__((noinline, cold)) static Status not_ready() {
  return fail(GMM_ERROR_NOT_READY, "%s", gmm_result_text(GMM_ERROR_NOT_READY));
}

gmm_result gmm_try_alloc(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc, void **out) noexcept {
  if (desc == nullptr) desc = &kDefaults;
  if (context != nullptr && context->is_context() && out != nullptr && size - 1 < kMaxSize) {
    Heap *heap = plain_heap(*context, *desc);
    if (heap != nullptr && try_alloc_plain(*heap, size, desc->stream, out)) return GMM_OK;
  }
  return result_of(not_ready(), out);
}

gmm_result gmm_heap_try_alloc(gmm_heap *heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream,
                              void **out) noexcept {
  if (heap != nullptr && heap->magic == gmm_heap::kMagic && out != nullptr && size - 1 < kMaxSize &&
      (alignment | flags) == 0 && try_alloc_plain(*heap, size, stream, out))
    return GMM_OK;
  return result_of(not_ready(), out);
}

gmm_result gmm_try_free(gmm_context *context, void *memory, gmm_stream stream) noexcept {
  if (context != nullptr && context->is_context() &&
      (memory == nullptr || (context->is_open() && try_free(context->core(), memory, stream))))
    return GMM_OK;
  return result_of(not_ready());
}

gmm_result gmm_query(gmm_context *context, const void *address, gmm_pointer_info *out) noexcept {
  return answer(context, out, [&](gmm_pointer_info *info) { context->query(address, info); });
}

gmm_result gmm_name(gmm_context *context, const void *memory, const char *name) noexcept {
  return call(context, [&]() -> Status {
    if (name != nullptr) GMM_TRY(check_name("A block's name", name, BlockNotes::kNameSize));
    return context->name_block(memory, name);
  });
}

gmm_result gmm_heap_create(gmm_context *context, const gmm_heap_desc *desc, gmm_heap **out) noexcept {
  return make(context, "gmm_heap_create", out, [&]() -> Status {
    gmm_heap_desc copy;
    GMM_TRY(read_checked(desc, GMM_HEAP_EXPORTABLE, &copy));
    GMM_TRY(check_kind(copy.kind));
    GMM_TRY(check_device(*context, copy.device));
    if (copy.tag == GMM_TAG_CURRENT) copy.tag = context->tags().current();
    GMM_TRY(check_tag(*context, copy.tag));
    if (copy.minimum_extent > kMaxSize)
      return fail(GMM_ERROR_SIZE_OVERFLOW,
                  "gmm_heap_desc.minimum_extent = %" PRIu64 " is beyond any address space; request less.",
                  copy.minimum_extent);
    if ((copy.peer_devices >> context->device_count()) != 0)
      return fail(GMM_ERROR_INVALID_DEVICE,
                  "gmm_heap_desc.peer_devices = 0x%" PRIx64
                  " names device %d, which does not exist: there are %u devices; "
                  "clear its bit.",
                  copy.peer_devices, static_cast<int>(std::bit_width(copy.peer_devices)) - 1, context->device_count());
    if (copy.peer_devices != 0 && (copy.kind == GMM_KIND_DEVICE || copy.kind == GMM_KIND_UNSPECIFIED))
      return fail(GMM_ERROR_NOT_SUPPORTED,
                  "gmm_heap_desc.peer_devices = 0x%" PRIx64
                  ": DEVICE memory has no peers; use GMM_KIND_VMM, or clear the field.",
                  copy.peer_devices);
    HeapOptions options;
    options.kind = copy.kind == GMM_KIND_UNSPECIFIED ? Kind::kDevice : static_cast<Kind>(copy.kind);
    options.device = Device{copy.device};
    options.tag = copy.tag;
    options.minimum_extent = copy.minimum_extent;
    options.peers = static_cast<uint32_t>(copy.peer_devices);  // of at most kMaxDevices
    options.exportable = (copy.flags & GMM_HEAP_EXPORTABLE) != 0;
    if (options.exportable && (ipc_routes(context->core(), options) & (GMM_IPC_ROUTE_FD | GMM_IPC_ROUTE_DMA_BUF)) == 0)
      return fail(
          GMM_ERROR_NOT_SUPPORTED,
          "gmm_heap_desc.flags = GMM_HEAP_EXPORTABLE: %s memory of device %d has no descriptor; use VMM or HOST "
          "memory where gmm_device_query() reports CAN_EXPORT_FD.",
          kind_name(options.kind), copy.device);
    return context->make_heap(options, copy.limit == 0 ? GMM_NO_LIMIT : copy.limit, out);
  });
}

gmm_result gmm_heap_reserve(gmm_heap *heap, uint64_t bytes) noexcept {
  return call(heap, [&]() -> Status {
    if (bytes > kMaxSize)
      return fail(GMM_ERROR_SIZE_OVERFLOW,
                  "gmm_heap_reserve: bytes = %" PRIu64 " is beyond any address space; reserve at most %" PRIu64
                  " bytes.",
                  bytes, kMaxSize);
    GMM_TRY(Watchers::check_outside("gmm_heap_reserve"));
    return heap->context->reserve(*heap, bytes);
  });
}

gmm_result gmm_heap_destroy(gmm_heap *heap) noexcept {
  return destroy(heap, [&]() -> Status {
    GMM_TRY(Watchers::check_no_operation("gmm_heap_destroy"));
    return heap->context->end_heap(heap);
  });
}
