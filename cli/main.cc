// `tessera`: the command that people use. One row per subcommand; each lives in its own file.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>

#include "cli/calibrate.h"
#include "cli/cdi.h"
#include "cli/demo/demo.h"
#include "cli/doctor/doctor.h"
#include "cli/duration.h"
#include "cli/exporter.h"
#include "cli/inspect.h"
#include "cli/mps.h"
#include "cli/newer_names.h"
#include "cli/park.h"
#include "cli/profile.h"
#include "cli/proved_variants.h"
#include "cli/ps.h"
#include "cli/ptxas.h"
#include "cli/run.h"
#include "cli/set.h"
#include "cli/simulate.h"
#include "cli/simulate_pair.h"
#include "cli/top.h"
#include "cli/trace/take.h"

namespace {

constexpr double kMostBytes = 1e15;   // of a GPU: a thousand times the largest there is
constexpr int kLargestPid = 1 << 22;  // of the kernel, PID_MAX_LIMIT

// Every option that is a number: a duration, a rate, a count.
CLI::Validator between(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto number = tessera::cli::parse_number(text, least, most);
        return number.ok() ? "" : number.error().text;
      },
      "[" + CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most) + "]");
}

// What is opened later must not become standard output (or input, or errors) because that is closed. Where it
// was, there is now something that cannot be written, and that a program started from here does not see.
void keep_standard_descriptors() {
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0) close(fd);
}

// Arguments of ptxas are not ours to look at: `tessera ptxas ...`, or started by that name. nullptr = not meant.
char** ptxas_arguments(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "";
  if (path.substr(path.rfind('/') + 1).starts_with("ptxas")) return argv + 1;
  return argc > 1 && std::string_view(argv[1]) == "ptxas" ? argv + 2 : nullptr;
}

// A result that did not get to where it was sent is a failure, whatever else went well.
int checked_output(int status) {
  std::cout.flush();
  const bool written = fflush(stdout) == 0 && ferror(stdout) == 0 && std::cout.good();
  if (written || status != 0) return status;
  fprintf(stderr, "tessera: standard output cannot be written: is the disk full, or the reader gone?\n");
  return 1;
}

