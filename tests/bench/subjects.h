// SPDX-License-Identifier: Apache-2.0
// The measured allocators: gmm, and the peers that are installed.
#ifndef GMM_BENCH_SUBJECTS_H
#define GMM_BENCH_SUBJECTS_H

#include <string>
#include <vector>

#include "options.h"
#include "pause_subject.h"
#include "subject.h"
#include "workers.h"

namespace gmm_bench {

// The backend that runs.
struct Platform {
  gmm_backend backend;
  std::string backend_name, device_name, driver_version;
  bool cuda() const { return backend == GMM_BACKEND_CUDA; }
  bool has_vmm() const { return backend != GMM_BACKEND_SYCL; }
  bool fake() const;  // the CUDA driver of the tests
};

// gmm by gmm_alloc() and by gmm_heap_alloc(). The backend is the one of set_gmm_backend().
const gmm_bench_subject *gmm_subject();
const gmm_bench_subject *gmm_heap_subject();
// gmm_heap_alloc() after a gmm_heap_reserve() of set_gmm_reserve(). For `latency` alone.
const gmm_bench_subject *gmm_reserved_subject();
void set_gmm_reserve(uint64_t bytes);
// The context of each of gmm's subjects; descriptors of them.
void set_gmm_backend(gmm_backend backend);
gmm_result create_gmm_context(gmm_context **out);

const gmm_bench_subject *control_subject();
const gmm_bench_subject *mimalloc_subject();
// UMF's disjoint pool, over memory of the system or over CUDA's: one that keeps all, and one that gives memory back,
// where that makes a difference: for `mixed` and `replay` alone.
const gmm_bench_subject *umf_subject(bool cuda);
const gmm_bench_subject *umf_trim_subject(bool cuda);

inline bool is_gmm(const gmm_bench_subject &subject) {
  return &subject == gmm_subject() || &subject == gmm_heap_subject() || &subject == gmm_reserved_subject();
}

// Describes the backend. False after an error on stderr.
bool open_platform(const Options &options, Platform *out);
// One line, and a second one where no GPU takes part.
std::string describe(const Platform &platform);

// All subjects for the backend, peers of --peers too; warns on stderr of each one that cannot be opened.
// False after saying that --subject names one that does not exist.
bool find_subjects(const Options &options, const Platform &platform, std::vector<const gmm_bench_subject *> *out);

// gmm, the driver's own calls in the ways in which programs use them, and the disk.
const gmm_bench_pause_subject *gmm_pause_subject();
std::vector<const gmm_bench_pause_subject *> pause_baselines();
const gmm_bench_pause_subject *direct_write_subject();
// All of these and those of --peers. False after saying that --subject names one that does not exist.
bool find_pause_subjects(const Options &options, const Platform &platform,
                         std::vector<const gmm_bench_pause_subject *> *out);

// Host memory of whole pages, touched by several threads, huge where the system gives huge pages. NULL: there is none.
char *touched_memory(uint64_t size);
void free_touched(char *base, uint64_t size);
// Random words: neither a driver nor a file system stores them in fewer bytes.
void fill_random(char *memory, uint64_t size);

// A subject that is open for one kind, with a context for each thread that measures.
class Instance {
 public:
  // Opens it, and begins `threads` workers. False with error().
  bool open(const gmm_bench_subject &subject, uint32_t kind, uint32_t stream_count, Workers *workers, uint32_t threads,
            const Options &options);
  void close();
  ~Instance() { close(); }
  Instance() = default;
  Instance(const Instance &) = delete;
  Instance &operator=(const Instance &) = delete;

  const gmm_bench_subject &subject() const { return *subject_; }
  uint32_t kind() const { return kind_; }
  std::string name() const { return subject_->name; }
  gmm_bench_allocator &allocator() const { return *allocator_; }
  gmm_bench_thread &thread(uint32_t index) const { return *threads_[index]; }
  std::string error() const;

 private:
  const gmm_bench_subject *subject_ = nullptr;
  Workers *workers_ = nullptr;
  std::unique_ptr<gmm_bench_allocator> allocator_;
  std::vector<std::unique_ptr<gmm_bench_thread>> threads_;
  uint32_t kind_ = 0;
};

// The blocks of an instance's one thread, which operations name by number.
class Player {
 public:
  Player(Instance *instance, Workers *workers, uint32_t blocks)
      : instance_(instance), workers_(workers), blocks_(blocks), sizes_(blocks) {}

  // Runs operations in order. *ns: their time in all. `peak`: NULL, or the place of the highest reserved() after an
  // allocation. `times`: NULL, or gets the time of each operation in ns, which is then measured by itself.
  bool play(const std::vector<gmm_bench_operation> &operations, double *ns, uint64_t *peak = nullptr,
            std::vector<uint32_t> *times = nullptr);
  // Frees the blocks that are left.
  bool clear();

 private:
  Instance *instance_;
  Workers *workers_;
  std::vector<void *> blocks_;
  std::vector<uint64_t> sizes_;
};

// The kinds of `wanted` that a subject has; system memory always.
std::vector<uint32_t> kinds_of(const gmm_bench_subject &subject, const std::vector<uint32_t> &wanted);

inline bool known(uint64_t count) { return count != GMM_BENCH_UNKNOWN; }

}  // namespace gmm_bench
#endif
