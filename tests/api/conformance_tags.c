// SPDX-License-Identifier: Apache-2.0
// Tags of pause.h: names, nesting for each thread, and the default of the process.
#include "../support/gmm_test.h"

static gmm_tag tag_of_alloc(void) {
  void *block = ALLOC(1000);
  const gmm_tag tag = query(block).tag;
  FREE(block);
  return tag;
}
static void push(gmm_tag tag) {
  OK(gmm_tag_push(context, tag));
  CHECK_EQUAL(tag_of_alloc(), tag);
}
static void pop(gmm_tag below) {
  OK(gmm_tag_pop(context));
  CHECK_EQUAL(tag_of_alloc(), below);
}

CASE(names_find_tags) {
  gmm_tag tag = 0, again = 0, found = 0;
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_FILE, .priority = 3};
  OK(gmm_tag_create(context, "model", &desc, &tag));
  CHECK(tag != GMM_TAG_CURRENT && tag != GMM_TAG_DEFAULT);
  OK(gmm_tag_create(context, "model", NULL, &again));
  CHECK_EQUAL(again, tag);
  OK(gmm_tag_create(context, "model", &desc, &again));
  CHECK_EQUAL(again, tag);
  OK(gmm_tag_find(context, "model", &found));
  CHECK_EQUAL(found, tag);
  again = 77;
  desc.contents = GMM_CONTENTS_HOST;
  RESULT(gmm_tag_create(context, "model", &desc, &again), GMM_ERROR_INVALID_VALUE);
  CHECK_EQUAL(again, 77);
  char name[64];
  memset(name, 'x', 63);
  name[63] = 0;
  OK(gmm_tag_create(context, name, NULL, &tag));
  CHECK(strcmp(tag_info(tag).name, name) == 0);
  char given[] = "copied";
  OK(gmm_tag_create(context, given, NULL, &tag));
  memset(given, 'z', 6);
  CHECK(strcmp(tag_info(tag).name, "copied") == 0);
  CHECK_EQUAL(tag_info(GMM_TAG_DEFAULT).tag, GMM_TAG_DEFAULT);
}

CASE(a_number_means_nothing_in_another_context) {
  gmm_context *own = context, *other = open_context(1);
  const gmm_tag tag = make_tag("model", GMM_CONTENTS_HOST);
  gmm_tag others = 0;
  OK(gmm_tag_create(other, "model", NULL, &others));
  CHECK(others != tag);
  gmm_tag_info info = {.struct_size = sizeof info};
  void *block = NULL;
  const gmm_alloc_desc desc = {.struct_size = sizeof desc, .tag = tag};
  RESULT(gmm_alloc(other, 4096, &desc, &block), GMM_ERROR_INVALID_TAG);
  CHECK(message_has("\"model\" belongs to another context"));
  RESULT(gmm_tag_query(other, tag, &info), GMM_ERROR_INVALID_TAG);
  RESULT(gmm_tag_query(own, others, &info), GMM_ERROR_INVALID_TAG);
  if (on_host_backend()) {  // whose streams are numbers too
    gmm_stream stream = open_stream(), same = NULL;
    OK(gmm_stream_create(other, NULL, &same));
    CHECK(same != stream);
    RESULT(gmm_stream_synchronize(other, stream), GMM_ERROR_INVALID_HANDLE);
  }
  OK(gmm_context_release(other));
  RESULT(gmm_tag_query(own, others, &info), GMM_ERROR_INVALID_TAG);
  CHECK(message_has("does not exist"));
  OK(gmm_tag_query(own, tag, &info));
}

