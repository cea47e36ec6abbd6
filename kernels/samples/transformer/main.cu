// A small decoder on cuBLAS and cuBLASLt: `transformer train` repeats training steps (forward, backward, Adam), `transformer serve`
// answers requests that arrive at random (the probabilities of the next token), `transformer verify` compares both with the host.
// An ordinary CUDA program, linked with libcublas.so.13 and libcublasLt.so.13.
#include "../gradient_check.h"
#include "../request_loop.h"
#include "../training_loop.h"
#include "model.cuh"
#include "reference.h"

namespace {

using namespace samples;
using namespace samples::transformer;

// Tokens that can be learnt: each follows from the one before it by a rule, from a start of its own in each sequence.
class Text {
 public:
  Text(const Shape& shape, uint64_t seed) : shape_(shape), seed_(seed) {}
  // Sequences of number `index`, and the tokens that follow.
  void write(int64_t index, int* token, int* target) const {
    Random random{seed_ * 1000003 + uint64_t(index)};
    for (int b = 0; b < shape_.batch; ++b) {
      uint64_t next = random.next() % uint64_t(shape_.vocabulary);
      for (int t = 0; t < shape_.length; ++t) {
        token[b * shape_.length + t] = int(next);
        next = (next * 5 + 3) % uint64_t(shape_.vocabulary);
        target[b * shape_.length + t] = int(next);
      }
    }
  }

 private:
  Shape shape_;
  uint64_t seed_;
};

int* pinned_tokens(const Shape& shape) {
  int* tokens = nullptr;
  CUDA_CHECK(cudaMallocHost(&tokens, size_t(shape.tokens()) * sizeof(int)));
  return tokens;
}

class Trainer {
 public:
  Trainer(const Shape& shape, uint64_t seed) : model_(shape, seed, true), text_(shape, seed) {
    for (Slot& slot : slots_) slot = {pinned_tokens(shape), pinned_tokens(shape)};
  }
  cudaStream_t stream() const { return model_.stream(); }
  // The loop waits for the step that had this slot.
  void enqueue_step(int64_t step) {
    const Slot& slot = slots_[step % kStepsAhead];
    text_.write(step, slot.token, slot.target);
    model_.set_tokens(slot.token);
    model_.set_targets(slot.target);
    model_.differentiate();
    model_.update(step);
  }
  void add_state(Checksum& sum) const {
    add_floats(sum, model_.parameters(), model_.layout().count, stream());
    add_floats(sum, model_.loss(), 1, stream());
  }
  Model& model() { return model_; }
  const Text& text() const { return text_; }

 private:
  struct Slot {
    int *token, *target;
  };
  Model model_;
  Text text_;
  Slot slots_[kStepsAhead];
};

class Service {
 public:
  Service(const Shape& shape, uint64_t seed)
      : model_(shape, seed, false),
        text_(shape, seed),
        token_(pinned_tokens(shape)),
        unused_(pinned_tokens(shape)) {
    device_output_ = device_array<float>(output_count());
    CUDA_CHECK(cudaMallocHost(&output_, output_bytes()));
  }
  void prepare(int64_t request) { text_.write(request, token_, unused_); }
  void run() {
    model_.set_tokens(token_);
    model_.predict(device_output_);
    CUDA_CHECK(
        cudaMemcpyAsync(output_, device_output_, output_bytes(), cudaMemcpyDeviceToHost, model_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));
  }
  const float* output() const { return output_; }
  size_t output_bytes() const { return output_count() * sizeof(float); }
  double largest_error() const;

