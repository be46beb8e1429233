// SPDX-License-Identifier: Apache-2.0
// The base of classes that own something or point into themselves.
#ifndef GMM_BASE_NO_COPY_H
#define GMM_BASE_NO_COPY_H

namespace gmm {

class NoCopy {
 public:
  constexpr NoCopy() = default;
  NoCopy(const NoCopy &) = delete;
  NoCopy &operator=(const NoCopy &) = delete;
};

}  // namespace gmm
#endif
