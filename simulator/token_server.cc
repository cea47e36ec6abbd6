#include "simulator/token_server.h"

#include <algorithm>
#include <cmath>

namespace tessera::simulator {

void TokenServer::arrive(uint64_t now_ns) {
  RequestLength length;
  if (!serving_.lengths.empty()) {
    if (next_length_ == SIZE_MAX) next_length_ = random_.next();
    length = serving_.lengths[next_length_++ % serving_.lengths.size()];
  } else {
    const auto draw = [&](uint32_t mean) {
      return uint32_t(std::max(1.0, std::round(mean * random_.lognormal(serving_.cv))));
    };
    length.prompt = draw(serving_.mean.prompt);
    length.output = draw(serving_.mean.output);
  }
  waiting_.push_back({.arrival_ns = now_ns, .prompt_left = length.prompt, .output = length.output});
}

std::vector<Step> TokenServer::begin_step() {
  uint32_t decoding = 0, prompts = 0;
  uint64_t cached = 0;
  for (const Request& r : running_) {
    if (r.prompt_left != 0) continue;
    ++decoding;
    cached += r.cached;
  }
  uint32_t room = serving_.step_tokens - std::min(serving_.step_tokens, decoding);
  while (!waiting_.empty() && running_.size() < serving_.most_running) {
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  for (Request& r : running_) {
    r.in_step = std::min(r.prompt_left, room);
    room -= r.in_step;
    prompts += r.in_step;
  }
  return serving_.step(prompts == 0 ? 0 : prompts + decoding, cached);
}

std::vector<Answer> TokenServer::end_step(uint64_t now_ns) {
  std::vector<Answer> ended;
  for (Request& r : running_) {
    const bool had_prompt = r.prompt_left != 0;
    r.prompt_left -= r.in_step;
    r.cached += r.in_step;
    if (r.prompt_left != 0) continue;
    if (had_prompt) r.first_ns = now_ns;
    ++r.given;
    ++r.cached;
    ++tokens_;
    if (r.given == r.output) ended.push_back({r.arrival_ns, r.first_ns, now_ns, r.output});
  }
  std::erase_if(running_, [](const Request& r) { return r.prompt_left == 0 && r.given == r.output; });
  return ended;
}

}  // namespace tessera::simulator
