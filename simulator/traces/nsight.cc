#include "simulator/traces/nsight.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

namespace tessera::simulator::traces {
namespace {

constexpr int64_t kLatestNs = 4'000'000'000'000'000'000;  // sums of two still fit in 64 bits
constexpr int64_t kLongestNs = 1'000'000'000'000'000;
constexpr size_t kMostRanges = 1'000'000;
constexpr int kMostLength = 1 << 20;          // of a text or a row
constexpr int kMostSteps_per_call = 100'000;  // of SQLite's machine, between two looks at how many there were
constexpr uint64_t kMostCalls = 200'000;  // of the progress handler: a hostile database does not run for ever
constexpr int64_t kProcessBits = 24;      // of a global thread, below its process

struct CloseFile {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};
struct CloseDatabase {
  void operator()(sqlite3* database) const { (void)sqlite3_close(database); }
};
struct CloseStatement {
  void operator()(sqlite3_stmt* statement) const { (void)sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, CloseStatement>;

int64_t time_of(sqlite3_stmt* row, int column) {
  return std::clamp<int64_t>(sqlite3_column_int64(row, column), 0, kLatestNs);
}
int64_t length_of(sqlite3_stmt* row, int start, int end) {
  return std::clamp<int64_t>(time_of(row, end) - time_of(row, start), 0, kLongestNs);
}
uint64_t count_of(sqlite3_stmt* row, int column, int64_t most) {
  return uint64_t(std::clamp<int64_t>(sqlite3_column_int64(row, column), 0, most));
}
std::string text_at(sqlite3_stmt* row, int column) {
  const auto* text = sqlite3_column_text(row, column);
  return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text)).substr(0, kMostNameLength);
}

class Reader {
 public:
  explicit Reader(const std::string& name) : names_(&out_.names) {
    out_.file = name;
    out_.format = "Nsight Systems";
  }

  base::Result<Recording> read(std::istream& bytes) {
    if (!open(bytes)) return wrong();
    if (!exists("CUPTI_ACTIVITY_KIND_KERNEL") && !exists("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"))
      problem_ = "there is no table CUPTI_ACTIVITY_KIND_KERNEL: was CUDA traced (nsys profile --trace cuda)?";
    gpus();
    calls();
    kernels();
    copies("CUPTI_ACTIVITY_KIND_MEMCPY", EventKind::kCopy);
    copies("CUPTI_ACTIVITY_KIND_MEMSET", EventKind::kSet);
    graphs();
    ranges();
    if (!problem_.empty()) return wrong();
    give_waits_a_device();
    if (out_.events.size() >= kMostEvents)
      out_.remarks.push_back("only the first four million operations were read");
    return std::move(out_);
  }

 private:
  struct Call {
    int64_t start_ns = 0, length_ns = 0;
    uint32_t name = 0;
  };
  using Key = std::pair<int64_t, int64_t>;  // process, correlation

  base::Error wrong() const { return base::error(base::Code::kInvalid, out_.file + ": " + problem_); }

  // SQLite wants a name: the file has one until it is open.
  bool open(std::istream& bytes) {
    std::error_code no_folder;
    std::string path = (std::filesystem::temp_directory_path(no_folder) / "tessera.XXXXXX").string();
    const int descriptor = no_folder ? -1 : ::mkstemp(path.data());
    const std::unique_ptr<std::FILE, CloseFile> file(descriptor < 0 ? nullptr : ::fdopen(descriptor, "wb"));
    if (!file) {
      problem_ = "no temporary file can be made for it";
      return false;
    }
    const bool opened = copy(bytes, file.get()) && open(path);
    ::unlink(path.c_str());
    return opened;
  }

  bool copy(std::istream& bytes, std::FILE* file) {
    std::array<char, 1 << 16> block{};
    size_t written = 0, got = 0;
    do {
      bytes.read(block.data(), block.size());
      got = size_t(bytes.gcount());
      written = std::fwrite(block.data(), 1, got, file);
    } while (got > 0 && written == got);
    if (written == got && std::fflush(file) == 0) return true;
    problem_ = "a temporary file cannot hold it: is the disk full?";
    return false;
  }

