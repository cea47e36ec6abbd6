#include "cli/look/measured_state.h"

#include "cli/run/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {

base::Result<nlohmann::json> measured_state(const std::string& socket) {
  const auto path = resolve_socket(socket);
  if (!path) return path.error();
  const auto answer = ipc::query(*path, ipc::abi::kQueryStateMeasured);
  if (!answer) return answer.error();
  nlohmann::json state = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) return base::error(base::Code::kInvalid, "tesserad sent no JSON");
  return state;
}

}  // namespace tessera::cli
