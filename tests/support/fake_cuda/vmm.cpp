// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: addresses, physical memory, mappings and their access rights.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"
#include "stream.h"

using namespace fake;

namespace {

bool aligned(uint64_t value) { return value % kGranularity == 0; }
void *pointer(uint64_t address) { return reinterpret_cast<void *>(address); }

CUresult check_properties(const CUmemAllocationProp *p, int *device) {
  if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->win32HandleMetaData) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned char byte : p->allocFlags.reserved)
    if (byte) return CUDA_ERROR_INVALID_VALUE;
  if (p->allocFlags.compressionType > 1 || p->allocFlags.usage) return CUDA_ERROR_INVALID_VALUE;
  if (p->allocFlags.gpuDirectRDMACapable > 1) return CUDA_ERROR_INVALID_VALUE;
  if (p->allocFlags.gpuDirectRDMACapable && lacks("rdma")) return CUDA_ERROR_NOT_SUPPORTED;
  int types = p->requestedHandleTypes;
  if (types & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) return CUDA_ERROR_INVALID_VALUE;
  if ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) && lacks("fd")) return CUDA_ERROR_NOT_SUPPORTED;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) && (lacks("fabric") || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE))
    return CUDA_ERROR_NOT_SUPPORTED;
  switch (static_cast<int>(p->location.type)) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!valid_device(p->location.id)) return CUDA_ERROR_INVALID_DEVICE;
      *device = p->location.id;
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:  // of no NUMA node, and not for other processes; new in CUDA 13
      if (state().configuration.version < 13000 || lacks("host_vmm")) return CUDA_ERROR_NOT_SUPPORTED;
      *device = kHost;
      return types ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (lacks("host_vmm")) return CUDA_ERROR_NOT_SUPPORTED;
      *device = kHost;
      return p->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // CURRENT is none for memory
  }
}

Handle *find_handle(CUmemGenericAllocationHandle value) {
  auto it = state().handles.find(value);
  return it == state().handles.end() ? nullptr : &it->second;
}

// Calls `each` for the mappings that fill [address, address + size) exactly; false when they do not.
template <class F>
bool for_whole_mappings(uint64_t address, size_t size, F each) {
  uintptr_t base = 0, reservation = 0;
  size_t reserved = 0;
  if (!size || !find_reservation(address, &reservation, &reserved)) return false;
  if (size > reserved - (address - reservation)) return false;
  for (uint64_t at = address, end = address + size; at < end;) {
    Mapping *mapping = find_mapping(at, &base);
    if (!mapping || base != at || mapping->size > end - at) return false;
    at += mapping->size;
  }
  for (uint64_t at = address, end = address + size; at < end;) {
    Mapping *mapping = find_mapping(at, &base);
    at += mapping->size;
    each(base, mapping);
  }
  return true;
}

// The descriptor behind a fabric handle, which holds the memory, or -1.
int open_fabric(const void *handle, uint64_t *id) {
  Wire wire;
  if (!read_wire(handle, kFabricWire, &wire)) return -1;
  *id = wire.id;
  const int fd = open_of_process(wire.pid, wire.fd);
  if (fd >= 0) lock_shared(fd);
  return fd;
}

// Whether a part of whole mappings is another device's memory.
bool foreign_to(uint64_t address, size_t size, int device) {
  bool is_of_another = false;
  for_whole_mappings(address, size, [&](uint64_t, Mapping *mapping) {
    const int owner = mapping->physical->backing->device;
    is_of_another = is_of_another || (owner != kHost && owner != device);
  });
  return is_of_another;
}

