// The commands that start programs, and change how they run.
#include <memory>
#include <string>
#include <utility>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/run/cdi.h"
#include "cli/run/mps.h"
#include "cli/run/newer_names.h"
#include "cli/run/park.h"
#include "cli/run/proved_variants.h"
#include "cli/run/run.h"
#include "cli/run/set.h"

namespace tessera::cli {

constexpr double kMostBytes = 1e15;  // of a GPU: a thousand times the largest there is

void add_run(CLI::App& app, int* status) {
  const auto options = std::make_shared<RunOptions>();
  auto* command =
      app.add_subcommand("run", "Run a program as a client: tessera run --priority high -- python serve.py");
  command
      ->add_option("-p,--priority", options->priority, "high, best-effort, or 0 (best-effort) .. 7 (highest)")
      ->capture_default_str();
  command->add_option("-n,--name", options->name, "name shown by `tessera ps` (default: the command)");
  command->add_option("--weight", options->weight,
                      "share among clients of one level, 1..10000 (100 is usual)");
  command->add_option("--slo", options->slo,
                      "latency that a protected program must keep, e.g. 20ms; of its requests by kind: "
                      "ttft=200ms,tpot=30ms,RANGE=40ms (docs/requests.md)");
  command->add_option("--gpu", options->gpu, "auto: the machine's GPU; soft: the software GPU")
      ->capture_default_str();
  add_socket(command, options->socket);
  command->add_option(
      "--bit-stability", options->bit_stability,
      "strict (default) or relaxed: cut kernels although compiling them again may change last bits");
  command->add_flag("--allow-order-dependent", options->allow_order_dependent,
                    "cut also kernels whose results may depend on the order of their blocks");
  command->add_flag(
      "--keep-ptx", options->keep_ptx,
      "kernels that Triton, torch.compile and XLA compile keep their PTX, so that they can be cut");
  command->add_flag(
      "--operations,!--no-operations", options->operations,
      "where the program may call cuBLAS, let its calls say what its launches are for (default)");
  command->add_flag(
      "--audit,!--no-audit", [=](int64_t count) { options->audit = count > 0; },
      "serve also what is opened by path or looked up by name; the default where the program is known to");
  command->add_flag(
      "--split-operations", options->split_operations,
      "matrix products and convolutions that are longer than a slice go out in pieces, where these "
      "were found equal to the bit here; "
      "with --bit-stability relaxed everywhere (docs/library-calls.md)");
  command->add_option(
      "--gate", options->gate,
      "where a best-effort program's work waits: device (in its streams: it runs ahead), thread, or auto "
      "(as tesserad is configured; docs/architecture.md)");
  command
      ->add_option("--request-range", options->request_ranges,
                   "a protected program's requests are these ranges of NVTX: NAME, DOMAIN/NAME or "
                   "category:NAME, * for "
                   "any text; repeatable (docs/requests.md)")
      ->allow_extra_args(false);
  command
      ->add_option("--yield-range", options->yield_ranges,
                   "likewise ranges whose work best-effort programs need not wait for; repeatable")
      ->allow_extra_args(false);
  command->add_option(
      "--trace", options->trace,
      "write a trace of this machine's clients there, until the program ends (docs/trace.md)");
  command->add_option(
      "--gang", options->gang,
      "the job that it belongs to: programs of one name run, and are held, together on all their GPUs; none "
      "(docs/gangs.md). Without it the environment of torchrun, MPI or Slurm says so");
  command->add_flag("--place", options->place,
                    "of several GPUs, use the one where others cost it least (sets CUDA_VISIBLE_DEVICES)");
  command
      ->add_option("--memory", options->memory_bytes,
                   "GPU memory that it is going to need, for --place, e.g. 18GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(between(0, kMostBytes));
  command
      ->add_option(
          "--memory-limit", options->memory_limit_bytes,
          "most GPU memory that the program may have on each GPU, e.g. 20GiB: what it asks for beyond is "
          "refused as if the GPU were so small (docs/memory.md)")
      ->transform(CLI::AsSizeValue(false))
      ->check(between(1, kMostBytes));
  command
      ->add_option(
          "--memory-reserve", options->memory_reserve_bytes,
          "GPU memory that is the program's on each GPU that it sees, whatever others ask for, and the "
          "most that it may have there unless --memory-limit says more; it does not start if there "
          "is not so much (docs/memory.md)")
      ->transform(CLI::AsSizeValue(false))
      ->check(between(1, kMostBytes));
  command->add_option(
      "--memory-wait", options->memory_wait,
      "how long an allocation that finds no room on the GPU waits for it, e.g. 10m, before it is "
      "refused (docs/memory.md)");
  command->add_flag(
      "--parkable", options->parkable,
      "its memory may leave the GPU while it does not need it: `tessera park` (docs/memory.md)");
  command->add_flag("--passthrough", options->passthrough, "run the program without Tessera");
  command->add_option("command", options->command, "the program and its arguments, after --")->required();
  command->positionals_at_end();
  command->callback([=] { *status = run(*options); });
}

void add_set(CLI::App& app, int* status) {
  const auto options = std::make_shared<SetOptions>();
  auto* command = app.add_subcommand("set", "Change a client while it runs: tessera set trainer --weight 50");
  command->add_option("client", options->target, "process id or name, as `tessera ps` shows them")
      ->required();
  command->add_option("-p,--priority", options->priority, "high, best-effort, or 0..7");
  command->add_option("--weight", options->weight, "share among clients of one level, 1..10000");
  command->add_option("--slo", options->slo, "latency to keep, e.g. 20ms; none");
  command->add_option("--passthrough", options->passthrough,
                      "on: its launches go straight to the driver; off: managed again");
  add_socket(command, options->socket);
  command->callback([=] { *status = set(*options); });
}

void add_park(CLI::App& app, int* status) {
  const auto options = std::make_shared<ParkOptions>();
  auto* parking = app.add_subcommand(
      "park", "Take the memory of an idle client off its GPU, until its next call (docs/memory.md)");
  auto* unparking = app.add_subcommand("unpark", "Bring a parked client's memory back to its GPU");
  auto* moving =
      app.add_subcommand("move", "Move a running client to another GPU of the same model (docs/memory.md)");
  moving->add_option("--to", options->gpu, "that GPU: GPU-UUID as `nvidia-smi -L` shows it, or its number")
      ->required();
  for (auto [command, means] :
       {std::pair(parking, ParkCommand::kPark), std::pair(unparking, ParkCommand::kUnpark),
        std::pair(moving, ParkCommand::kMove)}) {
    command->add_option("client", options->target, "process id or name, as `tessera ps` shows them")
        ->required();
    command->add_option("--seconds", options->seconds, "how long to wait for it")
        ->check(between(0.001, 86400.0))
        ->capture_default_str();
    add_socket(command, options->socket);
    command->callback([=, means = means] { *status = park(*options, means); });
  }
}

void add_stop(CLI::App& app, int* status) {
  const auto pid = std::make_shared<long>(0);
  const auto socket_path = std::make_shared<std::string>();
  auto* command = app.add_subcommand("stop", "End a client of MPS without hurting the others");
  command->add_option("pid", *pid, "its process id")->required()->check(between(1, kLargestPid));
  add_socket(command, *socket_path);
  command->callback([=] { *status = stop(*pid, *socket_path); });
}

void add_reload(CLI::App& app, int* status) {
  const auto socket_path = std::make_shared<std::string>();
  auto* command = app.add_subcommand("reload", "Have tesserad read its configuration again (as SIGHUP does)");
  add_socket(command, *socket_path);
  command->callback([=] { *status = reload(*socket_path); });
}

void add_cdi(CLI::App& app, int* status) {
  const auto options = std::make_shared<CdiOptions>();
  auto* command = app.add_subcommand(
      "cdi", "Shared devices for containers: tessera cdi generate -o /etc/cdi/tessera.json");
  const auto action = std::make_shared<std::string>();
  command->add_option("action", *action, "generate: write the specification (so also without it)")
      ->check(CLI::IsMember({"generate"}));
  command->add_option("-o,--output", options->output, "file to write (default: standard output)");
  add_gpu(command, options->gpu);
  command
      ->add_option("--cdi-version", options->version,
                   "version of CDI that the file names; a runtime refuses one that is newer than itself")
      ->check(CLI::IsMember(std::vector<std::string>(kCdiVersions.begin(), kCdiVersions.end())))
      ->capture_default_str();
  command->add_option("--socket", options->socket, "tesserad's socket; its folder is mounted")
      ->capture_default_str();
  command->callback([=] {
    if (options->gpu == "auto") install_newer_names();
    *status = cdi(*options);
  });
}

void add_prepare(CLI::App& app, int* status) {
  const auto options = std::make_shared<PrepareOptions>();
  auto* command = app.add_subcommand(
      "prepare",
      "Prove that kernels of a program or library can be cut without a bit changing, and keep that");
  command->add_option("file", options->file, "program, shared library or fat binary")->required();
  command->add_flag("--json", options->json, "as JSON");
  command->callback([=] { *status = prepare(*options); });
}

void add_ptxas(CLI::App& app, int*) {
  app.add_subcommand("ptxas", "A drop-in for ptxas whose output also has the PTX (see run --keep-ptx)");
}

}  // namespace tessera::cli
