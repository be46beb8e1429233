/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared interface: what every language sees. It holds no code of any language. A language's own file says %module,
 * supplies the typemaps that ../README.md lists, and then includes this file.
 */
%{
#include <stdlib.h>
#include <string.h>
#include <gmm/gmm.h>
%}

/* The headers' decorations mean nothing to SWIG. */
#define GMM_API
#define GMM_NOEXCEPT
#define GMM_NODISCARD
/* The numbers of <stdint.h> that the headers name. */
%ignore UINT64_MAX;
%ignore UINT32_MAX;
#define UINT64_MAX 0xffffffffffffffffull
#define UINT32_MAX 0xffffffffu

%include "arguments.i"
/* Text, which the languages read from gmm_version_string(). */
%ignore GMM_VERSION_SUFFIX;
%include "callbacks.i"

%include <gmm/types.h>
%include <gmm/version.h>
%include <gmm/context.h>
%include <gmm/memory.h>
%include <gmm/stream.h>
%include <gmm/pin.h>
%include <gmm/residency.h>
%include <gmm/pause.h>
%include <gmm/ipc.h>
%include <gmm/stats.h>
%include <gmm/watch.h>
