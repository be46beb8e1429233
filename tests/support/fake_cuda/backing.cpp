// SPDX-License-Identifier: Apache-2.0
// The bytes behind device memory, and the way from an address to them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "stream.h"

namespace fake {
namespace {

// Follows the bytes in the file, so that another process knows the memory.
struct Trailer {
  char magic[16];
  uint64_t id, size;
  int32_t device;
  uint32_t shareable;
};
constexpr char kBackingMagic[16] = "fake-cuda-mem-1";

bool map_alias(Backing *backing) {
  void *alias = mmap(nullptr, backing->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, backing->fd, 0);
  if (alias == MAP_FAILED) return false;
  backing->alias = static_cast<char *>(alias);
  return true;
}

size_t to_page(size_t size) { return (size + kPage - 1) / kPage * kPage; }

// Memory that ended here and that others hold, by its file.
struct Held {
  int fd, device;
  uint64_t charged;
};
std::mutex held_mutex;
std::vector<Held> &held() { return forever<std::vector<Held>>(); }

void uncharge(int device, uint64_t bytes) { (device == kHost ? state().host_bytes : state().used[device]) -= bytes; }

// A lock of an open file description lives as long as its duplicates and mappings, in any process.
bool held_elsewhere(int fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace

static uint32_t check_of(Wire wire) {
  wire.check = 0;
  uint32_t sum = 2166136261u;
  const auto *bytes = reinterpret_cast<const unsigned char *>(&wire);
  for (size_t i = 0; i < sizeof wire; i++) sum = (sum ^ bytes[i]) * 16777619u;
  return sum;
}

void write_wire(void *out, Wire wire) {
  static_assert(sizeof wire == CU_IPC_HANDLE_SIZE);
  wire.pid = getpid();
  wire.check = check_of(wire);
  memcpy(out, &wire, sizeof wire);
}

bool read_wire(const void *bytes, uint64_t kind, Wire *out) {
  memcpy(out, bytes, sizeof *out);
  return out->kind == kind && out->check == check_of(*out);
}

int open_of_process(int pid, int fd) {
  return open(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
}

bool lock_shared(int fd) {
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

int export_backing(Backing *backing) {
  int opened = open_of_process(getpid(), backing->fd);
  if (opened < 0) return -1;
  backing->exported = lock_shared(opened);
  int fd = fcntl(opened, F_DUPFD_CLOEXEC, 3);
  close(opened);
  return fd;
}

void settle_exported() {
  std::lock_guard<std::mutex> guard(held_mutex);
  std::erase_if(held(), [](const Held &each) {
    if (held_elsewhere(each.fd)) return false;
    close(each.fd);
    uncharge(each.device, each.charged);
    return true;
  });
}

Backing::~Backing() {
  if (alias) munmap(alias, size);
  if (exported && charged && held_elsewhere(fd)) {
    std::lock_guard<std::mutex> guard(held_mutex);
    held().push_back({fd, device, charged});
    return;
  }
  if (fd >= 0) close(fd);
  if (charged) uncharge(device, charged);
}

std::shared_ptr<Backing> make_backing(size_t size, int device, uint64_t bytes, bool shareable) {
  if (device != kHost && !charge(device, bytes)) return nullptr;
  if (device == kHost) state().host_bytes += bytes;
  auto backing = std::make_shared<Backing>();
  backing->device = device;
  backing->charged = bytes;
  backing->size = to_page(size);
  backing->shareable = shareable;
  if (getrandom(&backing->id, sizeof backing->id, 0) != sizeof backing->id) return nullptr;
  backing->fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (backing->fd < 0) return nullptr;
  Trailer trailer{{}, backing->id, backing->size, device, shareable};
  memcpy(trailer.magic, kBackingMagic, sizeof kBackingMagic);
  if (ftruncate(backing->fd, static_cast<off_t>(backing->size + kPage)) != 0 ||
      pwrite(backing->fd, &trailer, sizeof trailer, static_cast<off_t>(backing->size)) != sizeof trailer ||
      !map_alias(backing.get()))
    return nullptr;
  return backing;
}

std::shared_ptr<Backing> adopt_backing(int fd, uint64_t id) {
  auto backing = std::make_shared<Backing>();
  backing->fd = fd;
  struct stat status;
  Trailer trailer;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= static_cast<off_t>(kPage))
    return nullptr;
  size_t size = static_cast<size_t>(status.st_size) - kPage;
  if (pread(fd, &trailer, sizeof trailer, static_cast<off_t>(size)) != sizeof trailer ||
      memcmp(trailer.magic, kBackingMagic, sizeof kBackingMagic) != 0 || trailer.size != size ||
      (id && id != trailer.id))
    return nullptr;
  backing->size = size;
  backing->device = trailer.device;
  backing->id = trailer.id;
  backing->shareable = trailer.shareable != 0;
  return map_alias(backing.get()) ? backing : nullptr;
}

char *reserve_addresses(size_t size, size_t alignment) {
  if (alignment < kPage) alignment = kPage;
  size_t whole = to_page(size) + alignment;
  if (whole < size) return nullptr;
  void *got = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  auto start = reinterpret_cast<uintptr_t>(got);
  uintptr_t base = (start + alignment - 1) / alignment * alignment;
  if (base > start) munmap(got, base - start);
  uintptr_t end = base + to_page(size);
  if (start + whole > end) munmap(reinterpret_cast<void *>(end), start + whole - end);
  return reinterpret_cast<char *>(base);
}

// The last entry whose base is at or below the address.
template <class Map>
static auto at_or_below(Map &map, uintptr_t address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

Region *find_region(uintptr_t address) {
  auto it = at_or_below(state().regions, address);
  return it != state().regions.end() && address - it->second.base < it->second.size ? &it->second : nullptr;
}

Mapping *find_mapping(uintptr_t address, uintptr_t *base) {
  auto it = at_or_below(state().mappings, address);
  if (it == state().mappings.end() || address - it->first >= it->second.size) return nullptr;
  if (base) *base = it->first;
  return &it->second;
}

bool find_reservation(uintptr_t address, uintptr_t *base, size_t *size) {
  auto it = at_or_below(state().reservations, address);
  if (it == state().reservations.end() || address - it->first >= it->second) return false;
  if (base) *base = it->first;
  if (size) *size = it->second;
  return true;
}

static CUresult translate_mapped(uintptr_t address, size_t size, bool write, int device, std::vector<Piece> *out) {
  while (size) {
    uintptr_t base = 0;
    Mapping *mapping = find_mapping(address, &base);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    unsigned access = mapping->access[device];
    if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE || (write && access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
      return CUDA_ERROR_INVALID_VALUE;
    size_t part = std::min(size, mapping->size - (address - base));
    if (out) out->push_back({mapping->physical->backing->alias + (address - base), part, mapping->physical->backing});
    address += part;
    size -= part;
  }
  return CUDA_SUCCESS;
}

CUresult translate(uintptr_t address, size_t size, bool write, int device, std::vector<Piece> *out, Where *where) {
  if (!address || address + size < address) return CUDA_ERROR_INVALID_VALUE;
  if (find_reservation(address, nullptr, nullptr)) {
    *where = Where::device;
    Mapping *mapping = find_mapping(address, nullptr);
    if (mapping && mapping->physical->backing->device == kHost) *where = Where::pinned;
    return translate_mapped(address, size, write, device, out);
  }
  if (Region *region = find_region(address)) {
    if (size > region->size - (address - region->base)) return CUDA_ERROR_INVALID_VALUE;
    bool direct = !region->backing;
    *where = region->kind == Kind::managed ? Where::managed : direct ? Where::pinned : Where::device;
    char *data = direct ? reinterpret_cast<char *>(address) : region->backing->alias + (address - region->view);
    if (out) out->push_back({data, size, region->backing});
    return CUDA_SUCCESS;
  }
  // Memory that CUDA does not know: no part of it may be CUDA's.
  if (size) {
    auto next = state().regions.lower_bound(address);
    if (next != state().regions.end() && next->first < address + size) return CUDA_ERROR_INVALID_VALUE;
    auto reserved = state().reservations.lower_bound(address);
    if (reserved != state().reservations.end() && reserved->first < address + size) return CUDA_ERROR_INVALID_VALUE;
  }
  *where = Where::pageable;
  if (out) out->push_back({reinterpret_cast<char *>(address), size, nullptr});
  return CUDA_SUCCESS;
}

uintptr_t add_view(const std::shared_ptr<Backing> &backing, Kind kind, size_t offset, size_t size, Context *context) {
  State &s = state();
  char *view = reserve_addresses(backing->size, kGranularity);
  if (!view) return 0;
  if (s.configuration.cpu_access &&
      mmap(view, backing->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, backing->fd, 0) == MAP_FAILED) {
    munmap(view, backing->size);
    return 0;
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(view);
  s.regions[start + offset] =
      Region{kind, start + offset, size, start, backing->size, backing, context, 0, s.next_id++, 1};
  return start + offset;
}

void drop_region(std::map<uintptr_t, Region>::iterator it) {
  Region &region = it->second;
  if (region.kind == Kind::host || region.kind == Kind::registered) state().host_bytes -= region.size;
  if (region.kind != Kind::registered) munmap(reinterpret_cast<void *>(region.view), region.view_size);
  state().regions.erase(it);
}

CUresult free_region(uintptr_t address, std::initializer_list<Kind> kinds, std::unique_lock<std::mutex> &lock) {
  auto &regions = state().regions;
  for (bool has_waited = false;; has_waited = true) {
    auto it = regions.find(address);
    if (it == regions.end() || std::find(kinds.begin(), kinds.end(), it->second.kind) == kinds.end())
      return CUDA_ERROR_INVALID_VALUE;
    if (has_waited || it->second.kind == Kind::pool) return drop_region(it), CUDA_SUCCESS;
    wait_for_context(it->second.context, lock);
  }
}

void release_context_regions(Context *context) {
  auto &regions = state().regions;
  for (auto it = regions.begin(); it != regions.end();) {
    auto next = std::next(it);
    if (it->second.context == context) {
      state().dropped++;
      drop_region(it);
    }
    it = next;
  }
}

}  // namespace fake
