// Asks the loader for functions of cuBLAS:   asker WAY LIBRARY [TIMES]   prints what each answers.
//   each        every function, by dlsym
//   namespace   the same, of a copy in a namespace of its own
//   second      cublasSgemm_v2 of a copy in a namespace of its own, then of another in this one
//   cycles      opens the library, asks, calls and closes it, TIMES times, at another address each time
//   threads     four threads at once, each as often
//   fork        a child asks, and the parent after it
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/loader/calls.h"
#include "tests/loader/moving.h"

#define TS_CALL(symbol, base, params, args, what) extern "C" cublasStatus_t symbol params;
#include "interpose/operations/cublas_calls.def"

namespace {

template <class Function>
int ask(void* library, const char* name, Function*) {
  void* const found = library ? dlsym(library, name) : nullptr;
  return found ? loader::call(reinterpret_cast<Function*>(found)) : -1;
}
int ask_one(void* library) {
  return ask(library, "cublasSgemm_v2", static_cast<decltype(&cublasSgemm_v2)>(nullptr));
}
int open_and_ask(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const int answer = ask_one(library);
  return library && dlclose(library) == 0 ? answer : -1;
}

int ask_and_close(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const int answer = ask_one(library);
  return loader::close_for_good(library) ? answer : -1;
}

int ask_each(void* library) {
  if (!library) return 1;
#define TS_CALL(symbol, base, params, args, what) \
  printf("%s %d\n", #symbol, ask(library, #symbol, static_cast<decltype(&symbol)>(nullptr)));
#include "interpose/operations/cublas_calls.def"
  return 0;
}

// The answers, if all were the same.
int ask_often(int (*ask)(const char* path), const char* path, int times) {
  const int first = ask(path);
  for (int i = 1; i < times; i++)
    if (ask(path) != first) return -1;
  return first;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || !loader::make_page()) return 2;
  const char* path = argv[2];
  const int times = argc > 3 ? atoi(argv[3]) : 1;
  const auto is = [&](const char* way) { return strcmp(argv[1], way) == 0; };
  if (is("each")) return ask_each(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  if (is("namespace")) return ask_each(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
  if (is("second")) {
    const int other = ask_one(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
    return printf("%d %d\n", other, ask_one(dlopen(path, RTLD_NOW))), 0;
  }
  if (is("cycles")) return printf("%d\n", ask_often(ask_and_close, path, times)), 0;
  if (is("threads")) {
    int answers[4];
    std::vector<std::thread> threads;
    for (int& answer : answers) threads.emplace_back([&] { answer = ask_often(open_and_ask, path, times); });
    for (std::thread& thread : threads) thread.join();
    for (const int answer : answers) printf("%d\n", answer);
    return 0;
  }
  if (is("fork")) {
    const pid_t child = fork();
    if (child != 0) waitpid(child, nullptr, 0);
    printf("%d\n", open_and_ask(path));
    return 0;
  }
  return 2;
}
