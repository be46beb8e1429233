/* SPDX-License-Identifier: Apache-2.0 */
/* The builder with which the readers of both formats assemble a trace. */
#ifndef GMM_CLI_TRACE_BUILDER_H
#define GMM_CLI_TRACE_BUILDER_H

#include "cli/trace.h"

struct trace_builder {
  const char *name;
  struct trace trace;
  uint64_t capacity; /* of trace.operations */
  uint64_t requested;
};

/* Grows an array to hold `index`; new items are zero. 0: there is no memory. */
int trace_grow(void **items, uint64_t *capacity, uint64_t index, size_t size);
/* Returns NULL, or what is wrong. */
const char *trace_stream_index(struct trace *trace, uint64_t number, uint32_t *out);
const char *trace_place_index(struct trace *trace, struct trace_place place, uint16_t *out);
const char *trace_add_name(struct trace_name **names, uint32_t *count, gmm_tag tag, const char *text);
const char *trace_add_tag(struct trace *trace, gmm_tag tag, const char *text);
const char *trace_add(struct trace_builder *builder, const struct operation *operation, uint64_t freed);

/* 0: it failed and has printed the cause on stderr. */
int trace_parse_text(struct trace_builder *builder, const unsigned char *bytes, size_t size);
int trace_parse_binary(struct trace_builder *builder, const unsigned char *bytes, size_t size);
int trace_is_binary(const unsigned char *bytes, size_t size);

#endif
