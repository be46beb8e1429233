/* SPDX-License-Identifier: Apache-2.0
 *
 * Callbacks. Each language has C trampolines, and a typemap for each of these pairs of arguments:
 *   (gmm_oom_fn fn, void *user)  (gmm_write_fn fn, void *user)  (void (*fn)(void *user), void *user)
 * Callbacks that replace the host allocator stay in C, since the library calls them with locks held.
 */
/* The interpreter of the language names its frames in C: Python's module does. */
%ignore gmm_trace_set_frames;
/* Semaphores order streams with the queues of a graphics API, whose objects C and C++ hold. */
%rename("$ignore", regextarget=1) "^GMM_SEMAPHORE_|_semaphore$";
