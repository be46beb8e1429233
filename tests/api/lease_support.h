// SPDX-License-Identifier: Apache-2.0
// A small device that processes share, and a folder for the sockets of the test alone.
#ifndef GMM_TESTS_LEASE_SUPPORT_H
#define GMM_TESTS_LEASE_SUPPORT_H

#include <dirent.h>

#include "../support/gmm_test.h"

#ifndef CARD_MIB
#define CARD_MIB 16
#endif
static const uint64_t CARD = CARD_MIB * MIB;
__attribute__((unused)) static const uint64_t PART = 10 * MIB;  // of the device: two do not fit
static char folder[64];

// Bytes beyond the offered tags; 0: none.
__attribute__((unused)) static gmm_result request_of(gmm_lease *lease, uint64_t bytes, uint64_t timeout_ms) {
  const gmm_lease_amount amount = {.device = device, .bytes = bytes};
  return gmm_lease_request(
      lease, DESC(lease_request_desc, .amounts = &amount, .amount_count = bytes != 0 ? 1 : 0, .timeout_ms = timeout_ms),
      NULL);
}

// Before the first context. The fake driver and the card of the host backend have CARD bytes.
static void make_card(void) {
  strcpy(folder, "/tmp/gmm-lease-XXXXXX");
  if (mkdtemp(folder) == NULL) exit(99);
  char path[96];
  snprintf(path, sizeof path, "%s/card", folder);
  char bytes[32];
  snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)CARD);
  setenv("GMM_IPC_DIR", folder, 1);
  setenv("GMM_HOST_CARD", path, 1);
  snprintf(path, sizeof path, "%s/gpu", folder);
  setenv("FAKE_CUDA_LEDGER", path, 1);
  setenv("FAKE_CUDA_MEMORY", bytes, 1);
  // The first one says how large the card is.
  const gmm_context_desc desc = {.struct_size = sizeof desc, .host_devices = 2, .host_memory = CARD};
  gmm_context *first = NULL;
  if (gmm_context_create(&desc, &first) != GMM_OK) {
    printf("Bail out! no context: %s\n", gmm_last_error_message());
    exit(99);
  }
  gmm_context_release(first);
}
static void remove_card(void) {
  DIR *listing = opendir(folder);
  char path[400];
  for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    unlink(path);
  }
  if (listing != NULL) closedir(listing);
  rmdir(folder);
}

#endif
