// Calls every entry point once, with arguments that need no device, and prints what came back: the result,
// which words of the arguments' memory were written, or the signal that ended it. Many calls share a child
// process; one that dies is replaced, and goes on behind the call that killed it.
//
// usage: calls null|zeros|ones before|after
// The arguments; before the first cuInit or after it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "driver_api/cuda.h"

namespace {

enum class Arguments { kNull, kZeros, kOnes };

// One zeroed page per pointer argument: what it points to, or the name that it is.
constexpr size_t kPage = 4096, kPages = 16, kPageWords = kPage / sizeof(uint64_t);
alignas(kPage) constinit uint64_t g_pages[kPages][kPageWords] = {};
constinit size_t g_next_page = 0;

// The debugger's own: one never ends, the others return nothing (driver 450) or a result (535).
constexpr const char* kNeverEnds = "cudbgMain";
constexpr std::string_view kNoResult = "cudbgApi";
constexpr unsigned kLimitS = 20;  // a call that takes longer hangs; SIGALRM ends it

template <class T>
T make(Arguments kind) {
  if constexpr (std::is_pointer_v<T>) {
    if (kind == Arguments::kNull) return nullptr;
    // No callbacks: a driver that kept one would call it at a bad time.
    if constexpr (std::is_function_v<std::remove_pointer_t<T>>)
      return nullptr;
    else
      return reinterpret_cast<T>(g_pages[g_next_page++ % kPages]);
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T> || std::is_floating_point_v<T>) {
    return static_cast<T>(kind == Arguments::kOnes ? 1 : 0);
  } else {
    return T{};
  }
}

template <class... A>
int call(void* function, [[maybe_unused]] Arguments kind, CUresult (*)(A...)) {
  return int(reinterpret_cast<CUresult (*)(A...)>(function)(make<A>(kind)...));
}
using Undeclared = CUresult (*)(void*, void*, void*, void*, void*, void*);

struct Row {
  const char* symbol;
  int (*run)(void* function, Arguments kind);
};
constexpr Row kRows[] = {
#define TS_CU(symbol, base, since, stream, ret, params, args)           \
  {#symbol, [](void* function, Arguments kind) {                        \
     using Declared = ret(*) params;                                    \
     using Type = std::conditional_t<since == 0, Undeclared, Declared>; \
     return call(function, kind, Type{});                               \
   }},
#include "driver_api/entries.def"
};
constexpr int kRowCount = sizeof kRows / sizeof kRows[0];

// ", wrote 0:3" for the fourth word of the first page.
std::string written_words() {
  std::string text;
  for (size_t page = 0; page < kPages; ++page) {
    for (size_t word = 0; word < kPageWords; ++word)
      if (g_pages[page][word] != 0) text += " " + std::to_string(page) + ":" + std::to_string(word);
  }
  return text.empty() ? "" : ", wrote" + text;
}

std::string answer_of(const Row& row, void* function, Arguments kind) {
  if (function == nullptr) return "absent";
  if (std::strcmp(row.symbol, kNeverEnds) == 0) return "present";
  const int result = row.run(function, kind);
  if (std::string_view(row.symbol).starts_with(kNoResult)) return "returned" + written_words();
  return std::to_string(result) + written_words();
}

// The child: writes each name before the call and the answer behind it, so that the parent sees what killed
// it.
void run_from(int first, void* driver, Arguments kind, bool init, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nowhere = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(nowhere, fd);
  if (init) reinterpret_cast<CUresult (*)(unsigned)>(dlsym(driver, "cuInit"))(0);
  for (int i = first; i < kRowCount; ++i) {
    void* function = dlsym(driver, kRows[i].symbol);
    dprintf(out, "%s\t", kRows[i].symbol);
    std::memset(g_pages, 0, sizeof g_pages);
    g_next_page = 0;
    alarm(kLimitS);
    const std::string answer = answer_of(kRows[i], function, kind);
    alarm(0);
    dprintf(out, "%s\n", answer.c_str());
  }
}

// Number of rows that are dealt with when the child is gone.
int supervise(pid_t child, int in, int done) {
  FILE* lines = fdopen(in, "r");
  std::string text;
  for (int c; (c = std::fgetc(lines)) != EOF;) {
    std::putchar(c);
    done += c == '\n' ? 1 : 0;
    text = c == '\n' ? "" : text + char(c);
  }
  std::fclose(lines);
  int status = 0;
  waitpid(child, &status, 0);
  if (text.empty()) return done;
  if (WIFSIGNALED(status))
    std::printf("signal %d\n", WTERMSIG(status));
  else
    std::printf("exit %d\n", WEXITSTATUS(status));
  return done + 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string word = argv[1];
  const Arguments kind = word == "null"    ? Arguments::kNull
                         : word == "zeros" ? Arguments::kZeros
                                           : Arguments::kOnes;
  const bool init = std::strcmp(argv[2], "after") == 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 1;
  for (int done = 0; done < kRowCount;) {
    std::fflush(stdout);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return 1;
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      close(ends[0]);
      run_from(done, driver, kind, init, ends[1]);
      _exit(0);
    }
    close(ends[1]);
    done = supervise(child, ends[0], done);
  }
}
