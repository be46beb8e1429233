/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of both formats put a trace together with. */
#ifndef GMM_CLI_TRACE_BUILDER_H
#define GMM_CLI_TRACE_BUILDER_H

#include "cli/trace.h"

struct trace_builder {
  const char *name;
  struct trace trace;
  uint64_t capacity; /* of trace.operations */
  uint64_t requested;
};

/* Grows an array to hold `index`; new items are zero. 0: no memory. */
int trace_grow(void **items, uint64_t *capacity, uint64_t index, size_t size);
/* NULL when it went well; else what is wrong. */
const char *trace_stream_index(struct trace *trace, uint64_t number, uint32_t *out);
const char *trace_add(struct trace_builder *builder, const struct operation *operation, uint64_t freed);

/* 0 after saying on stderr what is wrong. */
int trace_parse_text(struct trace_builder *builder, const unsigned char *bytes, size_t size);
int trace_parse_binary(struct trace_builder *builder, const unsigned char *bytes, size_t size);
int trace_is_binary(const unsigned char *bytes, size_t size);

#endif
