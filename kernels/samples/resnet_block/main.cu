// A residual block on cuDNN: `resnet_block train` repeats training steps (forward, backward, momentum), `resnet_block serve` answers
// requests that arrive at random (logarithms of the classes' probabilities), `resnet_block verify` compares both with the host. An
// ordinary CUDA program, linked with libcudnn.so.9.
#include "../gradient_check.h"
#include "../request_loop.h"
#include "../training_loop.h"
#include "model.cuh"
#include "reference.h"

namespace {

using namespace samples;
using namespace samples::resnet;

// Images that can be told apart: a pattern of their class, and noise.
class Images {
 public:
  Images(const Shape& shape, uint64_t seed) : shape_(shape), seed_(seed) {}
  // Batch number `index`, and its classes.
  void write(int64_t index, float* image, int* target) const {
    Random random{seed_ * 1000003 + uint64_t(index)};
    for (int b = 0; b < shape_.batch; ++b) {
      target[b] = int(random.next() % uint64_t(shape_.classes));
      Random pattern{seed_ * 7919 + uint64_t(target[b])};
      float* out = image + size_t(b) * shape_.image();
      for (size_t i = 0; i < shape_.image(); ++i) out[i] = pattern.symmetric() + 0.5f * random.symmetric();
    }
  }

 private:
  Shape shape_;
  uint64_t seed_;
};

struct Batch {  // pinned
  float* image = nullptr;
  int* target = nullptr;
};
Batch make_batch(const Shape& shape) {
  Batch batch;
  CUDA_CHECK(cudaMallocHost(&batch.image, shape.images() * sizeof(float)));
  CUDA_CHECK(cudaMallocHost(&batch.target, size_t(shape.batch) * sizeof(int)));
  return batch;
}

class Trainer {
 public:
  Trainer(const Shape& shape, uint64_t seed) : model_(shape, seed, true), images_(shape, seed) {
    for (Batch& slot : slots_) slot = make_batch(shape);
  }
  cudaStream_t stream() const { return model_.stream(); }
  // The loop waits for the step that had this slot.
  void enqueue_step(int64_t step) {
    const Batch& slot = slots_[step % kStepsAhead];
    images_.write(step, slot.image, slot.target);
    model_.set_images(slot.image);
    model_.set_targets(slot.target);
    model_.differentiate();
    model_.update();
  }
  void add_state(Checksum& sum) const {
    add_floats(sum, model_.parameters(), model_.layout().count, stream());
    add_floats(sum, model_.loss(), 1, stream());
  }
  Model& model() { return model_; }
  const Batch& batch(int64_t step) const { return slots_[step % kStepsAhead]; }

