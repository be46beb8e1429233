/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors and answers. A new one is all zero with its struct_size set. C code allocates and frees it, whether SWIG
 * writes C or C++.
 */
%immutable struct_size;
%ignore reserved;

%define GMM_STRUCT(Type)
%nodefaultctor Type;
%nodefaultdtor Type;
%extend Type {
  Type() {
    Type *made = (Type *)calloc(1, sizeof(Type));
    if (made) made->struct_size = (uint32_t)sizeof(Type);
    return made;
  }
  ~Type() { free($self); }
}
%enddef

GMM_STRUCT(gmm_context_desc)
GMM_STRUCT(gmm_alloc_desc)
GMM_STRUCT(gmm_heap_desc)
GMM_STRUCT(gmm_stream_desc)
GMM_STRUCT(gmm_event_desc)
GMM_STRUCT(gmm_pin_desc)
GMM_STRUCT(gmm_move_desc)
GMM_STRUCT(gmm_tag_desc)
GMM_STRUCT(gmm_ipc_import_desc)
GMM_STRUCT(gmm_ipc_fd_desc)
GMM_STRUCT(gmm_scope_desc)
GMM_STRUCT(gmm_compact_desc)

/* Answers, which the library fills. */
GMM_STRUCT(gmm_context_info)
GMM_STRUCT(gmm_device_info)
GMM_STRUCT(gmm_pointer_info)
GMM_STRUCT(gmm_tag_info)
GMM_STRUCT(gmm_stats_info)
GMM_STRUCT(gmm_ticket_info)
GMM_STRUCT(gmm_ipc_fd_info)
GMM_STRUCT(gmm_ipc_legacy_info)
GMM_STRUCT(gmm_backup_info)
GMM_STRUCT(gmm_block_info)
GMM_STRUCT(gmm_compact_info)

/* The library lends one to the out-of-memory handler for the time of its call. */
%nodefaultctor gmm_oom_info;
%nodefaultdtor gmm_oom_info;

%immutable gmm_device_info::uuid;
%immutable gmm_device_info::luid;
%immutable gmm_ipc_legacy_info::bytes;

/* A descriptor keeps no heap alive, so the languages name a scope. */
%ignore gmm_compact_desc::heap;

/* The heap of a block may be gone, so no language gets it to use. */
%ignore gmm_block_info::heap;

/* A field that holds a result is a number: reading it fails for no result. */
%apply int32_t { gmm_result gmm_ticket_info::result };

/* The descriptor owns the text of its directory. */
%ignore gmm_backup_desc::directory;
%nodefaultctor gmm_backup_desc;
%nodefaultdtor gmm_backup_desc;
%extend gmm_backup_desc {
  gmm_backup_desc() {
    gmm_backup_desc *made = (gmm_backup_desc *)calloc(1, sizeof(gmm_backup_desc));
    if (made) made->struct_size = (uint32_t)sizeof(gmm_backup_desc);
    return made;
  }
  ~gmm_backup_desc() {
    free((void *)$self->directory);
    free($self);
  }
  gmm_result set_directory(const char *directory) {
    char *copy = directory ? strdup(directory) : NULL;
    if (directory && !copy) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    free((void *)$self->directory);
    $self->directory = copy;
    return GMM_OK;
  }
}

/* The configuration owns the text of its directory and its list of users, which add_user() fills. */
%ignore gmm_ipc_desc::directory;
%ignore gmm_ipc_desc::users;
%immutable gmm_ipc_desc::user_count;
%nodefaultctor gmm_ipc_desc;
%nodefaultdtor gmm_ipc_desc;
%extend gmm_ipc_desc {
  gmm_ipc_desc() {
    gmm_ipc_desc *made = (gmm_ipc_desc *)calloc(1, sizeof(gmm_ipc_desc));
    if (made) made->struct_size = (uint32_t)sizeof(gmm_ipc_desc);
    return made;
  }
  ~gmm_ipc_desc() {
    free((void *)$self->directory);
    free((void *)$self->users);
    free($self);
  }
  gmm_result set_directory(const char *directory) {
    char *copy = directory ? strdup(directory) : NULL;
    if (directory && !copy) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    free((void *)$self->directory);
    $self->directory = copy;
    return GMM_OK;
  }
  gmm_result add_user(uint32_t user) {
    uint32_t *grown = (uint32_t *)realloc((void *)$self->users, ($self->user_count + 1) * sizeof(uint32_t));
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    grown[$self->user_count++] = user;
    $self->users = grown;
    return GMM_OK;
  }
}

/* The descriptor owns the list of the tags of a pause, which add_tag() fills. */
%ignore gmm_pause_desc::tags;
%immutable gmm_pause_desc::tag_count;
%nodefaultctor gmm_pause_desc;
%nodefaultdtor gmm_pause_desc;
%extend gmm_pause_desc {
  gmm_pause_desc() {
    gmm_pause_desc *made = (gmm_pause_desc *)calloc(1, sizeof(gmm_pause_desc));
    if (made) made->struct_size = (uint32_t)sizeof(gmm_pause_desc);
    return made;
  }
  ~gmm_pause_desc() {
    free((void *)$self->tags);
    free($self);
  }
  gmm_result add_tag(gmm_tag tag) {
    gmm_tag *grown = (gmm_tag *)realloc((void *)$self->tags, ($self->tag_count + 1) * sizeof(gmm_tag));
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    grown[$self->tag_count++] = tag;
    $self->tags = grown;
    return GMM_OK;
  }
}