// A snapshot is JSON, and JSON is UTF-8.
CASE(names_are_utf8) {
  static const char *const bad[] = {
      "\xff", "a\x80",           "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xe2\x82", "\xf4\x90\x80\x80", "latin-\xe9-1",
      "\xfe", "\xf0\x80\x80\xaf"};
  gmm_tag_info info = {.struct_size = sizeof info};
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; ++i) {
    gmm_tag tag = 77;
    RESULT(gmm_tag_create(context, bad[i], NULL, &tag), GMM_ERROR_INVALID_VALUE);
    CHECK(message_has("UTF-8"));
    RESULT(gmm_tag_find(context, bad[i], &tag), GMM_ERROR_INVALID_TAG);
    CHECK_EQUAL(tag, 77);
    for (const char *at = gmm_last_error_message(); *at != 0; ++at) CHECK((*at & 0x80) == 0);
  }
  RESULT(gmm_tag_query(context, GMM_TAG_DEFAULT + 1, &info), GMM_ERROR_INVALID_TAG);  // none was made
  gmm_tag tag = make_tag("\xc3\xa9\"\\\n\x01\xf0\x9f\x98\x80", GMM_CONTENTS_DROP);
  ALLOC_TAG(1000, tag);
  char *text = snapshot_text();
  CHECK(strstr(text, "\"\xc3\xa9\\\"\\\\\\n\\u0001\xf0\x9f\x98\x80\"") != NULL);
  free(text);
}

static gmm_tag seen_by_thread[3];
static void *thread_with_own_tags(void *tag) {
  seen_by_thread[0] = tag_of_alloc();
  OK(gmm_tag_push(context, *(gmm_tag *)tag));
  seen_by_thread[1] = tag_of_alloc();
  OK(gmm_tag_pop(context));
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
  seen_by_thread[2] = tag_of_alloc();
  return NULL;
}

CASE(tags_nest_for_each_thread) {
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP), b = make_tag("b", GMM_CONTENTS_DROP),
          c = make_tag("c", GMM_CONTENTS_DROP);
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
  push(a);
  push(b);
  CHECK_EQUAL(query(ALLOC_TAG(1000, c)).tag, c);  // named in the descriptor
  run_thread(thread_with_own_tags, &c);
  CHECK_EQUAL(seen_by_thread[0], GMM_TAG_DEFAULT);
  CHECK_EQUAL(seen_by_thread[1], c);
  CHECK_EQUAL(seen_by_thread[2], GMM_TAG_DEFAULT);
  CHECK_EQUAL(tag_of_alloc(), b);
  push(GMM_TAG_DEFAULT);
  pop(b);
  pop(a);
  pop(GMM_TAG_DEFAULT);
  for (unsigned i = 0; i < 64; ++i) OK(gmm_tag_push(context, i % 2 ? a : b));
  RESULT(gmm_tag_push(context, c), GMM_ERROR_UNBALANCED);
  CHECK_EQUAL(tag_of_alloc(), a);
  for (unsigned i = 0; i < 64; ++i) OK(gmm_tag_pop(context));
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
}

CASE(pushes_belong_to_their_context) {
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP);
  push(a);
  gmm_context *mine = context;
  context = open_context(1);
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
  gmm_context_release(context);
  context = mine;
  CHECK_EQUAL(tag_of_alloc(), a);
  OK(gmm_tag_pop(context));
}

CASE(the_process_default_reaches_threads) {
  gmm_tag a = make_tag("region", GMM_CONTENTS_DROP), c = make_tag("c", GMM_CONTENTS_DROP);
  OK(gmm_tag_set_default(context, a));
  CHECK_EQUAL(tag_of_alloc(), a);
  run_thread(thread_with_own_tags, &c);
  CHECK_EQUAL(seen_by_thread[0], a);
  CHECK_EQUAL(seen_by_thread[1], c);
  CHECK_EQUAL(seen_by_thread[2], a);
  push(c);
  pop(a);
  RESULT(gmm_tag_set_default(context, 3997), GMM_ERROR_INVALID_TAG);
  CHECK_EQUAL(tag_of_alloc(), a);
  OK(gmm_tag_set_default(context, GMM_TAG_DEFAULT));
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
}

CASE(many_tags_are_made) {
  for (unsigned made = 0; made < 10000; ++made) {
    char name[32];
    snprintf(name, sizeof name, "tag %u", made);
    REQUIRE(make_tag(name, GMM_CONTENTS_DROP) != 0);
  }
  static const char *const some[] = {"tag 3000", "tag 4095", "tag 9999"};
  for (unsigned i = 0; i < 3; ++i) {
    gmm_tag found = 0;
    OK(gmm_tag_find(context, some[i], &found));
    CHECK_EQUAL(query(ALLOC_TAG(1000, found)).tag, found);
    CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, found, 0).live_blocks, 1);
  }
  CHECK_EQUAL(stats().live_tags, 3);
}

