/* SPDX-License-Identifier: Apache-2.0 */
/* The forms in which `gmm trace` shows traces: one reader (cli/trace.h), and a function for each viewer. */
#ifndef GMM_CLI_VIEWS_VIEWS_H
#define GMM_CLI_VIEWS_VIEWS_H

#include <stdio.h>

#include "cli/trace.h"

/* The events that are shown. A free, a use and a name are chosen as their block's alloc is. */
struct view_choice {
  const char *tag;      /* NULL: all */
  gmm_kind kind;        /* UNSPECIFIED: all */
  uint64_t from, to;    /* nanoseconds since the first trace began, `to` included */
  uint64_t least, most; /* bytes of a block */
  int at_peak;          /* a view of one moment: that of the most live bytes between from and to; 0: `to` */
};

/* The traces of one or several processes, which a view shows on one clock. */
struct view_input {
  struct trace *traces;
  uint32_t count;
  struct view_choice choice;
};

/* Each writes a whole file. Errors of `out` are the caller's. */
void view_text(const struct view_input *input, FILE *out);
void view_plain(const struct view_input *input, FILE *out); /* the lines `a ID BYTES STREAM` and `f ID STREAM` */
void view_csv(const struct view_input *input, FILE *out);
void view_perfetto(const struct view_input *input, FILE *out);   /* protobuf of ui.perfetto.dev */
void view_memory_viz(const struct view_input *input, FILE *out); /* JSON of pytorch.org/memory_viz */
void view_pprof(const struct view_input *input, FILE *out);      /* protobuf of pprof, packed by gzip */
void view_html(const struct view_input *input, FILE *out);       /* one page, without network */

#endif
