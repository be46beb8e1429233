// SPDX-License-Identifier: Apache-2.0
// Precompiled for the programs with GoogleTest. Each file includes what it uses all the same.
#ifndef GMM_TESTS_PCH_GTEST_H
#define GMM_TESTS_PCH_GTEST_H

#include <gtest/gtest.h>

#include "standard.h"

#endif
