// SPDX-License-Identifier: Apache-2.0
// Pools as Python calls them: CuPy's default pools, and gmm's own binding where it is built. The interpreter runs in
// this process; pair() is a loop in Python, the other loops call the same Python functions from C.
#include <Python.h>
#include <dlfcn.h>

#include <utility>

#include "../subject_loops.h"

extern "C" __attribute__((visibility("default"))) const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count);

namespace gmm_bench {
namespace {

// Holds the interpreter's lock; nests.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil &) = delete;
  Gil &operator=(const Gil &) = delete;

 private:
  PyGILState_STATE state_;
};

thread_local std::string failure;

// Always false.
bool python_failed() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject *text = value != nullptr ? PyObject_Str(value) : nullptr;
  const char *bytes = text != nullptr ? PyUnicode_AsUTF8(text) : nullptr;
  failure = std::string(type != nullptr ? reinterpret_cast<PyTypeObject *>(type)->tp_name : "error") + ": " +
            (bytes != nullptr ? bytes : "without a text");
  PyErr_Clear();
  Py_XDECREF(text);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return false;
}

bool initialize() {
  if (Py_IsInitialized()) return true;
  // Modules in C look for the interpreter's symbols in the whole program, and this plugin was opened for itself.
  if (dlopen(GMM_BENCH_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL) == nullptr) return failure = dlerror(), false;
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;
  PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, GMM_BENCH_PYTHON);  // finds its environment
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) {
    failure = std::string("Python: ") + (status.err_msg != nullptr ? status.err_msg : "does not start");
    return false;
  }
  PyEval_SaveThread();  // and never ended: threads of the modules may run on
  return true;
}

constexpr char kCupy[] = R"(
import cupy
class Peer:
    def __init__(self, kind, device, streams, cuda):
        self.device = cupy.cuda.Device(device)
        self.device.use()
        host = kind == 3
        self.pool = cupy.get_default_pinned_memory_pool() if host else cupy.get_default_memory_pool()
        self.pool.free_all_blocks()
        self.streams = [cupy.cuda.Stream.null] + [cupy.cuda.Stream(non_blocking=True) for _ in range(streams - 1)]
        self.allocate = [cupy.cuda.alloc_pinned_memory if host else cupy.cuda.alloc] * streams
        self.reserved = None if host else self.pool.total_bytes
    def use(self, stream):
        self.device.use()
        self.streams[stream].use()
    def pair(self, size, iterations, stream):
        alloc = self.allocate[stream]
        for _ in range(iterations):
            block = alloc(size)
            del block
    def close(self):
        for stream in self.streams:
            stream.synchronize()
        self.pool.free_all_blocks()
)";

constexpr char kGmm[] = R"(
import functools
import gmm
class Peer:
    def __init__(self, kind, device, streams, cuda):
        self.context = gmm.Context(gmm.Backend.CUDA if cuda else gmm.Backend.HOST)
        self.streams = [None] + [self.context.stream(device) for _ in range(streams - 1)]
        kind = gmm.Kind(kind)
        self.kind, self.number = kind, device
        self.allocate = [functools.partial(self.context.alloc, kind=kind, device=device, stream=s)
                         for s in self.streams]
    def reserved(self):
        return self.context.stats(device=self.number, kind=self.kind).reserved_bytes
    def use(self, stream):
        pass
    def pair(self, size, iterations, stream):
        alloc, kind, device, stream = self.context.alloc, self.kind, self.number, self.streams[stream]
        for _ in range(iterations):
            block = alloc(size, kind, device=device, stream=stream)
            del block
    def close(self):
        for stream in self.streams[1:]:
            stream.close()
        self.context.close()
)";

// Which peer and stream is the thread's current one.
thread_local std::pair<const void *, uint32_t> current;

struct Python {
  using Stream = uint32_t;
  const char *source = nullptr;
  PyObject *peer = nullptr, *function = nullptr, *counts = nullptr;
  std::vector<PyObject *> allocators;

  bool open(const gmm_bench_options &options) {
    if (!initialize()) return false;
    Gil gil;
    PyObject *space = PyDict_New();
    PyObject *done = space != nullptr ? PyRun_String(source, Py_file_input, space, space) : nullptr;
    PyObject *type = done != nullptr ? PyDict_GetItemString(space, "Peer") : nullptr;  // borrowed
    peer = type != nullptr ? PyObject_CallFunction(type, "iiii", int(options.kind), int(options.device),
                                                   int(options.stream_count), int(options.cuda))
                           : nullptr;
    Py_XDECREF(done);
    Py_XDECREF(space);
    if (peer == nullptr) return python_failed();
    function = PyObject_GetAttrString(peer, "pair");
    counts = PyObject_GetAttrString(peer, "reserved");
    PyObject *list = PyObject_GetAttrString(peer, "allocate");
    for (Py_ssize_t i = 0; list != nullptr && i < PyList_Size(list); ++i)
      allocators.push_back(Py_NewRef(PyList_GetItem(list, i)));
    Py_XDECREF(list);
    return function != nullptr && counts != nullptr && allocators.size() == options.stream_count ? true
                                                                                                 : python_failed();
  }

