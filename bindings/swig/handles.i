/* SPDX-License-Identifier: Apache-2.0
 *
 * Opaque handles. Each is a class of its own in every language, so that a heap cannot be passed for a context. Handles
 * own nothing: the hand-written layer of each language pairs create with release.
 */
%define GMM_HANDLE(Type)
%nodefaultctor Type;
%nodefaultdtor Type;
struct Type {};
%apply SWIGTYPE **GMM_OUT_HANDLE { Type **out }
%enddef

GMM_HANDLE(gmm_context)
GMM_HANDLE(gmm_heap)
GMM_HANDLE(gmm_event)
GMM_HANDLE(gmm_ticket)
