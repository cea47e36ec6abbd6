#include "cli/run/set.h"

#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/printable.h"
#include "cli/run/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

using base::Code;
using ipc::abi::Control;

template <class Number>
bool whole(const std::string& text, Number* out) {
  const char* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, *out);
  return failed == std::errc() && rest == end && !text.empty();
}

int ask(const std::string& socket, const Control& request, const char* command) {
  const auto path = resolve_socket(socket);
  auto answer =
      path ? ipc::control(ipc::control_socket_path(*path), request) : base::Result<std::string>(path.error());
  if (!answer) {
    fprintf(stderr, "tessera %s: %s\n", command, base::printable(answer.error().text).c_str());
    return 1;
  }
  puts(base::printable(*answer).c_str());
  return 0;
}

}  // namespace

base::Result<Control> set_request(const SetOptions& options) {
  Control request{};
  request.action = ipc::abi::kControlSet;
  if (!whole(options.target, &request.pid)) {
    if (options.target.empty() || options.target.size() >= sizeof request.name)
      return base::error(Code::kInvalid, "name a client by process id or by name (`tessera ps` shows both)");
    std::memcpy(request.name, options.target.data(), options.target.size());
  }
  if (!options.priority.empty()) {
    auto priority = parse_priority(options.priority);
    if (!priority) return priority.error();
    request.priority = *priority;
    request.fields |= ipc::abi::kSetsPriority;
  }
  if (!options.weight.empty()) {
    auto weight = parse_weight(options.weight);
    if (!weight) return weight.error();
    request.weight = *weight;
    request.fields |= ipc::abi::kSetsWeight;
  }
  if (!options.slo.empty()) {
    auto slo_ns = options.slo == "none" ? base::Result<uint64_t>(0) : parse_slo_ns(options.slo);
    if (!slo_ns) return slo_ns.error();
    request.slo_ns = *slo_ns;
    request.fields |= ipc::abi::kSetsSlo;
  }
  if (!options.passthrough.empty()) {
    if (options.passthrough != "on" && options.passthrough != "off")
      return base::error(Code::kInvalid, "--passthrough is on or off, not '" + options.passthrough + "'");
    request.passthrough = options.passthrough == "on";
    request.fields |= ipc::abi::kSetsPassthrough;
  }
  if (request.fields == 0)
    return base::error(Code::kInvalid, "nothing to set: give --priority, --weight, --slo or --passthrough");
  return request;
}

int set(const SetOptions& options) {
  const auto request = set_request(options);
  if (!request) {
    fprintf(stderr, "tessera set: %s\n", request.error().text.c_str());
    return 2;
  }
  return ask(options.socket, *request, "set");
}

int reload(const std::string& socket) {
  Control request{};
  request.action = ipc::abi::kControlReload;
  return ask(socket, request, "reload");
}

}  // namespace tessera::cli
