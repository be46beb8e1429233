// SPDX-License-Identifier: Apache-2.0
// A library that takes ROOM bytes of the storage that the loader keeps for libraries opened late (carried.c). It is
// compiled for the initial-exec model.
__attribute__((visibility("default"))) char *carried_use_room(void);
static __thread char room[ROOM];
char *carried_use_room(void) { return room; }
