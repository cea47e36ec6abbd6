// Requests of a language model in its server: continuous batching. A step takes every request that runs one token further, and
// as much of waiting prompts as the step has room for. The first token of a request is there when the last part of its prompt
// is. Deterministic; no clock: the simulation says when a step ends.
//
//   arrive() -> [waiting] -> begin_step() -> [running: prompt, then tokens] -> end_step() -> Answer
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "simulator/workload.h"

namespace tessera::simulator {

struct Answer {
  uint64_t arrival_ns = 0, first_ns = 0, end_ns = 0;  // first: when its first token was there
  uint32_t tokens = 0;
  uint64_t to_first_ns() const { return first_ns - arrival_ns; }
  uint64_t per_token_ns() const { return tokens > 1 ? (end_ns - first_ns) / (tokens - 1) : 0; }
};

class TokenServer {
 public:
  TokenServer(const Serving& serving, Random random) : serving_(serving), random_(random) {}

  void arrive(uint64_t now_ns);
  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::vector<Step> begin_step();                 // not while idle
  std::vector<Answer> end_step(uint64_t now_ns);  // requests that ended
  uint64_t tokens() const { return tokens_; }     // of all ended steps

 private:
  struct Request {
    uint64_t arrival_ns = 0, first_ns = 0;
    uint32_t prompt_left = 0, in_step = 0;  // tokens of the prompt
    uint32_t cached = 0, output = 0, given = 0;
  };
  const Serving& serving_;
  Random random_;
  size_t next_length_ = SIZE_MAX;  // of recorded ones; SIZE_MAX: not begun
  std::deque<Request> waiting_;
  std::vector<Request> running_;
  uint64_t tokens_ = 0;
};

}  // namespace tessera::simulator