// The CPU's access to a mapping: pages of a device are not the CPU's to read.
int protection(const Mapping &mapping) {
  unsigned access = mapping.host_access;
  if (mapping.physical->backing->device != kHost) {
    access = 0;
    if (state().configuration.cpu_access)
      for (unsigned each : mapping.access) access = std::max(access, each);
  }
  return access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
         : access == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                      : PROT_NONE;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
  FAKE_CUDA_ENTER(cuMemGetAllocationGranularity);
  int device;
  if (!granularity || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
  if (lacks("vmm")) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult wrong = check_properties(properties, &device)) return wrong;
  // Larger pages are better for network adapters and switches.
  const bool large = option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED && properties->allocFlags.gpuDirectRDMACapable;
  *granularity = large ? 2 * kGranularity : kGranularity;
  if (has_quirk("granularity")) *granularity = kPage;  // ROCR-Runtime#287, rocm-systems#2516
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemAddressReserve,
                  !out || !size || !aligned(size) || flags || (alignment & (alignment - 1)) || hint % kPage);
  if (lacks("vmm")) return CUDA_ERROR_NOT_SUPPORTED;
  char *got = nullptr;
  if (hint && aligned(hint)) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *there = mmap(pointer(hint), size, PROT_NONE, flags, -1, 0);
    if (there != MAP_FAILED) got = static_cast<char *>(there);
  }
  if (!got && size <= (uint64_t{1} << 46)) got = reserve_addresses(size, std::max(alignment, kGranularity));
  if (!got) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(got);
  state().reservations[*out] = size;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  FAKE_CUDA_ENTER(cuMemAddressFree);
  State &s = state();
  auto it = s.reservations.find(address);
  if (it == s.reservations.end() || it->second != size) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = s.mappings.lower_bound(address);
  if (mapping != s.mappings.end() && mapping->first < address + size) return CUDA_ERROR_INVALID_VALUE;
  // One unmap over several mappings was no error; this is (ROCR-Runtime#285).
  if (s.stuck.count(address)) return CUDA_ERROR_UNKNOWN;
  munmap(pointer(address), size);
  s.reservations.erase(it);
  s.lingering.erase(address);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemCreate, !out || !size || !aligned(size) || flags);
  if (lacks("vmm")) return CUDA_ERROR_NOT_SUPPORTED;
  int device;
  if (CUresult wrong = check_properties(properties, &device)) return wrong;
  State &s = state();
  if (size > s.configuration.memory) return CUDA_ERROR_OUT_OF_MEMORY;
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) && lacks("imex")) return CUDA_ERROR_NOT_PERMITTED;
  auto backing = make_backing(size, device, size, properties->requestedHandleTypes != 0);
  if (!backing) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = s.next_handle++;
  s.handles[*out] = Handle{std::make_shared<Physical>(Physical{backing, *properties, s.next_id++}), 1, false};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle value) {
  FAKE_CUDA_ENTER(cuMemRelease);
  Handle *handle = find_handle(value);
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (--handle->references == 0) state().handles.erase(value);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle value,
                  unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemMap);
  Handle *handle = find_handle(value);
  if (!handle || flags || offset || !size || !aligned(address) || size != handle->physical->backing->size)
    return CUDA_ERROR_INVALID_VALUE;
  uintptr_t reservation;
  size_t reserved;
  if (!find_reservation(address, &reservation, &reserved) || size > reserved - (address - reservation))
    return CUDA_ERROR_INVALID_VALUE;
  State &s = state();
  auto next = s.mappings.lower_bound(address);
  if (find_mapping(address, nullptr) || (next != s.mappings.end() && next->first < address + size))
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, handle->physical->backing->fd,
           0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  s.mappings[address] = Mapping{size, handle->physical, value, {}, 0};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  FAKE_CUDA_ENTER(cuMemUnmap);
  if (CUresult unsafe = refuse_during_capture()) return unsafe;
  State &s = state();
  // Checked in full before anything goes.
  if (!for_whole_mappings(address, size, [](uint64_t, Mapping *) {})) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
      MAP_FAILED)
    return CUDA_ERROR_UNMAP_FAILED;
  uintptr_t reservation = 0;
  find_reservation(address, &reservation, nullptr);
  const auto first = s.mappings.lower_bound(address), last = s.mappings.lower_bound(address + size);
  if (has_quirk("unmap") && std::next(first) != last) s.stuck.insert(reservation);
  // The memory comes back with the addresses alone (vllm#37533, rocm-systems#4363).
  for (auto it = first; has_quirk("release") && it != last; ++it) s.lingering.emplace(reservation, it->second.physical);
  s.mappings.erase(first, last);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptors, size_t count) {
  FAKE_CUDA_ENTER(cuMemSetAccess, !descriptors || !count || !aligned(address) || !aligned(size));
  bool all_on_host = true;
  if (!for_whole_mappings(address, size, [&](uint64_t, Mapping *mapping) {
        all_on_host = all_on_host && mapping->physical->backing->device == kHost;
      }))
    return CUDA_ERROR_INVALID_VALUE;
  // Of one mapping alone, as if its size were one of those that are refused in others (rocm-systems#2516).
  if (has_quirk("access") && find_mapping(address, nullptr)->size != size) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    int type = descriptors[i].location.type, flags = descriptors[i].flags;
    if (flags != 0 && flags != 1 && flags != 3) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_LOCATION_TYPE_DEVICE) {
      if (!valid_device(descriptors[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
      if (lacks("peer") && foreign_to(address, size, descriptors[i].location.id))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    } else if ((type != CU_MEM_LOCATION_TYPE_HOST && type != CU_MEM_LOCATION_TYPE_HOST_NUMA) || !all_on_host) {
      return CUDA_ERROR_INVALID_VALUE;  // the CPU gets no access to a device's pages
    }
  }
  CUresult result = CUDA_SUCCESS;
  for_whole_mappings(address, size, [&](uint64_t base, Mapping *mapping) {
    for (size_t i = 0; i < count; i++) {
      unsigned flags = descriptors[i].flags;
      if (descriptors[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        mapping->access[descriptors[i].location.id] = flags;
      else
        mapping->host_access = flags;
    }
    if (mprotect(pointer(base), mapping->size, protection(*mapping)) != 0) result = CUDA_ERROR_OUT_OF_MEMORY;
  });
  return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
  FAKE_CUDA_ENTER(cuMemGetAccess, !flags || !location);
  Mapping *mapping = find_mapping(address, nullptr);
  if (!mapping) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (!valid_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = mapping->access[location->id];
  } else if (location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    *flags = mapping->host_access;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  FAKE_CUDA_ENTER(cuMemRetainAllocationHandle, !out);
  Mapping *mapping = find_mapping(reinterpret_cast<uintptr_t>(address), nullptr);
  if (!mapping) return CUDA_ERROR_INVALID_VALUE;
  *out = mapping->handle;  // the value that was mapped, whether or not it has been released since
  auto [it, fresh] = state().handles.try_emplace(mapping->handle, Handle{mapping->physical, 0, false});
  it->second.references++;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle value) {
  FAKE_CUDA_ENTER(cuMemGetAllocationPropertiesFromHandle);
  Handle *handle = find_handle(value);
  if (!out || !handle) return CUDA_ERROR_INVALID_VALUE;
  *out = handle->physical->properties;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle value, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemExportToShareableHandle);
  Handle *handle = find_handle(value);
  if (!out || !handle || flags ||
      (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC))
    return CUDA_ERROR_INVALID_VALUE;
  if (!(handle->physical->properties.requestedHandleTypes & type)) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    Backing &backing = *handle->physical->backing;
    write_wire(out, {kFabricWire, backing.id, 0, 0, 0, backing.fd, 0, 0, {}});
    backing.exported = true;
    return CUDA_SUCCESS;
  }
  int fd = export_backing(handle->physical->backing.get());
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int *>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                        CUmemAllocationHandleType type) {
  FAKE_CUDA_ENTER(cuMemImportFromShareableHandle);
  const bool fabric = type == CU_MEM_HANDLE_TYPE_FABRIC;
  if (!out || (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !fabric)) return CUDA_ERROR_INVALID_VALUE;
  if (lacks("vmm") || lacks(fabric ? "fabric" : "fd")) return CUDA_ERROR_NOT_SUPPORTED;
  if (fabric && lacks("imex")) return CUDA_ERROR_NOT_PERMITTED;
  uint64_t id = 0;
  const int fd = fabric ? open_fabric(os_handle, &id)
                        : fcntl(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  auto backing = adopt_backing(fd, id);
  if (!backing || !backing->shareable || !aligned(backing->size)) return CUDA_ERROR_INVALID_VALUE;
  if (backing->device != kHost && !valid_device(backing->device)) return CUDA_ERROR_INVALID_DEVICE;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = type;
  properties.location.type = backing->device == kHost ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = backing->device == kHost ? 0 : backing->device;
  State &s = state();
  *out = s.next_handle++;
  s.handles[*out] = Handle{std::make_shared<Physical>(Physical{backing, properties, s.next_id++}), 1, true};
  return CUDA_SUCCESS;
}

}  // extern "C"
