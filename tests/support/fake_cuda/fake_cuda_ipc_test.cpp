// SPDX-License-Identifier: Apache-2.0
// Between two processes: the second is forked before either calls cuInit.
#include <fcntl.h>
#include <sys/socket.h>

#include <functional>

#include "fake_cuda_test.h"

static void send_all(int socket, const void *data, size_t size) {
  IS(write(socket, data, size), static_cast<ssize_t>(size));
}
static void receive_all(int socket, void *data, size_t size) {
  IS(recv(socket, data, size, MSG_WAITALL), static_cast<ssize_t>(size));
}

static void send_fd(int socket, int fd) {
  char byte = 0, control[CMSG_SPACE(sizeof fd)] = {};
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  IS(sendmsg(socket, &message, 0), 1);
}

static int receive_fd(int socket) {
  char byte, control[CMSG_SPACE(sizeof(int))];
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  IS(recvmsg(socket, &message, 0), 1);
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

static void two_processes(const std::function<void(int)> &first, const std::function<void(int)> &second) {
  int sockets[2];
  IS(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    second(sockets[1]);
    _exit(0);
  }
  close(sockets[1]);
  first(sockets[0]);
  close(sockets[0]);
  int status;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
}

CASE(legacy_ipc_shares_device_memory, "") {
  two_processes(
      [](int socket) {
        start();
        CUdeviceptr d, m, own;
        CUipcMemHandle handle;
        OK(cuMemAlloc_v2(&d, 8192));
        OK(cuMemAllocManaged(&m, 4096, CU_MEM_ATTACH_GLOBAL));
        IS(cuIpcGetMemHandle(&handle, m), CUDA_ERROR_INVALID_VALUE);
        OK(cuIpcGetMemHandle(&handle, d));
        IS(cuIpcOpenMemHandle_v2(&own, handle, 1), CUDA_ERROR_INVALID_CONTEXT);  // in the same process
        IS(cuIpcCloseMemHandle(d), CUDA_ERROR_INVALID_VALUE);
        OK(cuMemsetD8_v2(d, 5, 8192));
        OK(cuCtxSynchronize());
        send_all(socket, &handle, sizeof handle);
        char done;
        receive_all(socket, &done, 1);
        char byte;
        OK(cuMemcpyDtoH_v2(&byte, d + 8191, 1));
        IS(byte, 6);
        OK(cuMemFree_v2(d));
        OK(cuMemAlloc_v2(&d, 8192));  // may get the same descriptor: another memory all the same
        send_all(socket, &done, 1);
        receive_all(socket, &done, 1);
      },
      [](int socket) {
        start();
        CUipcMemHandle handle, broken;
        receive_all(socket, &handle, sizeof handle);
        CUdeviceptr a, again;
        IS(cuIpcOpenMemHandle_v2(&a, handle, 0), CUDA_ERROR_INVALID_VALUE);
        for (size_t i = 0; i < CU_IPC_HANDLE_SIZE; i++) {
          broken = handle;
          broken.reserved[i] ^= 1;
          CHECK(cuIpcOpenMemHandle_v2(&a, broken, 1) != CUDA_SUCCESS);
        }
        OK(cuIpcOpenMemHandle_v2(&a, handle, 1));
        OK(cuIpcOpenMemHandle_v2(&again, handle, 1));
        IS(again, a);  // counted
        IS(live().imports, 1);
        char byte;
        OK(cuMemcpyDtoH_v2(&byte, a, 1));
        IS(byte, 5);
        OK(cuMemsetD8_v2(a, 6, 8192));
        OK(cuCtxSynchronize());
        IS(cuMemsetD8_v2(a, 6, 8193), CUDA_ERROR_INVALID_VALUE);
        IS(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
        OK(cuIpcCloseMemHandle(a));
        OK(cuMemcpyDtoH_v2(&byte, a, 1));
        OK(cuIpcCloseMemHandle(a));
        IS(cuIpcCloseMemHandle(a), CUDA_ERROR_INVALID_VALUE);
        send_all(socket, &byte, 1);
        receive_all(socket, &byte, 1);
        IS(cuIpcOpenMemHandle_v2(&a, handle, 1), CUDA_ERROR_INVALID_VALUE);  // freed over there
        send_all(socket, &byte, 1);
      });
}

CASE(shareable_handles_pass_as_descriptors, "") {
  two_processes(
      [](int socket) {
        start();
        auto plain = device_memory(), shareable = device_memory(0, true);
        CUmemGenericAllocationHandle handle;
        int fd = -1;
        OK(cuMemCreate(&handle, kTwo, &plain, 0));
        IS(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
           CUDA_ERROR_INVALID_VALUE);
        OK(cuMemRelease(handle));
        OK(cuMemCreate(&handle, 2 * kTwo, &shareable, 0));
        OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECK(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
        CUdeviceptr a;
        auto both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        OK(cuMemAddressReserve(&a, 2 * kTwo, 0, 0, 0));
        OK(cuMemMap(a, 2 * kTwo, 0, handle, 0));
        OK(cuMemSetAccess(a, 2 * kTwo, &both, 1));
        OK(cuMemsetD8_v2(a, 5, 2 * kTwo));
        OK(cuCtxSynchronize());
        send_fd(socket, fd);
        close(fd);
        char byte;
        receive_all(socket, &byte, 1);
        OK(cuMemcpyDtoH_v2(&byte, a + 2 * kTwo - 1, 1));
        IS(byte, 6);
      },
      [](int socket) {
        start();
        int fd = receive_fd(socket), other = open("/dev/null", O_RDONLY | O_CLOEXEC);
        auto as_handle = [](int value) { return reinterpret_cast<void *>(static_cast<intptr_t>(value)); };
        CUmemGenericAllocationHandle handle;
        auto type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        IS(cuMemImportFromShareableHandle(&handle, as_handle(other), type), CUDA_ERROR_INVALID_VALUE);
        IS(cuMemImportFromShareableHandle(&handle, as_handle(-1), type), CUDA_ERROR_INVALID_VALUE);
        OK(cuMemImportFromShareableHandle(&handle, as_handle(fd), type));
        close(fd);  // the caller's; the handle does not need it
        CUmemAllocationProp properties;
        OK(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
        IS(properties.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
        CUdeviceptr a;
        auto both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        OK(cuMemAddressReserve(&a, 4 * kTwo, 0, 0, 0));
        IS(cuMemMap(a, 4 * kTwo, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);  // larger than it is
        OK(cuMemMap(a, 2 * kTwo, 0, handle, 0));
        OK(cuMemSetAccess(a, 2 * kTwo, &both, 1));
        char byte;
        OK(cuMemcpyDtoH_v2(&byte, a, 1));
        IS(byte, 5);
        OK(cuMemsetD8_v2(a, 6, 2 * kTwo));
        OK(cuCtxSynchronize());
        auto now = live();
        IS(now.imports, 1);
        IS(now.device_bytes, 0);  // the exporter pays
        OK(cuMemRelease(handle));
        OK(cuMemUnmap(a, 2 * kTwo));
        send_all(socket, &byte, 1);
      });
}

// As driver 580 does on two H200.
CASE(events_between_processes_stay_on_their_device, "FAKE_CUDA_DEVICES=2") {
  enum Way { kHandle, kHandleElsewhere, kWaitElsewhere, kWait, kEnd };
  for (int way = 0; way < kEnd; ++way) {
    pid_t child = fork();
    if (child == 0) {
      close(2);
      CUcontext elsewhere = start(0);
      CUstream far, near;
      OK(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
      start(1);
      CUevent event;
      CUipcEventHandle handle;
      OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
      OK(cuStreamCreate(&near, CU_STREAM_NON_BLOCKING));
      if (way == kHandle) OK(cuIpcGetEventHandle(&handle, event));
      OK(cuCtxSetCurrent(elsewhere));
      if (way == kHandleElsewhere) cuIpcGetEventHandle(&handle, event);
      if (way == kWaitElsewhere) cuStreamWaitEvent(far, event, 0);
      OK(cuStreamWaitEvent(near, event, 0));
      OK(cuEventQuery(event));
      OK(cuEventSynchronize(event));
      OK(cuEventDestroy_v2(event));
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    const bool crashes = way == kHandleElsewhere || way == kWaitElsewhere;
    IS(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), crashes ? SIGSEGV : 0);
  }
}
