/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases, for the languages whose layer is made by SWIG. A language's own file includes this behind gmm.i. It supplies
 * a trampoline and a typemap for
 *   (gmm_lease_ask_fn fn, void *user)
 * and applies its typemaps of handles to gmm_lease *.
 */
%include "owner.i"
%constant uint32_t GMM_LEASE_WITHDRAW = 4294967295u;
%apply SWIGTYPE **GMM_OUT_HANDLE { gmm_lease **out, gmm_ticket **ticket }
%ignore gmm_lease;
%ignore gmm_lease_amount;
/* The command `gmm lease` serves. */
%ignore gmm_lease_serve;
/* gmm_lease_status_read() stands for it. */
%ignore gmm_lease_write;
/* The trampoline passes its fields. */
%ignore gmm_lease_ask;
%ignore gmm_lease_ask_callback;

GMM_STRUCT(gmm_lease_info)

GMM_OWNER(gmm_lease_desc, free((void *)$self->name); free((void *)$self->arbiter);)
GMM_OWNED_TEXT(gmm_lease_desc, name)
GMM_OWNED_TEXT(gmm_lease_desc, arbiter)
%ignore gmm_lease_desc::asked;
%extend gmm_lease_desc {
  void set_asked(gmm_lease_ask_fn fn, void *user) {
    $self->asked.fn = fn;
    $self->asked.user = user;
  }
}

/* add_amount() fills the list of amounts. */
GMM_OWNER(gmm_lease_request_desc, free((void *)$self->amounts);)
%ignore gmm_lease_request_desc::amounts;
%immutable gmm_lease_request_desc::amount_count;
%extend gmm_lease_request_desc {
  gmm_result add_amount(gmm_device device, uint64_t size) {
    const uint32_t count = $self->amount_count;
    gmm_lease_amount *grown = (gmm_lease_amount *)realloc((void *)$self->amounts, (count + 1) * sizeof *grown);
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    grown[count] = (gmm_lease_amount){.device = device, .bytes = size};
    $self->amounts = grown;
    $self->amount_count = count + 1;
    return GMM_OK;
  }
}

/* What an arbiter knows: the object that gmm_lease_write() writes, read by index. */
%{
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef struct gmm_lease_device {
  uint32_t struct_size;
  char uuid[40];
  uint64_t free_bytes, held_bytes, floor_bytes, offered_bytes, wanted_bytes, granted_bytes;
} gmm_lease_device;

typedef struct gmm_lease_member {
  uint32_t struct_size;
  char name[64];
  int32_t process;
  int32_t priority;
  gmm_lease_state state;
  uint64_t since_ms;
  uint32_t device_count;
} gmm_lease_member;

typedef struct gmm_lease_status {
  uint32_t struct_size;
  uint64_t arbiter;
  int32_t process;
  uint32_t member_count;
  uint64_t size;
  char *text;
} gmm_lease_status;

static int32_t add_status(void *user, const char *text, uint64_t size) {
  gmm_lease_status *status = (gmm_lease_status *)user;
  char *grown = (char *)realloc(status->text, status->size + size + 1);
  if (!grown) return 1;
  memcpy(grown + status->size, text, size);
  status->text = grown;
  status->size += size;
  grown[status->size] = 0;
  return 0;
}

/* The value of a field of the object at `object`, whose end no field passes; "" when there is none. */
static const char *status_field(const char *object, const char *end, const char *quoted) {
  const char *found = object ? strstr(object, quoted) : NULL;
  return found && found < end ? found + strlen(quoted) + strspn(found + strlen(quoted), ": ") : "";
}

static uint64_t status_number(const char *object, const char *end, const char *quoted) {
  return strtoull(status_field(object, end, quoted), NULL, 10);
}

static void status_text(const char *object, const char *end, const char *quoted, char *out, size_t room) {
  const char *value = status_field(object, end, quoted);
  const size_t length = *value == '"' ? strcspn(++value, "\"") : 0;
  snprintf(out, room, "%.*s", (int)(length < room ? length : room - 1), value);
}

/* The index-th object of an array, up to its end; NULL: there are fewer. Objects of its objects are none of these, and
 * no text has a bracket: names are plain. */
static const char *status_object(const char *array, uint32_t index, const char **end) {
  const char *begin = NULL;
  int depth = 0;
  *end = array;
  for (const char *at = array; at && *at; ++at) {
    if (*at == '[' || *at == '{') {
      if (++depth == 2 && index-- == 0) begin = at;
    } else if (*at == ']' || *at == '}') {
      if (--depth == 1 && begin) return *end = at, begin;
      if (depth == 0) break;
    }
  }
  return NULL;
}

static uint64_t milliseconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A new arbiter may be there soon: waits for it in the time. */
static gmm_result gmm_lease_status_read(gmm_context *context, const char *arbiter, uint64_t timeout_ms,
                                        gmm_lease_status *status) {
  const uint64_t start = milliseconds_now();
  for (uint64_t past = 0;; usleep(20000)) {
    status->size = 0;
    const gmm_result result = gmm_lease_write(context, arbiter, add_status, status, timeout_ms - past);
    if (result >= 0) break;
    past = milliseconds_now() - start;
    if (result != GMM_ERROR_NOT_READY || past >= timeout_ms) return result;
  }
  const char *members = strstr(status->text, "\"members\""), *end;
  status->arbiter = status_number(status->text, members, "\"incarnation\"");
  status->process = (int32_t)status_number(status->text, members, "\"process\"");
  status->member_count = 0;
  while (status_object(members, status->member_count, &end)) ++status->member_count;
  return GMM_OK;
}

static const char *status_member(const gmm_lease_status *status, uint32_t index, const char **devices,
                                 const char **end) {
  const char *object = status_object(strstr(status->text, "\"members\""), index, end);
  const char *found = object ? strstr(object, "\"devices\"") : NULL;
  *devices = found && found < *end ? found : *end;
  return object;
}
%}