 private:
  Model model_;
  Images images_;
  Batch slots_[kStepsAhead];
};

Values host_copy(const float* device, size_t count) {
  std::vector<float> host(count);
  CUDA_CHECK(cudaMemcpy(host.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
  return {host.begin(), host.end()};
}

class Service {
 public:
  Service(const Shape& shape, uint64_t seed)
      : model_(shape, seed, false), images_(shape, seed), batch_(make_batch(shape)) {
    CUDA_CHECK(cudaMallocHost(&output_, output_bytes()));
  }
  void prepare(int64_t request) { images_.write(request, batch_.image, batch_.target); }
  void run() {
    model_.set_images(batch_.image);
    model_.forward();
    CUDA_CHECK(cudaMemcpyAsync(output_, model_.logarithms(), output_bytes(), cudaMemcpyDeviceToHost,
                               model_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));
  }
  const float* output() const { return output_; }
  size_t output_bytes() const { return model_.shape().scores() * sizeof(float); }
  double largest_error() const {
    const Shape& s = model_.shape();
    const Reference reference(s, host_copy(model_.parameters(), model_.layout().count));
    const Values wanted = reference.logarithms({batch_.image, batch_.image + s.images()}, false);
    double worst = 0;
    for (size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::abs(wanted[i] - output_[i]));
    return worst;
  }

 private:
  Model model_;
  Images images_;
  Batch batch_;
  float* output_ = nullptr;
};

// Loss and every gradient of one step against the host, and that training learns. 0: right.
int verify_training(const Shape& shape, uint64_t seed) {
  Trainer trainer(shape, seed);
  Model& model = trainer.model();
  const auto loss_now = [&] {
    CUDA_CHECK(cudaStreamSynchronize(trainer.stream()));
    return host_copy(model.loss(), 1)[0];
  };
  Reference reference(shape, host_copy(model.parameters(), model.layout().count));
  trainer.enqueue_step(0);
  const double first_loss = loss_now();
  const Values image(trainer.batch(0).image, trainer.batch(0).image + shape.images());
  const std::vector<int> target(trainer.batch(0).target, trainer.batch(0).target + shape.batch);
  const double loss_error = std::abs(first_loss - reference.loss(image, target));
  std::vector<float> gradient(model.layout().count);
  CUDA_CHECK(
      cudaMemcpy(gradient.data(), model.gradient(), gradient.size() * sizeof(float), cudaMemcpyDeviceToHost));
  double worst = 0;
  for (const Tensor& t : model.layout().all) {
    const double error = slope_error(reference.parameters, t.offset, t.count, &gradient[t.offset],
                                     [&] { return reference.loss(image, target); });
    if (error > 1e-2) std::printf("gradient of %s is off by %.3g\n", t.name.c_str(), error);
    worst = std::max(worst, error);
  }
  constexpr int kSteps = 40;
  for (int step = 1; step < kSteps; ++step) {
    trainer.enqueue_step(step);
    loss_now();  // the slot of the step before the previous one is free
  }
  const double last_loss = loss_now();
  const bool right = worst < 1e-2 && loss_error < 1e-4 && last_loss < 0.75 * first_loss;
  std::printf("loss_error=%.3g gradient_error=%.3g first_loss=%.4f last_loss=%.4f training=%s\n", loss_error,
              worst, first_loss, last_loss, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

struct Options {
  TrainingOptions training;
  ServiceOptions service;
  int64_t batch = 0, channels = 0, size = 0, classes = 0;
  std::string preset = "auto";
};

// Sizes of a mode on a device of a few modelled multiprocessors and on a real one.
struct Preset {
  const char* mode;
  Shape soft, gpu;
};
constexpr Preset kPresets[] = {
    {"train", {8, 8, 12, 10}, {64, 64, 56, 100}},
    {"serve", {2, 8, 12, 10}, {8, 64, 56, 100}},
    {"verify", {3, 4, 7, 5}, {3, 4, 7, 5}},
};

Shape shape_of(const std::string& mode, const Options& o) {
  for (const Preset& preset : kPresets) {
    if (mode != preset.mode) continue;
    Shape s = wants_gpu_sizes(o.preset) ? preset.gpu : preset.soft;
    const auto take = [](const char* name, int64_t given, int& value) {
      if (given != 0) positive(name, double(given)), value = int(given);
    };
    take("--batch", o.batch, s.batch), take("--channels", o.channels, s.channels);
    take("--size", o.size, s.size), take("--classes", o.classes, s.classes);
    return s;
  }
  fail("the first word is one of train, serve, verify, not", mode.c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  Options o;
  std::vector<Option> options;
  if (mode == "train") {
    options = training_options(o.training);
    options.push_back({"--seed", Option::kInt, &o.service.seed, "of weights and images (default 1)"});
  } else {
    options = service_options(o.service);
  }
  options.insert(options.end(), {{"--batch", Option::kInt, &o.batch, "images computed together"},
                                 {"--channels", Option::kInt, &o.channels, "of an image and of the block"},
                                 {"--size", Option::kInt, &o.size, "height and width of an image"},
                                 {"--classes", Option::kInt, &o.classes, "that are told apart"},
                                 {"--preset", Option::kText, &o.preset, "sizes: auto, soft or gpu"}});
  if (mode.rfind("--", 0) == 0 || mode.empty()) {
    parse_options(argc, argv, "First word: train, serve or verify. A residual block on cuDNN.", options);
    fail("the first word is one of", "train, serve, verify");
  }
  parse_options(argc - 1, argv + 1, "A residual block on cuDNN.", options);
  const Shape s = shape_of(mode, o);
  const uint64_t seed = uint64_t(o.service.seed);
  char sizes[120];
  std::snprintf(sizes, sizeof sizes, "batch=%d channels=%d size=%d classes=%d", s.batch, s.channels, s.size,
                s.classes);
  if (mode == "train") {
    Trainer trainer(s, seed);
    return train(trainer, o.training, sizes);
  }
  o.service.verify |= mode == "verify";
  Service service(s, seed);
  const int status = serve(service, o.service, sizes);
  return mode == "verify" && status == 0 ? verify_training(s, seed) : status;
}