CASE(tags_are_listed) {
  gmm_tag tags[4] = {9, 9, 9, 9};
  uint32_t count = 77;
  OK(gmm_tag_list(context, NULL, 0, &count));
  CHECK_EQUAL(count, 1);
  const gmm_tag one = make_tag("one", GMM_CONTENTS_DROP), two = make_tag("two", GMM_CONTENTS_DROP);
  OK(gmm_tag_list(context, tags, 2, &count));
  CHECK_EQUAL(count, 3);
  CHECK(tags[0] == GMM_TAG_DEFAULT && tags[1] == one && tags[2] == 9);
  OK(gmm_tag_destroy(context, one));
  OK(gmm_tag_list(context, tags, 4, &count));
  CHECK_EQUAL(count, 2);
  CHECK(tags[0] == GMM_TAG_DEFAULT && tags[1] == two && tags[2] == 9);
}

CASE(an_empty_tag_is_destroyed) {
  const gmm_tag tag = make_tag("short", GMM_CONTENTS_DROP);
  void *block = ALLOC_TAG(3 * MIB, tag);
  RESULT(gmm_tag_destroy(context, tag), GMM_ERROR_BUSY);
  CHECK(message_has("short"));
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  FREE(block);
  CHECK(stats().reserved_bytes > 0);
  OK(gmm_tag_destroy(context, tag));
  CHECK_EQUAL(stats().reserved_bytes, 0);  // its memory went back
  gmm_tag again = 0;
  RESULT(gmm_tag_find(context, "short", &again), GMM_ERROR_INVALID_TAG);
  RESULT(gmm_tag_push(context, tag), GMM_ERROR_INVALID_TAG);
  RESULT(gmm_tag_destroy(context, tag), GMM_ERROR_INVALID_TAG);
  void *more = (void *)0x1;
  RESULT(try_alloc(100, tag, &more), GMM_ERROR_INVALID_TAG);
  CHECK(more == NULL);
  again = make_tag("short", GMM_CONTENTS_HOST);
  CHECK(again != tag);
  CHECK_EQUAL(tag_info(again).contents, GMM_CONTENTS_HOST);
}

static void *push_and_end(void *tag) {
  OK(gmm_tag_push(context, *(gmm_tag *)tag));
  return NULL;
}
CASE(a_used_tag_is_busy) {
  gmm_tag tag = make_tag("used", GMM_CONTENTS_DROP);
  RESULT(gmm_tag_destroy(context, GMM_TAG_DEFAULT), GMM_ERROR_BUSY);
  OK(gmm_tag_push(context, tag));
  RESULT(gmm_tag_destroy(context, tag), GMM_ERROR_BUSY);
  OK(gmm_tag_pop(context));
  OK(gmm_tag_set_default(context, tag));
  RESULT(gmm_tag_destroy(context, tag), GMM_ERROR_BUSY);
  OK(gmm_tag_set_default(context, GMM_TAG_DEFAULT));
  gmm_heap *heap = HEAP(.tag = tag);
  RESULT(gmm_tag_destroy(context, tag), GMM_ERROR_BUSY);
  OK(gmm_heap_destroy(heap));
  run_thread(push_and_end, &tag);
  OK(gmm_tag_destroy(context, tag));
}

// A tag for each request of a server, say.
CASE(tags_come_and_go) {
  gmm_tag before = 0;
  for (unsigned i = 0; i < 5000; ++i) {
    const gmm_tag tag = make_tag("request", GMM_CONTENTS_DROP);
    CHECK(tag > before);
    before = tag;
    if (i % 500 == 0) FREE(ALLOC_TAG(5000, tag));
    OK(gmm_tag_destroy(context, tag));
  }
  uint32_t count = 0;
  OK(gmm_tag_list(context, NULL, 0, &count));
  CHECK_EQUAL(count, 1);
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

int main(void) { return run_cases(); }
