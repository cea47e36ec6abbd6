#include "cli/trace/take.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "base/user_file.h"
#include "cli/demo/process.h"
#include "cli/look/client_table.h"
#include "cli/look/cut_launches.h"
#include "cli/look/measured_state.h"
#include "cli/run/run.h"
#include "cli/trace/chakra.h"
#include "cli/trace/explain.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;
using base::Code;

constexpr int kEveryMs = 5;               // a full ring lasts for this time at six launches a microsecond
constexpr size_t kMostItems = 4'000'000;  // 72 bytes each
constexpr size_t kMostClients = 4096;     // in one trace
constexpr uint64_t kMostTracedBytes = 2ull << 30;  // of a file

std::string uuid_of(const uint8_t (&u)[16]) {
  std::string digits;
  for (const uint8_t byte : u) digits += fmt::format("{:02x}", byte);
  if (digits.find_first_not_of('0') == std::string::npos) return "";
  for (const size_t at : {20, 16, 12, 8}) digits.insert(at, 1, '-');
  return "GPU-" + digits;
}

volatile sig_atomic_t g_child = 0;
void pass_on(int signal) {
  if (g_child > 0) kill(pid_t(g_child), signal);
}

int fail(const char* command, const base::Error& why) {
  fprintf(stderr, "tessera %s: %s\n", command, base::printable(why.text).c_str());
  return 1;
}

// "": standard output.
base::Status write_output(const std::string& content, const std::string& path) {
  if (!path.empty()) return base::write_user_file(path, content);
  if (fwrite(content.data(), 1, content.size(), stdout) == content.size() && fflush(stdout) == 0)
    return base::ok();
  return base::error(Code::kUnavailable, std::string("cannot write standard output: ") + strerror(errno));
}

// Adds the cut launches and the gangs of the clients that are still there.
void add_state(const std::string& socket, Trace* trace) {
  const auto state = measured_state(socket);
  if (!state) return;
  for (const auto& known : state->value("clients", nlohmann::json::array()))
    for (auto& [id, client] : trace->clients)
      if (count_in(known, "pid") == client.pid) {
        client.cutting = base::printable(cutting_line(known));
        client.gang = gang_line(known);
      }
}

// Until `seconds` have passed (0: no end) or a signal came.
base::Result<Trace> take(const std::string& socket, long pid, double seconds) {
  TraceTaker taker;
  if (base::Status started = taker.start(socket, pid); !started) return started.error();
  catch_interrupts();
  if (seconds == 0) fputs("tracing until it is interrupted\n", stderr);
  const uint64_t end_ns = seconds > 0 ? base::now_ns() + uint64_t(seconds * 1e9) : UINT64_MAX;
  while (base::now_ns() < end_ns && interrupted_by() == 0) {
    if (base::Status came = taker.pump(); !came) {
      fprintf(stderr, "tessera trace: %s\n", base::printable(came.error().text).c_str());
      break;
    }
    poll(nullptr, 0, kEveryMs);
  }
  Trace trace = taker.finish();
  add_state(socket, &trace);
  return trace;
}

}  // namespace

base::Status TraceTaker::start(const std::string& socket, long pid) {
  const auto path = resolve_socket(socket);
  if (!path) return path.error();
  auto connected = ipc::start_trace(*path, pid_t(pid));
  if (!connected) return connected.error();
  socket_ = std::move(*connected);
  return base::ok();
}

base::Status TraceTaker::pump() {
  for (;;) {
    ipc::TracedClient news;
    auto any = ipc::next_traced(socket_.get(), &news);
    if (!any) return any.error();
    if (!*any) break;
    if (!trace_.clients.contains(news.client_id) && trace_.clients.size() >= kMostClients) continue;
    TraceClient& client = trace_.clients[news.client_id];
    client.pid = news.pid;
    client.priority = news.priority;
    client.name = base::printable(news.name);
    client.gpu = uuid_of(news.uuid);
    if (news.memory.valid()) {
      ipc::TraceReader reader(news.memory.as<abi::TraceHeader>());
      reader.from_what_is_kept();  // names, and what came before this mapping
      sources_[news.client_id] = {std::move(news.memory), reader};
    }
    if (news.gone) {  // what it wrote last is still there
      drain(true);
      if (const auto gone = sources_.find(news.client_id); gone != sources_.end()) {
        trace_.lost += gone->second.reader.lost();
        sources_.erase(gone);
      }
    }
  }
  drain(false);
  return base::ok();
}

void TraceTaker::drain(bool last) {
  abi::TraceEvent event;
  for (auto& [client, source] : sources_)
    for (uint32_t n = 0; n < 2 * abi::kTraceSlots && source.reader.read(&event, last); ++n) {
      if (trace_.items.size() >= kMostItems)
        ++trace_.lost;
      else
        add_event(trace_, client, event);
    }
}

