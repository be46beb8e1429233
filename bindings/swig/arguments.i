/* SPDX-License-Identifier: Apache-2.0
 *
 * The typemaps of the catalogue for the arguments of the headers. Each language defines the GMM_* patterns.
 */

/* An address is a number in every language. It may point anywhere, and the bindings never read through it. */
%apply void *GMM_ADDRESS { void *, const void *, gmm_stream }

%apply void **GMM_OUT_ADDRESS { void **out, const void **out, void **device_pointer, gmm_stream *out }
%apply uint64_t *GMM_OUT_UINT64 { uint64_t *out, uint64_t *bytes }
%apply uint32_t *GMM_OUT_UINT32 { uint32_t *out, gmm_tag *out, uint32_t *count }

/* An IPC handle is bytes that a program sends somewhere, so languages see bytes and no class. */
%ignore gmm_ipc_handle;
%apply gmm_ipc_handle *GMM_OUT_BYTES { gmm_ipc_handle *out }
%apply const gmm_ipc_handle *GMM_IN_BYTES { const gmm_ipc_handle *handle }
