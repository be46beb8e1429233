/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs that are classes of SWIG's own. A new one is all zero with its struct_size set. C code allocates and frees
 * it.
 */
%immutable struct_size;
%ignore reserved;

%define GMM_STRUCT(Type)
GMM_OWNER(Type, )
%enddef

/* A language may define what its making of a struct needs, which calls nothing of the library. */
#ifndef GMM_QUICK
%define GMM_QUICK(Function)
%enddef
#endif

/* One that owns something, which End frees. */
%define GMM_OWNER(Type, End)
GMM_QUICK(Type::Type)
%nodefaultctor Type;
%nodefaultdtor Type;
%extend Type {
  Type() {
    Type *made = (Type *)calloc(1, sizeof(Type));
    if (made) made->struct_size = (uint32_t)sizeof(Type);
    return made;
  }
  ~Type() {
    End
    free($self);
  }
}
%enddef

/* A field of text that the struct owns: languages set it by a function, which copies. */
%define GMM_OWNED_TEXT(Type, Field)
%ignore Type::Field;
%extend Type {
  gmm_result set_##Field(const char *text) {
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    free((void *)$self->Field);
    $self->Field = copy;
    return GMM_OK;
  }
}
%enddef