GMM_STRUCT(gmm_lease_device)
GMM_STRUCT(gmm_lease_member)
GMM_OWNER(gmm_lease_status, free($self->text);)
%immutable;
typedef struct gmm_lease_device {
  uint32_t struct_size;
  char uuid[40];
  uint64_t free_bytes, held_bytes, floor_bytes, offered_bytes, wanted_bytes, granted_bytes;
} gmm_lease_device;
typedef struct gmm_lease_member {
  uint32_t struct_size;
  char name[64];
  int32_t process;
  int32_t priority;
  uint32_t state;
  uint64_t since_ms;
  uint32_t device_count;
} gmm_lease_member;
typedef struct gmm_lease_status {
  uint32_t struct_size;
  uint64_t arbiter;
  int32_t process;
  uint32_t member_count;
} gmm_lease_status;
%mutable;
%extend gmm_lease_status {
  void member(uint32_t index, gmm_lease_member *out) {
    const char *devices, *end, *at;
    const char *object = status_member($self, index, &devices, &end);
    char state[16];
    status_text(object, devices, "\"name\"", out->name, sizeof out->name);
    status_text(object, devices, "\"state\"", state, sizeof state);
    out->process = (int32_t)status_number(object, devices, "\"process\"");
    out->priority = (int32_t)strtoll(status_field(object, devices, "\"priority\""), NULL, 10);
    out->state = !strcmp(state, "idle") ? GMM_LEASE_IDLE : !strcmp(state, "in use") ? GMM_LEASE_IN_USE
                                                                                    : GMM_LEASE_WAITING;
    out->since_ms = status_number(object, devices, "\"since_ms\"");
    out->device_count = 0;
    while (object && status_object(devices, out->device_count, &at)) ++out->device_count;
  }
  void device(uint32_t index, uint32_t of_member, gmm_lease_device *out) {
    const char *devices, *end = NULL;
    const char *object = status_member($self, of_member, &devices, &end);
    if (object) object = status_object(devices, index, &end);
    status_text(object, end, "\"uuid\"", out->uuid, sizeof out->uuid);
    out->free_bytes = status_number(object, end, "\"free\"");
    out->held_bytes = status_number(object, end, "\"held\"");
    out->floor_bytes = status_number(object, end, "\"floor\"");
    out->offered_bytes = status_number(object, end, "\"offered\"");
    out->wanted_bytes = status_number(object, end, "\"wanted\"");
    out->granted_bytes = status_number(object, end, "\"granted\"");
  }
}

%{
/* gmm_lease_offer() that waits, up to a minute, while gmm pauses or resumes for the lease. */
static gmm_result gmm_lease_offer_wait(gmm_lease *lease, gmm_tag tag, uint32_t cost) {
  for (int tries = 0;; ++tries) {
    const gmm_result result = gmm_lease_offer(lease, tag, cost);
    if (result != GMM_ERROR_BUSY || tries == 30000 || strstr(gmm_last_error_message(), "another lease")) return result;
    usleep(2000);
  }
}

/* gmm_ticket_wait() that keeps apart an operation that has not ended, which sets *out to 0, and one that ended with
 * NOT_READY, as a request of a lease may. */
static gmm_result gmm_ticket_look(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes, uint32_t *out) {
  gmm_ticket_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_ticket_wait(ticket, timeout_ms, bytes);
  *out = 1;
  if (result != GMM_ERROR_NOT_READY) return result;
  const gmm_result asked = gmm_ticket_query(ticket, &info);
  if (asked < 0) return asked;
  *out = info.state == GMM_TICKET_DONE;
  return *out ? gmm_ticket_wait(ticket, 0, bytes) : GMM_OK;
}
%}
/* Their end is their result, so NOT_READY is an exception. */
%apply gmm_result GMM_END { gmm_result gmm_lease_status_read, gmm_result gmm_ticket_look }
gmm_result gmm_lease_status_read(gmm_context *context, const char *arbiter, uint64_t timeout_ms,
                                 gmm_lease_status *status);
gmm_result gmm_lease_offer_wait(gmm_lease *lease, gmm_tag tag, uint32_t cost);
gmm_result gmm_ticket_look(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes, uint32_t *out);

%include <gmm/lease.h>
