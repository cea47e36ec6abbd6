// A process on the software GPU that does what its standard input says, one command per line, and answers
// each with one line. Driven by arbiter_test.cc; commands in the table at the end.
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "softgpu/timing/engine.h"

using namespace tessera::softgpu::timing;

namespace {

std::unique_ptr<Engine> engine;
std::vector<OpRef> ops;

std::string connect(std::istream& in) {
  int priority = 0;
  in >> priority;
  auto made = Engine::connect(priority);
  if (!made.ok()) return "error " + made.error().text;
  engine = std::move(*made);
  return "ok " + engine->info().mode + " " + engine->info().description_path;
}

// kernel BLOCKS INSTRUCTIONS PRIORITY: 256 threads per block, known cost
std::string kernel(std::istream& in) {
  OpSpec spec;
  spec.kind = OpKind::kKernel;
  spec.threads_per_block = 256;
  spec.work_known = true;
  in >> spec.n_blocks >> spec.work.warp_instructions >> spec.priority;
  spec.body = [](const Report&) { return 0; };
  ops.push_back(engine->submit(std::move(spec)));
  return std::to_string(ops.size() - 1);
}

// stuck: a kernel whose body never returns
std::string stuck(std::istream&) {
  OpSpec spec;
  spec.kind = OpKind::kKernel;
  spec.body = [](const Report&) -> int {
    for (;;) pause();
  };
  ops.push_back(engine->submit(std::move(spec)));
  return std::to_string(ops.size() - 1);
}

std::string wait(std::istream& in) {
  size_t i = 0;
  in >> i;
  engine->wait(ops.at(i));
  OpTimes t = engine->times(ops[i]);
  return std::to_string(t.start_ns) + " " + std::to_string(t.end_ns) + " " +
         std::to_string(engine->code(ops[i]));
}

std::string is_lost(std::istream&) {
  return engine->lost() ? "lost" : "here";
}

// A child that keeps every descriptor it inherited.
std::string fork_sleeper(std::istream&) {
  pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  return std::to_string(child);
}

std::string leave(std::istream&) {
  exit(0);
}  // with whatever is outstanding

// As a driver that never destroys its engine.
std::string leak(std::istream&) {
  [[gnu::used, maybe_unused]] static Engine* kept;  // still reachable: not what a leak checker is looking for
  kept = engine.release();
  exit(0);
}

const std::map<std::string, std::string (*)(std::istream&)> kCommands = {
    {"connect", connect}, {"kernel", kernel},     {"stuck", stuck}, {"wait", wait},
    {"lost", is_lost},    {"fork", fork_sleeper}, {"exit", leave},  {"leak", leak},
};

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    auto found = kCommands.find(command);
    std::cout << (found == kCommands.end() ? "?" : found->second(in)) << std::endl;
  }
}