  void close() {
    if (!Py_IsInitialized()) return;
    Gil gil;
    if (peer != nullptr) {
      PyObject *done = PyObject_CallMethod(peer, "close", nullptr);
      if (done == nullptr && !python_failed()) std::fprintf(stderr, "gmm-bench: warning: %s\n", failure.c_str());
      Py_XDECREF(done);
    }
    for (PyObject *allocator : allocators) Py_DECREF(allocator);
    allocators.clear();
    Py_CLEAR(function);
    Py_CLEAR(counts);
    Py_CLEAR(peer);
  }

  uint32_t stream(uint32_t index) { return index; }

  // Keeps the thread's state of the interpreter from now on, for several peers in turn.
  bool thread_begin() {
    (void)PyGILState_Ensure();
    (void)PyEval_SaveThread();
    return true;
  }
  void thread_end() {
    PyEval_RestoreThread(PyGILState_GetThisThreadState());
    PyGILState_Release(PyGILState_UNLOCKED);
    current = {};
  }

  bool use(uint32_t stream) {
    if (current == std::pair<const void *, uint32_t>(this, stream)) return true;
    PyObject *done = PyObject_CallMethod(peer, "use", "i", int(stream));
    if (done == nullptr) return python_failed();
    Py_DECREF(done);
    current = {this, stream};
    return true;
  }

  bool pair(uint64_t size, uint64_t iterations, uint32_t stream) {
    Gil gil;
    if (!use(stream)) return false;
    PyObject *done = PyObject_CallFunction(function, "KKi", static_cast<unsigned long long>(size),
                                           static_cast<unsigned long long>(iterations), int(stream));
    if (done == nullptr) return python_failed();
    Py_DECREF(done);
    return true;
  }

  void *allocate(uint64_t size, uint32_t stream) {
    Gil gil;
    if (!use(stream)) return nullptr;
    PyObject *number = PyLong_FromUnsignedLongLong(size);
    PyObject *block = number != nullptr ? PyObject_CallOneArg(allocators[stream], number) : nullptr;
    Py_XDECREF(number);
    if (block == nullptr) python_failed();
    return block;
  }
  bool deallocate(void *block, uint64_t, uint32_t) {
    Gil gil;
    Py_DECREF(static_cast<PyObject *>(block));
    return true;
  }

  uint64_t reserved() {
    Gil gil;
    if (counts == nullptr || counts == Py_None) return GMM_BENCH_UNKNOWN;
    PyObject *number = PyObject_CallNoArgs(counts);
    const uint64_t value = number != nullptr ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred() != nullptr) return python_failed(), GMM_BENCH_UNKNOWN;
    return value;
  }
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
  std::string error() { return failure; }
};

struct Cupy : Python {
  static constexpr const char *kName = "cupy";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE | 1u << GMM_BENCH_HOST;
  static constexpr bool kNeedsCuda = true;
  Cupy() { source = kCupy; }
};

struct GmmPython : Python {
  static constexpr const char *kName = "gmm-python";
  static constexpr uint32_t kKinds =
      1u << GMM_BENCH_DEVICE | 1u << GMM_BENCH_VMM | 1u << GMM_BENCH_HOST | 1u << GMM_BENCH_MANAGED;
  static constexpr bool kNeedsCuda = false;
  GmmPython() { source = kGmm; }
};

// The loops that no other thread has to get on with take the lock once.
template <typename Peer>
constexpr gmm_bench_subject make_python() {
  using L = Loops<Peer>;
  gmm_bench_subject table = make_subject<Peer>();
  table.pair = [](gmm_bench_thread *thread, uint64_t size, uint64_t iterations) -> int32_t {
    auto &own = L::thread_of(thread);
    return own.state->peer.pair(size, iterations, own.stream) ? 1 : L::failed(*own.state, "pair");
  };
  table.mixed = [](gmm_bench_thread *thread, const gmm_bench_operation *operations, uint64_t count) -> int32_t {
    Gil gil;
    return L::mixed(thread, operations, count);
  };
  table.replay = [](gmm_bench_thread *thread, uint32_t index, const gmm_bench_operation *operations, uint64_t count,
                    const gmm_bench_replay *shared) -> int32_t {
    if (shared->progress != nullptr) return L::replay(thread, index, operations, count, shared);
    Gil gil;
    return L::replay(thread, index, operations, count, shared);
  };
  return table;
}

constexpr gmm_bench_subject kCupyTable = make_python<Cupy>();
constexpr gmm_bench_subject kGmmTable = make_python<GmmPython>();
constexpr const gmm_bench_subject *kSubjects[] = {&kCupyTable, &kGmmTable};

}  // namespace
}  // namespace gmm_bench

const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count) {
  *count = 2;
  return gmm_bench::kSubjects;
}