  bool open(const std::string& path) {
    const std::string uri = "file:" + path + "?mode=ro&immutable=1";
    sqlite3* opened = nullptr;
    const int code = sqlite3_open_v2(uri.c_str(), &opened, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
    database_.reset(opened);
    if (code != SQLITE_OK) {
      problem_ = "it is no database of SQLite that can be opened";
      return false;
    }
    // Nobody vouches for what a file's schema would like to run.
    sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    sqlite3_limit(opened, SQLITE_LIMIT_LENGTH, kMostLength);
    sqlite3_progress_handler(
        opened, kMostSteps_per_call,
        [](void* calls) { return int(++*static_cast<uint64_t*>(calls) > kMostCalls); }, &calls_made_);
    return true;
  }

  bool exists(const std::string& table) {
    return count("SELECT count(*) FROM sqlite_master WHERE type='table' AND name=?", table) > 0;
  }
  // The column, or `otherwise` where that version has none.
  std::string column(const std::string& table, const std::string& name, const char* otherwise = "0") {
    return count("SELECT count(*) FROM pragma_table_info(?) WHERE name='" + name + "'", table) > 0
               ? "t." + name
               : otherwise;
  }
  int64_t count(const std::string& sql, const std::string& value) {
    int64_t n = 0;
    each(
        sql, "sqlite_master", [&](sqlite3_stmt* row) { n = sqlite3_column_int64(row, 0); }, &value);
    return n;
  }

  // Calls `use` with each row; nothing more once something was wrong.
  template <class Use>
  void each(const std::string& sql, const std::string& table, Use&& use, const std::string* value = nullptr) {
    if (!problem_.empty()) return;
    sqlite3_stmt* made = nullptr;
    int code = sqlite3_prepare_v2(database_.get(), sql.c_str(), -1, &made, nullptr);
    const Statement statement(made);
    if (code == SQLITE_OK && value != nullptr)
      code = sqlite3_bind_text(made, 1, value->c_str(), -1, SQLITE_STATIC);
    if (code == SQLITE_OK)
      while ((code = sqlite3_step(made)) == SQLITE_ROW) {
        use(made);
        if (out_.events.size() >= kMostEvents) return;
      }
    if (code != SQLITE_OK && code != SQLITE_DONE)
      problem_ = "table " + table + ": " + sqlite3_errmsg(database_.get());
  }

  void gpus() {
    if (!exists("TARGET_INFO_GPU")) return;
    each("SELECT id, name FROM TARGET_INFO_GPU", "TARGET_INFO_GPU", [&](sqlite3_stmt* row) {
      if (out_.devices.size() < 1024) out_.devices[uint32_t(count_of(row, 0, UINT32_MAX))] = text_at(row, 1);
    });
  }

  void calls() {
    const std::string table = "CUPTI_ACTIVITY_KIND_RUNTIME";
    if (!exists(table)) return;
    each("SELECT t.start, t.end, t.globalTid, t.correlationId, s.value FROM " + table +
             " t JOIN StringIds s ON s.id = t.nameId",
         table, [&](sqlite3_stmt* row) {
           const std::string name = text_at(row, 4);
           const int64_t process = sqlite3_column_int64(row, 2) >> kProcessBits;
           const Call call{time_of(row, 0), length_of(row, 0, 1), 0};
           if (call_waits(name)) {
             Event e{.kind = EventKind::kWait, .name = names_.index(name), .device = kAnyDevice};
             e.call_ns = call.start_ns;
             e.call_length_ns = call.length_ns;
             waits_of_[process].push_back(out_.events.size());
             out_.events.push_back(e);
           } else if (call_launches(name) && calls_.size() < kMostEvents) {
             calls_.try_emplace({process, sqlite3_column_int64(row, 3)},
                                Call{call.start_ns, call.length_ns, names_.index(name)});
           }
         });
  }

  // Columns 0 to 5 of every query: start, end, deviceId, streamId, correlationId, globalPid.
  Event operation(sqlite3_stmt* row, EventKind kind, const std::string& name, bool pageable) {
    Event e{.kind = kind, .name = names_.index(name)};
    e.start_ns = time_of(row, 0);
    e.length_ns = length_of(row, 0, 1);
    e.device = uint32_t(count_of(row, 2, UINT32_MAX - 1));
    e.stream = uint64_t(sqlite3_column_int64(row, 3));
    const int64_t process = sqlite3_column_int64(row, 5) >> kProcessBits;
    devices_of_[process].insert(e.device);
    const auto call = calls_.find({process, sqlite3_column_int64(row, 4)});
    if (call == calls_.end()) return e;
    e.call_ns = call->second.start_ns;
    e.call_length_ns = call->second.length_ns;
    const std::string& called = out_.names[call->second.name];
    e.may_block = kind == EventKind::kCopy && copy_may_block(pageable ? "Pageable" : name, called);
    if (call_is_of_graph(called))
      e.graph = graph_numbers_.try_emplace(call->first, graph_numbers_.size() + 1).first->second;
    return e;
  }
  std::string work_columns(const std::string& table) {
    return "SELECT t.start, t.end, t.deviceId, t.streamId, t.correlationId, " + column(table, "globalPid");
  }

  void kernels() {
    const std::string table = "CUPTI_ACTIVITY_KIND_KERNEL";
    if (!exists(table)) return;
    each(work_columns(table) +
             ", t.registersPerThread, t.gridX, t.gridY, t.gridZ, t.blockX, t.blockY, t.blockZ, "
             "t.staticSharedMemory, "
             "t.dynamicSharedMemory, s.value FROM " +
             table + " t LEFT JOIN StringIds s ON s.id = t.demangledName",
         table, [&](sqlite3_stmt* row) {
           Event e = operation(row, EventKind::kKernel, text_at(row, 15), false);
           const auto volume = [&](int first) {
             return double(count_of(row, first, 1u << 31)) * double(count_of(row, first + 1, 1u << 31)) *
                    double(count_of(row, first + 2, 1u << 31));
           };
           e.registers = uint32_t(count_of(row, 6, 1024));
           e.blocks = uint64_t(std::min(volume(7), double(1u << 31)));
           e.threads_per_block = uint32_t(std::min(volume(10), 1024.0));
           e.shared_bytes = count_of(row, 13, 1 << 20) + count_of(row, 14, 1 << 20);
           out_.events.push_back(e);
         });
  }

  void copies(const std::string& table, EventKind kind) {
    if (!exists(table)) return;
    const bool copy = kind == EventKind::kCopy;
    // Kinds of memory: 0 is pageable; of copies: 1 to the device, 2 from it.
    each(work_columns(table) + ", " + (copy ? "t.copyKind" : "0") + ", " +
             (copy ? column(table, "srcKind", "1") : "1") + ", " +
             (copy ? column(table, "dstKind", "1") : "1") + " FROM " + table + " t",
         table, [&](sqlite3_stmt* row) {
           const int64_t direction = sqlite3_column_int64(row, 6);
           const bool pageable = (direction == 1 && sqlite3_column_int64(row, 7) == 0) ||
                                 (direction == 2 && sqlite3_column_int64(row, 8) == 0);
           const char* name = !copy            ? "Memset"
                              : direction == 1 ? "Memcpy HtoD"
                              : direction == 2 ? "Memcpy DtoH"
                                               : "Memcpy DtoD";
           out_.events.push_back(operation(row, kind, name, pageable));
         });
  }

  // Graphs that were traced as a whole have no kernels.
  void graphs() {
    const std::string table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
    if (!exists(table)) return;
    size_t n = 0;
    each(work_columns(table) + " FROM " + table + " t", table, [&](sqlite3_stmt* row) {
      out_.events.push_back(operation(row, EventKind::kKernel, "CUDA graph", false));
      ++n;
    });
    if (n > 0)
      out_.remarks.push_back(std::to_string(n) +
                             " CUDA graphs were traced as a whole: each is one kernel (nsys profile "
                             "--cuda-graph-trace=node records theirs)");
  }

  void ranges() {
    const std::string table = "NVTX_EVENTS";
    if (!exists(table)) return;
    each("SELECT t.start, t.end, coalesce(t.text, s.value) FROM " + table +
             " t LEFT JOIN StringIds s ON s.id = " + column(table, "textId") + " WHERE t.end IS NOT NULL",
         table, [&](sqlite3_stmt* row) {
           if (out_.ranges.size() < kMostRanges)
             out_.ranges.push_back({text_at(row, 2), time_of(row, 0), time_of(row, 1)});
         });
  }

  // A process that uses one GPU waits for that one.
  void give_waits_a_device() {
    for (const auto& [process, waits] : waits_of_) {
      const auto devices = devices_of_.find(process);
      if (devices == devices_of_.end() || devices->second.size() != 1) continue;
      for (const size_t i : waits) out_.events[i].device = *devices->second.begin();
    }
  }

  Recording out_;
  Names names_;
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  std::map<Key, Call> calls_;
  std::map<Key, uint64_t> graph_numbers_;
  std::map<int64_t, std::vector<size_t>> waits_of_;
  std::map<int64_t, std::set<uint32_t>> devices_of_;
  uint64_t calls_made_ = 0;
  std::string problem_;
};

}  // namespace

base::Result<Recording> read_nsight(std::istream& bytes, const std::string& name) {
  return Reader(name).read(bytes);
}

}  // namespace tessera::simulator::traces
