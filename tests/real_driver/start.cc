// The ways in which a process begins and ends with a driver, up to the first error that a machine without a
// card gives. Prints "what<tab>answer".
//
// usage: start threads | fork | exec | close | exit | time
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "driver_api/cuda.h"

namespace {

struct Driver {
  void* library = nullptr;
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*count)(int*) = nullptr;
};

Driver open_driver() {
  Driver d;
  d.library = dlopen("libcuda.so.1", RTLD_NOW);
  if (d.library == nullptr) std::exit(1);
  d.init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(d.library, "cuInit"));
  d.count = reinterpret_cast<CUresult (*)(int*)>(dlsym(d.library, "cuDeviceGetCount"));
  return d;
}

void say(const char* what, int answer) {
  std::printf("%s\t%d\n", what, answer);
  std::fflush(stdout);
}

void say_both(const char* when, const Driver& d) {
  int count = -1;
  const int init = d.init(0), counted = d.count(&count);
  std::printf("%s\tcuInit %d, cuDeviceGetCount %d: %d\n", when, init, counted, count);
  std::fflush(stdout);
}

// All of them make the first call at once.
void threads() {
  const Driver d = open_driver();
  std::vector<int> answers(16, -1);
  std::vector<std::thread> all;
  for (int& answer : answers) all.emplace_back([&] { answer = d.init(0); });
  for (std::thread& t : all) t.join();
  for (const int answer : answers) say("a thread", answer);
}

template <class Body>
void in_child(const char* what, Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  say(what, status);
}

void forks() {
  const Driver d = open_driver();
  in_child("child before the first call", [&] { say_both("child before", d); });
  say_both("parent", d);
  in_child("child after the first call", [&] { say_both("child after", d); });
  in_child("child that opens by itself", [&] { say_both("child anew", open_driver()); });
}

void executes(char** argv) {
  const Driver d = open_driver();
  say_both("before exec", d);
  in_child("shell", [&] {
    setenv("PROGRAM", argv[0], 1);
    execl("/bin/sh", "sh", "-c", "exec \"$PROGRAM\" close", nullptr);
  });
  execl(argv[0], argv[0], "fork", nullptr);
}

void closes() {
  Driver d = open_driver();
  say_both("opened", d);
  say("dlclose", dlclose(d.library));
  d = open_driver();
  say_both("opened again", d);
}

Driver g_at_exit;

void exits() {
  g_at_exit = open_driver();
  std::atexit([] { say_both("in an exit handler", g_at_exit); });
  say_both("opened", g_at_exit);
}

// Nanoseconds: the driver's library, the first call, which is one that asks for nothing, and cuInit.
void times() {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const Driver d = open_driver();
  const auto opened = Clock::now();
  int count = 0;
  d.count(&count);
  const auto called = Clock::now();
  d.init(0);
  const auto done = Clock::now();
  const auto ns = [](auto a, auto b) {
    return static_cast<long long>(std::chrono::nanoseconds(b - a).count());
  };
  std::printf("%lld %lld %lld\n", ns(begin, opened), ns(opened, called), ns(called, done));
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (std::strcmp(what, "threads") == 0)
    threads();
  else if (std::strcmp(what, "fork") == 0)
    forks();
  else if (std::strcmp(what, "exec") == 0)
    executes(argv);
  else if (std::strcmp(what, "close") == 0)
    closes();
  else if (std::strcmp(what, "exit") == 0)
    exits();
  else if (std::strcmp(what, "time") == 0)
    times();
  else
    return 2;
}
