// SPDX-License-Identifier: Apache-2.0
// The checksum of a backup chunk: XXH3, 64 bits, of the chunk's bytes. It comes from the header of the xxhash library.
//
// A save with GMM_TAG_CHECKSUM computes it on a copy thread while later batches are copied (transfer.cpp). A restore
// compares it on a copy thread before the device gets the bytes, and BackupStore::read() compares it before it copies.
// Chunk::checksum (tiers.h) keeps it.
#ifndef GMM_ENGINE_BACKUP_CHECKSUM_H
#define GMM_ENGINE_BACKUP_CHECKSUM_H

#include <cstdint>

namespace gmm {

// False when the library was built without xxhash.h. Then api/ refuses GMM_TAG_CHECKSUM.
bool has_chunk_checksum();
uint64_t chunk_checksum(const void *bytes, uint64_t size);

}  // namespace gmm
#endif