Trace TraceTaker::finish() {
  drain(true);
  for (const auto& [client, source] : sources_) trace_.lost += source.reader.lost();
  sources_.clear();
  socket_.reset();
  sort_by_start(trace_);
  return std::move(trace_);
}

base::Status write_trace(const Trace& trace, const std::string& path, bool text) {
  return write_output(text ? to_text(trace) : base::json_text(to_chrome(trace)) + "\n", path);
}

base::Status write_chakra(const Trace& trace, const std::string& prefix) {
  const auto clients = to_chakra(trace);
  if (clients.empty())
    return base::error(Code::kNotFound,
                       "nothing was launched while it was traced: no execution trace is written");
  for (size_t i = 0; i < clients.size(); ++i) {
    const std::string path = fmt::format("{}.{}.et", prefix, i);
    if (base::Status written = write_output(simulator::chakra::encode(clients[i]), path); !written)
      return written;
    const auto* name = simulator::chakra::find(clients[i].attributes, "name");
    fprintf(stderr, "%s: %s (%zu), %zu nodes\n", path.c_str(), std::get<std::string>(name->value).c_str(),
            size_t(simulator::chakra::number(clients[i].attributes, "pid")), clients[i].nodes.size());
  }
  return base::ok();
}

base::Result<Trace> read_trace(const std::string& path) {
  const auto text = base::read_user_file(path, kMostTracedBytes);
  if (!text) return text.error();
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return base::error(Code::kInvalid, path + " is no JSON");
  auto trace = from_chrome(json);
  if (!trace) return base::error(trace.error().code, path + ": " + trace.error().text);
  return trace;
}

int trace(const TraceOptions& options) {
  auto taken =
      options.from.empty() ? take(options.socket, options.pid, options.seconds) : read_trace(options.from);
  if (!taken) return fail("trace", taken.error());
  if (options.from.empty() && options.pid != 0 && taken->clients.empty()) {
    return fail("trace",
                base::error(Code::kNotFound, "none of your programs on a GPU has process id " +
                                                 std::to_string(options.pid) + ": `tessera ps` lists them"));
  }
  if (!options.chakra.empty()) {
    if (base::Status written = write_chakra(*taken, options.chakra); !written)
      return fail("trace", written.error());
  }
  const bool only_chakra = !options.chakra.empty() && options.output.empty() && !options.text;
  if (!only_chakra) {
    if (base::Status written = write_trace(*taken, options.output, options.text); !written)
      return fail("trace", written.error());
  }
  fprintf(stderr, "tessera trace: %zu events of %zu clients, %zu lost\n", taken->items.size(),
          taken->clients.size(), size_t(taken->lost));
  return 0;
}

int run_traced(char* const* argv, const std::string& socket, const std::string& output) {
  TraceTaker taker;
  if (base::Status started = taker.start(socket, 0); !started) return fail("run", started.error());
  const pid_t child = fork();
  if (child < 0) return fail("run", base::error(Code::kUnavailable, std::string("fork: ") + strerror(errno)));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execvp(argv[0], argv);
    const int why = errno;
    fprintf(stderr, "tessera run: %s: %s\n", argv[0],
            why == ENOENT ? "command not found (give a path or check PATH)" : strerror(why));
    _exit(why == ENOENT ? 127 : 126);
  }
  g_child = child;
  struct sigaction pass {
  }, ignore{};
  pass.sa_handler = pass_on;
  ignore.sa_handler = SIG_IGN;
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaction(signal, &pass, nullptr);
  sigaction(SIGINT, &ignore, nullptr);  // the terminal sends it to the program too, which decides
  sigaction(SIGQUIT, &ignore, nullptr);
  bool traced = true;
  int status = 0;
  for (pid_t ended = 0; ended == 0 || (ended < 0 && errno == EINTR);
       ended = waitpid(child, &status, WNOHANG)) {
    if (base::Status came = base::ok(); traced && !(came = taker.pump())) {
      traced = false;
      fail("run", came.error());
    }
    poll(nullptr, 0, kEveryMs);
  }
  g_child = 0;
  if (traced) (void)taker.pump();
  const Trace taken = taker.finish();
  if (base::Status written = write_trace(taken, output, false); !written) fail("run", written.error());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int explain(const ExplainOptions& options) {
  auto trace = options.file.empty() ? take(options.socket, 0, options.seconds) : read_trace(options.file);
  if (!trace) return fail("explain", trace.error());
  constexpr size_t kKernels = 10;
  const std::string text = explanation(slowest_bursts(*trace, size_t(options.slowest)), *trace) +
                           told(kernels_in_the_way(*trace, kKernels), *trace);
  return fputs(text.c_str(), stdout) < 0 || fflush(stdout) != 0 ? 1 : 0;
}

}  // namespace tessera::cli
