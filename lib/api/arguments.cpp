// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

#include "base/name.h"

namespace gmm {
namespace {

constexpr uint32_t kWord = sizeof(uint64_t);

// Some release may have structs of this size. More than 4,096 bytes are garbage.
bool is_struct_size(uint32_t size, uint32_t minimum) {
  return size - minimum <= GrowingStruct::kMaximum - minimum && size % kWord == 0;
}
// The offset of the first word in [begin, end) that is not zero; `end` for none.
uint32_t find_set_word(const void *in, uint32_t begin, uint32_t end) {
  while (begin < end && struct_word(in, begin) == 0) begin += kWord;
  return begin;
}
Status wrong_size(const GrowingStruct &type, uint32_t size) {
  return fail(GMM_ERROR_INVALID_DESCRIPTOR,
              "%s.struct_size = %u is the size of no release; set it to sizeof(%s), %u here, before the call.",
              type.name, size, type.name, type.size);
}

}  // namespace

Status read_other_release(const GrowingStruct &type, const void *in, void *out) {
  std::memset(out, 0, type.size);
  std::memcpy(out, &type.size, sizeof type.size);
  if (in == nullptr) return Status();
  uint32_t size = 0;
  std::memcpy(&size, in, sizeof size);
  if (!is_struct_size(size, type.minimum)) return wrong_size(type, size);
  if (const uint32_t at = find_set_word(in, type.size, size); at < size)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "Bytes %u to %u of %s are newer than gmm %s, which knows %u; clear them, or use a newer gmm.", at,
                at + kWord - 1, type.name, gmm_version_string(), type.size);
  const uint32_t known = size < type.size ? size : type.size;
  std::memcpy(static_cast<char *>(out) + sizeof size, static_cast<const char *>(in) + sizeof size, known - sizeof size);
  return Status();
}

bool has_first_fields_only(const GrowingStruct &type, const void *in, uint32_t size) {
  return is_struct_size(size, type.minimum) && find_set_word(in, type.minimum, size) == size;
}

Status check_other_release(const GrowingStruct &type, const void *out, uint32_t *size) {
  if (out == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "%s: out is NULL; pass the address of a struct.", type.name);
  std::memcpy(size, out, sizeof *size);
  return is_struct_size(*size, type.minimum) ? Status() : wrong_size(type, *size);
}

void fill_other_release(const GrowingStruct &type, const void *value, uint32_t size, void *out) {
  const uint32_t known = size < type.size ? size : type.size;
  char *bytes = static_cast<char *>(out);
  std::memcpy(bytes + sizeof size, static_cast<const char *>(value) + sizeof size, known - sizeof size);
  std::memset(bytes + known, 0, size - known);
}

Status check_plain_name(const char *name, const char *field, const char *whose) {
  if (is_plain_name(name)) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "%s: %s name has 1 to 63 letters, digits, '.', '-' and '_', no '.' first.",
              field, whose);
}

}  // namespace gmm
