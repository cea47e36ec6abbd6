// The commands that measure programs, policies and GPUs.
#include <memory>
#include <string>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/demo/demo.h"
#include "cli/measure/calibrate.h"
#include "cli/measure/profile.h"
#include "cli/measure/simulate.h"
#include "cli/measure/simulate_pair.h"

namespace tessera::cli {

void add_demo(CLI::App& app, int* status) {
  const auto options = std::make_shared<DemoOptions>();
  auto* command =
      app.add_subcommand("demo", "A latency-critical service and a trainer share a GPU: measure and show");
  command->add_option("--seconds", options->seconds, "length of each measured phase")
      ->check(between(2, 600))
      ->capture_default_str();
  command->add_option("--nonce", options->nonce, "text kept in demo.json; seeds the arrivals");
  command->add_option("--out", options->out, "folder for demo.json, demo.png and the CSV files")
      ->capture_default_str();
  command->add_option("--load", options->load, "share of the GPU that the service wants")
      ->check(between(0.05, 0.95))
      ->capture_default_str();
  command->add_option("--gpu", options->gpu, "auto: a real GPU if there is one; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
  command
      ->add_option(
          "--workload", options->workload,
          "auto: torch where the GPU is real and python3 has PyTorch, else samples; torch: stock PyTorch, "
          "ResNet-50 as a "
          "CUDA graph beside a training of GPT-2, torch-resnet: of ResNet-50; samples: two programs in CUDA; "
          "eager: the same service, and a trainer of some 700 short "
          "launches whose "
          "CPU is its limit; transformer: a decoder on cuBLAS, trained and served; jax: "
          "two programs in JAX, on the software GPU, where scripts/frameworks.sh jax has fetched it")
      ->check(CLI::IsMember({"auto", "samples", "eager", "transformer", "torch", "torch-resnet", "jax"}))
      ->capture_default_str();
  command
      ->add_option("--gate", options->gate,
                   "where the trainer's launches wait: on the device, or in its thread (TESSERA_GATE)")
      ->check(CLI::IsMember({"auto", "device", "thread"}))
      ->capture_default_str();
  command->callback([=] { *status = demo(*options); });
}

void add_simulate(CLI::App& app, int* status) {
  const auto options = std::make_shared<SimulateOptions>();
  auto* command =
      app.add_subcommand("simulate", "Policies on a modelled GPU in virtual time: docs/simulator.md");
  auto* scenario = command->add_option("scenario", options->scenario, "a TOML file; scenarios/ has some");
  const auto pair = std::make_shared<PairOptions>();
  auto* service = command->add_option(
      "--protected", pair->protected_file,
      "instead of a scenario: a service as a profiler recorded it (docs/plan-sharing.md)");
  auto* trainer =
      command->add_option("--best-effort", pair->best_effort_file, "the same of the program beside it");
  scenario->excludes(service)->excludes(trainer);
  service->needs(trainer);
  trainer->needs(service);
  command
      ->add_option("--rate", pair->rate,
                   "requests of the service: 20/s, 90/min (default: half of what it could answer)")
      ->needs(service);
  auto* decode = command
                     ->add_option("--decode", pair->decode_file,
                                  "the service is a language model: its step over running requests; "
                                  "--protected is then its step over prompts")
                     ->needs(service);
  command->add_option("--prefill-tokens", pair->prefill_tokens, "tokens of prompts in that step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->needs(decode);
  command->add_option("--decode-batch", pair->decode_batch, "requests in the recorded decode step")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str()
      ->needs(decode);
  command
      ->add_option("--requests", pair->requests_file,
                   "recorded requests: CSV with arrival_s, input_tokens, output_tokens; --arrivals trace")
      ->needs(decode);
  command->add_option("--arrivals", pair->arrivals, "how they come")
      ->check(CLI::IsMember({"poisson", "bursty", "gamma", "periodic", "onoff", "trace"}))
      ->capture_default_str()
      ->needs(service);
  command->add_option("--gpu", pair->gpu, "the GPU to simulate: h100, a100, ... (default: the service's)")
      ->needs(service);
  command->add_option("--cuttable", pair->cuttable, "which best-effort kernels can be cut")
      ->check(CLI::IsMember({"none", "triton", "all"}))
      ->capture_default_str()
      ->needs(service);
  command
      ->add_option("--request", pair->protected_range,
                   "requests are the ranges whose names begin so (default: ProfilerStep)")
      ->needs(service);
  command->add_option("--step", pair->best_effort_range, "the same for the steps of the program beside it")
      ->needs(service);
  command
      ->add_option("--protected-on", pair->protected_recorded_on,
                   "the GPU of that recording, if it does not say")
      ->needs(service);
  command->add_option("--best-effort-on", pair->best_effort_recorded_on, "likewise")->needs(service);
  command
      ->add_option("--seeds", options->seeds,
                   "how often, each time with other draws (default: the scenario's)")
      ->check(between(1, 1000));
  command->add_option("--first-seed", options->first_seed, "the first of them")->capture_default_str();
  command->add_option("--policy", options->policies, "only these of the scenario, or others as NAME@REGIME")
      ->delimiter(',');
  command
      ->add_option("--tune", options->tune,
                   "NAME=VALUE: another value of a constant of the policies (docs/notes/tuning.md)")
      ->type_size(1)
      ->allow_extra_args(false);
  command->add_option(
      "--contention", options->contention,
      "a JSON that tests/device/h16_contention printed: its tables in place of the scenario's");
  command
      ->add_option("--duration-ms", options->duration_ms,
                   "virtual time of each run (default: the scenario's)")
      ->check(between(1, 1'000'000'000));
  command->add_flag("--cells", options->cells, "also show every cell");
  command->add_flag("--bound", options->bound, "only what no scheduler could exceed in this model");
  command->add_option("--json", options->json, "write the results there");
  command->add_option("--csv", options->csv, "write one row per cell and seed there");
  command->add_option("--plot", options->plot, "folder for the plots (needs matplotlib)");
  command->callback([=] {
    if (pair->protected_file.empty()) {
      if (options->scenario.empty()) throw CLI::RequiredError("scenario, or --protected and --best-effort");
      *status = simulate(*options);
      return;
    }
    pair->policies = options->policies;
    pair->tune = options->tune;
    pair->contention = options->contention;
    if (options->seeds != 0) pair->seeds = options->seeds;
    pair->first_seed = options->first_seed;
    pair->duration_ms = options->duration_ms;
    pair->json = options->json;
    pair->plot = options->plot;
    *status = simulate_pair(*pair);
  });
}

void add_profile(CLI::App& app, int* status) {
  const auto options = std::make_shared<ProfileOptions>();
  auto* command = app.add_subcommand(
      "profile", "Learn what a program's kernels cost: tessera profile --gpu soft -- python train.py");
  command->add_option("--seconds", options->seconds, "end the program after this time (default: wait)")
      ->check(between(0.1, 86400.0));
  command->add_option("-o,--output", options->output, "profile file; merged into if it exists")
      ->capture_default_str();
  add_gpu(command, options->gpu);
  command->add_option("--top", options->top, "kernels printed")
      ->check(between(0, 1'000'000))
      ->capture_default_str();
  command->add_flag("--metrics", options->metrics,
                    "on a real GPU: also count bytes and operations; each kernel runs several times");
  command->add_flag(
      "--sensitivity", options->sensitivity,
      "where nothing can be counted: run it alone, beside memory work and beside arithmetic (MPS)");
  command->add_flag("--install", options->install,
                    "also put it where tesserad reads profiles; without a command: only that");
  command->add_option("command", options->command, "the program and its arguments, after --");
  command->positionals_at_end();
  command->callback([=] { *status = profile(*options); });
}

void add_calibrate(CLI::App& app, int* status) {
  const auto options = std::make_shared<CalibrateOptions>();
  auto* command = app.add_subcommand(
      "calibrate", "Measure the GPU and write a description: tessera calibrate -o mygpu.toml");
  add_gpu(command, options->gpu);
  command->add_option("-o,--output", options->output, "file to write (default: standard output)");
  command->callback([=] { *status = calibrate(*options); });
}

}  // namespace tessera::cli
