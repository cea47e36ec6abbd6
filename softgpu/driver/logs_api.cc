// The driver's log: what report() says, for programs that ask for it. It holds what fits 25,600 bytes, as
// documented; older lines are dropped. An iterator is the number of the next line to read.
#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/driver/logs.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {
namespace {

constexpr size_t kMostLogBytes = 25600;
constexpr std::string_view kTruncated = "earlier messages are lost\n";

struct Callback {
  CUlogsCallback function;
  void* data;
};

struct Logs {
  std::mutex mutex;               // guards all below
  std::deque<std::string> lines;  // with their newlines
  size_t bytes = 0;
  CUlogIterator first = 0;  // number of lines.front()
  std::map<uint64_t, Callback> callbacks;
  uint64_t next_callback = 1;
};
Logs& logs() {
  static auto* all = new Logs;  // never destroyed
  return *all;
}

// Lines from the iterator on that fit, the newest if not all do. Advances the iterator.
std::string read(CUlogIterator* iterator, size_t most, bool* any = nullptr) {
  Logs& all = logs();
  std::lock_guard lock(all.mutex);
  const CUlogIterator from = iterator ? *iterator : all.first;
  const CUlogIterator end = all.first + CUlogIterator(all.lines.size());
  CUlogIterator begin = std::clamp(from, all.first, end);
  if (any) *any = begin < end;
  const auto bytes = [&] {
    size_t sum = begin > from ? kTruncated.size() : 0;
    for (CUlogIterator n = begin; n < end; ++n) sum += all.lines[n - all.first].size();
    return sum;
  };
  while (begin < end && bytes() > most) ++begin;
  std::string text;
  if (begin < end && begin > from) text = kTruncated;
  for (CUlogIterator n = begin; n < end; ++n) text += all.lines[n - all.first];
  if (iterator) *iterator = end;
  return text;
}

}  // namespace

void log_line(std::string_view text) {
  std::vector<Callback> callbacks;
  {
    Logs& all = logs();
    std::lock_guard lock(all.mutex);
    all.lines.emplace_back(text).push_back('\n');
    all.bytes += all.lines.back().size();
    while (all.bytes > kMostLogBytes) {
      all.bytes -= all.lines.front().size();
      all.lines.pop_front();
      ++all.first;
    }
    for (const auto& [id, callback] : all.callbacks) callbacks.push_back(callback);
  }
  std::string message(text);
  for (const Callback& c : callbacks) c.function(c.data, CU_LOG_LEVEL_ERROR, message.data(), message.size());
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void* userData,
                                CUlogsCallbackHandle* callback_out) {
  if (!callbackFunc) return CUDA_ERROR_INVALID_VALUE;
  Logs& all = logs();
  std::lock_guard lock(all.mutex);
  all.callbacks[all.next_callback] = {callbackFunc, userData};
  if (callback_out) *callback_out = reinterpret_cast<CUlogsCallbackHandle>(all.next_callback);
  ++all.next_callback;
  return CUDA_SUCCESS;
}
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
  Logs& all = logs();
  std::lock_guard lock(all.mutex);
  return all.callbacks.erase(reinterpret_cast<uint64_t>(callback)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLogsCurrent(CUlogIterator* iterator_out, unsigned int flags) {
  if (!iterator_out || flags) return CUDA_ERROR_INVALID_VALUE;
  Logs& all = logs();
  std::lock_guard lock(all.mutex);
  *iterator_out = all.first + CUlogIterator(all.lines.size());
  return CUDA_SUCCESS;
}
CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* pathToFile, unsigned int flags) {
  if (!pathToFile || flags) return CUDA_ERROR_INVALID_VALUE;
  std::ofstream file(pathToFile);
  file << read(iterator, kMostLogBytes + kTruncated.size());
  file.close();
  return file ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size, unsigned int flags) {
  if (!buffer || !size || !*size || flags) return CUDA_ERROR_INVALID_VALUE;
  bool any = false;
  const std::string text = read(iterator, *size - 1, &any);
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  return any && text.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
