// SPDX-License-Identifier: Apache-2.0
// The checksum of kept contents: XXH3, 64 bits, by the header of the xxhash library.
#ifndef GMM_ENGINE_BACKUP_CHECKSUM_H
#define GMM_ENGINE_BACKUP_CHECKSUM_H

#include <cstdint>

namespace gmm {

// Whether the library was built with that header.
bool has_backup_checksum();
uint64_t backup_checksum(const void *data, uint64_t size);

}  // namespace gmm
#endif
