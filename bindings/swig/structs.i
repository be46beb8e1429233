/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors and answers. A new one is all zero with its struct_size set. C code allocates and frees it, whether SWIG
 * writes C or C++.
 */
%include "owner.i"

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

/* Answers, which the library fills. The language decodes their bytes. */
%define GMM_ANSWER(Type)
GMM_STRUCT(Type)
GMM_QUICK(Type::data)
%extend Type {
  PyObject *data() { return PyBytes_FromStringAndSize((const char *)$self, $self->struct_size); }
}
%enddef
GMM_ANSWER(gmm_context_info)
GMM_ANSWER(gmm_device_info)
GMM_ANSWER(gmm_pointer_info)
GMM_ANSWER(gmm_tag_info)
GMM_ANSWER(gmm_stats_info)
GMM_ANSWER(gmm_ticket_info)
GMM_STRUCT(gmm_ipc_fd_info)
GMM_STRUCT(gmm_ipc_legacy_info)
GMM_ANSWER(gmm_backup_info)
GMM_ANSWER(gmm_block_info)
GMM_ANSWER(gmm_compact_info)

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

GMM_OWNER(gmm_backup_desc, free((void *)$self->directory);)
GMM_OWNED_TEXT(gmm_backup_desc, directory)

/* add_user() fills the list of users. */
GMM_OWNER(gmm_ipc_desc, free((void *)$self->directory); free((void *)$self->users);)
GMM_OWNED_TEXT(gmm_ipc_desc, directory)
%ignore gmm_ipc_desc::users;
%immutable gmm_ipc_desc::user_count;
%extend gmm_ipc_desc {
  gmm_result add_user(uint32_t user) {
    uint32_t *grown = (uint32_t *)realloc((void *)$self->users, ($self->user_count + 1) * sizeof(uint32_t));
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    grown[$self->user_count++] = user;
    $self->users = grown;
    return GMM_OK;
  }
}

/* add_tag() fills the list of the tags of a pause. */
GMM_OWNER(gmm_pause_desc, free((void *)$self->tags);)
%ignore gmm_pause_desc::tags;
%immutable gmm_pause_desc::tag_count;
%extend gmm_pause_desc {
  gmm_result add_tag(gmm_tag tag) {
    gmm_tag *grown = (gmm_tag *)realloc((void *)$self->tags, ($self->tag_count + 1) * sizeof(gmm_tag));
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    grown[$self->tag_count++] = tag;
    $self->tags = grown;
    return GMM_OK;
  }
}
