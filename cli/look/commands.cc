// The commands that show who does what, and why.
#include <memory>
#include <string>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/doctor/doctor.h"
#include "cli/look/exporter.h"
#include "cli/look/inspect.h"
#include "cli/look/ps.h"
#include "cli/look/top.h"
#include "cli/trace/explain.h"
#include "cli/trace/take.h"

namespace tessera::cli {

void add_ps(CLI::App& app, int* status) {
  const auto options = std::make_shared<PsOptions>();
  const auto socket_path = std::make_shared<std::string>();
  auto* command = app.add_subcommand("ps", "Who shares the GPUs");
  command->add_flag("--json", options->json, "the daemon's whole state as JSON");
  add_socket(command, *socket_path);
  command->add_flag("--requests", options->requests,
                    "and how long requests and bursts of protected clients took (docs/requests.md)");
  command->add_flag("--operations", options->operations,
                    "and what best-effort clients ask of cuBLAS: FLOP/s, bytes/s");
  command->callback([=] { *status = ps(*socket_path, *options); });
}

void add_top(CLI::App& app, int* status) {
  const auto options = std::make_shared<TopOptions>();
  auto* command = app.add_subcommand("top", "Who uses the GPUs right now, again and again");
  command->add_option("--interval", options->interval_s, "seconds between two tables")
      ->check(between(0.05, 3600.0))
      ->capture_default_str();
  command->add_option("--count", options->count, "tables printed, 0 = until it is interrupted")
      ->check(between(0, 1'000'000))
      ->capture_default_str();
  add_socket(command, options->socket);
  command->callback([=] { *status = top(*options); });
}

void add_trace(CLI::App& app, int* status) {
  const auto options = std::make_shared<TraceOptions>();
  auto* command = app.add_subcommand(
      "trace", "What clients launched and what they waited for: tessera trace --seconds 5 -o t.json");
  command->add_option("--seconds", options->seconds, "how long (default: until it is interrupted)")
      ->check(between(0.001, 86400.0));
  command->add_option("-o,--output", options->output,
                      "file for Perfetto or Chrome (default: standard output)");
  command->add_flag("--text", options->text, "one line per event instead");
  command->add_option(
      "--chakra", options->chakra,
      "write execution traces of MLCommons Chakra there: PREFIX.0.et, one per client (docs/trace.md)");
  command->add_option("--from", options->from, "of this file of an earlier trace; nothing is traced now");
  command->add_option("--pid", options->pid, "only this process (default: all that you may trace)")
      ->check(between(1, kLargestPid));
  add_socket(command, options->socket);
  command->callback([=] { *status = trace(*options); });
}

void add_explain(CLI::App& app, int* status) {
  const auto options = std::make_shared<ExplainOptions>();
  auto* command = app.add_subcommand(
      "explain", "What stood in the way of the slowest bursts: tessera explain --slowest 5 t.json");
  command->add_option("file", options->file, "of `tessera trace` (default: a trace is taken now)");
  command->add_option("--slowest", options->slowest, "how many bursts")
      ->check(between(1, 10'000))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "length of the trace that is taken")
      ->check(between(0.001, 86400.0))
      ->capture_default_str();
  add_socket(command, options->socket);
  command->callback([=] { *status = explain(*options); });
}

void add_exporter(CLI::App& app, int* status) {
  const auto options = std::make_shared<ExporterOptions>();
  auto* command = app.add_subcommand("exporter", "tesserad's numbers for Prometheus, at /metrics");
  command->add_option("--listen", options->listen, "address and port")->capture_default_str();
  command->add_flag("--once", options->once, "print them and end");
  add_socket(command, options->socket);
  command->callback([=] { *status = exporter(*options); });
}

void add_inspect(CLI::App& app, int* status) {
  const auto options = std::make_shared<InspectOptions>();
  auto* command =
      app.add_subcommand("inspect", "What GPU code a file holds, which kernels can be cut, and why not");
  command->add_option("file", options->file, "program, shared library, fat binary, cubin or PTX")->required();
  command->add_option("--kernel", options->kernel, "only this one");
  command->add_flag("--json", options->json, "as JSON");
  command->add_flag("--emit-slice", options->emit_slice, "print the PTX with the cut variants");
  command->add_flag("--allow-order-dependent", options->allow_order_dependent,
                    "also kernels whose results depend on the order of blocks");
  command->add_option("--gpu", options->gpu,
                      "only: which share of the kernels can be cut on this GPU, e.g. h200 or sm_90");
  command->add_option("--bit-stability", options->bit_stability, "for --gpu, as `tessera run` has it")
      ->check(CLI::IsMember({"strict", "relaxed"}))
      ->capture_default_str();
  command->callback([=] { *status = inspect(*options); });
}

void add_doctor(CLI::App& app, int* status) {
  const auto options = std::make_shared<DoctorOptions>();
  auto* command = app.add_subcommand(
      "doctor", "What stands in the way on this machine, or of one program: tessera doctor -- ./train");
  command->add_flag("--json", options->json, "as JSON");
  add_gpu(command, options->gpu);
  add_socket(command, options->socket);
  command->add_option("command", options->command,
                      "the program and its arguments, after --; it is not started");
  command->positionals_at_end();
  command->callback([=] { *status = doctor(*options); });
}

}  // namespace tessera::cli
