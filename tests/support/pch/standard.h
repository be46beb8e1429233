// SPDX-License-Identifier: Apache-2.0
// Precompiled for C++ programs of many files. Each file includes the headers of what it uses all the same.
#ifndef GMM_TESTS_PCH_STANDARD_H
#define GMM_TESTS_PCH_STANDARD_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#endif
