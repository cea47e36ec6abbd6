// The common part of samples that are networks: parameters, their three modes, and a check that training computes the
// host's results. Used by their main files and models. Single-threaded.
#pragma once

#include "request_loop.h"
#include "tensor.h"
#include "training_loop.h"

namespace samples {

// The parameter array on the device, `count` elements. `amplitude(fan_in)`: of the initial values.
template <class Amplitude>
float* device_parameters(const std::vector<Tensor>& all, size_t count, uint64_t seed,
                         const Amplitude& amplitude) {
  std::vector<float> host(count);
  for (const Tensor& t : all)
    if (t.fan_in > 0)
      fill(&host[t.offset], t.count, seed * 1000 + t.offset, amplitude(float(t.fan_in)));
    else
      std::fill_n(&host[t.offset], t.count, t.initial);
  float* device = device_array<float>(count);
  CUDA_CHECK(cudaMemcpy(device, host.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  return device;
}

inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

inline std::vector<double> host_copy(const float* device, size_t count) {
  std::vector<float> host(count);
  CUDA_CHECK(cudaMemcpy(host.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
  return {host.begin(), host.end()};
}

// How much the gradient of a tensor is off, as a share of its length: loss() is evaluated with the parameters moved along it, there
// and back. The slope is the length of the gradient if, and only if, that is the gradient.
template <class Loss>
double slope_error(std::vector<double>& parameters, const Tensor& tensor, const std::vector<double>& gradient,
                   const Loss& loss) {
  constexpr double kStep = 1e-4;
  const double* along = &gradient[tensor.offset];
  double length = 0;
  for (size_t i = 0; i < tensor.count; ++i) length += along[i] * along[i];
  length = std::sqrt(length);
  if (!(length > 0)) return 1;
  const std::vector<double> kept = parameters;
  const auto loss_at = [&](double distance) {
    for (size_t i = 0; i < tensor.count; ++i)
      parameters[tensor.offset + i] = kept[tensor.offset + i] + distance * along[i] / length;
    return loss();
  };
  const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
  parameters = kept;
  return std::abs(slope / length - 1);
}

// Loss and every gradient of a trainer's first step against the host, and that training learns. `loss()` is the host's, of the first
// batch and of `parameters`, which are those before that step. Gradients may be off by `room`. The exit status.
template <class Trainer, class Loss>
int verify_training(Trainer& trainer, std::vector<double>& parameters, double room, const Loss& loss) {
  auto& model = trainer.model();
  const auto loss_now = [&] {
    CUDA_CHECK(cudaStreamSynchronize(trainer.stream()));
    return host_copy(model.loss(), 1)[0];
  };
  trainer.enqueue_step(0);
  const double first_loss = loss_now(), loss_error = std::abs(first_loss - loss());
  const std::vector<double> gradient = host_copy(model.gradient(), model.layout().count);
  double worst = 0;
  for (const Tensor& tensor : model.layout().all) {
    const double error = slope_error(parameters, tensor, gradient, loss);
    if (error > room)
      std::printf("gradient of %s at %zu is off by %.3g\n", tensor.name.c_str(), tensor.offset, error);
    worst = std::max(worst, error);
  }
  constexpr int kSteps = 40;
  for (int step = 1; step < kSteps; ++step) {
    trainer.enqueue_step(step);
    loss_now();  // the slot of the step before the previous one is free
  }
  const double last_loss = loss_now();
  const bool right = worst < room && loss_error < 1e-4 && last_loss < 0.75 * first_loss;
  std::printf("loss_error=%.3g gradient_error=%.3g first_loss=%.4f last_loss=%.4f training=%s\n", loss_error,
              worst, first_loss, last_loss, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

// Sizes of a mode on a device of a few modelled multiprocessors and on a real one.
template <class Shape>
struct Preset {
  const char* mode;
  Shape soft, gpu;
};

template <class Shape>
struct Size {
  using Member = int Shape::*;
  const char* name;  // as an option
  Member value;
  const char* help;
};

template <class Shape>
struct Network {
  const char* purpose;
  const char* seeded;  // what a trainer's --seed is of
  std::vector<Preset<Shape>> presets;
  std::vector<Size<Shape>> sizes;
  void (*check)(const Shape& shape);                          // ends the program if sizes do not go together
  int (*verify_training)(const Shape& shape, uint64_t seed);  // the exit status
};

template <class Shape>
Shape shape_of(const Network<Shape>& network, const std::string& mode, const std::string& preset,
               const std::vector<int64_t>& given) {
  for (const Preset<Shape>& row : network.presets) {
    if (mode != row.mode) continue;
    Shape shape = wants_gpu_sizes(preset) ? row.gpu : row.soft;
    for (size_t i = 0; i < given.size(); ++i)
      if (given[i] != 0)
        positive(network.sizes[i].name, double(given[i])), shape.*network.sizes[i].value = int(given[i]);
    network.check(shape);
    return shape;
  }
  fail("the first word is one of train, serve, verify, not", mode.c_str());
  return {};
}

template <class Shape>
std::string told(const Network<Shape>& network, const Shape& shape) {
  std::string out;
  for (const Size<Shape>& size : network.sizes)
    if (shape.*size.value != 0)
      out += (out.empty() ? "" : " ") + std::string(size.name + 2) + "=" + std::to_string(shape.*size.value);
  return out;
}

// `PROGRAM train|serve|verify OPTIONS`. A Trainer and a Service are made of a shape and a seed, and are what training_loop.h and
// request_loop.h want.
template <class Trainer, class Service, class Shape>
int run(const Network<Shape>& network, int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  TrainingOptions training;
  ServiceOptions service;
  std::vector<int64_t> given(network.sizes.size());
  std::string preset = "auto";
  std::vector<Option> options = mode == "train" ? training_options(training) : service_options(service);
  if (mode == "train") options.push_back({"--seed", &service.seed, network.seeded});
  for (size_t i = 0; i < given.size(); ++i)
    options.push_back({network.sizes[i].name, &given[i], network.sizes[i].help});
  options.push_back({"--preset", &preset, "sizes: auto, soft or gpu"});
  if (mode.rfind("--", 0) == 0 || mode.empty()) {
    parse_options(argc, argv, ("First word: train, serve or verify. " + std::string(network.purpose)).c_str(),
                  options);
    fail("the first word is one of", "train, serve, verify");
  }
  parse_options(argc - 1, argv + 1, network.purpose, options);
  const Shape shape = shape_of(network, mode, preset, given);
  const uint64_t seed = uint64_t(service.seed);
  const std::string sizes = told(network, shape);
  if (mode == "train") {
    Trainer trainer(shape, seed);
    return train(trainer, training, sizes.c_str());
  }
  service.verify |= mode == "verify";
  Service server(shape, seed);
  const int status = serve(server, service, sizes.c_str());
  return mode == "verify" && status == 0 ? network.verify_training(shape, seed) : status;
}

}  // namespace samples
