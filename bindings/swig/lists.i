/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists: the tags of a context, and the blocks of a snapshot. Each is an object of C code that is filled once, and then
 * read by index. The hand-written layers make lists of their language from it.
 */
%{
typedef struct gmm_tags {
  uint32_t count;
  gmm_tag *tags;
} gmm_tags;

typedef struct gmm_blocks {
  uint64_t count;
  gmm_snapshot *snapshot;
} gmm_blocks;

static gmm_result fill_tags(gmm_tags *list, gmm_context *context) {
  uint32_t room = list->count;
  for (;;) {
    gmm_result result = gmm_tag_list(context, list->tags, room, &list->count);
    /* Other threads may make tags between two calls. */
    if (result < 0 || list->count <= room) {
      if (result < 0) list->count = 0;
      return result;
    }
    room = list->count + 8;
    gmm_tag *grown = (gmm_tag *)realloc(list->tags, room * sizeof(gmm_tag));
    list->count = 0;
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    list->tags = grown;
  }
}

static gmm_result fill_blocks(gmm_blocks *list, gmm_context *context, const gmm_scope_desc *scope) {
  gmm_snapshot_info info = {.struct_size = sizeof info};
  gmm_snapshot *snapshot = NULL;
  gmm_result result = gmm_snapshot_create(context, scope, &snapshot);
  if (result >= 0) result = gmm_snapshot_query(snapshot, &info);
  if (result < 0) {
    gmm_snapshot_destroy(snapshot);
    return result;
  }
  gmm_snapshot_destroy(list->snapshot);
  list->snapshot = snapshot;
  list->count = info.block_count;
  return GMM_OK;
}
%}

%immutable gmm_tags::count;
%immutable gmm_blocks::count;
typedef struct gmm_tags {
  uint32_t count;
} gmm_tags;
typedef struct gmm_blocks {
  uint64_t count;
} gmm_blocks;

%nodefaultctor gmm_tags;
%nodefaultdtor gmm_tags;
%extend gmm_tags {
  gmm_tags() { return (gmm_tags *)calloc(1, sizeof(gmm_tags)); }
  ~gmm_tags() {
    free($self->tags);
    free($self);
  }
  gmm_result fill(gmm_context *context) { return fill_tags($self, context); }
  /* 0, which is no tag, past the end. */
  gmm_tag at(uint32_t index) { return index < $self->count ? $self->tags[index] : 0; }
}

%nodefaultctor gmm_blocks;
%nodefaultdtor gmm_blocks;
%extend gmm_blocks {
  gmm_blocks() { return (gmm_blocks *)calloc(1, sizeof(gmm_blocks)); }
  ~gmm_blocks() {
    gmm_snapshot_destroy($self->snapshot);
    free($self);
  }
  gmm_result fill(gmm_context *context, const gmm_scope_desc *scope) { return fill_blocks($self, context, scope); }
  gmm_result at(uint64_t index, gmm_block_info *info) {
    return gmm_snapshot_query_block($self->snapshot, index, info);
  }
}
