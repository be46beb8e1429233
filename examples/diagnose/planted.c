// SPDX-License-Identifier: Apache-2.0
// An image service with three mistakes that README.md finds: a leak, a fragmented heap, and a write past a block.
// Usage: planted [REQUESTS]
#include <gmm/gmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gmm_context *context;

static void must(gmm_result result) {
  if (result >= 0) return;
  fprintf(stderr, "planted: %s\n", gmm_last_error_message());
  exit(1);
}

static void *take(const char *tag, gmm_kind kind, uint64_t size) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = kind};
  void *memory;
  must(gmm_tag_create(context, tag, NULL, &desc.tag));
  must(gmm_alloc(context, size, &desc, &memory));
  return memory;
}

static void give(void *memory) { must(gmm_free(context, memory, GMM_STREAM_DEFAULT)); }

// Mistake 1: nobody frees the thumbnails.
static void add_thumbnail(void) { (void)take("thumbnails", GMM_KIND_VMM, 96 << 10); }

static void add_image(void) {
  void *image = take("images", GMM_KIND_VMM, 12 << 20);
  add_thumbnail();
  give(image);
}

// Mistake 2: one tile of each 16 stays until the end, and each keeps the memory around it from the driver.
static void draw_map(void **kept) {
  void *tiles[256];
  for (int i = 0; i < 256; ++i) tiles[i] = take("tiles", GMM_KIND_VMM, 256 << 10);
  for (int i = 0; i < 256; ++i)
    if (i % 16 != 0) give(tiles[i]);
  for (int i = 0; i < 256; i += 16) kept[i / 16] = tiles[i];
}

// Mistake 3: the end of the text is written past the block.
static void write_label(void) {
  char *label = take("labels", GMM_KIND_HOST, 1000);
  memset(label, ' ', 1000);
  label[1000] = '\0';
  give(label);
}

int main(int count, char **words) {
  const int requests = count > 1 ? atoi(words[1]) : 200;
  void *kept[16];
  must(gmm_context_create(NULL, &context));
  draw_map(kept);
  for (int i = 0; i < requests; ++i) add_image();
  write_label();
  for (int i = 0; i < 16; ++i) give(kept[i]);
  must(gmm_context_release(context));
  return 0;
}
