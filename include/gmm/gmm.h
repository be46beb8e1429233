/* SPDX-License-Identifier: Apache-2.0 */
/** @file gmm.h  Includes every header of the interface. The headers are C11 and C++17. */
#ifndef GMM_GMM_H
#define GMM_GMM_H

#include <gmm/context.h>
#include <gmm/ipc.h>
#include <gmm/keep.h>
#include <gmm/lease.h>
#include <gmm/memory.h>
#include <gmm/pause.h>
#include <gmm/pin.h>
#include <gmm/residency.h>
#include <gmm/stats.h>
#include <gmm/stream.h>
#include <gmm/types.h>
#include <gmm/version.h>
#include <gmm/watch.h>

#endif