 private:
  size_t output_count() const { return size_t(model_.shape().batch) * size_t(model_.shape().vocabulary); }
  Model model_;
  Text text_;
  int *token_, *unused_;
  float *device_output_ = nullptr, *output_ = nullptr;
};

Reference reference_of(const Model& model) {
  std::vector<float> host(model.layout().count);
  CUDA_CHECK(
      cudaMemcpy(host.data(), model.parameters(), host.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return {model.shape(), Values(host.begin(), host.end())};
}

double Service::largest_error() const {
  const Shape& s = model_.shape();
  Values logits = reference_of(model_).logits({token_, token_ + s.tokens()});
  double worst = 0;
  for (int b = 0; b < s.batch; ++b) {
    double* row = &logits[size_t(((b + 1) * s.length - 1) * s.vocabulary)];
    Reference::softmax(row, s.vocabulary);
    for (int c = 0; c < s.vocabulary; ++c)
      worst = std::max(worst, std::abs(row[c] - output_[b * s.vocabulary + c]));
  }
  return worst;
}

// Loss and every gradient of one step against the host, and that training learns. 0: right.
int verify_training(const Shape& shape, uint64_t seed) {
  Trainer trainer(shape, seed);
  std::vector<int> token(size_t(shape.tokens())), target(token.size());
  trainer.text().write(0, token.data(), target.data());
  Reference reference = reference_of(trainer.model());
  const double loss_wanted = reference.loss(token, target);
  const auto loss_now = [&] {
    float loss = 0;
    CUDA_CHECK(cudaStreamSynchronize(trainer.stream()));
    CUDA_CHECK(cudaMemcpy(&loss, trainer.model().loss(), sizeof loss, cudaMemcpyDeviceToHost));
    return double(loss);
  };
  trainer.enqueue_step(0);
  const double first_loss = loss_now();
  std::vector<float> gradient(trainer.model().layout().count);
  CUDA_CHECK(cudaMemcpy(gradient.data(), trainer.model().gradient(), gradient.size() * sizeof(float),
                        cudaMemcpyDeviceToHost));
  double worst = 0;
  for (const Tensor& tensor : reference.layout().all) {
    const double error = slope_error(reference.parameters, tensor.offset, tensor.count,
                                     &gradient[tensor.offset], [&] { return reference.loss(token, target); });
    if (error > 1e-3)
      std::printf("gradient of %s at %zu is off by %.3g\n", tensor.name.c_str(), tensor.offset, error);
    worst = std::max(worst, error);
  }
  constexpr int kSteps = 40;
  for (int step = 1; step < kSteps; ++step) {
    trainer.enqueue_step(step);
    loss_now();  // the slot of the step before the previous one is free
  }
  const double last_loss = loss_now(), loss_error = std::abs(first_loss - loss_wanted);
  const bool right = worst < 1e-3 && loss_error < 1e-4 && last_loss < 0.75 * first_loss;
  std::printf("loss_error=%.3g gradient_error=%.3g first_loss=%.4f last_loss=%.4f training=%s\n", loss_error,
              worst, first_loss, last_loss, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

struct Options {
  TrainingOptions training;
  ServiceOptions service;
  int64_t batch = 0, length = 0, width = 0, heads = 0, hidden = 0, layers = 0, vocabulary = 0;
  std::string preset = "auto";
};

// Sizes of a mode on a device of a few modelled multiprocessors and on a real one.
struct Preset {
  const char* mode;
  Shape soft, gpu;
};
constexpr Preset kPresets[] = {
    {"train", {8, 32, 32, 2, 64, 1, 64}, {16, 256, 512, 8, 2048, 6, 4096}},
    {"serve", {2, 16, 32, 2, 64, 1, 64}, {8, 128, 512, 8, 2048, 6, 4096}},
    {"verify", {2, 8, 12, 3, 20, 2, 18}, {2, 8, 12, 3, 20, 2, 18}},
};

Shape shape_of(const std::string& mode, const Options& o) {
  for (const Preset& preset : kPresets) {
    if (mode != preset.mode) continue;
    Shape s = wants_gpu_sizes(o.preset) ? preset.gpu : preset.soft;
    const auto take = [](const char* name, int64_t given, int& value) {
      if (given != 0) positive(name, double(given)), value = int(given);
    };
    take("--batch", o.batch, s.batch), take("--length", o.length, s.length),
        take("--width", o.width, s.width);
    take("--heads", o.heads, s.heads), take("--hidden", o.hidden, s.hidden),
        take("--layers", o.layers, s.layers);
    take("--vocabulary", o.vocabulary, s.vocabulary);
    if (s.width % s.heads != 0) fail("--width", "is no multiple of --heads");
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
    options.push_back({"--seed", Option::kInt, &o.service.seed, "of weights and text (default 1)"});
  } else {
    options = service_options(o.service);
  }
  options.insert(options.end(), {{"--batch", Option::kInt, &o.batch, "sequences computed together"},
                                 {"--length", Option::kInt, &o.length, "tokens of a sequence"},
                                 {"--width", Option::kInt, &o.width, "of a token's vector"},
                                 {"--heads", Option::kInt, &o.heads, "of attention"},
                                 {"--hidden", Option::kInt, &o.hidden, "width of the feed-forward part"},
                                 {"--layers", Option::kInt, &o.layers, "of the decoder"},
                                 {"--vocabulary", Option::kInt, &o.vocabulary, "different tokens"},
                                 {"--preset", Option::kText, &o.preset, "sizes: auto, soft or gpu"}});
  if (mode.rfind("--", 0) == 0 || mode.empty()) {
    parse_options(argc, argv, "First word: train, serve or verify. A small decoder on cuBLAS.", options);
    fail("the first word is one of", "train, serve, verify");
  }
  parse_options(argc - 1, argv + 1, "A small decoder on cuBLAS.", options);
  const Shape s = shape_of(mode, o);
  const uint64_t seed = uint64_t(o.service.seed);
  char sizes[160];
  std::snprintf(sizes, sizeof sizes, "batch=%d length=%d width=%d heads=%d hidden=%d layers=%d vocabulary=%d",
                s.batch, s.length, s.width, s.heads, s.hidden, s.layers, s.vocabulary);
  if (mode == "train") {
    Trainer trainer(s, seed);
    return train(trainer, o.training, sizes);
  }
  o.service.verify |= mode == "verify";
  Service service(s, seed);
  const int status = serve(service, o.service, sizes);
  return mode == "verify" && status == 0 ? verify_training(s, seed) : status;
}
