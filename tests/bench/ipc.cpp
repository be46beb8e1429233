// SPDX-License-Identifier: Apache-2.0
// gmm-bench ipc: what sharing with another process costs, and that it leaves nothing behind.
#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "clock.h"
#include "commands.h"
#include "ipc_process.h"

namespace gmm_bench {
namespace {

constexpr uint64_t kPooled = 4096, kExtent = uint64_t{2} << 20;
constexpr uint32_t kIpcSamples = 200;
constexpr uint32_t kWarmRounds = 20;

// As long as the exporter's side has slept in the life of a program. Without it the thread that answers `raw` is still
// awake, as it has just spoken with us, and the thread of gmm's broker is not: what is measured then is how long a
// processor takes to wake.
void let_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

double now_ns() { return static_cast<double>(now()); }

uint64_t open_files(pid_t pid) {
  DIR *folder = opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

uint64_t resident(pid_t pid) {
  FILE *file = std::fopen(("/proc/" + std::to_string(pid) + "/statm").c_str(), "r");
  unsigned long long all = 0, pages = 0;
  if (file == nullptr) return 0;
  const bool read = std::fscanf(file, "%llu %llu", &all, &pages) == 2;
  std::fclose(file);
  return read ? pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

class Bench {
 public:
  Bench(const Run &run, gmm_context *context, uint32_t kind) : run_(run), context_(context), kind_(kind) {}
  ~Bench() {
    if (server_.pid > 0) end_process(&server_);
  }

  bool measure(std::vector<Row> *rows) {
    return start_process("serve", run_.platform.backend, run_.options.device, kind_, &server_) && exports(rows) &&
           imports(rows) && connecting(rows) && cycles(rows) && processes(rows);
  }

 private:
  bool gmm(gmm_result result, const char *what) {
    if (result == GMM_OK) return true;
    std::fprintf(stderr, "gmm-bench: %s: %s\n", what, gmm_last_error_message());
    return false;
  }
  bool lost(const char *what) { return std::fprintf(stderr, "gmm-bench: the second process ended: %s\n", what), false; }
  Row row(const char *subject, const char *what, uint64_t size) {
    Row out;
    out.bench = "ipc";
    out.subject = subject;
    out.backend = run_.platform.backend_name;
    out.device = run_.platform.device_name;
    out.kind = kind_;
    out.size = size;
    out.words.emplace_back("operation", what);
    return out;
  }
  // Of this process's context so far; the other process keeps its own.
  bool calls(uint64_t *out) { return calls_of(context_, out); }
  bool calls_of(gmm_context *context, uint64_t *out) {
    gmm_stats_info statistics = {};
    statistics.struct_size = sizeof statistics;
    if (!gmm(gmm_stats_query(context, nullptr, &statistics), "statistics")) return false;
    *out = statistics.backend_calls;
    return true;
  }
  void add(std::vector<Row> *rows, Row made, std::vector<double> samples, std::optional<uint64_t> handles) {
    made.ns = median(samples);
    made.handles = handles;
    made.samples = std::move(samples);
    rows->push_back(std::move(made));
  }
  bool ask(char what, uint64_t size) {
    IpcAsk question;
    question.what = what;
    question.size = size;
    return send_all(server_.fd, &question, sizeof question) || lost("request");
  }
  bool handle(char what, uint64_t size, gmm_ipc_handle *out) {
    return ask(what, size) && (receive_all(server_.fd, out, sizeof *out) || lost("handle"));
  }
  bool free_all() {
    char done = 0;
    return ask('f', 0) && (receive_all(server_.fd, &done, 1) || lost("free"));
  }
  gmm_ipc_import_desc import_desc() const {
    gmm_ipc_import_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.device = run_.options.device;
    return desc;
  }
  uint32_t samples() const { return run_.options.samples != 0 ? run_.options.samples : kIpcSamples; }

  // Of pooled blocks: each for the first time, and the same again.
  bool exports(std::vector<Row> *rows) {
    const gmm_alloc_desc desc = block_of(kind_, run_.options.device, 0);
    std::vector<void *> blocks(samples() + kWarmRounds);
    for (void *&block : blocks)
      if (!gmm(gmm_alloc(context_, kPooled, &desc, &block), "allocation")) return false;
    gmm_ipc_handle made;
    uint64_t before = 0, after = 0;
    for (const char *what : {"export", "export again"}) {
      std::vector<double> times;
      for (uint64_t i = 0; i < blocks.size(); ++i) {
        const bool last = i + 1 == blocks.size();
        if (last && !calls(&before)) return false;
        const double begin = now_ns();
        const gmm_result result = gmm_ipc_export(context_, blocks[i], &made);
        const double end = now_ns();
        if (!gmm(result, "export") || (last && !calls(&after))) return false;
        if (i >= kWarmRounds) times.push_back(end - begin);
      }
      add(rows, row("gmm", what, kPooled), std::move(times), after - before);
    }
    for (void *block : blocks)
      if (!gmm(gmm_free(context_, block, GMM_STREAM_DEFAULT), "free")) return false;
    return true;
  }

  // Of an extent each: first, by gmm and by hand in turns, then once more while it is mapped.
  bool imports(std::vector<Row> *rows) {
    const gmm_ipc_import_desc desc = import_desc();
    std::string error;
    std::unique_ptr<IpcRaw> raw =
        run_.platform.cuda() ? cuda_ipc_raw(kind_, run_.options.device, &error) : host_ipc_raw(kind_);
    if (raw == nullptr) return std::fprintf(stderr, "gmm-bench: raw: %s\n", error.c_str()), false;
    std::vector<double> first, again, by_hand;
    uint64_t before = 0, between = 0, after = 0;
    for (uint32_t i = 0; i < samples() + kWarmRounds; ++i) {
      gmm_ipc_handle given;
      void *memory = nullptr, *same = nullptr;
      const bool last = i + 1 == samples() + kWarmRounds;
      char made = 0;
      // New memory for both each time: what was shared before may be cheaper.
      if (!handle('e', kExtent, &given) || !ask('m', kExtent) || !receive_all(server_.fd, &made, 1) ||
          (last && !calls(&before)))
        return false;
      let_sleep();
      const double begin = now_ns();
      if (!gmm(gmm_ipc_import(context_, &given, &desc, &memory), "import")) return false;
      const double mapped = now_ns();
      if (last && !calls(&between)) return false;
      const double rest = now_ns();
      if (!gmm(gmm_ipc_import(context_, &given, &desc, &same), "second import")) return false;
      const double twice = now_ns();
      if (last && !calls(&after)) return false;
      if (!gmm(gmm_ipc_close(context_, same), "close") || !gmm(gmm_ipc_close(context_, memory), "close") || !free_all())
        return false;
      IpcRawMessage message;
      let_sleep();
      const double start = now_ns();
      if (!ask('r', 0) || !receive_raw(server_.fd, &message)) return lost("raw");
      const bool taken = raw->take(message);
      // Part of an import in both: what is mapped needs no descriptor, and a process has few.
      if (message.fd >= 0) close(message.fd);
      const double end = now_ns();
      if (!taken || !raw->drop()) return std::fprintf(stderr, "gmm-bench: raw: %s\n", raw->error.c_str()), false;
      if (i < kWarmRounds) continue;
      first.push_back(mapped - begin);
      again.push_back(twice - rest);
      by_hand.push_back(end - start);
    }
    add(rows, row("gmm", "import", kExtent), std::move(first), between - before);
    add(rows, row("raw", "import", kExtent), std::move(by_hand), std::nullopt);
    add(rows, row("gmm", "import of what is mapped", kExtent), std::move(again), after - between);
    return true;
  }

  // The first one of a context that has imported nothing from this exporter: it has to find the exporter and to
  // connect.
  bool connecting(std::vector<Row> *rows) {
    const gmm_ipc_import_desc desc = import_desc();
    std::vector<double> times;
    uint64_t before = 0, after = 0;
    for (uint32_t i = 0; i < samples() / 4 + 3; ++i) {
      gmm_context *fresh = nullptr;
      std::string error;
      if (!open_context(run_.platform.backend, run_.options.host_memory, &fresh, &error))
        return std::fprintf(stderr, "gmm-bench: %s\n", error.c_str()), false;
      gmm_ipc_handle given;
      void *memory = nullptr;
      bool good = handle('e', kExtent, &given) && calls_of(fresh, &before);
      const double begin = now_ns();
      good = good && gmm(gmm_ipc_import(fresh, &given, &desc, &memory), "import");
      const double end = now_ns();
      good = good && calls_of(fresh, &after) && gmm(gmm_ipc_close(fresh, memory), "close");
      good = gmm(gmm_context_release(fresh), "end of a context") && good && free_all();
      if (!good) return false;
      if (i >= 2) times.push_back(end - begin);
    }
    add(rows, row("gmm", "import, connecting", kExtent), std::move(times), after - before);
    return true;
  }

  bool cycle() {
    const gmm_ipc_import_desc desc = import_desc();
    gmm_ipc_handle given;
    void *memory = nullptr;
    return handle('p', kPooled, &given) && gmm(gmm_ipc_import(context_, &given, &desc, &memory), "import") &&
           gmm(gmm_ipc_close(context_, memory), "close") && free_all();
  }

  // Of both processes together: what many cycles leave.
  bool cycles(std::vector<Row> *rows) {
    const uint64_t count = run_.options.iterations != 0 ? run_.options.iterations : 10000;
    for (uint64_t i = 0; i < 100 + count / 10; ++i)
      if (!cycle()) return false;
    const uint64_t memory = resident(getpid()) + resident(server_.pid),
                   files = open_files(getpid()) + open_files(server_.pid);
    uint64_t before = 0, after = 0;
    const double begin = now_ns();
    for (uint64_t i = 0; i < count; ++i) {
      if (i + 1 == count && !calls(&before)) return false;
      if (!cycle()) return false;
    }
    const double end = now_ns();
    if (!calls(&after)) return false;
    // The exporter hears of the last close a moment later.
    uint64_t left = 0;
    for (int i = 0; i < 3000; ++i) {
      left = open_files(getpid()) + open_files(server_.pid);
      if (left == files) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Row made = row("gmm", "cycle", kPooled);
    made.numbers.emplace_back("cycles", static_cast<double>(count));
    made.numbers.emplace_back("resident_bytes_more", static_cast<double>(resident(getpid()) + resident(server_.pid)) -
                                                         static_cast<double>(memory));
    made.numbers.emplace_back("descriptors_more", static_cast<double>(left) - static_cast<double>(files));
    add(rows, std::move(made), {(end - begin) / static_cast<double>(count)}, after - before);
    return true;
  }

  // Importers in turn, then many at once: each sees the bytes, and none stays counted.
  bool processes(std::vector<Row> *rows) {
    const gmm_alloc_desc desc = block_of(kind_, run_.options.device, 0);
    void *block = nullptr;
    gmm_ipc_handle made;
    if (!gmm(gmm_alloc(context_, kPooled, &desc, &block), "allocation") ||
        !gmm(gmm_fill(context_, block, kMark, kPooled, GMM_STREAM_DEFAULT), "fill") ||
        !gmm(gmm_stream_synchronize(context_, GMM_STREAM_DEFAULT), "fill") ||
        !gmm(gmm_ipc_export(context_, block, &made), "export"))
      return false;
    const uint32_t at_once = run_.options.threads.empty() ? 64 : run_.options.threads[0];
    struct Part {
      const char *what;
      uint32_t all, together;
    };
    const uint64_t files = open_files(getpid());
    for (const Part &part :
         {Part{"processes in turn", run_.options.blocks, 1}, Part{"processes at once", at_once, at_once}}) {
      uint32_t good = 0;
      uint64_t before = 0, after = 0;
      if (!calls(&before)) return false;
      const double begin = now_ns();
      for (uint32_t done = 0; done < part.all; done += part.together) {
        std::vector<IpcProcess> others(part.together);
        for (IpcProcess &other : others)
          if (!start_process("import", run_.platform.backend, run_.options.device, kind_, &other)) return lost("fork");
        std::vector<char> imported(others.size());
        for (IpcProcess &other : others) send_all(other.fd, &made, sizeof made);
        for (size_t i = 0; i < others.size(); ++i) imported[i] = receive_all(others[i].fd, &imported[i], 1);
        for (IpcProcess &other : others) send_all(other.fd, "c", 1);
        for (size_t i = 0; i < others.size(); ++i)
          if (end_process(&others[i]) == 0 && imported[i]) ++good;
      }
      const double end = now_ns();
      if (!calls(&after)) return false;
      uint64_t left = 0;
      for (int i = 0; i < 3000; ++i) {
        left = open_files(getpid());
        if (left == files) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      Row out = row("gmm", part.what, kPooled);
      out.numbers.emplace_back("processes", part.all);
      out.numbers.emplace_back("lost", part.all - good);
      out.numbers.emplace_back("descriptors_more", static_cast<double>(left) - static_cast<double>(files));
      add(rows, std::move(out), {(end - begin) / part.all}, after - before);
      if (good != part.all) failed_ = true;
    }
    return gmm(gmm_free(context_, block, GMM_STREAM_DEFAULT), "free") && !failed_;
  }

  const Run &run_;
  gmm_context *context_;
  const uint32_t kind_;
  IpcProcess server_;
  bool failed_ = false;
};

std::string word_of(const Row &row) { return row.words.empty() ? "" : row.words[0].second; }

}  // namespace

ExitCode run_ipc(const Run &run) {
  gmm_context *context = nullptr;
  std::string error;
  if (!open_context(run.platform.backend, run.options.host_memory, &context, &error))
    return std::fprintf(stderr, "gmm-bench: %s\n", error.c_str()), kFailed;
  std::vector<uint32_t> kinds = run.options.kinds;
  if (kinds.empty()) kinds = {GMM_KIND_DEVICE, GMM_KIND_VMM, GMM_KIND_HOST};
  std::vector<Row> rows;
  ExitCode code = kGood;
  for (const uint32_t kind : kinds) {
    const gmm_alloc_desc desc = block_of(kind, run.options.device, 0);
    void *block = nullptr;
    gmm_pointer_info info = {};
    info.struct_size = sizeof info;
    if (gmm_alloc(context, kPooled, &desc, &block) == GMM_OK) {
      if (gmm_query(context, block, &info) != GMM_OK || gmm_free(context, block, GMM_STREAM_DEFAULT) != GMM_OK)
        code = kFailed;
    }
    if (info.ipc_routes == 0) {
      std::fprintf(stderr, "gmm-bench: warning: left out: %s memory cannot be shared here\n", kind_name(kind));
    } else if (!Bench(run, context, kind).measure(&rows)) {
      code = kFailed;
    }
  }
  compare(&rows, [](const Row &a, const Row &b) { return a.kind == b.kind && word_of(a) == word_of(b); });
  print_head(run);
  Table table(3);
  if (!run.options.json) table.add({"operation", "kind", "subject", "time", "of raw", "", ""});
  for (const Row &row : rows) {
    if (run.options.json) {
      print_json(row);
      continue;
    }
    std::vector<std::string> line = {word_of(row), kind_name(row.kind), row.subject, time_text(*row.ns),
                                     over_text(row, "raw")};
    std::string more = row.handles ? "calls " + std::to_string(*row.handles) : "";
    for (const auto &[name, value] : row.numbers) more += (more.empty() ? "" : ", ") + name + " " + decimals(value, 0);
    line.push_back(more);
    table.add(std::move(line));
  }
  if (!run.options.json) table.print();
  if (gmm_context_release(context) != GMM_OK) code = kFailed;
  return code;
}

}  // namespace gmm_bench