int command(int argc, char** argv) {
  using namespace tessera;
  keep_standard_descriptors();
  if (char** const first = ptxas_arguments(argc, argv))
    return cli::ptxas(first == argv + 1 ? argv[0] : "ptxas", {first, argv + argc});
  CLI::App app{"Tessera shares one NVIDIA GPU between unmodified programs"};
  app.set_version_flag("--version", TESSERA_VERSION);
  app.require_subcommand(1);
  int status = 0;

  cli::RunOptions run_options;
  auto* run =
      app.add_subcommand("run", "Run a program as a client: tessera run --priority high -- python serve.py");
  run->add_option("-p,--priority", run_options.priority,
                  "high, best-effort, or 0 (best-effort) .. 7 (highest)")
      ->capture_default_str();
  run->add_option("-n,--name", run_options.name, "name shown by `tessera ps` (default: the command)");
  run->add_option("--weight", run_options.weight,
                  "share among clients of one level, 1..10000 (100 is usual)");
  run->add_option("--slo", run_options.slo, "latency that a protected program must keep, e.g. 20ms");
  run->add_option("--gpu", run_options.gpu, "auto: the machine's GPU; soft: the software GPU")
      ->capture_default_str();
  run->add_option("--socket", run_options.socket,
                  "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  run->add_option(
      "--bit-stability", run_options.bit_stability,
      "strict (default) or relaxed: cut kernels although compiling them again may change last bits");
  run->add_flag("--allow-order-dependent", run_options.allow_order_dependent,
                "cut also kernels whose results may depend on the order of their blocks");
  run->add_flag("--keep-ptx", run_options.keep_ptx,
                "kernels that Triton, torch.compile and XLA compile keep their PTX, so that they can be cut");
  run->add_flag("--operations,!--no-operations", run_options.operations,
                "where the program may call cuBLAS, let its calls say what its launches are for (default)");
  run->add_flag(
      "--audit,!--no-audit", [&](int64_t count) { run_options.audit = count > 0; },
      "serve also what is opened by path or looked up by name; the default where the program is known to");
  run->add_flag("--split-operations", run_options.split_operations,
                "matrix products and convolutions that are longer than a slice go out in pieces, where these "
                "were found equal to the bit here; "
                "with --bit-stability relaxed everywhere (docs/library-calls.md)");
  run->add_option(
      "--gate", run_options.gate,
      "where a best-effort program's work waits: device (in its streams: it runs ahead), thread, or auto "
      "(as tesserad is configured; docs/architecture.md)");
  run->add_option(
         "--request-range", run_options.request_ranges,
         "a protected program's requests are these ranges of NVTX: NAME, DOMAIN/NAME or category:NAME, * for "
         "any text; repeatable (docs/requests.md)")
      ->allow_extra_args(false);
  run->add_option("--trace", run_options.trace,
                  "write a trace of this machine's clients there, until the program ends (docs/trace.md)");
  run->add_flag("--place", run_options.place,
                "of several GPUs, use the one where others cost it least (sets CUDA_VISIBLE_DEVICES)");
  run->add_option("--memory", run_options.memory_bytes,
                  "GPU memory that it is going to need, for --place, e.g. 18GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(between(0, kMostBytes));
  run->add_option(
         "--memory-limit", run_options.memory_limit_bytes,
         "most GPU memory that the program may have on each GPU, e.g. 20GiB: what it asks for beyond is "
         "refused as if the GPU were so small (docs/memory.md)")
      ->transform(CLI::AsSizeValue(false))
      ->check(between(1, kMostBytes));
  run->add_option("--memory-wait", run_options.memory_wait,
                  "how long an allocation that finds no room on the GPU waits for it, e.g. 10m, before it is "
                  "refused (docs/memory.md)");
  run->add_flag("--parkable", run_options.parkable,
                "its memory may leave the GPU while it does not need it: `tessera park` (docs/memory.md)");
  run->add_flag("--passthrough", run_options.passthrough, "run the program without Tessera");
  run->add_option("command", run_options.command, "the program and its arguments, after --")->required();
  run->positionals_at_end();
  run->callback([&] { status = cli::run(run_options); });

  cli::PsOptions ps_options;
  std::string socket_path;
  auto* ps = app.add_subcommand("ps", "Who shares the GPUs");
  ps->add_flag("--json", ps_options.json, "the daemon's whole state as JSON");
  ps->add_option("--socket", socket_path, "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  ps->add_flag("--requests", ps_options.requests,
               "and how long requests and bursts of protected clients took (docs/requests.md)");
  ps->add_flag("--operations", ps_options.operations,
               "and what best-effort clients ask of cuBLAS: FLOP/s, bytes/s");
  ps->callback([&] { status = cli::ps(socket_path, ps_options); });

  cli::TopOptions top_options;
  auto* top = app.add_subcommand("top", "Who uses the GPUs right now, again and again");
  top->add_option("--interval", top_options.interval_s, "seconds between two tables")
      ->check(between(0.05, 3600.0))
      ->capture_default_str();
  top->add_option("--count", top_options.count, "tables printed, 0 = until it is interrupted")
      ->check(between(0, 1'000'000))
      ->capture_default_str();
  top->add_option("--socket", top_options.socket,
                  "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  top->callback([&] { status = cli::top(top_options); });

  cli::TraceOptions trace_options;
  auto* trace = app.add_subcommand(
      "trace", "What clients launched and what they waited for: tessera trace --seconds 5 -o t.json");
  trace->add_option("--seconds", trace_options.seconds, "how long (default: until it is interrupted)")
      ->check(between(0.001, 86400.0));
  trace->add_option("-o,--output", trace_options.output,
                    "file for Perfetto or Chrome (default: standard output)");
  trace->add_flag("--text", trace_options.text, "one line per event instead");
  trace->add_option(
      "--chakra", trace_options.chakra,
      "write execution traces of MLCommons Chakra there: PREFIX.0.et, one per client (docs/trace.md)");
  trace->add_option("--from", trace_options.from, "of this file of an earlier trace; nothing is traced now");
  trace->add_option("--pid", trace_options.pid, "only this process (default: all that you may trace)")
      ->check(between(1, kLargestPid));
  trace->add_option("--socket", trace_options.socket,
                    "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  trace->callback([&] { status = cli::trace(trace_options); });

  cli::ExplainOptions explain_options;
  auto* explain = app.add_subcommand(
      "explain", "What stood in the way of the slowest bursts: tessera explain --slowest 5 t.json");
  explain->add_option("file", explain_options.file, "of `tessera trace` (default: a trace is taken now)");
  explain->add_option("--slowest", explain_options.slowest, "how many bursts")
      ->check(between(1, 10'000))
      ->capture_default_str();
  explain->add_option("--seconds", explain_options.seconds, "length of the trace that is taken")
      ->check(between(0.001, 86400.0))
      ->capture_default_str();
  explain->add_option("--socket", explain_options.socket,
                      "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  explain->callback([&] { status = cli::explain(explain_options); });

  cli::SetOptions set_options;
  auto* set = app.add_subcommand("set", "Change a client while it runs: tessera set trainer --weight 50");
  set->add_option("client", set_options.target, "process id or name, as `tessera ps` shows them")->required();
  set->add_option("-p,--priority", set_options.priority, "high, best-effort, or 0..7");
  set->add_option("--weight", set_options.weight, "share among clients of one level, 1..10000");
  set->add_option("--slo", set_options.slo, "latency to keep, e.g. 20ms; none");
  set->add_option("--passthrough", set_options.passthrough,
                  "on: its launches go straight to the driver; off: managed again");
  set->add_option("--socket", set_options.socket,
                  "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  set->callback([&] { status = cli::set(set_options); });

  cli::ParkOptions park_options;
  auto* park = app.add_subcommand(
      "park", "Take the memory of an idle client off its GPU, until its next call (docs/memory.md)");
  auto* unpark = app.add_subcommand("unpark", "Bring a parked client's memory back to its GPU");
  for (auto* command : {park, unpark}) {
    command->add_option("client", park_options.target, "process id or name, as `tessera ps` shows them")
        ->required();
    command->add_option("--seconds", park_options.seconds, "how long to wait for it")
        ->check(between(0.001, 86400.0))
        ->capture_default_str();
    command->add_option("--socket", park_options.socket,
                        "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
    command->callback([&, command] { status = cli::park(park_options, command == park); });
  }

  cli::ExporterOptions exporter_options;
  auto* exporter = app.add_subcommand("exporter", "tesserad's numbers for Prometheus, at /metrics");
  exporter->add_option("--listen", exporter_options.listen, "address and port")->capture_default_str();
  exporter->add_flag("--once", exporter_options.once, "print them and end");
  exporter->add_option("--socket", exporter_options.socket,
                       "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  exporter->callback([&] { status = cli::exporter(exporter_options); });

  cli::InspectOptions inspect_options;
  auto* inspect =
      app.add_subcommand("inspect", "What GPU code a file holds, which kernels can be cut, and why not");
  inspect->add_option("file", inspect_options.file, "program, shared library, fat binary, cubin or PTX")
      ->required();
  inspect->add_option("--kernel", inspect_options.kernel, "only this one");
  inspect->add_flag("--json", inspect_options.json, "as JSON");
  inspect->add_flag("--emit-slice", inspect_options.emit_slice, "print the PTX with the cut variants");
  inspect->add_flag("--allow-order-dependent", inspect_options.allow_order_dependent,
                    "also kernels whose results depend on the order of blocks");
  inspect->add_option("--gpu", inspect_options.gpu,
                      "only: which share of the kernels can be cut on this GPU, e.g. h200 or sm_90");
  inspect->add_option("--bit-stability", inspect_options.bit_stability, "for --gpu, as `tessera run` has it")
      ->check(CLI::IsMember({"strict", "relaxed"}))
      ->capture_default_str();
  inspect->callback([&] { status = cli::inspect(inspect_options); });

  cli::PrepareOptions prepare_options;
  auto* prepare = app.add_subcommand(
      "prepare",
      "Prove that kernels of a program or library can be cut without a bit changing, and keep that");
  prepare->add_option("file", prepare_options.file, "program, shared library or fat binary")->required();
  prepare->add_flag("--json", prepare_options.json, "as JSON");
  prepare->callback([&] { status = cli::prepare(prepare_options); });

  app.add_subcommand("ptxas", "A drop-in for ptxas whose output also has the PTX (see run --keep-ptx)");

  cli::CdiOptions cdi_options;
  auto* cdi = app.add_subcommand(
      "cdi", "Shared devices for containers: tessera cdi generate -o /etc/cdi/tessera.json");
  std::string cdi_action;
  cdi->add_option("action", cdi_action, "generate: write the specification (so also without it)")
      ->check(CLI::IsMember({"generate"}));
  cdi->add_option("-o,--output", cdi_options.output, "file to write (default: standard output)");
  cdi->add_option("--gpu", cdi_options.gpu, "auto: the machine's GPU; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
  cdi->add_option("--cdi-version", cdi_options.version,
                  "version of CDI that the file names; a runtime refuses one that is newer than itself")
      ->check(CLI::IsMember(std::vector<std::string>(cli::kCdiVersions.begin(), cli::kCdiVersions.end())))
      ->capture_default_str();
  cdi->add_option("--socket", cdi_options.socket, "tesserad's socket; its folder is mounted")
      ->capture_default_str();
  cdi->callback([&] {
    if (cdi_options.gpu == "auto") cli::install_newer_names();
    status = cli::cdi(cdi_options);
  });

  cli::DoctorOptions doctor_options;
  auto* doctor = app.add_subcommand(
      "doctor", "What stands in the way on this machine, or of one program: tessera doctor -- ./train");
  doctor->add_flag("--json", doctor_options.json, "as JSON");
  doctor->add_option("--gpu", doctor_options.gpu, "auto: the machine's GPU; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
  doctor->add_option("--socket", doctor_options.socket,
                     "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  doctor->add_option("command", doctor_options.command,
                     "the program and its arguments, after --; it is not started");
  doctor->positionals_at_end();
  doctor->callback([&] { status = cli::doctor(doctor_options); });

  long stop_pid = 0;
  std::string stop_socket;
  auto* stop = app.add_subcommand("stop", "End a client of MPS without hurting the others");
  stop->add_option("pid", stop_pid, "its process id")->required()->check(between(1, kLargestPid));
  stop->add_option("--socket", stop_socket, "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  stop->callback([&] { status = cli::stop(stop_pid, stop_socket); });

  std::string reload_socket;
  auto* reload = app.add_subcommand("reload", "Have tesserad read its configuration again (as SIGHUP does)");
  reload->add_option("--socket", reload_socket,
                     "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
  reload->callback([&] { status = cli::reload(reload_socket); });

  cli::DemoOptions demo_options;
  auto* demo =
      app.add_subcommand("demo", "A latency-critical service and a trainer share a GPU: measure and show");
  demo->add_option("--seconds", demo_options.seconds, "length of each measured phase")
      ->check(between(2, 600))
      ->capture_default_str();
  demo->add_option("--nonce", demo_options.nonce, "text kept in demo.json; seeds the arrivals");
  demo->add_option("--out", demo_options.out, "folder for demo.json, demo.png and the CSV files")
      ->capture_default_str();
  demo->add_option("--load", demo_options.load, "share of the GPU that the service wants")
      ->check(between(0.05, 0.95))
      ->capture_default_str();
  demo->add_option("--gpu", demo_options.gpu, "auto: a real GPU if there is one; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
  demo->add_option(
          "--workload", demo_options.workload,
          "auto: torch where the GPU is real and python3 has PyTorch, else samples; torch: stock PyTorch, "
          "ResNet-50 as a "
          "CUDA graph beside a training of GPT-2, torch-resnet: of ResNet-50; samples: two programs in CUDA; "
          "eager: the same service, and a trainer of some 700 short "
          "launches whose "
          "CPU is its limit; transformer: a decoder on cuBLAS, trained and served; jax: "
          "two programs in JAX, on the software GPU, where scripts/frameworks.sh jax has fetched it")
      ->check(CLI::IsMember({"auto", "samples", "eager", "transformer", "torch", "torch-resnet", "jax"}))
      ->capture_default_str();
  demo->add_option("--gate", demo_options.gate,
                   "where the trainer's launches wait: on the device, or in its thread (TESSERA_GATE)")
      ->check(CLI::IsMember({"auto", "device", "thread"}))
      ->capture_default_str();
  demo->callback([&] { status = cli::demo(demo_options); });

  cli::SimulateOptions simulate_options;
  auto* simulate =
      app.add_subcommand("simulate", "Policies on a modelled GPU in virtual time: docs/simulator.md");
  auto* scenario =
      simulate->add_option("scenario", simulate_options.scenario, "a TOML file; scenarios/ has some");
  cli::PairOptions pair;
  auto* service = simulate->add_option(
      "--protected", pair.protected_file,
      "instead of a scenario: a service as a profiler recorded it (docs/plan-sharing.md)");
  auto* trainer =
      simulate->add_option("--best-effort", pair.best_effort_file, "the same of the program beside it");
  scenario->excludes(service)->excludes(trainer);
  service->needs(trainer);
  trainer->needs(service);
  simulate
      ->add_option("--rate", pair.rate,
                   "requests of the service: 20/s, 90/min (default: half of what it could answer)")
      ->needs(service);
  auto* decode = simulate
                     ->add_option("--decode", pair.decode_file,
                                  "the service is a language model: its step over running requests; "
                                  "--protected is then its step over prompts")
                     ->needs(service);
  simulate->add_option("--prefill-tokens", pair.prefill_tokens, "tokens of prompts in that step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->needs(decode);
  simulate->add_option("--decode-batch", pair.decode_batch, "requests in the recorded decode step")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str()
      ->needs(decode);
  simulate
      ->add_option("--requests", pair.requests_file,
                   "recorded requests: CSV with arrival_s, input_tokens, output_tokens; --arrivals trace")
      ->needs(decode);
  simulate->add_option("--arrivals", pair.arrivals, "how they come")
      ->check(CLI::IsMember({"poisson", "bursty", "gamma", "periodic", "onoff", "trace"}))
      ->capture_default_str()
      ->needs(service);
  simulate->add_option("--gpu", pair.gpu, "the GPU to simulate: h100, a100, ... (default: the service's)")
      ->needs(service);
  simulate->add_option("--cuttable", pair.cuttable, "which best-effort kernels can be cut")
      ->check(CLI::IsMember({"none", "triton", "all"}))
      ->capture_default_str()
      ->needs(service);
  simulate
      ->add_option("--request", pair.protected_range,
                   "requests are the ranges whose names begin so (default: ProfilerStep)")
      ->needs(service);
  simulate->add_option("--step", pair.best_effort_range, "the same for the steps of the program beside it")
      ->needs(service);
  simulate
      ->add_option("--protected-on", pair.protected_recorded_on,
                   "the GPU of that recording, if it does not say")
      ->needs(service);
  simulate->add_option("--best-effort-on", pair.best_effort_recorded_on, "likewise")->needs(service);
  simulate
      ->add_option("--seeds", simulate_options.seeds,
                   "how often, each time with other draws (default: the scenario's)")
      ->check(between(1, 1000));
  simulate->add_option("--first-seed", simulate_options.first_seed, "the first of them")
      ->capture_default_str();
  simulate
      ->add_option("--policy", simulate_options.policies,
                   "only these of the scenario, or others as NAME@REGIME")
      ->delimiter(',');
  simulate
      ->add_option("--tune", simulate_options.tune,
                   "NAME=VALUE: another value of a constant of the policies (docs/notes/tuning.md)")
      ->type_size(1)
      ->allow_extra_args(false);
  simulate->add_option(
      "--contention", simulate_options.contention,
      "a JSON that tests/device/h16_contention printed: its tables in place of the scenario's");
  simulate
      ->add_option("--duration-ms", simulate_options.duration_ms,
                   "virtual time of each run (default: the scenario's)")
      ->check(between(1, 1'000'000'000));
  simulate->add_flag("--cells", simulate_options.cells, "also show every cell");
  simulate->add_flag("--bound", simulate_options.bound, "only what no scheduler could exceed in this model");
  simulate->add_option("--json", simulate_options.json, "write the results there");
  simulate->add_option("--csv", simulate_options.csv, "write one row per cell and seed there");
  simulate->add_option("--plot", simulate_options.plot, "folder for the plots (needs matplotlib)");
  simulate->callback([&] {
    if (pair.protected_file.empty()) {
      if (simulate_options.scenario.empty())
        throw CLI::RequiredError("scenario, or --protected and --best-effort");
      status = cli::simulate(simulate_options);
      return;
    }
    pair.policies = simulate_options.policies;
    pair.tune = simulate_options.tune;
    pair.contention = simulate_options.contention;
    if (simulate_options.seeds != 0) pair.seeds = simulate_options.seeds;
    pair.first_seed = simulate_options.first_seed;
    pair.duration_ms = simulate_options.duration_ms;
    pair.json = simulate_options.json;
    pair.plot = simulate_options.plot;
    status = cli::simulate_pair(pair);
  });

  cli::ProfileOptions profile_options;
  auto* profile = app.add_subcommand(
      "profile", "Learn what a program's kernels cost: tessera profile --gpu soft -- python train.py");
  profile->add_option("--seconds", profile_options.seconds, "end the program after this time (default: wait)")
      ->check(between(0.1, 86400.0));
  profile->add_option("-o,--output", profile_options.output, "profile file; merged into if it exists")
      ->capture_default_str();
  profile->add_option("--gpu", profile_options.gpu, "auto: the machine's GPU; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
  profile->add_option("--top", profile_options.top, "kernels printed")
      ->check(between(0, 1'000'000))
      ->capture_default_str();
  profile->add_flag("--metrics", profile_options.metrics,
                    "on a real GPU: also count bytes and operations; each kernel runs several times");
  profile->add_flag(
      "--sensitivity", profile_options.sensitivity,
      "where nothing can be counted: run it alone, beside memory work and beside arithmetic (MPS)");
  profile->add_flag("--install", profile_options.install,
                    "also put it where tesserad reads profiles; without a command: only that");
  profile->add_option("command", profile_options.command, "the program and its arguments, after --");
  profile->positionals_at_end();
  profile->callback([&] { status = cli::profile(profile_options); });

  cli::CalibrateOptions calibrate_options;
  auto* calibrate = app.add_subcommand(
      "calibrate", "Measure the GPU and write a description: tessera calibrate -o mygpu.toml");
  calibrate->add_option("--gpu", calibrate_options.gpu, "auto: the machine's GPU; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
  calibrate->add_option("-o,--output", calibrate_options.output, "file to write (default: standard output)");
  calibrate->callback([&] { status = cli::calibrate(calibrate_options); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      fprintf(stderr, "tessera: '%s' is no command; `tessera --help` lists them\n", argv[1]);
      return 2;
    }
    return checked_output(app.exit(problem) == 0 ? 0 : 2);
  }
  return checked_output(status);
}

}  // namespace

int main(int argc, char** argv) try {
  return command(argc, argv);
} catch (const std::exception& problem) {  // no memory, no room: said like any other failure
  fprintf(stderr, "tessera: %s\n", problem.what());
  return 1;
}
