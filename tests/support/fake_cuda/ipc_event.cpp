// SPDX-License-Identifier: Apache-2.0
// Events between processes: a page of shared memory.
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stream.h"

using namespace fake;

namespace fake {

struct SharedPage {
  struct Data {
    std::atomic<uint64_t> recorded;
    std::atomic<uint64_t> passed[256];  // record n in place n % 256
  };
  int fd = -1;
  pid_t maker = 0;
  Data *data = nullptr;
  ~SharedPage() {
    if (data) munmap(data, sizeof *data);
    if (fd >= 0) close(fd);
  }
};

static std::shared_ptr<SharedPage> open_page(int fd, pid_t maker) {
  auto page = std::make_shared<SharedPage>();
  page->fd = fd;
  page->maker = maker;
  void *data = mmap(nullptr, sizeof *page->data, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  page->data = static_cast<SharedPage::Data *>(data);
  return page;
}

std::shared_ptr<SharedPage> make_page() {
  int fd = memfd_create("fake-cuda-event", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  if (ftruncate(fd, sizeof(SharedPage::Data)) == 0) return open_page(fd, getpid());
  close(fd);
  return nullptr;
}

uint64_t next_record(SharedPage &page) { return page.data->recorded.fetch_add(1) + 1; }
void pass_record(SharedPage &page, uint64_t number) { page.data->passed[number % 256] = number; }
uint64_t last_record(const SharedPage &page) { return page.data->recorded; }
bool has_passed(const SharedPage &page, uint64_t number) {
  return number == 0 || page.data->passed[number % 256] >= number;
}
void wait_for_record(const SharedPage &page, uint64_t number) {
  while (!has_passed(page, number) && kill(page.maker, 0) == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace fake

extern "C" {

CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent handle) {
  FAKE_CUDA_IN_CONTEXT(cuIpcGetEventHandle, !out);
  if (lacks("ipc")) return CUDA_ERROR_NOT_SUPPORTED;
  auto event = find_event(handle);
  if (!event || !event->page || event->imported) return CUDA_ERROR_INVALID_HANDLE;
  if (event->context != context) crash("cuIpcGetEventHandle of an event of another context than the current one");
  struct stat status;
  if (fstat(event->page->fd, &status) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  write_wire(out, {kEventWire, status.st_ino, 0, 0, 0, event->page->fd, 0, 0, {}});
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle) {
  FAKE_CUDA_IN_CONTEXT(cuIpcOpenEventHandle, !out);
  if (lacks("ipc")) return CUDA_ERROR_NOT_SUPPORTED;
  Wire wire;
  if (!read_wire(handle.reserved, kEventWire, &wire)) return CUDA_ERROR_INVALID_VALUE;
  if (wire.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  int fd = open_of_process(wire.pid, wire.fd);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;  // the maker has destroyed it, or is gone
  struct stat status;
  std::shared_ptr<SharedPage> page;
  if (fstat(fd, &status) == 0 && status.st_ino == wire.id && status.st_size == sizeof(SharedPage::Data))
    page = open_page(fd, wire.pid);
  else
    close(fd);
  if (!page) return CUDA_ERROR_INVALID_HANDLE;
  auto event = std::make_shared<Event>();
  event->context = context;
  event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  event->page = std::move(page);
  event->imported = true;
  *out = add_event(std::move(event));
  return CUDA_SUCCESS;
}

}  // extern "C"
